package comm

import (
	"reflect"

	"github.com/weft-hpc/weft/internal/mpi"
)

// Codec encodes the values of [SendValue] and of the other calls whose names end with Value. The
// codec is the last argument of such a call; without one, the call uses [Gob]. The ranks of a
// collective, and the sender and the receiver of a message, must pass codecs of the same name. Any
// number of goroutines may use a codec at the same time.
type Codec interface {
	// Name returns the name of the codec, such as "json". Messages hold it, and a receiver with
	// another codec returns ErrType.
	Name() string
	// Append appends the encoding of v to b and returns the result.
	Append(b []byte, v any) ([]byte, error)
	// Decode decodes b into the variable that v points to. b may hold any bytes, and Decode must
	// copy the bytes that it keeps.
	Decode(b []byte, v any) error
}

// The codecs of weft. Gob is that of encoding/gob: it sends exported fields and any type except
// functions and channels; the program registers the types of values in interface fields with
// gob.Register. JSON is that of encoding/json, for programs that log messages or exchange them with
// other languages.
var (
	Gob  Codec = mpi.Gob
	JSON Codec = mpi.JSON
)

// SendValue sends a Go value, which may hold pointers, and blocks as [Send] does. The receiver
// calls [RecvValue] with the same T. If T is an interface type, v is sent with its concrete type,
// which the program registers with gob.Register.
//
// Cost: the encoding, and allocations by the codec; docs/performance.md has figures. The first value
// of a type, values whose encoding is longer than 64 KiB, and types that hold interfaces cost more,
// because encoding/gob then describes the types again. Send of elements without pointers has none
// of this cost.
//
// Errors: those of Send; ErrType if the codec cannot encode v.
func SendValue[T any](c *Comm, v T, dest, tag int, codec ...Codec) error {
	return c.in().SendValue(encodable(v), codecOf(codec), dest, tag)
}

// IsendValue is [SendValue], except that it does not block. The program may change v as soon as
// IsendValue has returned.
//
// There is no IrecvValue: a receive that is posted needs a buffer, and only the message tells how
// long the value is. A program that must not block calls [RecvValue] in a goroutine, or [MrecvValue]
// when [Comm.Improbe] has returned a message.
func IsendValue[T any](c *Comm, v T, dest, tag int, codec ...Codec) Request {
	return Request(c.in().IsendValue(encodable(v), codecOf(codec), dest, tag))
}

// RecvValue receives a value that [SendValue] has sent, and blocks. T is the type that was sent, or
// another type into which the codec can decode the value: gob leaves out fields that T does not
// have. Status.Count is 1. If source is ProcNull, RecvValue receives nothing: the value is zero,
// and Status.Count is 0. If a type has a GobDecode method, the method must copy the bytes that it
// keeps, because a gob.Decoder reuses its buffer for the next value.
//
// Errors: those of [Recv] without ErrTruncate. If the message does not come from SendValue with the
// same codec, or if it does not fit T, RecvValue returns ErrType, and the message is lost.
func RecvValue[T any](c *Comm, source, tag int, codec ...Codec) (T, Status, error) {
	var v T
	st, err := c.in().RecvValue(&v, codecOf(codec), source, tag)
	return v, oneValue(st, err), err
}

// MrecvValue is [RecvValue] of a message that [Comm.Mprobe], [Comm.Improbe] or [Comm.Messages] has
// returned. Errors: those of RecvValue; ErrArg if m is nil or was received before.
func MrecvValue[T any](m *Message, codec ...Codec) (T, Status, error) {
	var v T
	st, err := (*mpi.Message)(m).MrecvValue(&v, codecOf(codec))
	return v, oneValue(st, err), err
}

// BcastValue sends the root's value to all other ranks, and returns it on every rank: on the root
// it returns v, on other ranks a copy. Ranks other than the root ignore v. It is collective and
// blocks, and the codec is the same on all ranks.
//
// Errors: those of [Bcast]; ErrType if a value cannot be encoded or decoded on this rank. The error
// of one rank revokes c, as for all collectives; see [Comm.Barrier]. Cost: that of two Bcasts.
func BcastValue[T any](c *Comm, v T, root int, codec ...Codec) (T, error) {
	if c.Rank() != root {
		var zero T
		v = zero // a codec may decode into the maps and slices that v holds
	}
	err := c.in().BcastValue(&v, codecOf(codec), root)
	return v, err
}

// GatherValue collects a value of each rank on the root, which gets the values in rank order; other
// ranks get nil. It is collective and blocks. Errors: those of [Gatherv] and [BcastValue]. Cost:
// that of Gather of an int and of Gatherv.
func GatherValue[T any](c *Comm, v T, root int, codec ...Codec) ([]T, error) {
	return gatherValue(c, "GatherValue", v, root, codec)
}

