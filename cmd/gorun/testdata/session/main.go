// Session uses sessions without Init. With an argument it calls comm.Main after them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	for round := range 2 { // again after Close
		if err := use(round); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if len(os.Args) > 1 {
		comm.Main(func(c *comm.Comm) error {
			_, err := comm.AllreduceOne(c, 1, comm.Sum)
			return err
		})
	}
}

// library is a part of the program that knows nothing of the others.
func library(name string) (int, error) {
	s, err := comm.Open(context.Background())
	if err != nil {
		return 0, err
	}
	g, err := s.Group("mpi://WORLD")
	if err != nil {
		return 0, err
	}
	c, err := s.Comm(g, name)
	if err != nil {
		return 0, err
	}
	n, err := comm.AllreduceOne(c, c.Rank(), comm.Sum)
	return n, errors.Join(err, c.Free(), s.Close())
}

func use(round int) error {
	done := make(chan error, 2)
	for _, name := range []string{"mesh", "solver"} { // at the same time, in any order
		go func() {
			n, err := library(name)
			if err == nil && n != 6 {
				err = fmt.Errorf("%s: sum %d", name, n)
			}
			done <- err
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		return err
	}
	s, err := comm.Open(context.Background())
	if err != nil {
		return err
	}
	sets, err := s.Psets()
	if err != nil {
		return err
	}
	self, err := s.Group("mpi://SELF")
	if err != nil {
		return err
	}
	world, err := s.Group("mpi://WORLD")
	if err != nil {
		return err
	}
	if self.Size() != 1 || world.Rank() == 0 {
		fmt.Println(round, sets, self.Size(), world.Size())
	}
	return s.Close()
}
