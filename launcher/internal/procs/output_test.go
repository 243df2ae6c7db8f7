//go:build linux

package procs

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

func newTestOutput(np int, tag bool, pass func(proto.Output) error) (*output, error) {
	c := &Manager{cfg: Config{Host: "node1", Output: pass}, job: proto.Prepare{Tag: tag, OneSink: true}}
	for r := range np {
		c.plan.Ranks = append(c.plan.Ranks, proto.Rank{Rank: r})
	}
	return newOutput(c)
}

// testOutput returns an output of np ranks. out gets what the output passes on. write holds the
// write ends of the pipes of each rank's stdout and stderr.
func testOutput(t *testing.T, np int, tag bool) (o *output, out *bytes.Buffer, write [][2]int) {
	t.Helper()
	out = &bytes.Buffer{}
	o, err := newTestOutput(np, tag, func(m proto.Output) error {
		_, err := out.Write(m.Data)
		return err
	})
	require.NoError(t, err)
	for r := range np {
		var a, b [2]int
		require.NoError(t, unix.Pipe(a[:]))
		require.NoError(t, unix.Pipe(b[:]))
		write = append(write, [2]int{a[1], b[1]})
		require.NoError(t, o.add(r, a[0], b[0]))
	}
	return o, out, write
}

func TestOutputUnfinishedLines(t *testing.T) {
	o, out, w := testOutput(t, 3, true)
	for r, text := range []string{"a\nb", "c", "d\n"} {
		_, err := unix.Write(w[r][0], []byte(text))
		require.NoError(t, err)
	}
	_, err := unix.Write(w[2][1], []byte("e"))
	require.NoError(t, err)
	o.finish() // the write ends are still open, as if a daemon that a rank has started kept them
	o.loop()
	for _, p := range w {
		require.NoError(t, errors.Join(unix.Close(p[0]), unix.Close(p[1])))
	}
	require.Equal(t, "[0] a\n[2] d\n[0] b\n[1] c\n[2]<stderr> e", out.String())
	require.Equal(t, []string{"e"}, lastLines(o.streams[5].tail))
}

// TestOutputEndless checks that a process that writes for ever, with or without newlines, does not
// keep loop from ending after finish, and that loop passes on what was in the pipes before.
func TestOutputEndless(t *testing.T) {
	for name, text := range map[string]string{"lines": strings.Repeat("a line\n", 100), "none": strings.Repeat("x", 1000)} {
		t.Run(name, func(t *testing.T) {
			var o *output
			var w [][2]int
			var out *bytes.Buffer
			write := func(r int) {
				_, _ = unix.Write(w[r][0], []byte(text)) // fails if the pipe is full or has no reader
			}
			o, out, w = testOutput(t, 2, false)
			pass := o.pass
			passed := 0
			// Whenever loop passes on something, rank 0 fills its pipe again.
			o.pass = func(m proto.Output) error {
				passed++
				require.Less(t, passed, 1000)
				for range 100 {
					write(0)
				}
				return pass(m)
			}
			require.NoError(t, unix.SetNonblock(w[0][0], true))
			for range 100 {
				write(0)
			}
			write(1)
			o.finish()
			o.loop()
			for _, p := range w {
				require.NoError(t, errors.Join(unix.Close(p[0]), unix.Close(p[1])))
			}
			got := strings.ReplaceAll(out.String(), "\n", "")
			part := strings.ReplaceAll(text, "\n", "")
			require.GreaterOrEqual(t, strings.Count(got, part), 2)
			require.Less(t, out.Len(), 200_000)
		})
	}
}