func gatherValue[T any](c *Comm, op string, v T, root int, codec []Codec) ([]T, error) {
	var all []T
	if c.Rank() == root {
		all = make([]T, c.Size())
	}
	if err := c.in().GatherValue(op, encodable(v), codecOf(codec), root, into(all)); err != nil {
		return nil, err
	}
	return all, nil
}

// AllgatherValue is [GatherValue] without a root: every rank gets the values of all ranks. Errors:
// those of [Allgatherv] and [BcastValue]. Cost: that of Allgather of an int and of Allgatherv.
func AllgatherValue[T any](c *Comm, v T, codec ...Codec) ([]T, error) {
	return allgatherValue(c, "AllgatherValue", v, codec)
}

func allgatherValue[T any](c *Comm, op string, v T, codec []Codec) ([]T, error) {
	all := make([]T, c.Size())
	if err := c.in().AllgatherValue(op, encodable(v), codecOf(codec), into(all)); err != nil {
		return nil, err
	}
	return all, nil
}

// ScatterValue sends vs[i] of the root to rank i, and returns the value of this rank. Ranks other
// than the root ignore vs. It is collective and blocks.
//
// Errors: those of [Scatterv] and [BcastValue]; ErrCount if len(vs) on the root differs from the
// number of ranks. Cost: that of Scatter of an int and of Scatterv.
func ScatterValue[T any](c *Comm, vs []T, root int, codec ...Codec) (T, error) {
	var v T
	err := c.in().ScatterValue(from(vs), len(vs), codecOf(codec), &v, root)
	return v, err
}

// AlltoallValue sends vs[i] to rank i, and returns the values that the ranks have sent to this one,
// in rank order. It is collective and blocks.
//
// Errors: those of [Alltoallv] and [BcastValue]; ErrCount if len(vs) differs from the number of
// ranks. Cost: that of Alltoall of an int and of Alltoallv.
func AlltoallValue[T any](c *Comm, vs []T, codec ...Codec) ([]T, error) {
	all := make([]T, c.Size())
	if err := c.in().AlltoallValue(from(vs), len(vs), codecOf(codec), into(all)); err != nil {
		return nil, err
	}
	return all, nil
}

// ReduceValue combines the values of all ranks by f, in rank order: on the root it returns f(f(v0,
// v1), v2) and so on, on other ranks the zero value. It is collective and blocks. f must be
// associative; it may change and return its first argument.
//
// Errors: those of [GatherValue]; ErrOp if f is nil, or has panicked on this rank. Cost: that of
// GatherValue, and the root calls f for all ranks. For elements without pointers use [Reduce] with
// [OpOf], which combines them in a tree.
func ReduceValue[T any](c *Comm, v T, f func(a, b T) T, root int, codec ...Codec) (T, error) {
	var zero T
	if f == nil {
		return zero, c.in().NoUserOp("ReduceValue")
	}
	all, err := gatherValue(c, "ReduceValue", v, root, codec)
	if err != nil || c.Rank() != root {
		return zero, err
	}
	return fold(c, "ReduceValue", all, f)
}

// AllreduceValue is [ReduceValue] without a root: every rank calls f for the values of all ranks,
// and gets the result. f must be a function of its arguments alone, so that all ranks get the same
// result. Errors and cost: those of [AllgatherValue] and ReduceValue.
func AllreduceValue[T any](c *Comm, v T, f func(a, b T) T, codec ...Codec) (T, error) {
	var zero T
	if f == nil {
		return zero, c.in().NoUserOp("AllreduceValue")
	}
	all, err := allgatherValue(c, "AllreduceValue", v, codec)
	if err != nil {
		return zero, err
	}
	return fold(c, "AllreduceValue", all, f)
}

// fold combines the values of all ranks by f, in rank order.
func fold[T any](c *Comm, op string, all []T, f func(a, b T) T) (v T, err error) {
	v = all[0]
	err = c.in().RunUserOp(op, func() {
		for _, x := range all[1:] {
			v = f(v, x)
		}
	})
	if err != nil {
		var zero T
		return zero, err
	}
	return v, nil
}

// encodable returns what a codec encodes for v. If T is an interface type, that is a pointer to v,
// because gob then sends the concrete type with the value.
func encodable[T any](v T) any {
	if reflect.TypeFor[T]().Kind() == reflect.Interface {
		return &v
	}
	return v
}

// from returns a function that returns what a codec encodes for vs[i].
func from[T any](vs []T) func(i int) any {
	return func(i int) any { return encodable(vs[i]) }
}

// into returns a function that returns a pointer to vs[i].
func into[T any](vs []T) func(i int) any {
	return func(i int) any { return &vs[i] }
}

// codecOf returns the codec among the last arguments of a call; nil stands for Gob.
func codecOf(codec []Codec) mpi.Codec {
	if len(codec) == 0 {
		return nil
	}
	return codec[len(codec)-1]
}

// oneValue returns the Status of the receive of a value.
func oneValue(st mpi.Status, err error) Status {
	s := received(st, 0)
	if err == nil && s.Source != ProcNull {
		s.Count = 1
	}
	return s
}
