package bootstrap

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
)

// spawnSteps returns the steps of a launcher that gets the request s and answers it with reply.
func spawnSteps(t *testing.T, reply string, s wire.Spawn) (steps []step) {
	t.Helper()
	text, err := s.Append(nil)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for _, l := range lines {
		steps = append(steps, step{l, "-"}) // the script goes on without a reply
	}
	steps[len(steps)-1].reply = reply
	return steps
}

// spawnWorld returns the World of a rank whose launcher follows a script. After the reply "-" the
// launcher waits for the next line.
func spawnWorld(t *testing.T, gorun bool, steps ...step) (*World, <-chan error) {
	t.Helper()
	pair, err := sys.Socketpair()
	require.NoError(t, err)
	f := os.NewFile(uintptr(pair[0]), "launcher")
	done := play(silent{f}, steps)
	conn := &lineConn{fd: pair[1]}
	t.Cleanup(func() {
		conn.close()
		_ = f.Close()
	})
	return &World{Launcher: "pmi", KVS: &pmiClient{conn: conn, name: "K", gorun: gorun}}, done
}

// silent is a stream to which the reply "-" is not written.
type silent struct{ io.ReadWriteCloser }

func (s silent) Write(p []byte) (int, error) {
	if string(p) == "-\n" {
		return len(p), nil
	}
	return s.ReadWriteCloser.Write(p)
}

func TestSpawn(t *testing.T) {
	commands := []Command{
		{Path: "./a", Args: []string{"two words"}, Procs: 2, Dir: "/d", Soft: "1:2", Env: []string{"A=b c"}, Info: map[string]string{"host": "x", "arch": "y"}},
		{Path: "b", Procs: 1},
	}
	want := wire.Spawn{
		Commands: []wire.SpawnCommand{
			{Exec: "./a", Args: []string{"two words"}, Procs: 2, Info: []wire.PMIField{
				{Key: "wdir", Value: "/d"}, {Key: "soft", Value: "1:2"}, {Key: InfoEnv, Value: "A%3Db+c"}, {Key: "arch", Value: "y"}, {Key: "host", Value: "x"},
			}},
			{Exec: "b", Procs: 1},
		},
		Preput: []wire.PMIField{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}},
	}
	for reply, expect := range map[string]struct {
		codes []int
		says  string
		is    error
	}{
		"cmd=spawn_result rc=0":                                            {[]int{0, 0, 0}, "", nil},
		"cmd=spawn_result rc=0 errcodes=0,1,0":                             {[]int{0, 1, 0}, "", nil},
		"cmd=spawn_result rc=0 errcodes=0,1":                               {nil, "reports on 2 processes instead of 3", ErrSpawn},
		"cmd=spawn_result rc=0 errcodes=0,1,x":                             {nil, "errcodes=0,1,x", ErrSpawn},
		"cmd=spawn_result rc=-1 msg=spawn_failed reason=b%3A+no+such+file": {nil, "spawn: b: no such file", ErrSpawn},
		"cmd=spawn_result rc=-1 msg=no_room":                               {nil, "the launcher refused it: rc=-1 no_room", ErrSpawn},
		"cmd=barrier_out":                                                  {nil, `answered "barrier_out"`, nil},
	} {
		w, done := spawnWorld(t, true, spawnSteps(t, reply, want)...)
		codes, err := w.Spawn(t.Context(), commands, map[string]string{"b": "2", "a": "1"})
		require.NoError(t, <-done, reply)
		require.Equal(t, expect.codes, codes, reply)
		if expect.says == "" {
			require.NoError(t, err, reply)
			continue
		}
		require.ErrorContains(t, err, expect.says, reply)
		if expect.is != nil {
			require.ErrorIs(t, err, expect.is, reply)
		}
	}
}

// TestSpawnArguments: a Spawn with invalid arguments must return an error without a message to the
// launcher.
func TestSpawnArguments(t *testing.T) {
	w, done := spawnWorld(t, false, step{"cmd=get_universe_size", "cmd=universe_size size=7"})
	for _, c := range []Command{
		{Path: "a"}, {Path: "a", Procs: -1}, {Procs: 1}, {Path: "a\nb", Procs: 1}, {Path: "a", Procs: 1, Args: []string{"\n"}},
		{Path: "a", Procs: 1, Env: []string{"A=b"}}, {Path: "a", Procs: 1, Info: map[string]string{"k": strings.Repeat("v", 2000)}},
	} {
		_, err := w.Spawn(t.Context(), []Command{c}, nil)
		require.Error(t, err, c)
	}
	_, err := w.Spawn(t.Context(), nil, nil)
	require.Error(t, err)
	_, err = w.Spawn(t.Context(), []Command{{Path: "a", Procs: 1}}, map[string]string{"a key": "v"})
	require.Error(t, err)
	n, ok, err := w.Universe(t.Context())
	require.NoError(t, err)
	require.Equal(t, []any{7, true}, []any{n, ok})
	require.NoError(t, <-done)
}

