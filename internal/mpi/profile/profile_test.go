package profile

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/wire"
)

// files returns an empty file for each kind, and a function that returns the frames in one of them.
func files(t *testing.T, kinds ...string) (map[string]*os.File, func(kind string) []frame) {
	dir := t.TempDir()
	list := make(map[string]*os.File)
	for _, k := range kinds {
		f, err := os.Create(filepath.Join(dir, k))
		require.NoError(t, err)
		list[k] = f
	}
	return list, func(kind string) (frames []frame) {
		text, err := os.ReadFile(filepath.Join(dir, kind))
		require.NoError(t, err)
		for r := bytes.NewReader(text); ; {
			k, body, err := wire.ReadProfile(r)
			if err != nil {
				require.Equal(t, io.EOF, err)
				return frames
			}
			frames = append(frames, frame{k, string(body)})
		}
	}
}

type frame struct {
	kind byte
	body string
}

// kindsOf returns the kinds of frames.
func kindsOf(frames []frame) (kinds []byte) {
	for _, f := range frames {
		kinds = append(kinds, f.kind)
	}
	return kinds
}

// TestProfiles makes profiles of all kinds, twice with a pause between, as sessions do. The CPU profile
// has a part before and one after the pause. The others count from the beginning of the process, so
// only the last of them must be in the file. Files of other names must stay in the map.
func TestProfiles(t *testing.T) {
	defer runtime.SetMutexProfileFraction(0)
	defer runtime.SetBlockProfileRate(0)
	list, frames := files(t, append([]string{"other"}, wire.ProfileKinds...)...)
	p := Start(list)
	require.Len(t, list, 1)
	defer list["other"].Close()
	for _, k := range wire.ProfileKinds {
		require.Equal(t, []byte{wire.ProfileBegun}, kindsOf(frames(k)), k)
	}
	require.Equal(t, mutexFraction, runtime.SetMutexProfileFraction(-1))
	p.Stop()
	p.Stop()
	p.Resume()
	p.Close()
	p.Close()
	p.Resume()
	for _, k := range wire.ProfileKinds {
		want := []byte{wire.ProfileBegun, wire.ProfileData}
		if k == "cpu" {
			want = append(want, want...)
		}
		got := frames(k)
		require.Equal(t, want, kindsOf(got), k)
		_, err := gzip.NewReader(bytes.NewReader([]byte(got[len(got)-1].body)))
		require.NoError(t, err, k)
	}
	require.NoError(t, pprof.StartCPUProfile(io.Discard)) // none is left running
	pprof.StopCPUProfile()
}

// TestLaterProcess: a process must keep the frames of an earlier process of the rank.
func TestLaterProcess(t *testing.T) {
	list, frames := files(t, "heap")
	before := wire.AppendProfile(wire.AppendProfile(nil, wire.ProfileBegun, nil), wire.ProfileData, []byte("before"))
	_, err := list["heap"].Write(before)
	require.NoError(t, err)
	p := Start(list)
	p.Stop()
	p.Resume()
	p.Close()
	got := frames("heap")
	require.Equal(t, []byte{wire.ProfileBegun, wire.ProfileData, wire.ProfileBegun, wire.ProfileData}, kindsOf(got))
	require.Equal(t, "before", got[1].body)
}

// TestOwnProfile: if the program profiles itself, its profile must continue, and the file must say why
// there is none.
func TestOwnProfile(t *testing.T) {
	var own bytes.Buffer
	require.NoError(t, pprof.StartCPUProfile(&own))
	list, frames := files(t, "cpu")
	Start(list).Close()
	got := frames("cpu")
	require.Equal(t, []byte{wire.ProfileBegun, wire.ProfileFailed}, kindsOf(got))
	require.Contains(t, got[1].body, "its program makes a CPU profile itself: ")
	require.Error(t, pprof.StartCPUProfile(io.Discard), "the profile of the program was ended")
	pprof.StopCPUProfile()
	require.NotZero(t, own.Len())
}

// TestNone: without files there must be no Profiler, and its methods must do nothing.
func TestNone(t *testing.T) {
	p := Start(nil)
	require.Nil(t, p)
	p.Stop()
	p.Resume()
	p.Close()
}

// TestTake makes single profiles. While a CPU profile is made, there can be no other one. The end of stop ends it.
func TestTake(t *testing.T) {
	take := func(name string, d time.Duration, stop chan struct{}) (kind byte, body string) {
		frames := bytes.NewReader(Take(name, d, stop))
		kind, _, err := wire.ReadProfile(frames)
		require.NoError(t, err)
		require.EqualValues(t, wire.ProfileBegun, kind)
		kind, text, err := wire.ReadProfile(frames)
		require.NoError(t, err)
		require.Zero(t, frames.Len())
		return kind, string(text)
	}
	for _, name := range wire.ProfileKinds {
		kind, body := take(name, time.Millisecond, nil)
		require.EqualValues(t, wire.ProfileData, kind)
		r, err := gzip.NewReader(strings.NewReader(body))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, r)
		require.NoError(t, err)
	}
	require.NoError(t, pprof.StartCPUProfile(io.Discard))
	kind, body := take("cpu", time.Hour, nil)
	pprof.StopCPUProfile()
	require.EqualValues(t, wire.ProfileFailed, kind)
	require.Equal(t, "its program, or gorun -profile, makes a CPU profile: cpu profiling already in use", body)
	stop := make(chan struct{})
	close(stop)
	kind, _ = take("cpu", time.Hour, stop)
	require.EqualValues(t, wire.ProfileData, kind)
}
