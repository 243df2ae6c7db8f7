//go:build linux

package procs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// testManager returns a process manager that has handled the Prepare of np ranks, each of which
// runs a shell script. The channel gets the messages that the process manager emits. The ranks'
// output is dropped. Each function in change may change the configuration and the Prepare before
// they are used.
func testManager(t *testing.T, np int, script string, change ...func(*Config, *proto.Prepare)) (*Manager, <-chan proto.Message) {
	t.Helper()
	emitted := make(chan proto.Message, 100)
	cfg := Config{
		Host: "node1", Own: true, Watchdog: &Watchdog{},
		Emit:   func(m proto.Message) { emitted <- m },
		Output: func(proto.Output) error { return nil },
		Stored: func(proto.FilePart) {},
	}
	m := testPrepare(t, np, script)
	for _, f := range change {
		f(&cfg, &m)
	}
	c, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { closeManager(t, c, emitted) })
	c.Do(m)
	require.Equal(t, proto.Prepared{}, await[proto.Prepared](t, emitted))
	return c, emitted
}

// closeManager closes a process manager, and takes the messages that it emits until it has ended.
func closeManager(t *testing.T, c *Manager, emitted <-chan proto.Message) {
	t.Helper()
	go c.Close() // ends when c.done is closed
	limit := time.After(time.Minute)
	for {
		select {
		case <-emitted:
		case <-c.done:
			return
		case <-limit:
			t.Error("the process manager does not end")
			return
		}
	}
}

// testPrepare returns the Prepare of a job of np ranks on one host, each of which runs a shell
// script.
func testPrepare(t testing.TB, np int, script string) proto.Prepare {
	m := proto.Prepare{
		Card: bootstrap.Card{JobID: "procs-" + strings.ReplaceAll(t.Name(), "/", "-"), Secret: make([]byte, 32), Size: np,
			HostOf: []bootstrap.Run{{Count: np}}, AppNums: []bootstrap.Run{{Count: np}}},
		Apps:  []proto.App{{Name: "sh", Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Wdir: "/"}},
		Plans: []proto.Plan{{}}, Stdin: stdinNone,
	}
	for r := range np {
		m.Plans[0].Ranks = append(m.Plans[0].Ranks, proto.Rank{Rank: r})
	}
	return m
}

// await returns the next message of type M that a process manager emits, and drops those before it.
func await[M proto.Message](t *testing.T, emitted <-chan proto.Message) M {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case m := <-emitted:
			if m, ok := m.(M); ok {
				return m
			}
		case <-limit:
			require.FailNow(t, "no message came")
		}
	}
}

// TestStuck checks that a rank that SIGKILL does not end is reported, and that neither the other
// ranks nor the end of the job wait for it.
func TestStuck(t *testing.T) {
	c, emitted := testManager(t, 2, "test $PMI_RANK = 1 || exit 3; exec sleep 1000")
	c.stuckAfter = 20 * time.Millisecond
	c.exitOf = func(pid int) (status, bool) {
		c.mu.Lock()
		stuck := pid == c.ranks[1].pid
		c.mu.Unlock()
		if stuck {
			return status{}, false // as if it were in uninterruptible sleep
		}
		return exitStatus(pid)
	}
	c.Do(proto.Start{})
	var first proto.Exit
	for up := false; !up || first.Code == 0; { // Started and Exited may come in either order
		switch m := await[proto.Message](t, emitted).(type) {
		case proto.Started:
			up = true
			require.Len(t, m.Ranks, 2)
		case proto.Exited:
			first = m.Exit
		}
	}
	require.Equal(t, 3, first.Code)
	c.Do(proto.End{Except: -1})
	second := await[proto.Exited](t, emitted).Exit
	require.True(t, second.Stuck)
	require.True(t, second.Final)
	require.Equal(t, int(syscall.SIGKILL), second.Signal)
	require.Equal(t, 1, second.Rank)
	require.Equal(t, []proto.Exit{first, second}, await[proto.Ended](t, emitted).Exits)
}

// TestFlood checks that a job ends even if its processes write to the control channel without end,
// and that processes that a rank has left behind do not prevent this.
func TestFlood(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		ends   bool // the rank ends although the test sends no End
	}{
		"abort":       {"for i in 1 2 3 4 5 6 7 8; do yes cmd=abort >&3 & done; wait", false},
		"spawn":       {"echo mcmd=spawn >&3; for i in 1 2 3 4 5 6 7 8; do yes >&3 & done; wait", false},
		"left behind": {"echo mcmd=spawn >&3; for i in 1 2 3 4 5 6 7 8; do yes >&3 & done; exit 3", true},
		"no reader":   {"exec yes cmd=get_maxes >&3", true},
		"no PMI":      {"exec yes >&3", true},
	} {
		t.Run(name, func(t *testing.T) {
			manager, emitted := testManager(t, 1, c.script)
			manager.Do(proto.Start{})
			if !c.ends {
				if name == "abort" {
					require.Equal(t, proto.ExitFailed, await[proto.Aborted](t, emitted).Code)
				} else {
					await[proto.Started](t, emitted)
				}
				manager.Do(proto.End{Except: -1})
			}
			require.Len(t, await[proto.Ended](t, emitted).Exits, 1)
		})
	}
}

