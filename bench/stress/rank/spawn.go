package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// withOthers are the operations that a communicator of two jobs can do.
var withOthers = []func(k *call) error{
	func(k *call) error { return k.subject().collectives(k) },
	func(k *call) error { return k.subject().messages(k) },
	func(k *call) error { return k.subject().window(k) },
	func(k *call) error { return k.subject().regions(k) },
	func(k *call) error { return k.subject().views(k) },
	sums, parts, persistent, requests, neighbors, intercomm, sparse, values, tickets[int64], critical[int64],
}

// spawn starts one to three processes of this program, and does collectives and messages with them:
// over the intercommunicator, and over the merged one. The new processes draw the same random numbers
// from the seed in their arguments.
func spawn(k *call) error {
	c, seed := k.c, k.rng.Uint64()|1
	if c.Job().Launcher != "gorun" || k.options.endless && c != k.world() { // other ranks might not notice the kill
		return nil
	}
	root := k.rng.IntN(c.Size())
	if k.rng.IntN(8) == 0 {
		return k.spawnNothing(root)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	open := k.rng.IntN(4) == 0 && (k.end > 0 || k.survive) // the error of a session would hide the killed rank
	args := []string{"-spawned", fmt.Sprint(seed), "-bytes", fmt.Sprint(k.budget), "-depth", fmt.Sprint(k.depth + 1), "-ops", fmt.Sprint(k.end),
		fmt.Sprintf("-survive=%t", k.survive), fmt.Sprintf("-endless=%t", k.options.endless), fmt.Sprintf("-sessions=%t", open)}
	n, procs := 0, make([]comm.Proc, 1+k.rng.IntN(2))
	for i := range procs {
		p := comm.Proc{Path: program, N: 1 + k.rng.IntN(2), Args: append(slices.Clone(args), "-app", fmt.Sprint(i))}
		p.Env = []string{fmt.Sprintf("%s=%d", appVariable, i)}
		if k.rng.IntN(2) == 0 {
			p.Soft = fmt.Sprintf("1:%d", p.N) // there is room for all, because the job does not use -strict
		}
		if k.rng.IntN(2) == 0 {
			p.Dir = filepath.Dir(program)
		}
		procs[i] = p
		n += p.N
	}
	if c.Rank() != root {
		procs = nil
	}
	k.delay()
	inter, err := c.Spawn(root, procs...)
	if err != nil {
		return err
	}
	g, _ := inter.Remote()
	if g.Size() != n {
		return fmt.Errorf("%d of %d processes were started", g.Size(), n)
	}
	return k.family(inter, seed, 0, k.depth+1)
}

// appVariable is the environment variable with the number of a spawned process's program.
const appVariable = "STRESS_APP"

// spawnNothing checks that a Spawn of a program that does not exist fails on all ranks, and that the
// communicator stays usable.
func (k *call) spawnNothing(root int) error {
	if _, err := k.c.Spawn(root, comm.Proc{Path: "/no such program", N: 1}); !errors.Is(err, comm.ErrSpawn) {
		return fmt.Errorf("a program that does not exist: %w", unexpected(err, comm.ErrSpawn))
	}
	return k.c.Barrier()
}

// unexpected returns err, or an error if err is nil, where the error want was due.
func unexpected(err, want error) error {
	if err == nil {
		return fmt.Errorf("no error instead of this one: %w", want)
	}
	return err
}

// family is the part of spawn that both sides do. The processes that call Spawn are side 0. The members
// of the groups are these processes in their order, and then the new ones. depth is the depth of the new
// ones.
func (k *call) family(inter *comm.Comm, seed uint64, side, depth int) error {
	g, _ := inter.Remote()
	sizes := [2]int{inter.Size(), g.Size()}
	if side == 1 {
		sizes = [2]int{sizes[1], sizes[0]}
	}
	all := count(sizes[0] + sizes[1])
	groups := [2][]int{all[:sizes[0]], all[sizes[0]:]}
	sub := *k
	sub.rng, sub.salt, sub.tag, sub.endless = newRand(seed, 1), seed, 0, k.options.endless
	if err := sub.exchange(inter, groups, side); err != nil {
		return err
	}
	return sub.merge(inter, groups, side, func(k *call) error {
		if depth == 1 && k.rng.IntN(4) == 0 {
			k.depth = depth
			return spawn(k)
		}
		return withOthers[k.rng.IntN(len(withOthers))](k)
	})
}

// runSpawned is what a process does that spawn has started.
func (j *job) runSpawned() error {
	c := j.world()
	j.setActivity("spawned by the operation spawn")
	err := func() error {
		parent := c.Parent()
		if parent == nil {
			return errors.New("no parent")
		}
		if got, want := c.Job().App, j.app; got != want || os.Getenv(appVariable) != fmt.Sprint(want) {
			return fmt.Errorf("program %d, and %s=%s, instead of %d", got, appVariable, os.Getenv(appVariable), want)
		}
		k := &call{job: j, c: c, own: j.own, budget: j.bytes}
		if err := k.family(parent, j.spawned, 1, j.depth); err != nil {
			return err
		}
		if c.Parent() != nil {
			return errors.New("there is a parent after Free of the connection")
		}
		return nil
	}()
	if err != nil {
		return j.fail(fmt.Errorf("process %d of %d that spawn has started, seed %d: %w", c.Rank(), c.Size(), j.spawned, err))
	}
	return nil
}

// withSession calls run with a communicator of all ranks that a session has made, several times with
// a session each. It ends with the first error.
func withSession(times int, run func(c *comm.Comm) error) error {
	for i := range times {
		s, err := comm.Open(context.Background())
		if err != nil {
			return err
		}
		g, err := s.Group("mpi://WORLD")
		if err != nil {
			return err
		}
		c, err := s.Comm(g, fmt.Sprint("stress ", i))
		if err != nil {
			return err
		}
		if err := run(c); err != nil {
			return err
		}
		if err := errors.Join(c.Free(), s.Close()); err != nil {
			return err
		}
	}
	return nil
}
