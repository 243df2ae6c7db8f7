// Package inspect answers gorun when gorun asks what a rank does.
package inspect

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/stack"
	"github.com/weft-hpc/weft/internal/wire"
)

// Inspector runs a goroutine that answers the requests of gorun (see the comment on
// wire.InspectReady):
//
//	gorun ── InspectState ──► answer ──► the engine's waits ──────┐
//	                                     pause                    │
//	                                     the goroutines' stacks   ├─► RankState ──► gorun
//	                                     the engine's waits again ┘
//
// If the engine reports the same wait before and after the inspector reads the stacks, the wait
// also held in between. The name of a call and the line of the program that makes it come from the
// stack. The call's communicator, peer and tag come from the engine's wait. The inspector finds the
// wait that belongs to a stack by the address of the waiter, which is on the stack. So a call keeps
// no record for the inspector.
//
// The inspector's goroutine waits in the runtime's poller and costs nothing until gorun
// asks. Another goroutine makes a profile that gorun asks for.
type Inspector struct {
	file *os.File             // stream to gorun; nil: gorun does not ask
	rank atomic.Pointer[Rank] // the rank to report; nil until Attach
	done chan struct{}        // closed when the goroutine has ended, or if there is none

	profile  Profile
	writing  sync.Mutex     // held while a frame is written
	making   sync.Mutex     // held while a profile is made
	last     chan struct{}  // closed when the last profile should end; only loop uses it, and Stop after that
	profiles sync.WaitGroup // goroutines that make profiles
}

// Profile makes a profile of a kind in wire.ProfileKinds, and returns its frames (wire.AppendProfile). A profile that
// takes time takes the time d, or until stop is closed.
type Profile func(kind string, d time.Duration, stop <-chan struct{}) (frames []byte)

// Rank holds what the inspector needs from a rank.
type Rank struct {
	Engine *engine.Engine
	// Find returns the open communicator with the id. ok is false if there is none.
	Find  func(id uint64) (c Comm, ok bool)
	Comms func() []wire.RankComm // returns the open communicators, in any order
	// Connections returns the rank's connections with other processes. It may be nil.
	Connections func() []Connection
	Final       uint64 // id of Finalize's communicator
	MaxSeq      uint32 // largest number of a collective
}

// Connection is a connection of the rank with other processes, which has an engine of its own.
type Connection struct {
	Engine *engine.Engine
	Name   func(id uint64) string // returns the name of a communicator of the connection

	waits []engine.Wait // that have lasted for the duration pause; Answer sets it
}

// Comm is an open communicator.
type Comm struct {
	Name string // name of the communicator in errors, such as "comm 0.3"
	Seq  uint32 // number of the last collective that this rank has started on it; 0: none
}

// Limits of an answer.
const (
	maxCalls = 16 // calls in RankState.Calls
	// maxComms is the number of communicators in RankState.Comms, besides those that it always
	// holds; see openComms.
	maxComms = 64
	maxLinks = 1024 // peers in RankState.Links
	// pause is the time between two snapshots of the engine. A wait that is in both snapshots
	// counts as still (wire.RankCall).
	pause     = 100 * time.Millisecond
	maxStacks = 4 << 20 // bytes of stacks that the inspector reads
	// maxProfileRequest is the number of bytes of the longest request for a profile.
	maxProfileRequest = 64
)

// Start starts an inspector that reads requests from file and writes answers to it. The inspector
// closes file. If file is nil, the inspector does nothing. The inspector calls profile to make profiles.
func Start(file *os.File, profile Profile) *Inspector {
	in := &Inspector{file: file, profile: profile, done: make(chan struct{})}
	if file == nil {
		close(in.done)
		return in
	}
	// When Init returns, gorun must know that this rank answers, even if the process is stopped
	// then.
	_, err := file.Write(wire.AppendInspect(nil, 0, wire.InspectReady, nil))
	go in.loop(err) // ends with Stop, which waits for it
	return in
}

// Attach gives the inspector the rank whose state it reports. Before Attach, the inspector reports
// only what the stacks show.
func (in *Inspector) Attach(r *Rank) { in.rank.Store(r) }

