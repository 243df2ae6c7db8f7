// Package gotest has tests that commtest.Main runs on the ranks of gorun. Those whose names begin
// with Bad fail.
package gotest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

func TestMain(m *testing.M) { commtest.Main(m) }

// sum checks that c has n ranks, and the launcher that started them.
func sum(n int, launcher string) func(c *comm.Comm) error {
	return func(c *comm.Comm) error {
		total, err := comm.AllreduceOne(c, c.Rank()+1, comm.Sum)
		if err != nil || total != n*(n+1)/2 {
			return fmt.Errorf("sum %d: %w", total, err)
		}
		if got := c.Job().Launcher; got != launcher {
			return fmt.Errorf("launcher %s, not %s", got, launcher)
		}
		return nil
	}
}

func TestAll(t *testing.T) {
	commtest.Run(t, 3, sum(3, "gorun"))
	commtest.Run(t, 3, sum(3, "gorun"), commtest.WithTimeout(0))
}

func TestSome(t *testing.T) { commtest.Run(t, 2, sum(2, "gorun")) }

func TestMore(t *testing.T) { commtest.Run(t, 5, sum(5, "commtest")) }

func TestOption(t *testing.T) { commtest.Run(t, 2, sum(2, "commtest"), commtest.WithNodes(0, 1)) }

func TestSkip(t *testing.T) {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		t.Skip("on all ranks")
		return nil
	})
}

func TestSubtests(t *testing.T) {
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			// The processes reach Run in different orders.
			rank, _ := strconv.Atoi(os.Getenv("PMI_RANK"))
			time.Sleep(time.Duration((n+rank)%3) * 20 * time.Millisecond)
			commtest.Run(t, n, sum(n, "gorun"))
		})
	}
}

func TestBadError(t *testing.T) {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			return errors.New("no such mesh")
		}
		return c.Barrier()
	})
}

func TestBadPanic(t *testing.T) {
	commtest.Run(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 2 {
			panic("out of cheese")
		}
		return c.Barrier()
	})
}

func TestBadFatal(t *testing.T) {
	commtest.Run(t, 2, func(c *comm.Comm) error {
		if c.Rank() == 0 {
			t.Fatal("only here")
		}
		return c.Barrier()
	})
}

func TestBadOrder(t *testing.T) {
	name := "same"
	commtest.Run(t, 3, func(c *comm.Comm) error {
		if c.Rank() == 1 {
			name = "other"
		}
		return nil
	})
	t.Run(name, func(t *testing.T) { commtest.Run(t, 3, sum(3, "gorun")) })
}
