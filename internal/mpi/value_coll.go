package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/value"
)

// Collectives of values
//
// The ranks do not know the lengths of each other's encoded values. So each call is two collectives
// of bytes: the first one exchanges the lengths, and the second one the values.
//
//	value ─► value.Encode ─► lengths: Gather ─► bytes: Gatherv ─► value.DecodeBy ─► into(rank)
//
// The value of this rank is encoded and decoded as those of other ranks, so all results are copies.
// The parameter into is a function that returns a pointer to the variable for the value of a rank.
// If a value cannot be encoded or decoded on one rank, that rank revokes the communicator, as for
// any other error in a collective.

// BcastValue implements comm.BcastValue, which documents the call. v points to the value, which the
// root sends and the other ranks receive.
func (c *Comm) BcastValue(v any, codec Codec, root int) error {
	const op = "BcastValue"
	if err := c.OneGroup(op); err != nil {
		return err
	}
	var b []byte
	if c.Rank() == root {
		var err error
		if b, err = value.Encode(nil, v, codec); err != nil {
			return c.failCollective(op, err)
		}
	}
	n := []int{len(b)}
	if err := c.Bcast(elem.View(n), root); err != nil {
		return renamed(err, op)
	}
	if c.Rank() != root {
		if err := checkLengths(n); err != nil {
			return c.failCollective(op, err)
		}
		b = make([]byte, n[0])
	}
	if err := c.Bcast(elem.Raw(b), root); err != nil || c.Rank() == root {
		return renamed(err, op)
	}
	if err := value.DecodeBy(b, v, codec); err != nil {
		return c.failCollective(op, err)
	}
	return nil
}

// GatherValue implements comm.GatherValue, which documents the call. op is the name of the call.
func (c *Comm) GatherValue(op string, v any, codec Codec, root int, into func(rank int) any) error {
	if err := c.OneGroup(op); err != nil {
		return err
	}
	b, err := value.Encode(nil, v, codec)
	if err != nil {
		return c.failCollective(op, err)
	}
	var lengths []int
	if c.Rank() == root {
		lengths = make([]int, c.Size())
	}
	if err := c.Gather(elem.View([]int{len(b)}), elem.View(lengths), root); err != nil {
		return renamed(err, op)
	}
	if err := checkLengths(lengths); err != nil {
		return c.failCollective(op, err)
	}
	all := make([]byte, sum(lengths))
	if err := c.Gatherv(elem.Raw(b), elem.Raw(all), lengths, nil, root); err != nil {
		return renamed(err, op)
	}
	return c.decodeAll(op, all, lengths, codec, into)
}

// AllgatherValue implements comm.AllgatherValue, which documents the call. op is the name of the
// call.
func (c *Comm) AllgatherValue(op string, v any, codec Codec, into func(rank int) any) error {
	if err := c.OneGroup(op); err != nil {
		return err
	}
	b, err := value.Encode(nil, v, codec)
	if err != nil {
		return c.failCollective(op, err)
	}
	lengths := make([]int, c.Size())
	if err := c.Allgather(elem.View([]int{len(b)}), elem.View(lengths)); err != nil {
		return renamed(err, op)
	}
	if err := checkLengths(lengths); err != nil {
		return c.failCollective(op, err)
	}
	all := make([]byte, sum(lengths))
	if err := c.Allgatherv(elem.Raw(b), elem.Raw(all), lengths, nil); err != nil {
		return renamed(err, op)
	}
	return c.decodeAll(op, all, lengths, codec, into)
}

// ScatterValue implements comm.ScatterValue, which documents the call. On the root, from returns
// the value for a rank, and n is the number of values. v points to the variable for the value of
// this rank.
func (c *Comm) ScatterValue(from func(rank int) any, n int, codec Codec, v any, root int) error {
	const op = "ScatterValue"
	if err := c.OneGroup(op); err != nil {
		return err
	}
	var all []byte
	var lengths []int
	if c.Rank() == root {
		var err error
		if all, lengths, err = c.encodeAll(from, n, codec); err != nil {
			return c.failCollective(op, err)
		}
	}
	own := make([]int, 1)
	if err := c.Scatter(elem.View(lengths), elem.View(own), root); err != nil {
		return renamed(err, op)
	}
	if err := checkLengths(own); err != nil {
		return c.failCollective(op, err)
	}
	b := make([]byte, own[0])
	if err := c.Scatterv(elem.Raw(all), lengths, nil, elem.Raw(b), root); err != nil {
		return renamed(err, op)
	}
	if err := value.DecodeBy(b, v, codec); err != nil {
		return c.failCollective(op, err)
	}
	return nil
}