// Stop ends the inspector's goroutines and waits for them. gorun does not get a profile that is under way.
func (in *Inspector) Stop() {
	if in.file != nil {
		_ = in.file.Close()
	}
	<-in.done
	if in.last != nil {
		close(in.last)
	}
	in.profiles.Wait()
}

// loop answers requests until reading or writing fails (for example because gorun or Stop has
// closed the file) or a request is malformed. If ready, the error of the write of InspectReady, is
// not nil, loop answers none. If several requests have arrived, loop sends the state for the last
// one only, because gorun no longer waits for the others. It also sends the stacks for the last
// request for stacks among them, because gorun still accepts these.
func (in *Inspector) loop(ready error) {
	defer close(in.done)
	if ready != nil {
		return
	}
	var head [wire.InspectHead]byte
	requests := bufio.NewReader(in.file)
	var state, stacks uint32 // numbers of the requests for the state and for stacks to answer; 0: none
	for {
		if _, err := io.ReadFull(requests, head[:]); err != nil {
			return
		}
		number, kind, n := wire.ParseInspectHead(head[:])
		switch {
		case kind == wire.InspectProfile:
			if !in.takeProfile(requests, number, n) {
				return
			}
		case n > 0 || kind != wire.InspectState && kind != wire.InspectStacks:
			return
		default:
			state = number
			if kind == wire.InspectStacks {
				stacks = number
			}
		}
		if state == 0 || requests.Buffered() > 0 {
			continue
		}
		if !in.write(in.Answer(state, stacks)) {
			return
		}
		state, stacks = 0, 0
	}
}

// write reports whether it could write the frames.
func (in *Inspector) write(frames []byte) bool {
	in.writing.Lock()
	defer in.writing.Unlock()
	_, err := in.file.Write(frames)
	return err == nil
}

// takeProfile reads the body, of n bytes, of a request for a profile, and makes a goroutine answer it. It reports
// whether the request is well formed.
func (in *Inspector) takeProfile(requests io.Reader, number, n uint32) bool {
	if n > maxProfileRequest {
		return false
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(requests, body); err != nil {
		return false
	}
	kind, d, err := wire.ParseProfileRequest(body)
	if err != nil {
		return false
	}
	// gorun makes a request when it does not wait for the answer to an earlier one any more.
	if in.last != nil {
		close(in.last)
	}
	stop := make(chan struct{})
	in.last = stop
	in.profiles.Go(func() { // ends with the profile, or soon after Stop
		in.making.Lock()
		answer := in.profile(kind, d, stop)
		in.making.Unlock()
		for piece := range slices.Chunk(answer, wire.InspectMaxPiece) {
			if !in.write(wire.AppendInspect(nil, number, wire.InspectProfile, piece)) {
				return
			}
		}
		in.write(wire.AppendInspect(nil, number, wire.InspectProfile, nil))
	})
	return true
}

// Answer returns the frames of an answer: the state as the answer to the request number and, before
// it, unless stacks is 0, the stacks as the answer to the request stacks. If Attach was called,
// Answer blocks for the duration pause.
func (in *Inspector) Answer(number, stacks uint32) (frames []byte) {
	r := in.rank.Load()
	var before, after engine.Snapshot
	var connections []Connection
	if r != nil {
		if r.Connections != nil {
			connections = r.Connections()
		}
		before = r.Engine.Snapshot()
		for i := range connections {
			connections[i].waits = connections[i].Engine.Snapshot().Waits
		}
		time.Sleep(pause)
	}
	text, whole := allStacks()
	if r != nil {
		after = r.Engine.Snapshot()
	}
	for i := range connections {
		x := &connections[i]
		x.waits = lasting(x.waits, x.Engine.Snapshot().Waits)
	}
	if stacks != 0 {
		frames = wire.AppendInspect(frames, stacks, wire.InspectStacks, []byte(text[:min(len(text), wire.InspectMaxStacks)]))
	}
	after.Waits = lasting(before.Waits, after.Waits)
	s := r.state(stack.Parse(text), after, connections)
	s.Busy = s.Busy || !whole // a goroutine whose stack was cut off may run
	state, err := json.Marshal(s)
	if err != nil || len(state) > wire.InspectMaxState {
		state = []byte(`{"busy":true,"morecomms":true,"morelinks":true}`)
	}
	return wire.AppendInspect(frames, number, wire.InspectState, state)
}

// lasting returns the waits of after that are also in before.
func lasting(before, after []engine.Wait) []engine.Wait {
	return slices.DeleteFunc(after, func(w engine.Wait) bool {
		return !slices.ContainsFunc(before, func(b engine.Wait) bool { return b.ID == w.ID })
	})
}

// allStacks returns the stacks of all goroutines, at most maxStacks bytes. If that limit cuts
// the text off, whole is false.
func allStacks() (text string, whole bool) {
	for size := 64 << 10; ; size *= 4 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size >= maxStacks {
			return string(buf[:n]), n < size
		}
	}
}

