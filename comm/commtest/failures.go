package commtest

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
)

// openFailures makes the socket pair through which the rank gets failure notifications, as gorun
// does.
func (r *rank) openFailures() error {
	pair, err := sys.Socketpair()
	for _, fd := range pair {
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	r.failures = os.NewFile(uintptr(pair[0]), "launcher")
	r.setup.World.Failures = os.NewFile(uintptr(pair[1]), "failures")
	return nil
}

// Report notifies the other ranks of a job with [WithNotify] that the given ranks have failed, even
// if they have not, as gorun does for a host that does not answer. reason is part of the errors
// that follow. From then on the other ranks do not communicate with the given ranks. c is a
// communicator of the calling rank; its context must be as for [Kill]. On the given ranks, f should
// call [Kill] before it returns.
func Report(c *comm.Comm, reason string, ranks ...int) {
	r, ok := c.Context().Value(rankKey{}).(*rank)
	if !ok {
		panic("commtest: Report with a communicator that does not come from Run")
	}
	r.job.report(reason, ranks)
}

func (j *job) report(reason string, ranks []int) {
	line := wire.AppendFailures(nil, "", ranks, reason)
	for i := range j.ranks {
		if to := j.ranks[i].failures; to != nil && !slices.Contains(ranks, i) {
			_, _ = to.Write(line) // if Write fails, the rank has ended and needs no notification
		}
	}
}
