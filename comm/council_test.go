package comm_test

import (
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
)

// TestWhoComputesAnswers: the only one to whom a verdict was told makes no call of
// weft while the next who presides asks for it.
func TestWhoComputesAnswers(t *testing.T) {
	overEach(t, func(t *testing.T, p transport.Provider) {
		told, computes, shrunk := make(chan struct{}), make(chan struct{}), make(chan struct{})
		ranks(t, 3, func(c *comm.Comm) error {
			switch c.Rank() {
			case 0:
				err := comm.TellVerdict(c)
				<-told
				commtest.Kill(c)
				return err
			case 1:
				<-computes
				next, err := c.Shrink()
				close(shrunk)
				return first(err, barrierOf(next, 2))
			}
			next, err := c.Shrink()
			close(told)
			for range 10000 {
				if len(c.FailedRanks()) > 0 { // asks no transport
					break
				}
				time.Sleep(time.Millisecond)
			}
			close(computes)
			<-shrunk
			return first(err, barrierOf(next, 2))
		}, commtest.WithNotify(), commtest.WithProviders(p), commtest.WithTimeout(20*time.Second))
	})
}