// TestOutputOfOneRankInOneLine checks that stderr continues an unfinished line of the same rank's
// stdout, as it does without gorun, and that with tags each stream has its own lines.
func TestOutputOfOneRankInOneLine(t *testing.T) {
	for name, c := range map[string]struct {
		tag  bool
		want string
	}{
		"untagged": {false, "50 % warning\n60 %"},
		"tagged":   {true, "[0] 50 % \n[0]<stderr> warning\n[0] 60 %"},
	} {
		t.Run(name, func(t *testing.T) {
			passed := make(chan string, 10)
			manager := &Manager{cfg: Config{Output: func(m proto.Output) error {
				passed <- string(m.Data)
				return nil
			}}, job: proto.Prepare{OneSink: true, Tag: c.tag, Card: bootstrap.Card{Size: 1}}, plan: proto.Plan{Ranks: make([]proto.Rank, 1)}}
			o, err := newOutput(manager)
			require.NoError(t, err)
			var ends, write [2]int
			for i := range ends {
				var p [2]int
				require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
				ends[i], write[i] = p[0], p[1]
			}
			require.NoError(t, o.add(0, ends[0], ends[1]))
			go o.loop() // ends when finish is called
			got := ""
			for _, w := range []struct {
				stream int
				text   string
			}{{0, "50 % "}, {1, "warning\n"}, {0, "60 %"}} {
				_, err := unix.Write(write[w.stream], []byte(w.text))
				require.NoError(t, err)
				got += <-passed
			}
			for _, fd := range write {
				require.NoError(t, unix.Close(fd))
			}
			o.finish()
			<-o.done
			require.Equal(t, c.want, got)
		})
	}
}

// TestOutputPrompts checks when the beginning of a line is passed on before the line ends: if the
// job has one rank, or if the line is rank 0's and goes to a terminal.
func TestOutputPrompts(t *testing.T) {
	for name, c := range map[string]struct {
		np       int
		terminal bool
		want     []string // what Config.Output gets, one element for each call
	}{
		"one rank":      {1, false, []string{"name? ", "bob\n"}},
		"on a terminal": {2, true, []string{"[0] name? ", "\n[1] a line\n", "[0] bob\n"}},
		"several ranks": {2, false, []string{"[1] a line\n", "[0] name? bob\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			passed := make(chan string, 10)
			manager := &Manager{cfg: Config{Output: func(m proto.Output) error {
				passed <- string(m.Data)
				return nil
			}}, job: proto.Prepare{OneSink: true, Tag: c.np > 1, Card: bootstrap.Card{Size: c.np}, OutTerm: c.terminal}}
			for r := range c.np {
				manager.plan.Ranks = append(manager.plan.Ranks, proto.Rank{Rank: r})
			}
			o, err := newOutput(manager)
			require.NoError(t, err)
			var write []int
			for r := range c.np {
				var p [2]int
				require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
				require.NoError(t, o.add(r, p[0], -1))
				write = append(write, p[1])
			}
			go o.loop() // ends after finish was called
			send := func(r int, text string) {
				_, err := unix.Write(write[r], []byte(text))
				require.NoError(t, err)
			}
			next := func() string {
				select {
				case text := <-passed:
					return text
				case <-time.After(time.Minute):
					require.FailNow(t, "no output was passed on")
					return ""
				}
			}
			var got []string
			send(0, "name? ")
			if strings.HasSuffix(c.want[0], " ") {
				got = append(got, next())
			} else {
				time.Sleep(2 * partialDelay) // meanwhile nothing is passed on
			}
			if c.np > 1 {
				send(1, "a line\n")
				got = append(got, next())
			}
			send(0, "bob\n")
			got = append(got, next())
			require.Equal(t, c.want, got)
			o.finish()
			<-o.done
			for _, fd := range write {
				require.NoError(t, unix.Close(fd))
			}
		})
	}
}

func TestTail(t *testing.T) {
	var tail []byte
	for i := range 10_000 {
		tail = keepTail(tail, fmt.Appendf(nil, "line %d\n", i))
		require.LessOrEqual(t, len(tail), 2*tailBytes)
	}
	// The memory of the tail must stay bounded, too.
	for _, n := range []int{readBytes, 1, tailBytes - 1, tailBytes, tailBytes + 1, readBytes} {
		tail = keepTail(append(tail, "end"...), bytes.Repeat([]byte("x"), n))
		require.GreaterOrEqual(t, len(tail), min(n, tailBytes))
		require.LessOrEqual(t, cap(tail), 3*tailBytes)
		require.Equal(t, byte('x'), tail[len(tail)-1])
	}
	for i := range 10_000 {
		tail = keepTail(tail, fmt.Appendf(nil, "line %d\n", i))
	}
	lines := lastLines(tail)
	require.Len(t, lines, tailLines)
	require.Equal(t, "line 9999", lines[9])
	require.Nil(t, lastLines([]byte("\n")))
}

