package rma

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport/fault"
)

// step is one operation of a plan.
type step struct {
	origin, target int
	at, n          int // the first element, and the number of elements
	op             Op
	kind           int   // 0 put, 1 accumulate, 2 fetch, 3 swap, 4 get
	value          int64 // from which the operands are made
	request        bool  // use the form with a request
}

// plan returns random operations of all ranks for one epoch. Each element of each rank is changed
// by one origin, or by operations of several origins that commute.
func plan(rng *rand.Rand, n, elems int) []step {
	var all []step
	for target := range n {
		for at := 0; at < elems; {
			d := step{target: target, at: at, n: min(1+rng.IntN(20), elems-at), origin: rng.IntN(n), request: rng.IntN(4) == 0}
			at += d.n
			switch rng.IntN(4) {
			case 0:
				d.kind, d.value = 0, rng.Int64()
				all = append(all, d)
			case 1: // accumulates of one origin, which happen in program order
				for range 1 + rng.IntN(6) {
					d.kind, d.op, d.value = 1+rng.IntN(2), Op(rng.IntN(int(Ops))), rng.Int64N(1000)
					all = append(all, d)
				}
			case 2: // accumulates of all ranks, which commute
				d.kind, d.op = 1, []Op{Sum, Prod, Min, Max, Band, Bor, Bxor}[rng.IntN(7)]
				for d.origin = range n {
					d.value = rng.Int64()
					all = append(all, d)
				}
			case 3:
				d.kind, d.n, d.value = 3, 1, rng.Int64()
				all = append(all, d)
				d.kind, d.at = 4, d.at+1
				if d.n = at - d.at; d.n > 0 {
					all = append(all, d)
				}
			}
		}
	}
	return all
}

// model applies a step to a part, and returns the previous elements, which a fetch must get.
func (d *step) model(part []byte) (former []byte) {
	at := part[8*d.at : 8*(d.at+d.n)]
	former = bytes.Clone(at)
	for i := range d.n {
		e := at[8*i : 8*i+8]
		switch {
		case d.kind == 0 || d.kind < 3 && d.op == Replace:
			put(e, d.value+int64(i))
		case d.kind == 3:
			if get(e)&1 == 0 {
				put(e, d.value)
			}
		case d.kind < 3 && d.op > NoOp:
			kernels(d.op)(e, word(d.value+int64(i)))
		}
	}
	return former
}

// do starts the operation of a step on m, which is the step's origin, and returns the buffer in
// which the result arrives.
func (m *member) do(d *step, old []byte) (result []byte, q engine.Request, err error) {
	data := make([]byte, 8*d.n)
	for i := range d.n {
		put(data[8*i:], d.value+int64(i))
	}
	result = make([]byte, 8*d.n)
	target, at := d.target, 8*d.at
	switch {
	case d.kind == 0 && d.request:
		q, err = m.Rput(background, target, at, data)
	case d.kind == 0:
		err = m.Put(background, target, at, data)
	case d.kind == 1 && d.request:
		q, err = m.RAccumulate(background, target, at, data, d.op)
	case d.kind == 1:
		err = m.Accumulate(background, target, at, data, d.op)
	case d.kind == 2 && d.request:
		q, err = m.RGetAccumulate(background, target, at, data, result, d.op)
	case d.kind == 2:
		err = m.GetAccumulate(background, target, at, data, result, d.op)
	case d.kind == 3: // succeeds if the old element is even
		compare := word(get(old) &^ 1)
		if d.request {
			q, err = m.RCompareSwap(background, target, at, data, compare, result)
		} else {
			err = m.CompareSwap(background, target, at, data, compare, result)
		}
		clear(data) // the caller may reuse it at once
	case d.request:
		q, err = m.Rget(background, target, at, result)
	default:
		err = m.Get(background, target, at, result)
	}
	return result, q, err
}

// TestAgainstModel compares the results of random operations of all kinds with a model.
func TestAgainstModel(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7} {
		everyFlavour(t, n, 8*modelElems, func(t *testing.T, ms []*member) {
			each(t, ms, func(m *member) error { return m.compare(uint64(n)) })
		})
	}
}

