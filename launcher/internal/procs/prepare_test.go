//go:build linux

package procs

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestWorkingDirectory checks the errors for directories that cannot be a working directory.
func TestWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o700))
	closed := filepath.Join(dir, "closed")
	require.NoError(t, os.Mkdir(closed, 0o600))
	for d := dir; d != "/"; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		require.NoError(t, err)
		if st.Mode()&0o001 == 0 && os.Getuid() == 0 {
			t.Skip("only root can search " + d)
		}
	}
	for path, says := range map[string]string{
		dir: "", dir + "/none": "no such directory", file: "not a directory", file + "/x": "not a directory",
		closed: "permission denied", closed + "/x": "permission denied",
	} {
		var err error
		as(t, func() { err = checkDir(path) })
		if says == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, says, path)
		}
	}

	c, err := New(Config{Emit: func(proto.Message) {}})
	require.NoError(t, err)
	defer c.Close()
	c.cfg.Watchdog, c.job = &Watchdog{}, testPrepare(t, 1, "true")
	c.plan, c.job.Apps[0].Wdir = c.job.Plans[0], file
	_, err = c.prepareHost()
	require.Equal(t, &errStart{proto.ExitFailed, "working directory " + file + ": not a directory"}, err)
}

// as runs f as a user other than root.
func as(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	var errno unix.Errno
	done := make(chan struct{})
	go func() { // ends when f returns; its thread ends, too, because the thread has another user now
		defer close(done)
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno == 0 {
			f()
		}
	}()
	<-done
	require.Zero(t, errno)
}

// hostile returns Prepares by name, most of which gorun never sends.
func hostile(t testing.TB) map[string]proto.Prepare {
	list := make(map[string]proto.Prepare)
	add := func(name string, change func(m *proto.Prepare)) {
		m := testPrepare(t, 2, "true")
		m.Plans[0].Ranks = slices.Clone(m.Plans[0].Ranks)
		change(&m)
		list[name] = m
	}
	cpus := func(name string, cpus ...int) {
		add("cpus "+name, func(m *proto.Prepare) { m.Plans[0].Ranks[1].CPUs = cpus })
	}
	add("none", func(m *proto.Prepare) { *m = proto.Prepare{} })
	add("good", func(*proto.Prepare) {})
	cpus("-1", -1)
	cpus("-65", -65)
	cpus("lowest", 0, -1<<63)
	cpus("2^40", 1<<40)
	cpus("highest", 1<<63-1)
	cpus("absent", place.MaxCPUs-1)
	add("no card", func(m *proto.Prepare) { m.Card = bootstrap.Card{} })
	add("no nodes", func(m *proto.Prepare) { m.Card.HostOf = nil })
	add("bad nodes", func(m *proto.Prepare) { m.Card.HostOf = []bootstrap.Run{{Value: -1 << 63, Count: -1 << 63}} })
	add("no secret", func(m *proto.Prepare) { m.Card.Secret = nil })
	add("no apps", func(m *proto.Prepare) { m.Apps = nil })
	add("another app", func(m *proto.Prepare) { m.Plans[0].Ranks[0].App = 1 })
	add("app -1", func(m *proto.Prepare) { m.Plans[0].Ranks[0].App = -1 })
	add("rank -1", func(m *proto.Prepare) { m.Plans[0].Ranks[0].Rank = -1 })
	add("one rank twice", func(m *proto.Prepare) { m.Plans[0].Ranks[0].Rank = 1 })
	add("no words", func(m *proto.Prepare) { m.Apps[0].Argv = nil })
	add("no directory", func(m *proto.Prepare) { m.Apps = append(m.Apps, proto.App{Wdir: "/none"}) })
	add("zeros", func(m *proto.Prepare) { m.Apps[0].Argv, m.Apps[0].Env = []string{"a\x00"}, []string{"A=\x00"} })
	add("ports", func(m *proto.Prepare) { m.Plans[0].Address, m.BasePort = "127.0.0.1", 1<<62 })
	add("range", func(m *proto.Prepare) { m.Plans[0].Address, m.LowPort, m.HighPort = "127.0.0.1", 65535, 1<<62 })
	add("address", func(m *proto.Prepare) { m.Plans[0].Address = "x" })
	add("stdin", func(m *proto.Prepare) { m.Stdin = "x" })
	add("staged", func(m *proto.Prepare) {
		m.Apps[0].Staged = "x"
		m.Files = []proto.File{{Hash: "x", Size: -1, Name: "..", Path: "x"}, {}, {Path: "/\x00"}}
	})
	add("all", func(m *proto.Prepare) {
		m.UDP, m.Memory, m.Tag, m.TagHost, m.PerRank, m.Notify, m.Stdin = true, true, true, true, true, true, stdinAll
	})
	return list
}

// FuzzPrepare checks that a process manager answers any Prepare without a panic, and that it ends
// even if it has refused the job and the parent sends Start all the same.
func FuzzPrepare(f *testing.F) {
	const head = 5 // bytes of a frame's header
	for name, m := range hostile(f) {
		frame, err := proto.Append(nil, m)
		require.NoError(f, err, name)
		f.Add(frame[head:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		msg, err := proto.Parse(proto.KindPrepare, body)
		if err != nil {
			return
		}
		m := msg.(proto.Prepare)
		for _, p := range m.Plans {
			if len(p.Ranks) > 8 {
				return // each rank would become a process; that is too slow
			}
		}
		for i := range m.Apps {
			m.Apps[i].Path = "/bin/true"
		}
		emitted := make(chan proto.Message, 100)
		c, err := New(Config{
			Host: "node1", Watchdog: &Watchdog{}, Emit: func(m proto.Message) { emitted <- m },
			Output: func(proto.Output) error { return nil }, Stored: func(proto.FilePart) {},
		})
		require.NoError(t, err)
		defer closeManager(t, c, emitted)
		c.Do(m)
		await[proto.Prepared](t, emitted)
		c.Do(proto.Start{})
		await[proto.Started](t, emitted)
		c.Do(proto.Watch{})
		c.Do(proto.Reply{})
		c.Do(proto.Release{})
		c.Do(proto.RanksFailed{Ranks: []int{0}})
		c.Do(proto.End{Except: -1})
		await[proto.Ended](t, emitted)
	})
}
