package launcher

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/profiles"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// profiledRun returns a run of ranks ranks that have ended, of a job with profiles of these kinds.
func profiledRun(ranks int, kinds ...string) *run {
	s := &session{job: &job.Job{Profile: kinds, Apps: []job.App{{Program: "./app"}}}, host: "here"}
	r := newRun(s, "id")
	r.hosts = []host{{state: hostUp}, {state: hostUp}}
	r.hosts[0].Name, r.hosts[1].Name = "node1", "node2"
	for i := range ranks {
		r.ranks = append(r.ranks, rank{pid: i + 1, host: i % 2, exit: &proto.Exit{Rank: i}})
	}
	return r
}

// TestLostLines checks the lines about ranks without a profile.
func TestLostLines(t *testing.T) {
	kinds := []string{"cpu", "heap", "block"}
	require.Empty(t, lostLines(kinds, nil))
	all := func(ranks ...int) map[string][]int {
		return map[string][]int{"cpu": ranks, "heap": ranks, "block": ranks}
	}
	require.Equal(t, []string{
		"no cpu profile of rank 2: it profiles itself",
		"no profile of rank 3: it was killed",
		"no cpu, block profile of ranks 0-1: lost",
		"no heap profile of rank 0: lost",
		"no profile of ranks 0-2, 5 of group 1: lost",
	}, lostLines(kinds, map[lostProfiles]map[string][]int{
		{1, "lost"}:                all(0, 1, 2, 5),
		{0, "it was killed"}:       all(3),
		{0, "it profiles itself"}:  {"cpu": {2}},
		{0, "lost"}:                {"cpu": {0, 1}, "block": {0, 1}, "heap": {0}},
		{2, "no rank of any kind"}: {},
	}))
}

// TestAddProfile gives the merger what ranks may have written: whole profiles, cut ones, none, and bytes
// that are none. It checks the reasons for the ranks without a profile.
func TestAddProfile(t *testing.T) {
	var b bytes.Buffer
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}}, Sample: []*profile.Sample{{Value: []int64{3}}}}
	require.NoError(t, p.Write(&b))
	begun := wire.AppendProfile(nil, wire.ProfileBegun, nil)
	whole := wire.AppendProfile(begun, wire.ProfileData, b.Bytes())
	killed := proto.Exit{Signal: int(syscall.SIGKILL)}
	for name, test := range map[string]struct {
		data   []byte
		exit   proto.Exit
		reason string
		values int // number of samples that the merged profile gets
	}{
		"whole":            {whole, proto.Exit{}, "", 1},
		"two programs":     {append(bytes.Clone(whole), whole...), proto.Exit{}, "", 2},
		"second is killed": {append(bytes.Clone(whole), begun...), killed, "it was killed by signal 9 (SIGKILL)", 1},
		"killed":           {begun, killed, "it was killed by signal 9 (SIGKILL)", 0},
		"ended by gorun":   {begun, proto.Exit{Signal: int(syscall.SIGTERM), AfterEnd: true}, "gorun ended it", 0},
		"cut":              {whole[:len(whole)-1], killed, "it was killed by signal 9 (SIGKILL)", 0},
		"no Finalize":      {begun, proto.Exit{Code: 1}, "it ended without Finalize", 0},
		"no Init":          {nil, proto.Exit{}, "./app is not a weft program, or has not called comm.Init", 0},
		"killed early":     {nil, killed, "it was killed by signal 9 (SIGKILL)", 0},
		"failed":           {wire.AppendProfile(begun, wire.ProfileFailed, []byte("no\x1b[0m\nspace")), proto.Exit{}, "no?[0m space", 0},
		"no frames":        {[]byte("This is no profile at all."), proto.Exit{}, "what it has written is not a profile", 0},
		"no profile":       {wire.AppendProfile(begun, wire.ProfileData, []byte("nonsense")), proto.Exit{}, "what it has written is not a profile: ", 0},
		"endless":          {bytes.Repeat(begun, maxFrames+1), proto.Exit{}, "it has written more than 32768 profiles", 0},
	} {
		r := profiledRun(2, "cpu")
		r.ranks[1].exit = &test.exit
		var out bytes.Buffer
		w := profiles.NewWriter(&out)
		require.NoError(t, w.Add(b.Bytes(), nil)) // of another rank
		reason, err := addProfile(w, &r.rankInfos(false)[1], bytes.NewReader(test.data))
		require.NoError(t, err, name)
		if prefix, ok := strings.CutSuffix(test.reason, ": "); ok {
			require.Contains(t, reason, prefix, name)
		} else {
			require.Equal(t, test.reason, reason, name)
		}
		require.NoError(t, w.Close())
		merged, err := profile.Parse(&out)
		require.NoError(t, err, name)
		require.Len(t, merged.Sample, 1+test.values, name)
		for _, s := range merged.Sample[1:] {
			require.Equal(t, []int64{1}, s.NumLabel["rank"], name)
			require.Equal(t, []string{"node2"}, s.Label["host"], name)
		}
	}
}