// TestOutputClosed checks that broken may run at the same time as add: the readers of the job's
// output may close it while ranks are being started.
func TestOutputClosed(t *testing.T) {
	const np = 200
	for range 5 {
		o, err := newTestOutput(np, false, func(proto.Output) error { return nil })
		require.NoError(t, err)
		go o.loop() // ends after finish was called
		begun := make(chan struct{})
		go func() { // ends after two calls of broken, which run at the same time as the calls of add
			close(begun)
			for k := range 2 {
				o.broken(k == 1)
			}
		}()
		<-begun
		var write []int
		for r := range np {
			var a, b [2]int
			require.NoError(t, unix.Pipe(a[:]))
			require.NoError(t, unix.Pipe(b[:]))
			write = append(write, a[1], b[1])
			require.NoError(t, o.add(r, a[0], b[0]))
		}
		o.finish()
		<-o.done
		for _, fd := range write {
			require.NoError(t, unix.Close(fd))
		}
		for s := range o.streams {
			require.Equal(t, -1, o.streams[s].fd)
		}
	}
}

// TestOutputWoken checks that loop ends if finish is called while loop handles an earlier wake.
func TestOutputWoken(t *testing.T) {
	o, _, w := testOutput(t, 1, false)
	o.pass = func(proto.Output) error {
		o.finish()
		return nil
	}
	text := bytes.Repeat([]byte("a line\n"), readBytes/len("a line\n"))
	// The text fills the buffer, so it is passed on at once.
	text = append(text, bytes.Repeat([]byte("\n"), readBytes-len(text))...)
	require.NoError(t, unix.SetNonblock(w[0][0], true))
	n, err := unix.Write(w[0][0], text)
	require.NoError(t, err)
	require.Len(t, text, n)
	o.broken(true) // loop wakes for this and for the text together
	go o.loop()    // ends after finish was called
	select {
	case <-o.done:
	case <-time.After(time.Minute):
		require.FailNow(t, "the loop does not end")
	}
	for _, fd := range w[0] {
		require.NoError(t, unix.Close(fd))
	}
}

// TestOutputAfterItsEnd checks that add fails after the end of loop, and closes the pipes.
func TestOutputAfterItsEnd(t *testing.T) {
	o, err := newTestOutput(1, false, func(proto.Output) error { return nil })
	require.NoError(t, err)
	o.finish()
	o.loop()
	var p [2]int
	require.NoError(t, unix.Pipe(p[:]))
	require.ErrorIs(t, o.add(0, p[0], -1), errNoLoop)
	_, err = unix.Write(p[1], []byte("x"))
	require.ErrorIs(t, err, unix.EPIPE)
	require.NoError(t, unix.Close(p[1]))
}

// TestOutputUnwatched checks that loop also closes the pipes of a rank if add has failed because the
// poller has refused one of them.
func TestOutputUnwatched(t *testing.T) {
	o, err := newTestOutput(1, false, func(proto.Output) error { return nil })
	require.NoError(t, err)
	var a, b [2]int
	require.NoError(t, unix.Pipe(a[:]))
	require.NoError(t, unix.Pipe(b[:]))
	require.NoError(t, o.poller.Add(a[0], 7, sys.In)) // so the Add in o.add fails
	require.Error(t, o.add(0, a[0], b[0]))
	o.finish()
	o.loop()
	for _, fd := range []int{a[1], b[1]} {
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		require.NoError(t, err)
		require.Equal(t, int16(unix.POLLERR), p[0].Revents, "the pipe still has a reader")
		require.NoError(t, unix.Close(fd))
	}
}
