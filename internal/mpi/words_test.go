package mpi_test

import (
	"testing"

	"github.com/weft-hpc/weft/comm"
)

// TestErrorsSayWhatToChange: the texts of errors say what the program has to change, or what it has
// done.
func TestErrorsSayWhatToChange(t *testing.T) {
	ranks(t, 1, func(c *comm.Comm) error {
		if err := comm.SendValue(c, "text", 0, 0); err != nil {
			return err
		}
		_, _, err := comm.RecvValue[int](c, 0, 0)
		d, derr := c.Dup()
		if derr != nil {
			return derr
		}
		recv := comm.Irecv(d, make([]int, 1), 0, 0)
		ferr := d.Free()
		_, rerr := recv.Wait()
		return first(
			wantErr("RecvValue of another type", err, comm.ErrType, "receive the type that was sent"),
			ferr,
			wantErr("Wait after Free", rerr, comm.ErrClosed, "the communicator was freed"),
		)
	})
}
