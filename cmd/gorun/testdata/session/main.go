// Session uses sessions without Init. With the argument main it calls comm.Main after them. With the
// argument apps it connects the two programs of its job.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	if slices.Contains(os.Args, "apps") {
		if err := connect(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
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

// connect makes an intercommunicator of the two programs.
func connect() error {
	s, err := comm.Open(context.Background())
	if err != nil {
		return err
	}
	var groups [2]comm.Group
	own := 0
	for n := range groups {
		if groups[n], err = s.Group(fmt.Sprintf("weft://APP/%d", n)); err != nil {
			return err
		}
		if groups[n].Rank() != comm.Undefined {
			own = n
		}
	}
	for _, name := range []string{"weft://APP/2", "weft://APP/-1", "weft://APP/00", "weft://APP/"} {
		if _, err := s.Group(name); !errors.Is(err, comm.ErrArg) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	c, err := s.Intercomm(groups[own], 0, groups[1-own], 0, "programs")
	if err != nil {
		return err
	}
	sum, err := comm.AllreduceOne(c, 3+c.Rank(), comm.Sum) // of the other program
	if own == 0 && c.Rank() == 0 {
		fmt.Printf("program %d of 2: [%d %d], sum %d\n", own, groups[0].Size(), groups[1].Size(), sum)
	}
	return errors.Join(err, c.Free(), s.Close())
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