// TestEndlessControl lets a rank write to its control channel without end. It checks that
// readControl reads at most controlBytes bytes, and that the process manager, when the rank has
// ended or gets SIGKILL, reads only what the rank had written before.
func TestEndlessControl(t *testing.T) {
	for name, read := range map[string]func(*Manager){
		"lives":     func(c *Manager) { c.readControl(0, controlBytes) },
		"has ended": func(c *Manager) { c.endControl(0) },
		"is ended":  func(c *Manager) { c.end(proto.End{Except: -1}) },
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := unstarted(t)
			c.phase = phaseRunning
			own, end, err := socketpair()
			require.NoError(t, err)
			c.ranks[0].ctl = own
			line := []byte("cmd=get_maxes\n")
			lines := bytes.Repeat(line, 100)
			fill := func() {
				// This sends as many bytes as the socket has room for.
				_, _ = unix.SendmsgN(end, lines, nil, nil, unix.MSG_DONTWAIT)
			}
			heard := 0
			c.pmi.reply = func(int, []byte) {
				heard++
				require.Less(t, heard, 1<<16)
				fill()
			}
			for range 10 {
				fill()
			}
			unread := sys.Unread(own)
			read(c)
			require.Positive(t, heard)
			require.LessOrEqual(t, heard, unread/len(line))
			if name == "lives" {
				require.LessOrEqual(t, heard, controlBytes/len(line))
			}
			c.closeControl(0)
			require.NoError(t, unix.Close(end))
		})
	}
}

// TestLastControl checks that the process manager reads everything that a rank had written to its
// control channel when the rank ended, up to an abort, and nothing after the abort.
func TestLastControl(t *testing.T) {
	c, emitted := unstarted(t)
	own, end, err := socketpair()
	require.NoError(t, err)
	c.ranks[0].ctl = own
	write := func(text string) {
		_, err := unix.Write(end, []byte(text))
		require.NoError(t, err)
	}
	write("mcmd=spawn\n")
	for range 20 {
		write(strings.Repeat("x\n", 1000))
	}
	write("endcmd\ncmd=abort exitcode=5\ncmd=abort exitcode=6\n")
	require.Equal(t, controlBytes, c.readControl(0, controlBytes))
	require.Empty(t, *emitted)
	c.endControl(0)
	require.Equal(t, []proto.Message{proto.Aborted{Rank: 7, Code: 5}}, *emitted)
	require.NoError(t, unix.Close(end))

	// After a rank's abort, the process manager reads no more from the rank's control channel, but
	// can still send to it.
	c, emitted = unstarted(t)
	c.ranks[0].ctl, end, err = socketpair()
	require.NoError(t, err)
	write("cmd=abort exitcode=5\n")
	require.Positive(t, c.readControl(0, controlBytes))
	require.Len(t, *emitted, 1)
	write("nonsense\n")
	require.Zero(t, c.readControl(0, controlBytes))
	require.Len(t, *emitted, 1)
	c.reply(0, []byte("cmd=barrier_out\n"))
	got := make([]byte, 100)
	n, err := unix.Read(end, got)
	require.NoError(t, err)
	require.Equal(t, "cmd=barrier_out\n", string(got[:n]))
	c.closeControl(0)
	require.NoError(t, unix.Close(end))
}

// TestAbortBeforeEnd checks the field AfterEnd of Aborted. It must be false if the rank wrote its
// abort before the process manager sent it a signal to end it, and true if the rank wrote its abort
// later.
func TestAbortBeforeEnd(t *testing.T) {
	for name, end := range map[string]func(*Manager){
		"SIGTERM": func(c *Manager) { c.end(proto.End{Grace: time.Hour, Except: -1}) },
		"SIGKILL": func(c *Manager) { c.end(proto.End{Except: -1}) },
		"Close":   func(c *Manager) { c.act(proto.Bye{}) },
	} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, before %v", name, before), func(t *testing.T) {
				c, emitted := unstarted(t)
				c.phase = phaseRunning
				own, other, err := socketpair()
				require.NoError(t, err)
				c.ranks[0].ctl = own
				if !before {
					end(c)
					require.Empty(t, *emitted)
				}
				_, err = unix.Write(other, []byte("mcmd=spawn\n"+strings.Repeat("x\n", controlBytes)+"endcmd\ncmd=abort exitcode=5 reason=no+such+mesh\n"))
				require.NoError(t, err)
				if before {
					end(c)
				} else {
					c.endControl(0)
				}
				require.Equal(t, []proto.Message{proto.Aborted{Rank: 7, Code: 5, Reason: "no such mesh", AfterEnd: !before}}, *emitted)
				c.closeControl(0)
				require.NoError(t, unix.Close(other))
			})
		}
	}
}

