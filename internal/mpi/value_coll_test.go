package mpi_test

import (
	"encoding/gob"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/comm"
)

// document is a value that Send cannot send.
type document struct {
	Title string
	Words map[string]int
	Next  *document
}

// documentOf returns the value that rank from sends to rank to in these tests. Its encoding may be
// longer than the eager limit.
func documentOf(from, to, seed int) document {
	r := rand.New(rand.NewPCG(uint64(from*1000+to), uint64(seed)))
	d := document{Title: strings.Repeat(fmt.Sprintf("%d to %d ", from, to), 1+r.IntN(3)*r.IntN(9000)), Words: map[string]int{}}
	for i := range 1 + r.IntN(5) {
		d.Words[fmt.Sprint("word", i)] = r.Int()
	}
	if r.IntN(2) == 0 {
		d.Next = &document{Title: "next", Words: map[string]int{"seed": seed}}
	}
	return d
}

func sameValue(call string, got, want any, err error) error {
	if err != nil || !reflect.DeepEqual(got, want) {
		return fmt.Errorf("%s: %.200s, not %.200s: %w", call, fmt.Sprint(got), fmt.Sprint(want), err)
	}
	return nil
}

// TestValueCollectives checks the collectives of values over all fabrics, with each codec.
func TestValueCollectives(t *testing.T) {
	overFabrics(t, []int{1, 2, 3, 5}, func(c *comm.Comm) error {
		for seed, codec := range []comm.Codec{comm.Gob, comm.JSON} {
			if err := valueCollectives(c, seed, codec); err != nil {
				return fmt.Errorf("%s: %w", codec.Name(), err)
			}
		}
		return nil
	})
}

func valueCollectives(c *comm.Comm, seed int, codec comm.Codec) error {
	me, root := c.Rank(), (seed+1)%c.Size()
	var to, from, gathered []document
	for r := range c.Size() {
		to = append(to, documentOf(me, r, seed))
		from = append(from, documentOf(r, me, seed))
		gathered = append(gathered, documentOf(r, root, seed))
	}
	own := to[root]
	one, err := comm.BcastValue(c, own, root, codec)
	if err := sameValue("BcastValue", one, gathered[root], err); err != nil {
		return err
	}
	all, err := comm.AllgatherValue(c, own, codec)
	if err := sameValue("AllgatherValue", all, gathered, err); err != nil {
		return err
	}
	all, err = comm.AlltoallValue(c, to, codec)
	if err := sameValue("AlltoallValue", all, from, err); err != nil {
		return err
	}
	want, scattered := gathered, to
	if me != root {
		want, scattered = nil, nil
	}
	all, err = comm.GatherValue(c, own, root, codec)
	if err := sameValue("GatherValue", all, want, err); err != nil {
		return err
	}
	one, err = comm.ScatterValue(c, scattered, root, codec)
	if err := sameValue("ScatterValue", one, documentOf(root, me, seed), err); err != nil {
		return err
	}
	titles := func(a, b []string) []string { return append(a, b...) } // does not commute
	mine := []string{own.Title}
	var sum []string
	for _, d := range gathered {
		sum = append(sum, d.Title)
	}
	got, err := comm.AllreduceValue(c, mine, titles, codec)
	if err := sameValue("AllreduceValue", got, sum, err); err != nil {
		return err
	}
	if me != root {
		sum = nil
	}
	got, err = comm.ReduceValue(c, mine, titles, root, codec)
	return sameValue("ReduceValue", got, sum, err)
}

// TestInterfacesAsValues sends values of interface types, which the receiver gets with their
// concrete types.
func TestInterfacesAsValues(t *testing.T) {
	gob.Register(document{})
	ranks(t, 3, func(c *comm.Comm) error {
		want := []any{7, "text", document{Title: "a"}}
		got, err := comm.AllgatherValue(c, want[c.Rank()])
		if err := sameValue("AllgatherValue", got, want, err); err != nil {
			return err
		}
		r := comm.IsendValue(c, want[c.Rank()], (c.Rank()+1)%3, 0)
		m, _, err := c.Mprobe(comm.AnySource, 0)
		if err != nil {
			return err
		}
		v, st, err := comm.MrecvValue[any](m)
		if err := sameValue("MrecvValue", v, want[(c.Rank()+2)%3], err); err != nil {
			return err
		}
		if st.Source != (c.Rank()+2)%3 || st.Count != 1 {
			return fmt.Errorf("%+v", st)
		}
		_, _, err = comm.MrecvValue[any](m)
		_, _, nerr := comm.MrecvValue[any](nil)
		_, werr := r.Wait()
		bad := comm.IsendValue(c, make(chan int), 0, 0)
		_, berr := bad.Wait()
		return first(werr, wantErr("twice", err, comm.ErrArg, "MrecvValue"), wantErr("nil", nerr, comm.ErrArg, "MrecvValue"),
			wantErr("a channel", berr, comm.ErrType, "IsendValue"))
	})
}

// brokenCodec fails on one rank.
type brokenCodec struct {
	rank, broken           int
	encodes, decodes, dies bool
}

func (brokenCodec) Name() string { return "broken" }

func (b brokenCodec) fail(fails bool) error {
	switch {
	case b.rank != b.broken || !fails:
		return nil
	case b.dies:
		panic("the codec is broken")
	}
	return fmt.Errorf("the codec is broken")
}

func (b brokenCodec) Append(to []byte, v any) ([]byte, error) {
	if err := b.fail(b.encodes); err != nil {
		return nil, err
	}
	return comm.JSON.Append(to, v)
}