// AlltoallValue implements comm.AlltoallValue, which documents the call. from returns the value for
// a rank, and n is the number of values.
func (c *Comm) AlltoallValue(from func(rank int) any, n int, codec Codec, into func(rank int) any) error {
	const op = "AlltoallValue"
	if err := c.OneGroup(op); err != nil {
		return err
	}
	send, counts, err := c.encodeAll(from, n, codec)
	if err != nil {
		return c.failCollective(op, err)
	}
	lengths := make([]int, c.Size())
	if err := c.Alltoall(elem.View(counts), elem.View(lengths)); err != nil {
		return renamed(err, op)
	}
	if err := checkLengths(lengths); err != nil {
		return c.failCollective(op, err)
	}
	recv := make([]byte, sum(lengths))
	if err := c.Alltoallv(elem.Raw(send), counts, nil, elem.Raw(recv), lengths, nil); err != nil {
		return renamed(err, op)
	}
	return c.decodeAll(op, recv, lengths, codec, into)
}

// RunUserOp calls f, which runs a function of the program for the collective op. If f panics or
// calls runtime.Goexit, RunUserOp revokes c. It returns a panic as ErrOp.
func (c *Comm) RunUserOp(op string, f func()) (err error) {
	returned := false
	defer func() {
		if p := recover(); p != nil {
			err = c.failCollective(op, opError(p))
		} else if !returned {
			_ = c.failCollective(op, fmt.Errorf("%w: the function has called runtime.Goexit", ErrOp))
		}
	}()
	Shield(f)
	returned = true
	return nil
}

// NoUserOp returns the error of the collective op if the program has passed no function, and
// revokes c.
func (c *Comm) NoUserOp(op string) error {
	return c.failCollective(op, fmt.Errorf("%w: the function is nil", ErrOp))
}

// failCollective ends the collective op, which consists of other collectives and has failed on this
// rank between two of them, with err: it revokes c with the cause, because the other ranks would
// wait. It returns the error of the call.
func (c *Comm) failCollective(op string, err error) error {
	l, berr := c.begin(op)
	if berr != nil {
		return berr
	}
	return l.end(err)
}

// encodeAll returns the encoded values for all ranks, and their lengths. from returns the value for
// a rank, and n is the number of values.
func (c *Comm) encodeAll(from func(rank int) any, n int, codec Codec) (all []byte, lengths []int, err error) {
	if n != c.Size() {
		return nil, nil, fmt.Errorf("%w: %d values for %d ranks", ErrCount, n, c.Size())
	}
	lengths = make([]int, n)
	for rank := range n {
		before := len(all)
		if all, err = value.Encode(all, from(rank), codec); err != nil {
			return nil, nil, err
		}
		lengths[rank] = len(all) - before
	}
	return all, lengths, nil
}

// decodeAll decodes the values in all, whose lengths are given, into the variables that into
// returns pointers to.
func (c *Comm) decodeAll(op string, all []byte, lengths []int, codec Codec, into func(rank int) any) error {
	for rank, n := range lengths {
		if err := value.DecodeBy(all[:n], into(rank), codec); err != nil {
			return c.failCollective(op, fmt.Errorf("value of rank %d: %w", rank, err))
		}
		all = all[n:]
	}
	return nil
}

// checkLengths returns ErrCount if the lengths, which other ranks have sent, cannot be those of
// values that fit into the memory of this host.
func checkLengths(lengths []int) error {
	left := memory()
	for _, n := range lengths {
		if n < 0 || n > left {
			return fmt.Errorf("%w: encoded values of %d bytes need more memory than this host has", ErrCount, lengths)
		}
		left -= n
	}
	return nil
}

func sum(ns []int) int {
	total := 0
	for _, n := range ns {
		total += n
	}
	return total
}
