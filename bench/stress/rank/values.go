package main

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/weft-hpc/weft/comm"
)

// record is a value that holds pointers.
type record struct {
	Name  string
	List  []int64
	Count map[string]uint64
}

// values does a random collective of values.
func values(k *call) error {
	c, p := k.c, k.c.Size()
	root, codec := k.rng.IntN(p), []comm.Codec{comm.Gob, comm.JSON}[k.rng.IntN(2)]
	most := k.length(16, 2*p)
	// valueOf returns the value that rank from sends to rank to.
	valueOf := func(from, to int) record {
		x := mix(k.salt, uint64(from), uint64(to))
		r := record{Name: fmt.Sprintf("%d to %d", from, to), Count: map[string]uint64{"x": x}}
		for i := range x % uint64(most+1) {
			r.List = append(r.List, int64(mix(x, i, 0)))
		}
		return r
	}
	row := func(rank int) (vs []record) {
		for r := range p {
			vs = append(vs, valueOf(rank, r))
		}
		return vs
	}
	column := func(rank int) (vs []record) {
		for r := range p {
			vs = append(vs, valueOf(r, rank))
		}
		return vs
	}
	me := c.Rank()
	own := valueOf(me, root)
	k.delay()
	var got, want any
	var err error
	form := k.rng.IntN(8)
	switch form {
	case 0:
		got, err = comm.BcastValue(c, own, root, codec)
		want = valueOf(root, root)
	case 1:
		got, err = comm.AllgatherValue(c, own, codec)
		want = column(root)
	case 2:
		got, err = comm.AlltoallValue(c, row(me), codec)
		want = column(me)
	case 3:
		got, err = comm.GatherValue(c, own, root, codec)
		if want = []record(nil); me == root {
			want = column(root)
		}
	case 4:
		got, err = comm.ScatterValue(c, row(me), root, codec)
		want = valueOf(root, me)
	case 5, 6:
		names := []string{}
		for _, r := range column(root) {
			names = append(names, r.Name)
		}
		join := func(a, b []string) []string { return append(a, b...) }
		if form == 5 {
			got, err = comm.AllreduceValue(c, []string{own.Name}, join, codec)
		} else if got, err = comm.ReduceValue(c, []string{own.Name}, join, root, codec); me != root {
			names = nil
		}
		want = names
	default:
		to, from := k.peers(root)
		want = valueOf(from, root)
		got, err = k.exchangeValues(own, to, from, codec)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		err = fmt.Errorf("received %.200s instead of %.200s", fmt.Sprint(got), fmt.Sprint(want))
	}
	if err != nil {
		return fmt.Errorf("form %d by %s, root %d, up to %d elements: %w", form, codec.Name(), root, most, err)
	}
	return nil
}

// exchangeValues sends a value to one rank and returns the value that another rank sends.
func (k *call) exchangeValues(own record, to, from int, codec comm.Codec) (got record, err error) {
	var sent func() error // waits for the end of the send
	if k.own.IntN(2) == 0 {
		r := comm.IsendValue(k.c, own, to, k.tag, codec)
		sent = func() error {
			_, err := k.wait([]comm.Request{r})
			return err
		}
	} else {
		ended := make(chan error, 1)
		go func() { ended <- comm.SendValue(k.c, own, to, k.tag, codec) }() // ends when the value is received
		sent = func() error { return <-ended }
	}
	var st comm.Status
	if k.own.IntN(2) == 0 {
		got, st, err = comm.RecvValue[record](k.c, from, k.tag, codec)
	} else {
		var m *comm.Message
		if m, _, err = k.c.Mprobe(from, k.tag); err == nil {
			got, st, err = comm.MrecvValue[record](m, codec)
		}
	}
	if err == nil && (st.Source != from || st.Tag != k.tag) {
		err = fmt.Errorf("the value is from rank %d with tag %d, not from %d with tag %d", st.Source, st.Tag, from, k.tag)
	}
	if err != nil {
		err = k.fail(err)
	}
	return got, errors.Join(err, sent())
}
