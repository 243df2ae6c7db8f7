package comm

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
)

// Main is a whole program: it inits, calls run with the world, and finalizes.
//
//	func main() {
//		comm.Main(func(c *comm.Comm) error {
//			...
//			return nil
//		})
//	}
//
// Where run returns an error or panics, the error, or the panic with its
// stack, is written to stderr with the process's rank, and the whole job is
// aborted with exit code 1, or 2 for a panic. Main returns only where all went
// well. run may Finalize by itself. A panic in another goroutine ends the process as Go does, and the
// launcher the job.
func Main(run func(c *Comm) error) {
	c, err := Init(context.Background())
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\n", err)
		os.Exit(1)
	}
	guard(c, run)
	if c.s.job.closed.Load() {
		return
	}
	if err := c.Finalize(); err != nil {
		c.die(1, fmt.Sprintf("finalize: %v", err), "")
	}
}

// guard calls run and aborts the job unless it returns nil.
func guard(c *Comm, run func(c *Comm) error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			c.die(2, fmt.Sprintf("panic: %v", p), "\n"+string(debug.Stack()))
			return
		}
		c.die(1, "the program ended its main goroutine", "") // runtime.Goexit
	}()
	err := run(c)
	returned = true
	if err != nil {
		c.die(1, err.Error(), "")
	}
}

// die tells why on stderr and aborts the job.
func (c *Comm) die(code int, reason, more string) {
	fmt.Fprintf(os.Stderr, "rank %d: %s\n%s", c.worldRank(), reason, more)
	c.abort(code, reason)
}
