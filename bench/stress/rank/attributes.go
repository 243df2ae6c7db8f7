package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/comm"
)

// attribute is a key, and what the program expects of it.
type attribute struct {
	key    comm.Key[int]
	copies func(v int) (int, bool) // the function of OnDup; nil: duplicates do not get the attribute
	has    bool                    // the communicator has the attribute
	value  int
}

// attributes stores attributes with a duplicate of the communicator and with a window, duplicates the
// duplicate, and frees all. The attributes are local, so each rank has its own. The oracle is the list of
// the values with which weft must call the functions of OnFree.
func attributes(k *call) error {
	c, err := k.c.Dup()
	if err != nil {
		return err
	}
	var freed []int // the values with which weft has called OnFree
	var keys []*attribute
	for i := range 1 + k.own.IntN(5) {
		a := &attribute{}
		switch k.own.IntN(3) {
		case 0:
			a.copies = func(v int) (int, bool) { return v + 1000*(i+1), true }
		case 1:
			a.copies = func(v int) (int, bool) { return v, v%2 == 0 }
		}
		opts := []comm.KeyOption[int]{comm.OnFree(func(v int) { freed = append(freed, v) })}
		if a.copies != nil {
			opts = append(opts, comm.OnDup(a.copies))
		}
		a.key = comm.NewKey(opts...)
		keys = append(keys, a)
	}
	var order []*attribute // the attributes that c has, in the order of the calls of Set
	for range k.own.IntN(20) {
		a, v := keys[k.own.IntN(len(keys))], k.own.IntN(1000)
		want := []int(nil)
		if a.has {
			want = []int{a.value}
		}
		freed = nil
		order = slices.DeleteFunc(order, func(b *attribute) bool { return a == b })
		switch {
		case k.own.IntN(3) > 0:
			if err := a.key.Set(c, v); err != nil {
				return err
			}
			a.has, a.value = true, v
			order = append(order, a)
		case a.has:
			if err := a.key.Delete(c); err != nil {
				return err
			}
			a.has = false
		}
		if err := same("values freed by Set or Delete", freed, want); err != nil {
			return err
		}
		if v, ok := a.key.Get(c); ok != a.has || ok && v != a.value {
			return fmt.Errorf("the attribute is %d, %v instead of %d, %v", v, ok, a.value, a.has)
		}
	}
	if err := dupWithAttributes(k, c, keys, order, &freed); err != nil {
		return err
	}
	if err := facts(c); err != nil {
		return err
	}
	freed = nil
	if err := c.Free(); err != nil {
		return err
	}
	if err := same("values freed by Free", freed, reversed(order)); err != nil {
		return err
	}
	return windowAttributes(k, keys[0].key, &freed)
}

// dupWithAttributes duplicates c, and checks the attributes and the hints of the duplicate.
func dupWithAttributes(k *call, c *comm.Comm, keys, order []*attribute, freed *[]int) (err error) {
	var d *comm.Comm
	var hints []comm.Hint
	switch k.rng.IntN(3) {
	case 0:
		d, err = c.Dup()
	case 1:
		var r comm.Request
		d, r = c.Idup()
		_, err = k.wait([]comm.Request{r})
	default:
		hints = []comm.Hint{comm.NoAnyTag, comm.ExactLength}[:k.rng.IntN(3)]
		d, err = c.DupWith(hints...)
	}
	if err != nil {
		return err
	}
	if got := d.Hints(); !slices.Equal(got, hints) {
		return fmt.Errorf("hints %v of the duplicate instead of %v", got, hints)
	}
	if got := c.Compare(d); got != comm.Congruent {
		return fmt.Errorf("a communicator and its duplicate are %v", got)
	}
	for i, a := range keys {
		want, has := 0, false
		if a.has && a.copies != nil {
			want, has = a.copies(a.value)
		}
		if v, ok := a.key.Get(d); ok != has || ok && v != want {
			return fmt.Errorf("attribute %d of the duplicate is %d, %v instead of %d, %v", i, v, ok, want, has)
		}
	}
	var copies []*attribute
	for _, a := range order {
		if a.copies != nil {
			if v, ok := a.copies(a.value); ok {
				copies = append(copies, &attribute{value: v})
			}
		}
	}
	*freed = nil
	if err := d.Free(); err != nil {
		return err
	}
	return same("values freed by Free of the duplicate", *freed, reversed(copies))
}

// reversed returns the values of the attributes, the last first.
func reversed(list []*attribute) (values []int) {
	for _, a := range slices.Backward(list) {
		values = append(values, a.value)
	}
	return values
}

// windowAttributes stores an attribute with a window, and checks that Free calls the function of OnFree.
func windowAttributes(k *call, key comm.Key[int], freed *[]int) error {
	w, err := comm.NewWin[byte](k.c, 1)
	if err != nil {
		return err
	}
	if err := key.Set(w, 5); err != nil {
		return err
	}
	if v, ok := key.Get(w); !ok || v != 5 {
		return fmt.Errorf("the attribute of a window is %d, %v", v, ok)
	}
	if v, ok := key.Get(k.c); ok {
		return fmt.Errorf("the communicator of a window has its attribute %d", v)
	}
	*freed = nil
	if err := w.Free(); err != nil {
		return err
	}
	return same("values freed by Free of a window", *freed, []int{5})
}

// facts checks that the job was not restarted, and the names of the transports that lead to the ranks of c.
func facts(c *comm.Comm) error {
	if n := c.Epoch(); n != 0 {
		return fmt.Errorf("the job was started again %d times", n)
	}
	for rank := range c.Size() {
		got := c.Transport(rank)
		name, _, _ := strings.Cut(got, " ") // the provider's name follows that of libfabric
		known := slices.Contains([]string{"shm", "tcp", "libfabric"}, name)
		if rank == c.Rank() && got != "self" || rank != c.Rank() && !known {
			return fmt.Errorf("the transport of rank %d to rank %d is %q", c.Rank(), rank, got)
		}
	}
	return nil
}
