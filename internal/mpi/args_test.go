package mpi_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
)

type pointed struct {
	A int
	B []string
}

// TestWrongArguments passes wrong arguments to point-to-point calls. It checks that they return the
// documented errors, and that the communicator works afterwards.
func TestWrongArguments(t *testing.T) {
	one := []int{1}
	recv := func(_ comm.Status, err error) error { return err }
	for name, bad := range map[string]struct {
		call func(c *comm.Comm) error
		kind error
		text string
	}{
		"send to size":       {func(c *comm.Comm) error { return comm.Send(c, one, c.Size(), 0) }, comm.ErrRank, "comm: Send (world, rank 2, tag 0): rank out of range: the communicator has 2"},
		"send to any":        {func(c *comm.Comm) error { return comm.Send(c, one, comm.AnySource, 0) }, comm.ErrRank, "any source"},
		"send to -3":         {func(c *comm.Comm) error { return comm.Send(c, one, -3, 0) }, comm.ErrRank, ""},
		"send negative tag":  {func(c *comm.Comm) error { return comm.Send(c, one, 0, -1) }, comm.ErrTag, ""},
		"send large tag":     {func(c *comm.Comm) error { return comm.Send(c, one, 0, comm.MaxTag+1) }, comm.ErrTag, "2147483647"},
		"send null, bad tag": {func(c *comm.Comm) error { return comm.Send(c, one, comm.ProcNull, -5) }, comm.ErrTag, ""},
		"send pointers":      {func(c *comm.Comm) error { return comm.Send(c, []pointed{{}}, 0, 0) }, comm.ErrType, "mpi_test.pointed.B is a slice"},
		"send strings":       {func(c *comm.Comm) error { return comm.Ssend(c, []string{""}, 0, 0) }, comm.ErrType, "Ssend"},
		"bsend":              {func(c *comm.Comm) error { return comm.Bsend(c, one, 7, 0) }, comm.ErrRank, "Bsend"},
		"rsend":              {func(c *comm.Comm) error { return comm.Rsend(c, one, 7, 0) }, comm.ErrRank, "Rsend"},
		"isend":              {func(c *comm.Comm) error { return wait(comm.Isend(c, one, 7, 0)) }, comm.ErrRank, "Isend"},
		"issend pointers":    {func(c *comm.Comm) error { return wait(comm.Issend(c, []any{1}, 1, 0)) }, comm.ErrType, "Issend"},
		"recv from size":     {func(c *comm.Comm) error { return recv(comm.Recv(c, one, c.Size(), 0)) }, comm.ErrRank, "Recv"},
		"recv from -9":       {func(c *comm.Comm) error { return recv(comm.Recv(c, one, -9, 0)) }, comm.ErrRank, ""},
		"recv tag -2":        {func(c *comm.Comm) error { return recv(comm.Recv(c, one, 0, -2)) }, comm.ErrTag, ""},
		"recv maps":          {func(c *comm.Comm) error { return recv(comm.Recv(c, []map[int]int{nil}, 0, 0)) }, comm.ErrType, "map"},
		"irecv":              {func(c *comm.Comm) error { return wait(comm.Irecv(c, one, 9, 0)) }, comm.ErrRank, "Irecv"},
		"irecv pointers":     {func(c *comm.Comm) error { return wait(comm.Irecv(c, []*int{nil}, 0, 0)) }, comm.ErrType, "Irecv"},
		"sendrecv dest":      {func(c *comm.Comm) error { return recv(comm.Sendrecv(c, one, 5, 0, []int{1}, 0, 0)) }, comm.ErrRank, "rank 5"},
		"sendrecv source":    {func(c *comm.Comm) error { return recv(comm.Sendrecv(c, one, 0, 0, []int{1}, 6, 0)) }, comm.ErrRank, "rank 6"},
		"sendrecv same":      {func(c *comm.Comm) error { return recv(comm.Sendrecv(c, one, 0, 0, one, 0, 0)) }, comm.ErrBuffer, ""},
		"sendrecv overlap":   {func(c *comm.Comm) error { b := count(4, 0); return recv(comm.Sendrecv(c, b[:3], 0, 0, b[2:], 0, 0)) }, comm.ErrBuffer, ""},
		"sendrecv send type": {func(c *comm.Comm) error { return recv(comm.Sendrecv(c, []string{}, 0, 0, one, 0, 0)) }, comm.ErrType, ""},
		"sendrecv recv type": {func(c *comm.Comm) error { return recv(comm.Sendrecv(c, one, 0, 0, []string{}, 0, 0)) }, comm.ErrType, ""},
		"replace":            {func(c *comm.Comm) error { return recv(comm.SendrecvReplace(c, one, 0, comm.AnyTag, 0, 0)) }, comm.ErrTag, "SendrecvReplace"},
		"probe":              {func(c *comm.Comm) error { return recv(c.Probe(2, 0)) }, comm.ErrRank, "Probe"},
		"iprobe":             {func(c *comm.Comm) error { _, _, err := c.Iprobe(0, -7); return err }, comm.ErrTag, "Iprobe"},
		"mprobe":             {func(c *comm.Comm) error { _, _, err := c.Mprobe(-8, 0); return err }, comm.ErrRank, "Mprobe"},
		"improbe":            {func(c *comm.Comm) error { _, _, err := c.Improbe(-8, 0); return err }, comm.ErrRank, "Improbe"},
		"recvalloc":          {func(c *comm.Comm) error { _, _, err := comm.RecvAlloc[int](c, 3, 0); return err }, comm.ErrRank, "RecvAlloc"},
		"recvalloc pointers": {func(c *comm.Comm) error { _, _, err := comm.RecvAlloc[error](c, 0, 0); return err }, comm.ErrType, "RecvAlloc"},
		"recvvalue":          {func(c *comm.Comm) error { _, _, err := comm.RecvValue[int](c, 3, 0); return err }, comm.ErrRank, "RecvValue"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				if err := wantErr(name, bad.call(c), bad.kind, bad.text); err != nil {
					return err
				}
				return exercise(c, c, []int{0, 1})
			})
		})
	}
}

