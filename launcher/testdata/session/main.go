// Command session spawns itself, with the name of a file as its argument. The spawned process has a session
// and no Main. It frees the connection and closes the session. Some time later the other process creates the
// file and frees the connection, too. The file must be there when Close of the session returns.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weft-hpc/weft/comm"
)

func main() {
	if len(os.Args) == 3 {
		if err := spawned(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	comm.Main(func(c *comm.Comm) error {
		inter, err := c.Spawn(0, comm.Proc{Path: os.Args[0], Args: []string{os.Args[1], "spawned"}, N: 1})
		if err != nil {
			return err
		}
		if err := inter.Barrier(); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond)
		return errors.Join(os.WriteFile(os.Args[1], nil, 0o600), inter.Free())
	})
}

func spawned(file string) error {
	s, err := comm.Open(context.Background())
	if err != nil {
		return err
	}
	g, err := s.Group("mpi://WORLD")
	if err != nil {
		return err
	}
	c, err := s.Comm(g, "all")
	if err != nil {
		return err
	}
	parent := c.Parent()
	if err := parent.Barrier(); err != nil {
		return err
	}
	parent.Revoke() // so that Free does not wait for the other process
	if err := errors.Join(parent.Free(), c.Free(), s.Close()); err != nil {
		return err
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("Close of the session has returned too early: %w", err)
	}
	return nil
}
