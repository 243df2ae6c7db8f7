package mpi

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/bootstrap"
)

// Proc is the type behind comm.Proc: a program that Spawn starts.
type Proc = bootstrap.Command

// Spawn implements comm.Comm.Spawn, which documents the call. The root opens a port and asks the
// launcher to start the processes, which get the address of the port and connect in their Init.
func (c *Comm) Spawn(root int, procs ...Proc) (*Comm, error) {
	const name = "Spawn"
	p := &Port{c: c, root: root}
	_, err := c.share(name, root, func(ctx context.Context) (string, error) {
		if len(procs) == 0 {
			return "", fmt.Errorf("%w: no program is given", ErrSpawn)
		}
		var err error
		if p.port, err = bootstrap.OpenPort(2); err != nil {
			return "", err
		}
		if _, err = c.s.job.home.world.Spawn(ctx, procs, map[string]string{parentPort: p.port.Addr()}); err != nil {
			return "", fmt.Errorf("%w: %w", ErrSpawn, err)
		}
		return "", nil
	})
	if p.port != nil {
		defer p.port.Close() //nolint:errcheck // the processes have connected, or will never do
	}
	if err != nil {
		return nil, err
	}
	return c.accept(name, p, timeLimit)
}

// meetParent connects a process that Spawn has started with its parent.
func (c *Comm) meetParent() error {
	w := c.s.job.world
	if !w.Spawned {
		return nil
	}
	addr, err := w.KVS.Get(parentPort)
	if errors.Is(err, bootstrap.ErrNoKey) {
		return nil // a program that does not use weft has started this process
	}
	if err == nil {
		c.s.job.parent, err = c.Dial(0, addr)
	}
	if err != nil {
		return fmt.Errorf("connect with the processes that have started this one: %w", err)
	}
	return nil
}

// Parent implements comm.Comm.Parent, which documents the call.
func (c *Comm) Parent() *Comm {
	if c == nil || c.s == nil {
		return nil
	}
	if p := c.s.job.home.parent; p != nil && !p.s.closed.Load() {
		return p
	}
	return nil
}
