package comm

import "github.com/weft-hpc/weft/internal/mpi"

// Key identifies an attribute: a value of type T that a library stores with communicators or
// windows (MPI 4.1 §7.7). [NewKey] makes a key. When the program passes the same communicator
// again, the library finds what it has stored with it. Attributes are local to the process. Any
// number of goroutines may use a key at the same time.
type Key[T any] struct{ k *mpi.Key }

// KeyOption is an option of [NewKey].
type KeyOption[T any] func(*mpi.Key)

// NewKey makes a key (MPI_Comm_create_keyval, MPI_Win_create_keyval). Without an option, the
// duplicates of a communicator do not get the attribute. NewKey is local.
func NewKey[T any](opts ...KeyOption[T]) Key[T] {
	k := new(mpi.Key)
	for _, opt := range opts {
		if opt != nil {
			opt(k)
		}
	}
	return Key[T]{k}
}

// OnDup gives the duplicates of a communicator the attribute: [Comm.Dup], [Comm.DupWith] and
// [Comm.Idup] call f with the value, and the duplicate gets the value that f returns. If the second
// result of f is false, the duplicate does not get the attribute. f must not call a collective of
// the communicator.
func OnDup[T any](f func(T) (T, bool)) KeyOption[T] {
	return func(k *mpi.Key) {
		k.OnDup = func(v any) (any, bool) { return f(value[T](v)) }
	}
}

// OnFree calls f with a value that the communicator or window no longer has: when the program sets
// another value or deletes the attribute, at the start of Free, and for the world at the start of
// Finalize. Free and Finalize call the functions in the reverse order of the calls of Set.
func OnFree[T any](f func(T)) KeyOption[T] {
	return func(k *mpi.Key) {
		k.OnFree = func(v any) { f(value[T](v)) }
	}
}

// value returns the value of an attribute. If T is an interface type, v may be nil.
func value[T any](v any) T {
	x, _ := v.(T)
	return x
}

// Attributed is a type whose values have attributes: *[Comm] or *[Win].
type Attributed interface{ attributes() *mpi.Comm }

func (c *Comm) attributes() *mpi.Comm   { return c.in() }
func (w *Win[T]) attributes() *mpi.Comm { return w.in().Space() }

func attributesOf(x Attributed) *mpi.Comm {
	if x == nil {
		return nil
	}
	return x.attributes()
}

// Set stores v with x, in place of an earlier value (MPI_Comm_set_attr, MPI_Win_set_attr). Set is
// local. Errors: ErrArg for the zero Key; ErrClosed.
func (k Key[T]) Set(x Attributed, v T) error { return attributesOf(x).SetAttribute(k.k, v) }

// Get returns the value that x has; ok is false if x has none (MPI_Comm_get_attr,
// MPI_Win_get_attr). Get is local.
func (k Key[T]) Get(x Attributed) (v T, ok bool) {
	stored, ok := attributesOf(x).Attribute(k.k)
	return value[T](stored), ok
}

// Delete deletes the attribute of x (MPI_Comm_delete_attr, MPI_Win_delete_attr). Delete is local.
// Errors: ErrArg if x does not have the attribute; ErrClosed.
func (k Key[T]) Delete(x Attributed) error { return attributesOf(x).DeleteAttribute(k.k) }

// Hint is a promise of the program about the messages of a communicator (MPI 4.1 §7.4.4). The hints
// of a communicator are those that the program passes to [Comm.DupWith]. Dup and Idup copy them. A
// message takes the same time with hints and without them, because weft looks for receives with
// wildcards only if there are some. So hints only state the rules of a program, and weft checks the
// rules that cost nothing to check.
type Hint uint8

// The hints.
const (
	// NoAnySource: no receive or probe uses AnySource (mpi_assert_no_any_source). One that does
	// returns ErrArg.
	NoAnySource = Hint(mpi.NoAnySource)
	// NoAnyTag: no receive or probe uses AnyTag (mpi_assert_no_any_tag). One that does returns
	// ErrArg.
	NoAnyTag = Hint(mpi.NoAnyTag)
	// ExactLength: a message is as long as the buffer that receives it (mpi_assert_exact_length).
	// weft does not check it.
	ExactLength = Hint(mpi.ExactLength)
	// AllowOvertaking: the program does not depend on the order of messages
	// (mpi_assert_allow_overtaking). weft keeps the order nevertheless.
	AllowOvertaking = Hint(mpi.AllowOvertaking)
)

// Hints returns the hints of the communicator (MPI_Comm_get_info). Hints is local.
func (c *Comm) Hints() []Hint { return cast[Hint](c.in().Hints()) }
