package mpi

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/stack"
	"github.com/weft-hpc/weft/internal/wire"
)

// inspector answers gorun when gorun asks what this rank does:
//
//	gorun ── InspectState ──► answer ──► the engine's waits ──────┐
//	                                     pause                    │
//	                                     the goroutines' stacks   ├─► RankState ──► gorun
//	                                     the engine's waits again ┘
//
// If the engine reports the same wait before and after the inspector reads the stacks, the wait
// also held in between. The name of a call and the line of the program that makes it come from
// the stack. The call's communicator, peer and tag come from the engine's pending operations. The
// inspector finds the wait of a stack by the address of the waiter, which is on the stack. So
// a call keeps no record for the inspector.
//
// The inspector's goroutine waits in the runtime's poller and costs nothing until gorun
// asks.
type inspector struct {
	file *os.File // nil: gorun does not ask
	job  atomic.Pointer[job]
	done chan struct{} // closed when the goroutine has ended
}

// Limits of an answer.
const (
	inspectCalls  = 16
	inspectComms  = 64 // besides those that RankState.Comms always has
	inspectLinks  = 1024
	inspectPause  = 100 * time.Millisecond // a call that waits for the same event after this time counts as still
	inspectStacks = 4 << 20                // bytes of stacks that are searched
)

// startInspector starts an inspector that reads requests from file and writes answers to it. The
// inspector closes file.
func startInspector(file *os.File) *inspector {
	in := &inspector{file: file, done: make(chan struct{})}
	if file == nil {
		close(in.done)
		return in
	}
	// When Init returns, gorun must know that this rank answers, even if the process is stopped then.
	_, err := file.Write(wire.AppendInspect(nil, 0, wire.InspectReady, nil))
	go in.loop(err) // ends with stop, which waits for it
	return in
}

// stop ends the inspector's goroutine and waits for it.
func (in *inspector) stop() {
	if in.file != nil {
		_ = in.file.Close()
	}
	<-in.done
}

// loop answers requests, unless ready is an error, until gorun closes the stream or a frame is malformed. If several requests
// have come, loop sends the state for the last one only, because gorun no longer waits for
// the others. It sends the stacks for the last request for stacks, because gorun still accepts
// them.
func (in *inspector) loop(ready error) {
	defer close(in.done)
	if ready != nil {
		return
	}
	var head [wire.InspectHead]byte
	requests := bufio.NewReader(in.file)
	stacks := uint32(0) // number of the request for stacks to answer; 0: none
	for {
		if _, err := io.ReadFull(requests, head[:]); err != nil {
			return
		}
		number, kind, body, _, ok, err := wire.ParseInspect(head[:])
		if err != nil || !ok || len(body) > 0 {
			return
		}
		if kind == wire.InspectStacks {
			stacks = number
		}
		if requests.Buffered() > 0 {
			continue
		}
		if _, err := in.file.Write(in.answer(number, stacks)); err != nil {
			return
		}
		stacks = 0
	}
}

// answer returns the state as the answer to request number and, unless stacks is 0, the
// stacks as the answer to request stacks.
func (in *inspector) answer(number, stacks uint32) (frames []byte) {
	j := in.job.Load()
	var before, after engine.Snapshot
	if j != nil {
		before = j.eng.Snapshot()
		time.Sleep(inspectPause)
	}
	text, whole := allStacks()
	if j != nil {
		after = j.eng.Snapshot()
	}
	if stacks != 0 {
		frames = wire.AppendInspect(frames, stacks, wire.InspectStacks, []byte(text[:min(len(text), wire.InspectMaxStacks)]))
	}
	after.Waits = slices.DeleteFunc(after.Waits, func(w engine.Wait) bool {
		return !slices.ContainsFunc(before.Waits, func(b engine.Wait) bool { return b.ID == w.ID })
	})
	s := j.inspect(stack.Parse(text), after)
	s.Busy = s.Busy || !whole // a goroutine that is not in the text may run
	state, err := json.Marshal(s)
	if err != nil || len(state) > wire.InspectMaxState {
		state = []byte(`{"busy":true,"morecomms":true,"morelinks":true}`)
	}
	return wire.AppendInspect(frames, number, wire.InspectState, state)
}

// allStacks returns the stacks of all goroutines, at most inspectStacks bytes. If that limit cuts
// the text off, whole is false.
func allStacks() (text string, whole bool) {
	for size := 64 << 10; ; size *= 4 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size >= inspectStacks {
			return string(buf[:n]), n < size
		}
	}
}