// TestAbortBeforeSIGTERM checks that AfterEnd of Aborted is false if a busy rank writes its abort
// after End has come but before the rank gets SIGTERM.
func TestAbortBeforeSIGTERM(t *testing.T) {
	dir := t.TempDir()
	c, emitted := testManager(t, 1, "until test -e go; do :; done; echo cmd=abort exitcode=5 >&3; exec sleep 1000", func(cfg *Config, m *proto.Prepare) {
		m.Apps[0].Wdir = dir
		cfg.Stored = func(proto.FilePart) { _ = os.WriteFile(dir+"/go", nil, 0o600) }
	})
	c.busyOf = func(int) bool { return true } // busy does not work on every system
	c.Do(proto.Start{})
	await[proto.Started](t, emitted)
	c.mu.Lock()
	c.inbox = append(c.inbox, proto.End{Grace: time.Minute, Linger: time.Minute, Except: -1}, proto.FilePart{})
	c.wake.Wake()
	c.mu.Unlock()
	m := await[proto.Aborted](t, emitted)
	require.Equal(t, 5, m.Code)
	require.False(t, m.AfterEnd)
}

// TestEndedBeforeEnd checks that AfterEnd of Exited is false for a rank that ended before the process
// manager handled End.
func TestEndedBeforeEnd(t *testing.T) {
	ended := make(chan error, 1)
	var pid int
	c, emitted := testManager(t, 2, "exec sleep 1000", func(cfg *Config, _ *proto.Prepare) {
		// The goroutine control calls Stored, so rank 1 ends before control handles End.
		cfg.Stored = func(proto.FilePart) {
			err := syscall.Kill(pid, syscall.SIGTERM)
			if err == nil {
				err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			}
			ended <- err
		}
	})
	c.Do(proto.Start{})
	pid = await[proto.Started](t, emitted).Ranks[1].PID
	c.mu.Lock()
	c.inbox = append(c.inbox, proto.FilePart{}, proto.End{Grace: time.Minute, Except: -1})
	c.wake.Wake()
	c.mu.Unlock()
	require.NoError(t, <-ended)
	for _, rank := range []int{1, 0} {
		e := await[proto.Exited](t, emitted).Exit
		require.Equal(t, rank, e.Rank)
		require.Equal(t, int(syscall.SIGTERM), e.Signal)
		require.Equal(t, rank == 0, e.AfterEnd)
	}
}

// TestAbortByConsequence checks that Aborted says whether the rank has aborted because another rank
// has failed.
func TestAbortByConsequence(t *testing.T) {
	for field, want := range map[string]bool{"": false, " consequence=1": true} {
		c, emitted := testManager(t, 1, "echo cmd=abort exitcode=1 reason=rank+1+has+failed"+field+" >&3; exec sleep 1000")
		c.Do(proto.Start{})
		m := await[proto.Aborted](t, emitted)
		require.Equal(t, "rank 1 has failed", m.Reason)
		require.Equal(t, want, m.Consequence)
	}
}

// unstarted returns a process manager that has one rank, rank 7, without a process. The goroutine
// control does not run, so the test calls the methods that control would call.
func unstarted(t *testing.T) (*Manager, *[]proto.Message) {
	emitted := new([]proto.Message)
	emit := func(m proto.Message) { *emitted = append(*emitted, m) }
	c := &Manager{cfg: Config{Emit: emit}, plan: proto.Plan{Ranks: []proto.Rank{{Rank: 7}}}, local: map[int]int{7: 0},
		ranks: []rank{{ctl: -1, notify: -1, pidfd: -1}}, pmi: newPMIServer("K", 8, "", []int{0})}
	c.pmi.reply = c.reply
	c.pmi.request = func(_ int, line []byte) { emit(proto.Request{Rank: 7, Line: line}) }
	var err error
	c.poller, err = sys.NewPoller()
	require.NoError(t, err)
	t.Cleanup(c.poller.Close)
	return c, emitted
}

