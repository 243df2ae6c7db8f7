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

// openNews makes the rank's channel of news.
func (r *rank) openNews() error {
	pair, err := sys.Socketpair()
	for _, fd := range pair {
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	r.news = os.NewFile(uintptr(pair[0]), "launcher")
	r.setup.World.Failures = os.NewFile(uintptr(pair[1]), "news")
	return nil
}

// Report tells all ranks of a job with WithNotify but those named that these have
// failed, whether they have or not, as gorun does of a host that does not answer:
// nobody has anything to do with them from then on. c is the calling rank's. The f
// of a rank that is named should end by Kill.
func Report(c *comm.Comm, reason string, ranks ...int) {
	r, ok := c.Context().Value(rankKey{}).(*rank)
	if !ok {
		panic("commtest: Report with a communicator that is not of Run")
	}
	r.job.report(reason, ranks)
}

func (j *job) report(reason string, ranks []int) {
	line := wire.AppendFailures(nil, ranks, reason)
	for i := range j.ranks {
		if to := j.ranks[i].news; to != nil && !slices.Contains(ranks, i) {
			_, _ = to.Write(line) // who has ended does not hear it
		}
	}
}
