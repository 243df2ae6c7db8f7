package mpi_test

import (
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/tcp"
)

// TestDeadBeforeContact kills a rank that the other ranks have no connection with. It checks that
// calls that wait for this rank fail, although the other ranks never sent it a message.
func TestDeadBeforeContact(t *testing.T) {
	for name, f := range map[string]func(c *comm.Comm) error{
		"Recv":  func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, 2, 0); return err },
		"any":   func(c *comm.Comm) error { _, err := comm.Recv(c, []int{1}, comm.AnySource, 0); return err },
		"Probe": func(c *comm.Comm) error { _, err := c.Probe(2, 0); return err },
		"Improbe": func(c *comm.Comm) error {
			for {
				if _, _, err := c.Improbe(comm.AnySource, 0); err != nil {
					return err
				}
			}
		},
		"CreateGroup": func(c *comm.Comm) error {
			g, err := c.Group().Incl(2, 0, 1) // in CreateGroup, the first rank of the group sends to the others
			if err != nil {
				return err
			}
			_, err = c.CreateGroup(g, 7)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				if c.Rank() == 2 {
					commtest.Kill(c)
					return nil
				}
				err := f(c)
				commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
				if !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
					return fmt.Errorf("%s: %w", name, err)
				}
				return nil
			}, commtest.WithProviders(tcp.New()))
		})
	}
}
