package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// connect splits the ranks into a server and one or two clients, which connect with it by a port and
// then do collectives and messages with it. The clients dial at the same time.
func connect(k *call) error {
	c, p := k.c, k.c.Size()
	if p < 2 {
		return nil
	}
	groups := make([][]int, 2) // the server, then the clients: ranks in the order of their ranks in the group
	if p > 2 && k.rng.IntN(2) == 0 {
		groups = append(groups, nil)
	}
	for i, r := range k.rng.Perm(p) {
		at := k.rng.IntN(len(groups))
		if i < len(groups) { // no group is empty
			at = i
		}
		groups[at] = append(groups[at], r)
	}
	at := slices.IndexFunc(groups, func(g []int) bool { return slices.Contains(g, c.Rank()) })
	local, err := c.Split(at, slices.Index(groups[at], c.Rank()))
	if err != nil {
		return err
	}
	x := &connection{call: k, local: local, groups: groups, at: at, rounds: 1 + k.rng.IntN(2)}
	x.root, x.publish, x.fails = k.rng.IntN(len(groups[0])), k.rng.IntN(2) == 0, k.rng.IntN(8)
	if at == 0 {
		err = x.serve()
	} else {
		err = x.dial()
	}
	if err != nil {
		return fmt.Errorf("groups %v, the first one accepts on its rank %d: %w", groups, x.root, err)
	}
	return local.Free()
}

// connection is the operation connect.
type connection struct {
	*call
	local   *comm.Comm // of the caller's group
	groups  [][]int    // the server, then the clients: ranks of c
	at      int        // the caller's group
	root    int        // the rank in the server's group that opens the port
	rounds  int        // how often each client connects
	publish bool       // the server publishes the port
	fails   int        // a random number, which selects a call that must fail
}

// name returns the name under which the server publishes its port.
func (x *connection) name() string {
	return fmt.Sprintf("stress-%x", mix(x.salt, uint64(os.Getppid()), 9))
}

func (x *connection) serve() error {
	p, err := x.local.Listen(x.root)
	if err != nil {
		return err
	}
	if x.publish {
		if err := p.Publish(x.name()); err != nil {
			return err
		}
		if x.local.Rank() == x.root && x.fails == 1 {
			if err := p.Publish(x.name() + " again"); err != nil { // replaces the name
				return err
			}
			if _, err := x.c.Lookup(x.name()); !errors.Is(err, comm.ErrPort) {
				return fmt.Errorf("lookup of a replaced name: %w", unexpected(err, comm.ErrPort))
			}
			if err := p.Publish(x.name()); err != nil {
				return err
			}
		}
	}
	if x.fails == 0 {
		if err := x.acceptNobody(p); err != nil {
			return err
		}
	}
	if _, err := comm.BcastValue(x.c, p.Addr(), x.groups[0][x.root]); err != nil {
		return err
	}
	for range x.rounds * (len(x.groups) - 1) {
		x.delay()
		inter, err := x.whileUsable(p.Accept)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		g, _ := inter.Remote()
		peer, err := g.Translate([]int{0}, x.c.Group())
		if err != nil {
			return err
		}
		client := slices.IndexFunc(x.groups, func(g []int) bool { return g[0] == peer[0] })
		if client < 1 {
			return fmt.Errorf("accepted the process with rank %d", peer[0])
		}
		if err := x.use(inter, client); err != nil {
			return err
		}
	}
	if err := p.Close(); err != nil {
		return err
	}
	return x.c.Barrier()
}

// whileUsable calls connect, which is Accept or Dial, with a context that ends if a rank of c fails or c is
// revoked, because the communicator of the call does not have the ranks of the other side.
func (x *connection) whileUsable(connect func(local *comm.Comm) (*comm.Comm, error)) (*comm.Comm, error) {
	ctx, cancel := context.WithCancelCause(x.local.Context())
	done := make(chan struct{})
	go func() { // ends with ctx; this function waits for it
		defer close(done)
		// No rank sends a message with this tag.
		if _, err := x.c.WithContext(ctx).Probe(comm.AnySource, x.tag+tagsPerOperation-1); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	}()
	inter, err := connect(x.local.WithContext(ctx))
	cause := context.Cause(ctx)
	cancel(nil)
	<-done
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	return inter.WithContext(x.local.Context()), nil
}

// acceptNobody waits at the port, to which nobody connects yet, until a context ends.
func (x *connection) acceptNobody(p *comm.Port) error {
	d, err := x.local.Dup()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = p.Accept(d.WithContext(ctx))
	// If the context of the root ends first, all ranks get ErrPort. Otherwise a rank revokes d.
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, comm.ErrPort) && !errors.Is(err, comm.ErrRevoked) {
		return fmt.Errorf("accept until a deadline: %w", unexpected(err, context.DeadlineExceeded))
	}
	_ = d.Revoke() // the ranks do not agree on whether it was revoked
	return d.Free()
}

func (x *connection) dial() error {
	root := x.own.IntN(x.local.Size()) // then that of rank 0
	root, err := comm.BcastValue(x.local, root, 0)
	if err != nil {
		return err
	}
	addr, err := comm.BcastValue(x.c, "", x.groups[0][x.root])
	if err != nil {
		return err
	}
	if x.publish {
		found, err := x.c.Lookup(x.name())
		if err != nil {
			return err
		}
		if found != addr {
			return fmt.Errorf("lookup: %q instead of %q", found, addr)
		}
	}
	if x.fails == 2 {
		if _, err := x.local.Dial(root, addr[:len(addr)/2]); !errors.Is(err, comm.ErrPort) {
			return fmt.Errorf("dial half an address: %w", unexpected(err, comm.ErrPort))
		}
	}
	for range x.rounds {
		to := ""
		if x.local.Rank() == root {
			to = addr
		}
		x.delay()
		inter, err := x.whileUsable(func(local *comm.Comm) (*comm.Comm, error) { return local.Dial(root, to) })
		if err != nil {
			return fmt.Errorf("dial: %w", err)
		}
		if err := x.use(inter, x.at); err != nil {
			return err
		}
	}
	if err := x.c.Barrier(); err != nil {
		return err
	}
	if x.fails == 3 { // the port is closed
		if _, err := x.local.Dial(root, addr); !errors.Is(err, comm.ErrPort) {
			return fmt.Errorf("dial a closed port: %w", unexpected(err, comm.ErrPort))
		}
	}
	if x.publish {
		if _, err := x.c.Lookup(x.name()); !errors.Is(err, comm.ErrPort) {
			return fmt.Errorf("lookup of a closed port: %w", unexpected(err, comm.ErrPort))
		}
	}
	return nil
}

// use does collectives and messages over the connection of the server and a client. It numbers the
// members of the two groups from 0 on.
func (x *connection) use(inter *comm.Comm, client int) error {
	n := len(x.groups[0])
	all := count(n + len(x.groups[client]))
	k := *x.call
	k.salt, k.tag = mix(x.salt, uint64(client), 3), 0
	k.rng = newRand(k.salt, 2)
	side, groups := min(x.at, 1), [2][]int{all[:n], all[n:]}
	if err := k.exchange(inter, groups, side); err != nil {
		return err
	}
	return k.merge(inter, groups, side, withOthers[k.rng.IntN(len(withOthers))])
}