// inspect returns the state of the rank: what its goroutines do and wait for. all are the stacks of
// its goroutines. eng is a snapshot of its engine, with the waits that have lasted for
// inspectPause. j is nil while Init runs.
func (j *job) inspect(all []stack.Goroutine, eng engine.Snapshot) *wire.RankState {
	s := &wire.RankState{Moves: eng.Moves}
	var rest []*stack.Goroutine // goroutines of the program that are in no call
	for i := range all {
		g := &all[i]
		name, where := g.Call()
		w := waitOf(g, eng.Waits)
		if where == "" { // a nonblocking collective runs on weft's own goroutine
			name = g.Collective()
			if s.Busy = s.Busy || name != "" && w == nil; w == nil || w.Context&1 == 0 {
				name = ""
			}
		}
		if name == "" {
			if _, ok := g.Program(); ok {
				rest = append(rest, g)
			} else if g.Own() {
				continue
			}
			switch g.Ability() {
			case stack.Runs:
				s.Busy = true
			case stack.MayRun:
				if !slices.Contains(s.Later, g.State) {
					s.Later = append(s.Later, g.State)
				}
			case stack.Waits:
			}
			continue
		}
		if len(s.Calls) == inspectCalls {
			s.More++
			continue
		}
		call := wire.RankCall{Name: name, Where: where, Goroutine: g.ID, Peer: engine.AnySource, World: engine.AnySource, Tag: engine.AnyTag}
		if w != nil {
			j.describe(&call, w)
		}
		s.Calls = append(s.Calls, call)
	}
	if len(s.Calls) == 0 && len(rest) > 0 {
		slices.SortStableFunc(rest, func(a, b *stack.Goroutine) int { // goroutines that run come first
			return cmp.Or(cmp.Compare(b.Ability(), a.Ability()), a.ID-b.ID)
		})
		f, _ := rest[0].Program()
		s.At = rest[0].Place(f)
	}
	if j != nil {
		s.Comms, s.MoreComms = j.openComms(s.Calls)
	}
	for i, l := range eng.Links {
		if s.MoreLinks = i == inspectLinks; s.MoreLinks {
			break
		}
		s.Links = append(s.Links, wire.RankLink{uint32(l.Peer), l.Sent, l.Received})
	}
	slices.Sort(s.Later)
	return s
}

// waitOf returns the wait whose waiter is on the goroutine's stack, or nil.
func waitOf(g *stack.Goroutine, waits []engine.Wait) *engine.Wait {
	for i := range waits {
		if strings.Contains(g.Text, waits[i].Waiter) {
			return &waits[i]
		}
	}
	return nil
}

// describe sets the fields of call that say what it waits for, from the wait w.
func (j *job) describe(call *wire.RankCall, w *engine.Wait) {
	call.Still, call.Event, call.Bounded = !w.Moves, w.ID, w.Bounded
	switch w.Kind {
	case engine.WaitSend:
		call.Wait = wire.WaitSend
	case engine.WaitRecv:
		call.Wait = wire.WaitRecv
	case engine.WaitProbe:
		call.Wait = wire.WaitProbe
	case engine.WaitWord:
		call.Wait = wire.WaitMemory
	case engine.WaitMemory:
		call.Wait = wire.WaitMemory
	case engine.WaitTask:
		call.Follows = true
		return
	case engine.WaitOther:
		return
	}
	call.ID, call.Peer, call.World, call.Tag = w.Context/2, w.Peer, w.World, w.Tag
	j.stall.mu.Lock()
	s := j.stall.states[call.ID]
	j.stall.mu.Unlock()
	if s == nil {
		call.Comm = "comm"
		return
	}
	call.Comm = s.name()
	if w.Context&1 == 0 {
		return
	}
	call.Wait = wire.WaitCollective
	if call.Seq = s.seq.Load() & seqMask; w.Kind != engine.WaitWord && w.Tag >= 0 && w.Tag <= seqMask {
		call.Seq = uint32(w.Tag)
	}
	call.Tag = engine.AnyTag
}

// openComms returns the open communicators in the order of their ids. If there are more than
// inspectComms, more is true, and the list holds the first ones (the world is the first), Finalize's
// communicator and the communicators of calls.
func (j *job) openComms(calls []wire.RankCall) (list []wire.RankComm, more bool) {
	j.stall.mu.Lock()
	defer j.stall.mu.Unlock()
	for id, s := range j.stall.states {
		list = append(list, wire.RankComm{ID: id, Seq: s.seq.Load() & seqMask})
	}
	slices.SortFunc(list, func(a, b wire.RankComm) int {
		return cmp.Compare(a.ID, b.ID)
	})
	first := list[:min(len(list), inspectComms)] // begins with the world
	for _, c := range list[len(first):] {
		if c.ID == finalID || slices.ContainsFunc(calls, func(x wire.RankCall) bool { return x.Comm != "" && x.ID == c.ID }) {
			first = append(first, c)
		} else {
			more = true
		}
	}
	return first, more
}