// TestWrongCollectives lets rank 1 of three ranks pass a wrong argument, or all ranks pass
// arguments that do not fit together. It checks that rank 1 gets an error, that each error is the
// documented one, ErrRevoked, ErrMismatch or ErrCount, and that no rank waits forever.
func TestWrongCollectives(t *testing.T) {
	two := func() []int { return count(2, 0) }
	bad := func(c *comm.Comm) bool { return c.Rank() == 1 }
	n := func(c *comm.Comm, good, wrong int) []int {
		if bad(c) {
			return make([]int, wrong)
		}
		return make([]int, good)
	}
	pick := func(c *comm.Comm, good, wrong int) int {
		if bad(c) {
			return wrong
		}
		return good
	}
	root := func(c *comm.Comm) int { return pick(c, 0, 3) }
	var noOp comm.OpFor[int]
	for name, x := range map[string]struct {
		call func(c *comm.Comm) error
		kind error
	}{
		"bcast root":           {func(c *comm.Comm) error { return comm.Bcast(c, two(), root(c)) }, comm.ErrRank},
		"reduce root":          {func(c *comm.Comm) error { return comm.Reduce(c, two(), two(), comm.Sum, root(c)) }, comm.ErrRank},
		"gather root":          {func(c *comm.Comm) error { return comm.Gather(c, two(), make([]int, 6), root(c)) }, comm.ErrRank},
		"gatherv root":         {func(c *comm.Comm) error { return comm.Gatherv(c, two(), make([]int, 6), []int{2, 2, 2}, nil, root(c)) }, comm.ErrRank},
		"scatter root":         {func(c *comm.Comm) error { return comm.Scatter(c, make([]int, 6), two(), root(c)) }, comm.ErrRank},
		"scatterv root":        {func(c *comm.Comm) error { return comm.Scatterv(c, make([]int, 6), []int{2, 2, 2}, nil, two(), root(c)) }, comm.ErrRank},
		"bcast type":           {func(c *comm.Comm) error { return comm.Bcast(c, []string{"x"}, 0) }, comm.ErrType},
		"ibcast type":          {func(c *comm.Comm) error { return wait(comm.Ibcast(c, []string{"x"}, 0)) }, comm.ErrType},
		"allreduce nil":        {func(c *comm.Comm) error { return comm.Allreduce(c, two(), two(), noOp) }, comm.ErrOp},
		"allreduce nil func":   {func(c *comm.Comm) error { return comm.Allreduce(c, two(), two(), comm.OpFunc[int](true, nil)) }, comm.ErrOp},
		"allreduce zero op":    {func(c *comm.Comm) error { return comm.Allreduce(c, two(), two(), func() (op comm.Op[int]) { return }) }, comm.ErrOp},
		"allreduce lengths":    {func(c *comm.Comm) error { return comm.Allreduce(c, two(), n(c, 2, 3), comm.Sum) }, comm.ErrCount},
		"iallreduce lengths":   {func(c *comm.Comm) error { return wait(comm.Iallreduce(c, two(), n(c, 2, 3), comm.Sum)) }, comm.ErrCount},
		"reduce lengths":       {func(c *comm.Comm) error { return comm.Reduce(c, two(), n(c, 2, 0), comm.Sum, 1) }, comm.ErrCount},
		"scan lengths":         {func(c *comm.Comm) error { return comm.Scan(c, two(), n(c, 2, 1), comm.Sum) }, comm.ErrCount},
		"exscan lengths":       {func(c *comm.Comm) error { return comm.Exscan(c, two(), n(c, 2, 1), comm.Sum) }, comm.ErrCount},
		"allgather lengths":    {func(c *comm.Comm) error { return comm.Allgather(c, two(), n(c, 6, 5)) }, comm.ErrCount},
		"allgather block":      {func(c *comm.Comm) error { return comm.Allgather(c, n(c, 2, 3), make([]int, 6)) }, comm.ErrCount},
		"gather lengths":       {func(c *comm.Comm) error { return comm.Gather(c, two(), n(c, 6, 4), 1) }, comm.ErrCount},
		"scatter lengths":      {func(c *comm.Comm) error { return comm.Scatter(c, n(c, 6, 7), two(), 1) }, comm.ErrCount},
		"alltoall lengths":     {func(c *comm.Comm) error { return comm.Alltoall(c, n(c, 3, 4), make([]int, 3)) }, comm.ErrCount},
		"alltoall blocks":      {func(c *comm.Comm) error { return comm.Alltoall(c, n(c, 3, 4), n(c, 3, 4)) }, comm.ErrCount},
		"block lengths":        {func(c *comm.Comm) error { return comm.ReduceScatterBlock(c, make([]int, 6), n(c, 2, 3), comm.Sum) }, comm.ErrCount},
		"block multiple":       {func(c *comm.Comm) error { return comm.ReduceScatterBlock(c, n(c, 6, 7), two(), comm.Sum) }, comm.ErrCount},
		"reducescatter counts": {func(c *comm.Comm) error { return comm.ReduceScatter(c, make([]int, 6), two(), n(c, 3, 2), comm.Sum) }, comm.ErrCount},
		"allgatherv counts":    {func(c *comm.Comm) error { return comm.Allgatherv(c, two(), make([]int, 6), n(c, 3, 4), nil) }, comm.ErrCount},
		"alltoallv self": {func(c *comm.Comm) error {
			return comm.Alltoallv(c, two(), []int{0, 2, 0}, nil, two(), []int{2, 0, 0}, nil)
		}, comm.ErrCount},
		"gatherv negative": {func(c *comm.Comm) error { return comm.Gatherv(c, two(), make([]int, 6), []int{-1, 2, 5}, nil, 1) }, comm.ErrCount},
		"gatherv sum":      {func(c *comm.Comm) error { return comm.Gatherv(c, two(), make([]int, 7), []int{2, 2, 2}, nil, 1) }, comm.ErrCount},
		"gatherv displs": {func(c *comm.Comm) error {
			return comm.Gatherv(c, two(), make([]int, 6), []int{2, 2, 2}, []int{0, 5, 2}, 1)
		}, comm.ErrCount},
		"gatherv displs few": {func(c *comm.Comm) error { return comm.Gatherv(c, two(), make([]int, 6), []int{2, 2, 2}, []int{0}, 1) }, comm.ErrCount},
		"scatterv huge": {func(c *comm.Comm) error {
			return comm.Scatterv(c, make([]int, 6), []int{1 << 62, 1 << 62, 1 << 62}, []int{1 << 62, 1 << 62, 1 << 62}, two(), 1)
		}, comm.ErrCount},
		"allreduce overlap": {func(c *comm.Comm) error { b := count(3, 0); return comm.Allreduce(c, b[:2], b[1:], comm.Sum) }, comm.ErrBuffer},
		"gather overlap":    {func(c *comm.Comm) error { b := count(6, 0); return comm.Gather(c, b[1:3], b, 1) }, comm.ErrBuffer},
		"allgather other block": {func(c *comm.Comm) error {
			b := count(6, 0)
			o := (c.Rank() + 1) % 3 * 2
			return comm.Allgather(c, b[o:o+2], b)
		}, comm.ErrBuffer},
		"alltoall overlap":      {func(c *comm.Comm) error { b := count(4, 0); return comm.Alltoall(c, b[:3], b[1:]) }, comm.ErrBuffer},
		"reducescatter overlap": {func(c *comm.Comm) error { b := count(6, 0); return comm.ReduceScatterBlock(c, b, b[2:4], comm.Sum) }, comm.ErrBuffer},
		"split colour":          {func(c *comm.Comm) error { _, err := c.Split(pick(c, 0, -7), 0); return err }, comm.ErrArg},
		"split hardware":        {func(c *comm.Comm) error { _, err := c.SplitHardware(comm.Hardware(pick(c, 0, 9)), 0); return err }, comm.ErrArg},
		"member not in group": {func(c *comm.Comm) error {
			g := c.Group()
			if bad(c) {
				g = must(g.Excl(1))
			}
			_, err := c.CreateGroup(g, 0)
			return err
		}, comm.ErrGroup},
		"member tag": {func(c *comm.Comm) error { _, err := c.CreateGroup(c.Group(), pick(c, 3, -1)); return err }, comm.ErrTag},
		"cart":       {func(c *comm.Comm) error { _, err := c.Cart([]int{pick(c, 3, 4)}, nil); return err }, comm.ErrArg},
		"op panics": {func(c *comm.Comm) error {
			return comm.Allreduce(c, two(), two(), comm.OpFunc(true, func(inout, _ []int) { inout[9]++ }))
		}, comm.ErrOp},
		"iop panics": {func(c *comm.Comm) error {
			return wait(comm.Iscan(c, two(), two(), comm.OpFunc(true, func(_, _ []int) { panic("no") })))
		}, comm.ErrOp},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				err = x.call(c)
				switch {
				case isErr(err, x.kind):
				case bad(c) && err == nil && name != "op panics" && name != "iop panics":
					return fmt.Errorf("%s: no error", name)
				case err != nil && !isErr(err, comm.ErrRevoked) && !isErr(err, comm.ErrMismatch) && !isErr(err, comm.ErrCount):
					return fmt.Errorf("%s: %w", name, err)
				}
				// If the collective of this rank ended without an error, a later Barrier returns
				// one.
				for err == nil {
					err = c.Barrier()
				}
				_, again := comm.Recv(c, two(), comm.AnySource, comm.AnyTag)
				if err := wantErr("later", again, comm.ErrRevoked, "comm: Recv"); err != nil {
					return err
				}
				return first(c.Free(), world.Barrier())
			})
		})
	}
}