// state returns the state of the rank: what its goroutines do and wait for. all are the goroutines
// of the process. eng is a snapshot of the rank's engine, with only the waits that have lasted for
// the duration pause. r is nil while Init runs.
func (r *Rank) state(all []stack.Goroutine, eng engine.Snapshot, connections []Connection) *wire.RankState {
	s := &wire.RankState{Moves: eng.Moves}
	var rest []*stack.Goroutine // goroutines of the program that are in no call in s.Calls
	for i := range all {
		g := &all[i]
		name, where := g.Call()
		w := waitOf(g, eng.Waits)
		var x *Connection // that the call waits for; nil: it waits for the rank's own job
		for i := 0; w == nil && i < len(connections); i++ {
			x = &connections[i]
			w = waitOf(g, x.waits)
		}
		// If where is empty, this is not a call of the program. It may be a nonblocking collective,
		// which runs on a goroutine of weft.
		if where == "" {
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
		if len(s.Calls) == maxCalls {
			s.More++
			continue
		}
		call := wire.RankCall{Name: name, Where: where, Goroutine: g.ID, Peer: engine.AnySource, World: engine.AnySource, Tag: engine.AnyTag}
		if w != nil {
			r.describe(&call, w, x)
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
	if r != nil {
		s.Comms, s.MoreComms = r.openComms(s.Calls)
	}
	for i, l := range eng.Links {
		if s.MoreLinks = i == maxLinks; s.MoreLinks {
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

// describe sets the fields of call that say what the call waits for. w is the engine's wait of the
// call, and x the connection whose engine that is; nil: it is the engine of the rank's own job.
func (r *Rank) describe(call *wire.RankCall, w *engine.Wait, x *Connection) {
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
	call.Peer, call.Tag = w.Peer, w.Tag
	collective := w.Context&1 != 0
	if x == nil {
		call.ID, call.World = w.Context/2, w.World
		c, ok := r.Find(call.ID)
		if !ok {
			call.Comm = "comm"
			return
		}
		call.Comm = c.Name
		if collective {
			if call.Seq = c.Seq; w.Kind != engine.WaitWord && w.Tag >= 0 && w.Tag <= int(r.MaxSeq) {
				call.Seq = uint32(w.Tag)
			}
		}
	} else {
		call.Connection, call.Comm = true, x.Name(w.Context/2)
	}
	if collective {
		call.Wait, call.Tag = wire.WaitCollective, engine.AnyTag
	}
}

// openComms returns the open communicators in the order of their ids. If there are more than
// maxComms, the list holds the first maxComms of them (the world is the first), Finalize's
// communicator and the communicators of calls. more is true if the list leaves out any.
func (r *Rank) openComms(calls []wire.RankCall) (list []wire.RankComm, more bool) {
	list = r.Comms()
	slices.SortFunc(list, func(a, b wire.RankComm) int {
		return cmp.Compare(a.ID, b.ID)
	})
	first := list[:min(len(list), maxComms)] // contains the world, whose id is the lowest
	for _, c := range list[len(first):] {
		if c.ID == r.Final || slices.ContainsFunc(calls, func(x wire.RankCall) bool { return x.Comm != "" && x.ID == c.ID }) {
			first = append(first, c)
		} else {
			more = true
		}
	}
	return first, more
}
