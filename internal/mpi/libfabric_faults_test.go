//go:build libfabric

package mpi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/libfabric"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// overScript runs f over testprov with this script.
func overScript(t *testing.T, n int, script string, f func(c *comm.Comm) error) {
	t.Helper()
	ranks(t, n, f, commtest.WithProviders(libfabrictest.WithScript(libfabric.New(), script)),
		commtest.WithParam("transport.libfabric.provider", libfabrictest.Name))
}

// TestRefusedMessages: messages that a fabric refuses for want of a receive, or loses, arrive all
// the same.
func TestRefusedMessages(t *testing.T) {
	for _, script := range []string{"verbs,enorx=3", "cxi,enorx=4", "psm,unexpected=3000", "efa,erecv=6"} {
		t.Run(script, func(t *testing.T) {
			overScript(t, 3, script, func(c *comm.Comm) error {
				next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
				for i := range 200 {
					n := []int{1, 500, 4000, 30_000}[i%4]
					out, in := make([]int, n), make([]int, n)
					for j := range out {
						out[j] = c.Rank()<<20 + i + j
					}
					if _, err := comm.Sendrecv(c, out, next, i%3, in, prev, i%3); err != nil {
						return err
					}
					for j := range in {
						if in[j] != prev<<20+i+j {
							return fmt.Errorf("message %d: %d at %d", i, in[j], j)
						}
					}
					sum := []int{0}
					if err := comm.Allreduce(c, []int{i}, sum, comm.Sum); err != nil {
						return err
					}
					if sum[0] != c.Size()*i {
						return fmt.Errorf("sum %d: %d", i, sum[0])
					}
				}
				return nil
			})
		})
	}
}

// TestCauseOfFailedAccess: the error of an operation on a window has what the provider of libfabric
// says about the failure. No rank counts as failed.
func TestCauseOfFailedAccess(t *testing.T) {
	for script, want := range map[string]string{
		"verbs,ekey=1": "libfabric testprov on verbs: write rank 1 at 127.0.0.1:",
		"cxi,ekey=1":   `(the target rejected the key, prov_errno 23, err_data "the target rejected the key")`,
	} {
		t.Run(script, func(t *testing.T) {
			overScript(t, 2, script, func(c *comm.Comm) error {
				w, err := comm.NewWin[int](c, 10)
				if err != nil {
					return err
				}
				if c.Rank() == 0 {
					err := first(w.Lock(1, comm.LockExclusive), w.Put([]int{1}, 1, 0), w.Flush(1))
					if err == nil || isErr(err, comm.ErrProcFailed) || !strings.Contains(err.Error(), want) {
						return fmt.Errorf("Put: %w", err)
					}
					_ = w.Unlock(1) // the error of the Put again
				}
				return first(c.Barrier(), w.Free())
			})
		})
	}
}

// TestSlowRegistration: messages and windows over a fabric that takes long to register memory.
func TestSlowRegistration(t *testing.T) {
	for _, script := range []string{"verbs,pin=3000", "cxi,pin=3000"} {
		t.Run(script, func(t *testing.T) {
			overScript(t, 3, script, func(c *comm.Comm) error {
				const n = 20_000
				next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
				w, err := comm.NewDynamicWin[int](c)
				if err != nil {
					return err
				}
				for i := range 5 {
					out, in, own := make([]int, n), make([]int, n), make([]int, n)
					for j := range out {
						out[j] = c.Rank()<<20 + i + j
					}
					region, err := w.Attach(own)
					if err != nil {
						return err
					}
					regions := make([]comm.Region[int], c.Size())
					if err := first(comm.Allgather(c, []comm.Region[int]{region}, regions), w.Fence()); err != nil {
						return err
					}
					if err := first(w.In(regions[next], 0).Put(comm.Slice(out)), w.Fence()); err != nil {
						return err
					}
					if _, err := comm.Sendrecv(c, out, next, i, in, prev, i); err != nil {
						return err
					}
					for j := range in {
						if want := prev<<20 + i + j; in[j] != want || own[j] != want {
							return fmt.Errorf("round %d: received %d, and %d by Put, at %d", i, in[j], own[j], j)
						}
					}
					if err := first(c.Barrier(), w.Detach(region)); err != nil {
						return err
					}
				}
				return w.Free()
			})
		})
	}
}
