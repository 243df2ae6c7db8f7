package mpi_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport/inproc"
)

// TestProgramLine checks that the line of the program in errors is that of the innermost function
// on the stack that is neither in weft nor in the standard library.
func TestProgramLine(t *testing.T) {
	require.Regexp(t, `^check_test\.go:[0-9]+$`, mpi.ProgramLine())
	lines := make([]string, 0, 1)
	slices.SortFunc([]int{1, 2}, func(a, b int) int {
		lines = append(lines, mpi.ProgramLine())
		return a - b
	})
	require.Regexp(t, `^check_test\.go:[0-9]+$`, lines[0])
	outside := make(chan string)
	go func() { outside <- mpi.ProgramLine() }()
	require.Regexp(t, `^check_test\.go:[0-9]+$`, <-outside)
}

// TestCheckAllows runs correct operations with the tunable check. They must get no ErrInUse.
func TestCheckAllows(t *testing.T) {
	commtest.Run(t, 2, func(c *comm.Comm) error {
		buf, got := make([]int, 8), make([]int, 8)
		other := 1 - c.Rank()
		for round := range 3 {
			rs := []comm.Request{
				comm.Irecv(c, got[:4], other, 1), comm.Irecv(c, got[4:], other, 2),
				comm.Isend(c, buf[:6], other, 1), comm.Isend(c, buf[2:], other, 2), // buffers of sends may overlap
			}
			if round == 1 { // in this round the receives are shorter than the messages
				require.ErrorIs(t, comm.WaitAll(rs), comm.ErrTruncate)
			} else {
				for i := range rs {
					_, _ = rs[i].Wait()
					_, err := rs[i].Wait()
					require.NoError(t, err, "a second Wait")
				}
			}
			require.Empty(t, mpi.Pending((*mpi.Comm)(c)))
			buf[0]++
			got[0]--
		}
		all := make([]int, 2)
		own := all[c.Rank() : c.Rank()+1]
		require.NoError(t, comm.Allgather(c, own, all))
		require.NoError(t, comm.Allreduce(c, all, all, comm.Sum))
		require.NoError(t, comm.Bcast(c, all, 0))
		require.NoError(t, comm.Reduce(c, all, make([]int, 2), comm.Sum, 0))
		r := comm.Irecv(c, buf[3:4], other, 3) // its buffer is between two parts of the collective's buffer
		require.NoError(t, comm.Allgatherv(c, []int{1}, buf, []int{1, 1}, []int{0, 7}))
		require.NoError(t, comm.Send(c, []int{1}, other, 3))
		_, err := r.Wait()
		require.NoError(t, err)
		require.Empty(t, mpi.Pending((*mpi.Comm)(c)))
		return nil
	}, commtest.WithParam("check", "true"))
}

// TestCheckDefunct: if the communicator of a request was revoked or freed and the request
// has ended, the program may use the buffer again, although it has not waited.
func TestCheckDefunct(t *testing.T) {
	for ending, end := range map[string]func(c *comm.Comm) error{"revoked": (*comm.Comm).Revoke, "freed": (*comm.Comm).Free} {
		for name, start := range map[string]func(c *comm.Comm, buf []int) comm.Request{
			"Irecv":      func(c *comm.Comm, buf []int) comm.Request { return comm.Irecv(c, buf, 0, 1) },
			"Isend":      func(c *comm.Comm, buf []int) comm.Request { return comm.Isend(c, buf, 0, 1) },
			"Issend":     func(c *comm.Comm, buf []int) comm.Request { return comm.Issend(c, buf, 0, 1) },
			"long Isend": func(c *comm.Comm, buf []int) comm.Request { return comm.Isend(c, buf, 0, 1) },
		} {
			t.Run(ending+"/"+name, func(t *testing.T) {
				commtest.Run(t, 1, func(world *comm.Comm) error {
					buf := make([]int, 1)
					if name == "long Isend" {
						buf = make([]int, 1<<17)
					}
					c, err := world.Dup()
					require.NoError(t, err)
					old := start(c, buf)
					require.ErrorIs(t, wait(comm.Irecv(world, buf[:1], 0, 1)), comm.ErrInUse)
					require.NoError(t, end(c))
					r := comm.Irecv(world, buf, 0, 1)
					require.NoError(t, comm.Send(world, []int{7}, 0, 1))
					require.NoError(t, wait(r))
					require.Equal(t, 7, buf[0])
					require.NotErrorIs(t, wait(old), comm.ErrInUse)
					require.Empty(t, mpi.Pending((*mpi.Comm)(world)))
					return nil
				}, commtest.WithParam("check", "true"))
			})
		}
	}
}

