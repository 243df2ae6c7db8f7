package commtest_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// witness is a testing.TB that records the failure of a call of Run, and does not fail the test
// itself.
type witness struct {
	testing.TB
	mu   sync.Mutex
	text strings.Builder
}

func (w *witness) Helper() {}

func (w *witness) Errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(&w.text, format+"\n", args...)
}

func (w *witness) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	runtime.Goexit()
}

// failure runs n ranks by commtest.Run, and returns the text with which Run fails the test, or an
// empty text.
func failure(t *testing.T, n int, f func(c *comm.Comm) error, opts ...commtest.Option) string {
	w := &witness{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { commtest.Run(w, n, f, opts...) })
	wg.Wait()
	return w.text.String()
}

func block(c *comm.Comm) error {
	_, err := comm.Recv(c, []int{1}, comm.AnySource, 0)
	return err
}

func TestRunPasses(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[int]bool)
	require.Empty(t, failure(t, 5, func(c *comm.Comm) error {
		mu.Lock()
		defer mu.Unlock()
		seen[c.Rank()] = c.Size() == 5
		return nil
	}))
	require.Len(t, seen, 5)
}

// TestFirstFailureEndsAll has rank 2 fail, in each of several ways, while the other ranks wait for
// messages that never come. Run must return, and its text must be that of rank 2's failure.
func TestFirstFailureEndsAll(t *testing.T) {
	for name, x := range map[string]struct {
		f    func(c *comm.Comm) error
		text string
	}{
		"error":   {func(*comm.Comm) error { return errors.New("lost the plot") }, "rank 2: lost the plot"},
		"panic":   {func(*comm.Comm) error { panic("lost the plot") }, "rank 2: panic: lost the plot\ngoroutine"},
		"FailNow": {func(*comm.Comm) error { runtime.Goexit(); return nil }, "rank 2: the rank ended"},
		"abort":   {func(c *comm.Comm) error { c.Abort(3); return nil }, "rank 2: abort with exit code 3: the program called Abort"},
		"Main's":  {func(c *comm.Comm) error { return c.Free() }, "rank 2: comm: Free (world)"},
	} {
		t.Run(name, func(t *testing.T) {
			text := failure(t, 4, func(c *comm.Comm) error {
				if c.Rank() == 2 {
					return x.f(c)
				}
				return block(c)
			})
			require.Contains(t, text, x.text)
			require.Equal(t, 1, strings.Count(text, "rank 2:"), "only the first failure is reported:\n%s", text)
		})
	}
}

func TestDeadlockIsReported(t *testing.T) {
	text := failure(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			return nil // then Run calls Finalize, in which rank 1 waits for the others
		}
		return block(c)
	}, commtest.WithTimeout(300*time.Millisecond))
	require.Contains(t, text, "deadlock")
	for rank := range 3 {
		require.Contains(t, text, fmt.Sprintf("rank %d: goroutine ", rank))
	}
	require.Contains(t, text, "commtest_test.block")
	require.Contains(t, text, "Finalize")
}

func TestBadOptions(t *testing.T) {
	ok := func(*comm.Comm) error { return nil }
	require.Contains(t, failure(t, 2, ok, commtest.WithParam("no.such", "1")), "no.such")
	require.Contains(t, failure(t, 2, ok, commtest.WithParam("coll.bcast.algorithm", "magic")), "magic")
	require.Contains(t, failure(t, 2, ok, commtest.WithNodes(0)), "WithNodes has hosts for 1 ranks, but the job has 2")
	require.Contains(t, failure(t, 0, ok), "0 ranks")
}

func TestKill(t *testing.T) {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			commtest.Kill(c)
			return nil
		}
		_, err := comm.Recv(c, []int{1}, 0, 0)
		if !errors.Is(err, comm.ErrProcFailed) {
			return err
		}
		commtest.Kill(c)
		return nil
	}, commtest.WithTimeout(30*time.Second))
}