// TestDisagreement lets two ranks call different collectives, or pass different arguments. Both
// ranks must get an error, and neither may wait forever.
func TestDisagreement(t *testing.T) {
	for name, calls := range map[string][2]func(c *comm.Comm) error{
		"bcast and barrier": {
			func(c *comm.Comm) error { return comm.Bcast(c, count(3, 0), 0) }, (*comm.Comm).Barrier},
		"barrier and split": {
			(*comm.Comm).Barrier, func(c *comm.Comm) error { _, err := c.Split(0, 0); return err }},
		"counts": {
			func(c *comm.Comm) error { return comm.Allreduce(c, count(3, 0), count(3, 0), comm.Sum) },
			func(c *comm.Comm) error { return comm.Allreduce(c, count(2, 0), count(2, 0), comm.Sum) }},
		"operations": {
			func(c *comm.Comm) error { return comm.Allreduce(c, count(3, 0), count(3, 0), comm.Sum) },
			func(c *comm.Comm) error { return comm.Allreduce(c, count(3, 0), count(3, 0), comm.Max) }},
		"gatherv counts": {
			func(c *comm.Comm) error { return comm.Gatherv(c, count(3, 0), make([]int, 6), []int{3, 3}, nil, 0) },
			func(c *comm.Comm) error { return comm.Gatherv(c, count(4, 0), nil, nil, nil, 0) }},
		"large alltoallv": {
			func(c *comm.Comm) error {
				return comm.Alltoallv(c, make([]int, 30000), []int{10000, 20000}, nil, make([]int, 30000), []int{10000, 20000}, nil)
			},
			func(c *comm.Comm) error {
				return comm.Alltoallv(c, make([]int, 29000), []int{19000, 10000}, nil, make([]int, 29000), []int{19000, 10000}, nil)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				for err = calls[c.Rank()](c); err == nil; {
					err = c.Barrier()
				}
				if !isErr(err, comm.ErrMismatch) && !isErr(err, comm.ErrRevoked) && !isErr(err, comm.ErrCount) {
					return err
				}
				return first(c.Free(), world.Barrier())
			})
		})
	}
}

