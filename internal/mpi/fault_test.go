package mpi_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/fault"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// TestLegalFaults runs messages and all collectives over transports with all faults that the contract
// of transports permits, such as delayed completions. It checks that all results are correct.
func TestLegalFaults(t *testing.T) {
	for over, open := range map[string]func() transport.Provider{
		"inproc":      func() transport.Provider { return inproc.NewFabric() },
		"without RMA": func() transport.Provider { return inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(2000)) },
		"tcp":         func() transport.Provider { return tcp.New() },
	} {
		for seed := uint64(1); seed <= 5; seed++ {
			plan := fault.Legal(seed)
			t.Run(over+"/"+plan.String(), func(t *testing.T) {
				ranks(t, 1+int(seed), func(c *comm.Comm) error {
					next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
					for _, n := range sizes {
						r := comm.Issend(c, count(n, c.Rank()), next, 3)
						got, _, err := comm.RecvAlloc[int](c, comm.AnySource, comm.AnyTag)
						if err := first(err, wait(r), same("ring", got, count(n, prev))); err != nil {
							return err
						}
					}
					rng := rand.New(rand.NewPCG(seed, 1))
					return first(rounds(c, seed), sums.trial(c, rng, 20001).all(), maps.trial(c, rng, 9001).all())
				}, commtest.WithProviders(fault.Wrap(open(), plan)))
			})
		}
	}
}