// TestSpawnWithoutLauncher: in a world that cannot spawn, each call must return ErrNoSpawn.
func TestSpawnWithoutLauncher(t *testing.T) {
	for _, w := range []*World{{Launcher: alone, KVS: &localKVS{}}, {Launcher: "openmpi", KVS: &hubKVS{}}} {
		_, err := w.Spawn(t.Context(), []Command{{Path: "a", Procs: 1}}, nil)
		require.ErrorIs(t, err, ErrNoSpawn)
		require.ErrorIs(t, w.Publish(t.Context(), "s", "p"), ErrNoSpawn)
		_, _, err = w.Universe(t.Context())
		require.ErrorIs(t, err, ErrNoSpawn)
	}
}

// TestSpawnEnds: if the context ends while the launcher does not answer, Spawn must return.
func TestSpawnEnds(t *testing.T) {
	w, _ := spawnWorld(t, true)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	_, err := w.Spawn(ctx, []Command{{Path: "a", Procs: 1}}, nil)
	require.Error(t, err)
	_, err = w.Spawn(t.Context(), []Command{{Path: "a", Procs: 1}}, nil)
	require.ErrorContains(t, err, "an earlier call failed")
}

func TestServices(t *testing.T) {
	w, done := spawnWorld(t, true,
		step{"cmd=publish_name service=s port=p#0$", "cmd=publish_result rc=0 msg=success"},
		step{"cmd=publish_name service=s port=q", "cmd=publish_result rc=-1 msg=duplicate_service_name"},
		step{"cmd=lookup_name service=s", "cmd=lookup_result port=p#0$ rc=0 msg=success"},
		step{"cmd=lookup_name service=t", "cmd=lookup_result rc=1 msg=service_not_found"},
		step{"cmd=unpublish_name service=s", "cmd=unpublish_result info=ok rc=0 msg=success"},
		step{"cmd=unpublish_name service=s", "cmd=unpublish_result rc=-1 msg=service_not_found"},
		step{"cmd=lookup_name service=u", "cmd=lookup_result rc=0"},
	)
	ctx := t.Context()
	require.NoError(t, w.Publish(ctx, "s", "p#0$"))
	require.ErrorIs(t, w.Publish(ctx, "s", "q"), ErrServiceExists)
	require.Error(t, w.Publish(ctx, "two words", "q"))
	require.Error(t, w.Publish(ctx, "", "q"))
	port, err := w.Lookup(ctx, "s")
	require.NoError(t, err)
	require.Equal(t, "p#0$", port)
	_, err = w.Lookup(ctx, "t")
	require.ErrorIs(t, err, ErrNoService)
	require.NoError(t, w.Unpublish(ctx, "s"))
	require.ErrorIs(t, w.Unpublish(ctx, "s"), ErrNoService)
	_, err = w.Lookup(ctx, "u")
	require.ErrorContains(t, err, "has no port")
	require.NoError(t, <-done)
}

// TestSpawned: PMI_SPAWNED says that a process was spawned.
func TestSpawned(t *testing.T) {
	for _, spawned := range []bool{true, false} {
		fd, done := scriptedLauncher(t, stepInit, stepName, stepApp, stepMap,
			step{"cmd=put kvsname=K key=weft-job value=...", "cmd=put_result rc=0"}, stepIn, stepEnd)
		vars := []string{"PMI_FD", strconv.Itoa(fd), "PMI_RANK", "0", "PMI_SIZE", "2"}
		if spawned {
			vars = append(vars, "PMI_SPAWNED", "1")
		}
		w, err := open(t.Context(), env(vars...), io.Discard)
		require.NoError(t, err)
		require.Equal(t, spawned, w.Spawned)
		require.NoError(t, w.KVS.Finalize())
		require.NoError(t, <-done)
	}
}