// TestRequests checks that the process manager reports a protocol error if a rank sends a second
// request before the reply to the first, that it drops a reply without a request, and that it
// closes the channel of a rank that reads no replies.
func TestRequests(t *testing.T) {
	manager, emitted := testManager(t, 1, "exec yes cmd=lookup_name service=x >&3")
	manager.Do(proto.Start{})
	require.Equal(t, proto.Request{Rank: 0, Line: []byte("cmd=lookup_name service=x")}, await[proto.Request](t, emitted))
	for broken := false; !broken; {
		switch m := await[proto.Message](t, emitted).(type) {
		case proto.Request:
			require.Fail(t, "the second request was passed on")
		case proto.Aborted:
			require.Contains(t, m.Reason, "lookup_name without waiting for the reply")
			broken = m.Broken
		}
	}
	manager.Do(proto.Reply{Line: []byte("cmd=lookup_result rc=-1\n")})
	await[proto.Ended](t, emitted)

	c, _ := unstarted(t)
	var end int
	var err error
	c.ranks[0].ctl, end, err = socketpair()
	require.NoError(t, err)
	defer func() { _ = unix.Close(end) }()
	reply := proto.Reply{Rank: 7, Line: []byte("cmd=lookup_result rc=-1\n")}
	c.act(reply) // the rank has sent no request
	_, _, err = unix.Recvfrom(end, make([]byte, 1), unix.MSG_DONTWAIT)
	require.ErrorIs(t, err, unix.EAGAIN)
	for n := 0; c.ranks[0].ctl >= 0; n++ {
		require.Less(t, n, 1<<20)
		_, err := unix.Write(end, []byte("cmd=lookup_name service=x\n"))
		require.NoError(t, err)
		c.readControl(0, controlBytes)
		c.act(reply)
	}
}

// TestCloseWhileStarting checks that a process manager that is closed while the start of a rank
// blocks ends when the start continues.
func TestCloseWhileStarting(t *testing.T) {
	heard := make(chan struct{}, 1)
	c, emitted := testManager(t, 1, "exec sleep 1000", func(cfg *Config, _ *proto.Prepare) {
		cfg.Stored = func(proto.FilePart) { heard <- struct{}{} }
	})
	syscall.ForkLock.RLock()
	c.Do(proto.Start{})
	require.Eventually(t, func() bool { // forkAll waits for the lock
		free := syscall.ForkLock.TryRLock()
		if free {
			syscall.ForkLock.RUnlock()
		}
		return !free
	}, time.Minute, time.Millisecond)
	c.mu.Lock()
	// The goroutine control takes all three from inbox at once.
	c.inbox = append(c.inbox, proto.End{Except: -1}, proto.Bye{}, proto.FilePart{})
	c.wake.Wake()
	c.mu.Unlock()
	<-heard
	syscall.ForkLock.RUnlock()
	require.Len(t, await[proto.Started](t, emitted).Ranks, 1)
	closeManager(t, c, emitted)
}

// TestNothingAfterBye checks that a process manager ignores messages after Bye.
func TestNothingAfterBye(t *testing.T) {
	c, emitted := testManager(t, 1, "exec sleep 1000")
	c.mu.Lock()
	c.inbox = append(c.inbox, proto.Bye{}, proto.Start{})
	c.wake.Wake()
	c.mu.Unlock()
	c.Close()
	require.Empty(t, emitted)
}

// TestLessGrace checks that a second End may shorten the grace period of the first, but not extend
// it.
func TestLessGrace(t *testing.T) {
	c, emitted := testManager(t, 1, "trap '' TERM; echo cmd=lookup_name >&3; exec sleep 1000")
	c.Do(proto.Start{})
	await[proto.Request](t, emitted) // the rank ignores SIGTERM now
	for _, grace := range []time.Duration{time.Hour, 10 * time.Millisecond, time.Hour} {
		c.Do(proto.End{Grace: grace, Except: -1})
	}
	require.Equal(t, int(syscall.SIGKILL), await[proto.Exited](t, emitted).Signal)
	await[proto.Ended](t, emitted)
}

// TestForgottenGroups checks that the watchdog forgets the ranks' groups before the ranks are
// reaped. Afterwards other processes may get their numbers.
func TestForgottenGroups(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer closeFiles(r)
	c, emitted := testManager(t, 2, "exit 0", func(cfg *Config, _ *proto.Prepare) { cfg.Watchdog = &Watchdog{pipe: w} })
	c.Do(proto.Start{})
	var want strings.Builder
	started := await[proto.Started](t, emitted).Ranks
	if c.cgroup != nil { // nil: this process may not make a cgroup
		fmt.Fprintf(&want, "cgroup %s\n", c.cgroup.dir)
	}
	for _, s := range started {
		fmt.Fprintf(&want, "group %d\n", s.PID)
	}
	last := fmt.Sprintf("clear %d\n", started[1].PID)
	if c.cgroup != nil {
		last += fmt.Sprintf("empty %s\n", c.cgroup.dir)
	}
	fmt.Fprintf(&want, "clear %d\n%s", started[0].PID, last)
	await[proto.Ended](t, emitted)
	closeFiles(w)
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(got), last), "%s", got)
	for line := range strings.Lines(want.String()) {
		// On systems where exitStatus reaps, there are also lines "gone PID".
		require.Contains(t, string(got), line)
	}
}
