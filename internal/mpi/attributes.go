package mpi

import (
	"fmt"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Key is the type behind comm.Key: it identifies an attribute, a value that a library stores with a
// communicator or window (MPI 4.1 §7.7).
type Key struct {
	// OnDup gets the value when the communicator is duplicated, and returns the value for the new
	// communicator, or false if the new communicator does not get the attribute. If OnDup is nil,
	// the new communicator does not get the attribute.
	OnDup func(any) (any, bool)
	// OnFree gets a value that the communicator no longer has. OnFree may be nil.
	OnFree func(any)
}

// attributes holds the attributes of a communicator, in the order of the last Set of each.
type attributes struct {
	mu   sync.Mutex
	list []attribute // guarded by mu
}

type attribute struct {
	key   *Key
	value any
}

func (a *attributes) find(k *Key) int {
	return slices.IndexFunc(a.list, func(x attribute) bool { return x.key == k })
}

// SetAttribute implements comm.Key.Set, which documents the call.
func (c *Comm) SetAttribute(k *Key, value any) error {
	s, err := c.live()
	if err == nil && k == nil {
		err = errNoKey
	}
	if err != nil {
		return c.fail("Key.Set", noRank, noRank, err)
	}
	a := &s.attrs
	a.mu.Lock()
	var old any
	i := a.find(k)
	if i >= 0 {
		old = a.list[i].value
		a.list = slices.Delete(a.list, i, i+1)
	}
	a.list = append(a.list, attribute{k, value})
	a.mu.Unlock()
	if i >= 0 && k.OnFree != nil {
		k.OnFree(old)
	}
	return nil
}

var errNoKey = fmt.Errorf("%w: NewKey has not made the key", ErrArg)

// Attribute implements comm.Key.Get, which documents the call.
func (c *Comm) Attribute(k *Key) (value any, ok bool) {
	if c == nil || c.s == nil || k == nil {
		return nil, false
	}
	a := &c.s.attrs
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := a.find(k); i >= 0 {
		return a.list[i].value, true
	}
	return nil, false
}

// DeleteAttribute implements comm.Key.Delete, which documents the call.
func (c *Comm) DeleteAttribute(k *Key) error {
	s, err := c.live()
	if err == nil && k == nil {
		err = errNoKey
	}
	if err != nil {
		return c.fail("Key.Delete", noRank, noRank, err)
	}
	a := &s.attrs
	a.mu.Lock()
	i := a.find(k)
	var old attribute
	if i >= 0 {
		old = a.list[i]
		a.list = slices.Delete(a.list, i, i+1)
	}
	a.mu.Unlock()
	if i < 0 {
		return c.fail("Key.Delete", noRank, noRank, fmt.Errorf("%w: the communicator does not have the attribute", ErrArg))
	}
	if k.OnFree != nil {
		k.OnFree(old.value)
	}
	return nil
}

// copyTo gives d, a duplicate, the attributes whose OnDup functions permit it.
func (a *attributes) copyTo(d *attributes) {
	a.mu.Lock()
	list := slices.Clone(a.list)
	a.mu.Unlock()
	for _, x := range list {
		if x.key.OnDup == nil {
			continue
		}
		if value, ok := x.key.OnDup(x.value); ok {
			d.list = append(d.list, attribute{x.key, value})
		}
	}
}

// free deletes all attributes. It calls the OnFree functions in the reverse order of the calls that
// set the attributes (MPI 4.1 §11.2.4 demands this order when MPI is finalized).
func (a *attributes) free() {
	a.mu.Lock()
	list := a.list
	a.list = nil
	a.mu.Unlock()
	for _, x := range slices.Backward(list) {
		if x.key.OnFree != nil {
			x.key.OnFree(x.value)
		}
	}
}

// Hint is the type behind comm.Hint: a promise about the messages of a communicator (MPI 4.1
// §7.4.4).
type Hint uint8

// The hints, with the names of their keys in MPI.
const (
	NoAnySource     Hint = 1 << iota // mpi_assert_no_any_source
	NoAnyTag                         // mpi_assert_no_any_tag
	ExactLength                      // mpi_assert_exact_length
	AllowOvertaking                  // mpi_assert_allow_overtaking

	allHints = NoAnySource | NoAnyTag | ExactLength | AllowOvertaking
)

// Hints implements comm.Comm.Hints, which documents the call.
func (c *Comm) Hints() (hints []Hint) {
	if c == nil || c.s == nil {
		return nil
	}
	for h := NoAnySource; h <= AllowOvertaking; h <<= 1 {
		if c.s.hints&h != 0 {
			hints = append(hints, h)
		}
	}
	return hints
}

// checkWildcards returns ErrArg if a receive or probe uses a wildcard that the hints exclude.
func (s *state) checkWildcards(source, tag int) error {
	if source == AnySource && s.hints&NoAnySource != 0 || tag == AnyTag && s.hints&NoAnyTag != 0 {
		return fmt.Errorf("%w: the hints of the communicator exclude this wildcard", ErrArg)
	}
	return nil
}

// DupWith implements comm.Comm.DupWith, which documents the call.
func (c *Comm) DupWith(hints ...Hint) (*Comm, error) {
	const name = "DupWith"
	set := Hint(0)
	for _, h := range hints {
		set |= h
	}
	if set&^allHints != 0 {
		return nil, c.revoked(name, fmt.Errorf("%w: no such hint", ErrArg))
	}
	s, id, err := c.agreeOnID(name, calls.KindDup)
	if err != nil {
		return nil, err
	}
	return c.duplicate(s, id, set), nil
}

// duplicate returns the duplicate of c with this id and these hints. s is the state of c.
func (c *Comm) duplicate(s *state, id uint64, hints Hint) *Comm {
	return &Comm{s: s.job.addState(s.copyWith(hints), id), ctx: c.ctx}
}

// copyWith returns a state that has only the groups of s, the attributes that its duplicates get,
// and these hints.
func (s *state) copyWith(hints Hint) *state {
	own := s.groups()
	own.hints = hints
	s.attrs.copyTo(&own.attrs)
	return own
}

// Idup implements comm.Comm.Idup, which documents the call.
func (c *Comm) Idup() (*Comm, Request) {
	d := &Comm{ctx: c.Context()}
	l, err := c.begin("Idup")
	if err != nil {
		return d, c.refused("", noRank, noRank, err)
	}
	buf := l.dupID(calls.KindDup)
	s := l.s
	own := s.copyWith(s.hints)
	l.leave()
	return d, c.inBackground(func() error {
		err := l.perform()
		id := getUint64(buf)
		if err = l.end(err); err != nil {
			own.attrs.free()
			return err
		}
		d.s = s.job.addState(own, id)
		return nil
	})
}

// SetName implements comm.Comm.SetName, which documents the call.
func (c *Comm) SetName(name string) {
	if c != nil && c.s != nil {
		c.s.label.Store(&name)
	}
}

// Name implements comm.Comm.Name, which documents the call.
func (c *Comm) Name() string { return c.name() }