// TestLegalFaults checks that operations work over transports with faults that the transport
// contract permits.
func TestLegalFaults(t *testing.T) {
	for name, open := range flavours() {
		for seed := range uint64(3) {
			plan := fault.Legal(seed)
			t.Run(fmt.Sprintf("%s/%v", name, plan), func(t *testing.T) {
				p, set := open()
				ms := openWindows(t, openEngines(t, 3, fault.Wrap(p, plan), set), 8*modelElems, ofInt64())
				each(t, ms, func(m *member) error { return m.compare(seed) })
			})
		}
	}
}

// TestIllegalFaults checks that a fault that the transport contract forbids causes an error, never
// a hang. A rank that gets an error stops its engine. The test does not flip bits: a flipped bit in
// a header can turn a request into a message without an answer, and fabrics must detect that. Only
// one rank has faults, because a rank that marks another as failed does not inform it.
func TestIllegalFaults(t *testing.T) {
	for name, plan := range map[string]fault.Plan{
		"duplicate": {Duplicate: 0.01, Ranks: []int{0}},
		"kill":      {KillAt: 100, Ranks: []int{1}},
	} {
		for _, flavour := range []string{"rma", "messages", "small messages", "native"} {
			for seed := range uint64(4) {
				plan.Seed = seed
				t.Run(fmt.Sprintf("%s/%s/%v", name, flavour, plan), func(t *testing.T) {
					p, set := flavours()[flavour]()
					ms := openWindows(t, openEngines(t, 3, fault.Wrap(p, plan), set), 8*modelElems, ofInt64())
					each(t, ms, func(m *member) error {
						if err := m.compare(seed); err != nil {
							t.Logf("rank %d: %v", m.rank, err)
							m.e.Kill()
						}
						return nil
					})
				})
			}
		}
	}
}

const modelElems = 150

// compare executes random plans together with the other ranks, and compares the results with the
// model.
func (m *member) compare(seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 7))
	parts := make([][]byte, m.size)
	for i := range parts {
		parts[i] = make([]byte, 8*modelElems)
	}
	for round := range 8 {
		if err := m.openEpoch(round); err != nil {
			return err
		}
		if err := m.round(plan(rng, m.size, modelElems), parts, round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if err := m.barrier(); err != nil { // before any rank writes again
			return err
		}
	}
	return nil
}

func (m *member) round(steps []step, parts [][]byte, round int) error {
	type outcome struct {
		d         step
		got, want []byte
		q         engine.Request
	}
	var all []outcome
	for _, d := range steps {
		old := bytes.Clone(parts[d.target][8*d.at:])
		former := d.model(parts[d.target])
		if d.origin != m.rank {
			continue
		}
		o := outcome{d: d, want: former}
		var err error
		if o.got, o.q, err = m.do(&d, old); err != nil {
			return fmt.Errorf("%+v: %w", d, err)
		}
		all = append(all, o)
	}
	for _, o := range all {
		if _, err := o.q.Wait(background); err != nil {
			return err
		}
	}
	if err := m.closeEpoch(round); err != nil {
		return err
	}
	for _, o := range all {
		if o.d.kind >= 2 {
			if err := same(o.got, o.want); err != nil {
				return fmt.Errorf("%+v: %w", o.d, err)
			}
		}
	}
	return same(m.local, parts[m.rank])
}

// openEpoch opens an epoch with all ranks. Its kind depends on the round.
func (m *member) openEpoch(round int) error {
	all := make([]int, m.size)
	for i := range all {
		all[i] = i
	}
	switch round % 4 {
	case 0:
		return m.LockAll(background)
	case 1:
		for i := range all {
			if err := m.Lock(background, (i+m.rank)%m.size, false); err != nil {
				return err
			}
		}
		return nil
	case 2:
		return m.Start(all)
	}
	return m.fence()
}

// closeEpoch closes the epoch of openEpoch, and waits until all ranks have closed theirs.
func (m *member) closeEpoch(round int) error {
	switch round % 4 {
	case 0:
		if err := m.FlushLocalAll(background); err != nil {
			return err
		}
		if err := m.FlushAll(background); err != nil {
			return err
		}
		if err := m.UnlockAll(background); err != nil {
			return err
		}
	case 1:
		for i := range m.size {
			if err := m.Unlock(background, i); err != nil {
				return err
			}
		}
	case 2:
		if err := m.Complete(background); err != nil {
			return err
		}
	default:
		if err := m.Fence(background, true); err != nil {
			return err
		}
	}
	return m.barrier()
}