// TestCheckSweeps: a program that makes and frees communicators, and never waits for its
// requests, has a bounded number of pending operations. A request that has not ended stays
// pending, even if the number of pending operations has doubled several times.
func TestCheckSweeps(t *testing.T) {
	for name, end := range map[string]func(c *comm.Comm) error{"revoked": (*comm.Comm).Revoke, "freed": (*comm.Comm).Free} {
		t.Run(name, func(t *testing.T) {
			commtest.Run(t, 1, func(world *comm.Comm) error {
				held := make([]int, 1)
				live := comm.Irecv(world, held, 0, 1)
				for round := range 10 * mpi.MinSweep {
					c, err := world.Dup()
					require.NoError(t, err)
					comm.Isend(c, []int{round}, 0, 1)
					comm.Irecv(c, make([]int, 1), 0, 2)
					require.NoError(t, end(c))
					require.LessOrEqual(t, len(mpi.Pending((*mpi.Comm)(world))), mpi.MinSweep)
				}
				require.ErrorIs(t, wait(comm.Isend(world, held, 0, 2)), comm.ErrInUse)
				require.NoError(t, comm.Send(world, []int{7}, 0, 1))
				require.NoError(t, wait(live))
				return nil
			}, commtest.WithParam("check", "true"))
		})
	}
}

// TestCheckUnfinished: the buffer of a call whose transfer continues is in use until
// Unfinished.Wait returns, or until the communicator is revoked and the transfer has ended.
func TestCheckUnfinished(t *testing.T) {
	const n = 300000 // elements; longer than the eager limit of every transport
	for _, revoked := range []bool{false, true} {
		t.Run(fmt.Sprintf("revoked=%v", revoked), func(t *testing.T) {
			ranks(t, 2, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				buf := make([]int, n)
				if c.Rank() == 1 {
					if revoked {
						return comm.Send(world, make([]int, 1), 0, 9)
					}
					_, err := comm.Recv(world, buf[:1], 0, 3)
					_, received := comm.Recv(c, buf, 0, 4)
					return first(err, received, comm.Send(world, make([]int, 1), 0, 9))
				}
				var u *comm.Unfinished
				if err := comm.Send(ended(c), buf, 1, 4); !errors.As(err, &u) {
					return fmt.Errorf("Send: %w", err)
				}
				if names := mpi.Pending((*mpi.Comm)(c)); !slices.Equal(names, []string{"Send"}) {
					return fmt.Errorf("pending: %v", names)
				}
				err = wantErr("Irecv", wait(comm.Irecv(world, buf[:1], 1, 9)), comm.ErrInUse, "call Wait of the Unfinished")
				if revoked {
					err = first(err, c.Revoke())
				} else {
					err = first(err, comm.Send(world, []int{1}, 1, 3), u.Wait(world.Context()))
				}
				return first(err, wait(comm.Irecv(world, buf[:1], 1, 9)))
			}, commtest.WithParam("check", "true"))
		})
	}
}

// TestCheckInFlight: the buffer of a receive is in use while a transfer writes to it, also
// if the communicator was revoked.
func TestCheckInFlight(t *testing.T) {
	const n = 300000 // elements; longer than the eager limit of every transport
	slow := inproc.NewFabric(inproc.WithRMADelay(1000))
	ranks(t, 2, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		buf := make([]int, n)
		if c.Rank() == 1 {
			err := wait(comm.Isend(c, buf, 0, 1))
			if isErr(err, comm.ErrRevoked) {
				err = nil
			}
			return err
		}
		if _, err := c.Probe(1, 1); err != nil {
			return err
		}
		var u *comm.Unfinished
		if _, err := comm.Recv(ended(c), buf, 1, 1); !errors.As(err, &u) {
			return fmt.Errorf("Recv: %w", err)
		}
		return first(c.Revoke(),
			wantErr("Isend", wait(comm.Isend(world, buf[n-1:], 1, 2)), comm.ErrInUse, "call Wait of the Unfinished"),
			u.Wait(world.Context()),
			wait(comm.Isend(world, buf[n-1:], 0, 2)))
	}, commtest.WithProviders(slow), commtest.WithParam("check", "true"), commtest.WithParam("engine.async_progress", "false"))
}

// TestRaceDetector builds programs with -race and runs them. For a wrong program the detector must
// report the access to a buffer in flight, with the call that started the operation and its line.
// For the correct program it must report nothing.
func TestRaceDetector(t *testing.T) {
	program := filepath.Join(t.TempDir(), "inflight")
	build := exec.Command("go", "build", "-race", "-o", program, "./testdata/inflight")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	source, err := os.ReadFile("testdata/inflight/main.go")
	require.NoError(t, err)
	cases := regexp.MustCompile(`case "(.*)":`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, cases)
	for _, found := range cases {
		name := found[1]
		t.Run(name, func(t *testing.T) {
			run := exec.Command(program, name)
			run.Env = append(os.Environ(), "GORACE=halt_on_error=0 exitcode=66 atexit_sleep_ms=50")
			out, err := run.CombinedOutput()
			call, _, wrong := strings.Cut(name, ": ")
			if !wrong {
				require.NoError(t, err, "%s", out)
				require.NotContains(t, string(out), "DATA RACE")
				return
			}
			require.Error(t, err)
			report := string(out)
			require.Contains(t, report, "WARNING: DATA RACE")
			lines := strings.Split(string(source), "\n")
			at := 1 + slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "// start "+name) })
			require.Positive(t, at)
			require.Regexp(t, `comm\.`+call+`\[`, report)
			require.Contains(t, report, fmt.Sprintf("inflight/main.go:%d ", at))
		})
	}
}
