package mpi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/stack"
	"github.com/weft-hpc/weft/internal/wire"
)

// OpenWindow does only the first step of NewWin.
func OpenWindow[T any](c *Comm, n int) error {
	l, err := c.begin("NewWin")
	if err != nil {
		return err
	}
	_, err = l.openWindow(elem.Of[T](), n)
	return err
}

// ProgramLine is stack.ProgramLine.
func ProgramLine() string { return stack.ProgramLine() }

// Guard is guard.
func Guard(c *Comm, run func(c *Comm) error) { guard(c, run) }

// IsConsequence is isConsequence.
func IsConsequence(err error) bool { return isConsequence(err) }

// Parts returns the number of transfers that u waits for.
func Parts(u *Unfinished) int { return len(u.parts) }

// Contradict sends a query of n calls to a rank of c, in elements of another type. Each
// call differs from the first collective of c. It waits until the rank has received it.
func Contradict(c *Comm, rank, n int) error {
	k := signedCall{what: coll.KindBcast}
	q := binary.LittleEndian.AppendUint64(nil, c.s.id)
	for range n {
		for _, w := range recordOf(1, k.fingerprint(), &k) {
			q = binary.LittleEndian.AppendUint64(q, w)
		}
	}
	r := c.s.job.final.p2p.Isend(q, engine.Env{Peer: c.s.group.ranks[rank], Sig: 7, Mode: engine.Synchronous})
	_, err := r.Wait(c.ctx)
	return err
}

// QueryCalls is the most calls that a query holds.
const QueryCalls = queryCalls

// InFinalize reports whether the rank of c has called Finalize.
func InFinalize(c *Comm) bool { return c.s.job.ending.Load() }

// Queued returns the number of collectives that wait for their turn.
func Queued(c *Comm) int { return int(c.s.queued.Load()) }

// Pending returns the calls of the operations that a rank's checker knows.
func Pending(c *Comm) (names []string) {
	k := c.s.check
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.pending {
		names = append(names, p.name)
	}
	return names
}

// MinSweep is minSweep.
const MinSweep = minSweep

// Refused returns the number of refused requests that the program has not waited for, and the number of
// those that this rank keeps.
func Refused(c *Comm) (n, kept int) {
	n, few := c.s.job.refusals.unreported()
	return n, len(few)
}

// PoolSize is the most arenas that a rank keeps.
const PoolSize = poolSize

// Idle returns the number of arenas in this rank's pool.
func Idle(c *Comm) int {
	p := &c.s.job.arenas
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// LoseInFinalize waits until this rank is in Finalize, and then makes its engine regard another rank of
// the world as failed.
func LoseInFinalize(c *Comm, world int) {
	for !c.s.job.agreements.Leaving() {
		runtime.Gosched()
	}
	c.s.job.eng.MarkFailed("the test says so", world)
}

// LoseArenas releases the arenas in this rank's pool.
func LoseArenas(c *Comm) {
	for a := range slices.Values(c.s.job.arenas.idle) {
		a.release(c.s)
	}
	c.s.job.arenas.idle = nil
}

// ReadQuery parses a query about collectives and writes it again. calls are its
// calls as text; "" stands for one that does not exist.
func ReadQuery(b []byte) (again []byte, calls []string, ok bool) {
	id, records, ok := query(b).parse()
	if !ok {
		return nil, nil, false
	}
	again = binary.LittleEndian.AppendUint64(nil, id)
	for _, r := range records {
		text := ""
		if k, ok := r.call(); ok {
			text = k.String()
			same := recordOf(r.seq(), r.sig(), &k)
			same[0] |= r[0] &^ (1<<48 - 1) // these bits have no meaning
			if r.whole() && same != r {
				panic(fmt.Sprintf("record %x became %x", r, same))
			}
		}
		calls = append(calls, text)
		for _, w := range r {
			again = binary.LittleEndian.AppendUint64(again, w)
		}
	}
	return again, calls, true
}

// QueryExample returns the query about a call of Allreduce and a call of Bcast.
func QueryExample() []byte {
	var s state
	for i, k := range []signedCall{
		{what: coll.KindAllreduce, count: 80, elem: 8, typ: elem.Signature(reflect.TypeFor[float64]()), opID: 1},
		{what: coll.KindBcast, root: 3, count: 12, elem: 1, typ: elem.RawSig},
		{what: kindDup},
	} {
		s.called.put(recordOf(uint32(i+1), k.fingerprint(), &k))
	}
	return s.newQuery(3)
}

// StackText returns what the inspector reads in the output of runtime.Stack.
func StackText(text string) (list []string) {
	for _, g := range stack.Parse(text) {
		name, where := g.Call()
		at := ""
		if f, ok := g.Program(); ok {
			at = g.Place(f)
		}
		list = append(list, name, where, g.Collective(), at, strconv.Itoa(int(g.Ability())))
	}
	return list
}

// Inspect returns a channel on which it sends the state that this rank would report to gorun.
func Inspect(c *Comm) <-chan *wire.RankState {
	var in inspector
	in.job.Store(c.s.job)
	answer := make(chan *wire.RankState, 1)
	go func() { // ends by itself
		_, _, body, _, _, err := wire.ParseInspect(in.answer(1, 0))
		var s wire.RankState
		if err == nil {
			err = json.Unmarshal(body, &s)
		}
		if err != nil {
			panic(err)
		}
		answer <- &s
	}()
	return answer
}

// StartInspector starts an inspector on file, as a rank does in Init.
func StartInspector(file *os.File) (stop func()) { return startInspector(file).stop }

// Belongs reports whether the first goroutine in a text of stacks belongs to the program, and whether
// it belongs to weft or the Go runtime.
func Belongs(text string) (program, own bool) {
	g := stack.Parse(text)[0]
	_, program = g.Program()
	return program, g.Own()
}

// Leftover is the check for messages of collectives that Finalize and Free make.
func Leftover(c *Comm) error { return c.s.leftover() }

// SendDecision acts as the coordinator for the first vote that arrives: it sends a decision to the sender
// of that vote only. The decision is that only this process has failed.
func SendDecision(c *Comm) error {
	for {
		m, st, err := c.s.job.agreeSpace.Attend(c.ctx, c.s.job.eng.ChangeCount(), false)
		if err != nil {
			return err
		}
		if m.IsZero() {
			continue
		}
		buf := make([]byte, st.Bytes)
		if _, err := m.Recv(context.Background(), buf); err != nil {
			return err
		}
		buf[0] = 2 // see agree/message.go: a decision
		buf[36+c.s.rank/8] |= 1 << (c.s.rank % 8)
		c.s.job.agreeSpace.Isend(buf, engine.Env{Peer: st.Source}).Abandon()
		return nil
	}
}