func (b brokenCodec) Decode(from []byte, v any) error {
	if err := b.fail(b.decodes); err != nil {
		return err
	}
	return comm.JSON.Decode(from, v)
}

// TestValueCollectivesFail: if the codec fails on one rank, that rank gets ErrType, and no rank
// waits for ever: the communicator is revoked.
func TestValueCollectivesFail(t *testing.T) {
	const root, broken = 1, 2
	calls := map[string]func(c *comm.Comm, codec comm.Codec) error{
		"BcastValue":     func(c *comm.Comm, k comm.Codec) error { _, err := comm.BcastValue(c, "a", root, k); return err },
		"GatherValue":    func(c *comm.Comm, k comm.Codec) error { _, err := comm.GatherValue(c, "a", root, k); return err },
		"AllgatherValue": func(c *comm.Comm, k comm.Codec) error { _, err := comm.AllgatherValue(c, "a", k); return err },
		"ScatterValue": func(c *comm.Comm, k comm.Codec) error {
			_, err := comm.ScatterValue(c, []string{"a", "b", "c"}, root, k)
			return err
		},
		"AlltoallValue": func(c *comm.Comm, k comm.Codec) error {
			_, err := comm.AlltoallValue(c, []string{"a", "b", "c"}, k)
			return err
		},
	}
	rootEncodes := map[string]bool{"BcastValue": true, "ScatterValue": true}
	for name, call := range calls {
		for _, codec := range []brokenCodec{{encodes: true}, {encodes: true, dies: true}, {decodes: true}, {decodes: true, dies: true}} {
			t.Run(fmt.Sprintf("%s/%+v", name, codec), func(t *testing.T) {
				ranks(t, 3, func(c *comm.Comm) error {
					d, err := c.Dup()
					if err != nil {
						return err
					}
					codec := codec // each rank changes its own
					codec.rank, codec.broken = c.Rank(), broken
					if codec.encodes && rootEncodes[name] || codec.decodes && name == "GatherValue" {
						codec.broken = root // only the root encodes or decodes
					}
					err = call(d, codec)
					if c.Rank() == codec.broken {
						if err := wantErr(name, err, comm.ErrType, "the codec is broken"); err != nil {
							return err
						}
						return wantErr("after it", d.Barrier(), comm.ErrRevoked, name)
					}
					if err == nil { // the rank has not waited for the broken one
						err = d.Barrier()
					}
					return wantErr(name, err, comm.ErrRevoked, "the codec is broken")
				})
			})
		}
	}
}

// TestValueReductionsFail: a function of the program that panics on the root, or is nil, is an
// error, and the other ranks do not wait.
func TestValueReductionsFail(t *testing.T) {
	for name, f := range map[string]func(a, b int) int{"nil": nil, "panic": func(int, int) int { panic("no sum") }} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				d, derr := c.Dup()
				e, eerr := c.Dup()
				if err := first(derr, eerr); err != nil {
					return err
				}
				_, err := comm.AllreduceValue(d, c.Rank(), f)
				if err := wantErr("AllreduceValue", err, comm.ErrOp, "AllreduceValue"); err != nil {
					// Another rank may have revoked d before.
					if err := wantErr("AllreduceValue", err, comm.ErrRevoked, ""); err != nil && c.Rank() == 0 {
						return err
					}
				}
				_, err = comm.ReduceValue(e, c.Rank(), f, 0)
				if c.Rank() == 0 {
					return wantErr("ReduceValue", err, comm.ErrOp, "ReduceValue")
				}
				if err == nil {
					err = e.Barrier()
				}
				if f == nil {
					return wantErr("ReduceValue", err, comm.ErrOp, "the function is nil")
				}
				return wantErr("ReduceValue", err, comm.ErrRevoked, "no sum")
			})
		})
	}
}

// TestValueCollectivesOfTheWrongNumber passes another number of values than there are ranks.
func TestValueCollectivesOfTheWrongNumber(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		d, derr := c.Dup()
		e, eerr := c.Dup()
		if err := first(derr, eerr); err != nil {
			return err
		}
		vs := []string{"a", "b"}
		if c.Rank() == 0 {
			_, err := comm.AlltoallValue(d, vs[:1])
			_, err2 := comm.ScatterValue(e, vs[:1], 0)
			return first(wantErr("AlltoallValue", err, comm.ErrCount, "1 values for 2 ranks"),
				wantErr("ScatterValue", err2, comm.ErrCount, "1 values for 2 ranks"))
		}
		_, err := comm.AlltoallValue(d, vs)
		_, err2 := comm.ScatterValue(e, vs, 0)
		return first(wantErr("AlltoallValue", err, comm.ErrRevoked, ""), wantErr("ScatterValue", err2, comm.ErrRevoked, ""))
	})
}

// TestLengthsOfValues: a peer that gives a length that no value can have is an error.
func TestLengthsOfValues(t *testing.T) {
	for _, n := range []int{-1, 1 << 62} {
		ranks(t, 2, func(c *comm.Comm) error {
			d, err := c.Dup()
			if err != nil {
				return err
			}
			if c.Rank() == 0 { // as BcastValue does, but with another length
				return first(comm.Bcast(d, []int{n}, 0), wantErr("Barrier", d.Barrier(), comm.ErrRevoked, "memory"))
			}
			_, err = comm.BcastValue(d, "", 0)
			return wantErr("BcastValue", err, comm.ErrCount, "memory")
		})
	}
}