// TestProfileLabels: samples must have a label for the program only if there are several.
func TestProfileLabels(t *testing.T) {
	r := profiledRun(3, "cpu")
	require.Equal(t, []profiles.Label{{Key: "rank", Value: "2"}, {Key: "host", Value: "node1"}}, r.rankInfos(false)[2].profileLabels())
	r.job.Apps = append(r.job.Apps, job.App{Program: "/bin/other"})
	r.ranks[1].app = 1
	require.Equal(t, []profiles.Label{{Key: "rank", Value: "1"}, {Key: "host", Value: "node2"}, {Key: "app", Value: "other"}}, r.rankInfos(false)[1].profileLabels())
}

// FuzzAddProfile adds arbitrary bytes as what a rank has written. They must be a profile, or there must be a
// reason why they are none, and the profile of another rank must stay.
func FuzzAddProfile(f *testing.F) {
	var b bytes.Buffer
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}}, Sample: []*profile.Sample{{Value: []int64{3}}}}
	require.NoError(f, p.Write(&b))
	f.Add(wire.AppendProfile(wire.AppendProfile(nil, wire.ProfileBegun, nil), wire.ProfileData, b.Bytes()))
	f.Add(wire.AppendProfile(nil, wire.ProfileFailed, []byte("no")))
	f.Add([]byte("text"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		w := profiles.NewWriter(&out)
		require.NoError(t, w.Add(b.Bytes(), []profiles.Label{{Key: "rank", Value: "0"}}))
		reason, err := addProfile(w, &profiledRun(2, "cpu").rankInfos(false)[1], bytes.NewReader(data))
		require.NoError(t, err)
		require.Equal(t, proto.OneLine(reason, 10*maxReason), reason)
		require.NoError(t, w.Close())
		merged, err := profile.Parse(&out)
		require.NoError(t, err)
		require.Equal(t, []int64{0}, merged.Sample[0].NumLabel["rank"])
	})
}

// TestCollectingIsEnded: if the hosts do not answer and gorun must end, collectProfiles must return the cause,
// and leave no file. The job's timeout must give its exit code.
func TestCollectingIsEnded(t *testing.T) {
	for name, test := range map[string]struct {
		change func(r *run)
		says   string
		code   int
	}{
		"signal":  {func(*run) {}, "the profiles are lost: a signal", proto.ExitFailed},
		"timeout": {func(r *run) { r.deadline, r.job.Timeout = time.Now().Add(-time.Second), time.Minute }, "the profiles are lost: the job ran longer than its timeout of 1m0s", proto.ExitTimeout},
	} {
		r := profiledRun(3, "cpu", "heap")
		r.profileDir, r.watchdog = t.TempDir(), &procs.Watchdog{}
		ctx, cancel := context.WithCancelCause(t.Context())
		r.files = newFetcher(func(proto.Message) { cancel(errors.New("a signal")) })
		if name == "timeout" {
			r.files = newFetcher(func(proto.Message) {})
		}
		test.change(r)
		err := r.collectProfiles(ctx)
		require.EqualError(t, err, test.says)
		require.Equal(t, test.code, codeOf(err))
		left, err := os.ReadDir(r.profileDir)
		require.NoError(t, err)
		require.Empty(t, left)
		require.Empty(t, r.files.open)
		cancel(nil)
	}
}