// TestDisagreementWithoutWaiting checks that Free detects a difference that no collective can
// detect, because both ranks send and neither receives.
func TestDisagreementWithoutWaiting(t *testing.T) {
	ranks(t, 2, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		// The first collective makes the arena.
		if err := first(c.Barrier(), comm.Bcast(c, count(3, 0), c.Rank())); err != nil {
			return err
		}
		return wantErr("Free", c.Free(), comm.ErrMismatch, "a collective that this rank")
	})
}

// TestDisagreementInTheWorld checks that Finalize detects a difference on the world that no
// collective can detect, because both ranks send and neither receives.
func TestDisagreementInTheWorld(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		if err := first(c.Barrier(), comm.Bcast(c, count(3, 0), c.Rank())); err != nil {
			return err
		}
		return wantErr("Finalize", c.Finalize(), comm.ErrMismatch, "a collective that this rank")
	})
}

func TestErrorText(t *testing.T) {
	e := &comm.Error{Op: "Send", Comm: "comm 3.1", Peer: 4, Tag: 5, Err: comm.ErrProcFailed}
	require.EqualError(t, e, "comm: Send (comm 3.1, rank 4, tag 5): process failed")
	require.ErrorIs(t, e, comm.ErrProcFailed)
	e = &comm.Error{Op: "Barrier", Comm: "world", Peer: comm.Undefined, Tag: comm.Undefined, Err: comm.ErrRevoked}
	require.EqualError(t, e, "comm: Barrier (world): communicator revoked")
	e = &comm.Error{Op: "Recv", Peer: comm.AnySource, Tag: comm.AnyTag, Err: comm.ErrClosed}
	require.EqualError(t, e, "comm: Recv (any source, any tag): "+comm.ErrClosed.Error())
}
