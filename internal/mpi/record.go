package mpi

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/record"
	"golang.org/x/sys/unix"
)

// The record of this rank (package record)
//
// The engine records messages. This package records collectives, from Comm.begin to link.release,
// and, if the recorder works with detail, all other calls that communicate. A call records itself
// at its lowest function, so that a call that is made of others, such as SendValue, does not count
// twice.

// localBits is the size of the record of a rank that gorun has not started. It is small, because
// only this process can read the record.
const localBits = 8

// openRecord begins the record of the process: in the memory file that gorun has passed, or in own
// memory.
func (j *job) openRecord() error {
	w := j.world
	var err error
	if f := w.Record; f != nil {
		w.Record = nil
		j.record, err = mapRecord(f, w)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	} else {
		j.record, err = record.New(make([]byte, record.Size(w.Size, localBits)), w.Rank, w.Size, localBits)
	}
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	for i, name := range callNames {
		if name != "" {
			j.opNumbers[i] = j.record.Op(name, false)
		}
	}
	return nil
}

// mapRecord begins the record of the rank of w in its part of the memory file f. The memory stays mapped
// until the process ends.
func mapRecord(f *os.File, w *bootstrap.World) (*record.Recorder, error) {
	before := 0 // ranks of this host whose records come before
	for _, host := range w.HostOf[:w.Rank] {
		if host == w.HostOf[w.Rank] {
			before++
		}
	}
	size := record.Size(w.Size, w.RecordBits)
	st, err := f.Stat()
	if err == nil && st.Size() < int64(before+1)*int64(size) {
		err = fmt.Errorf("the file has %d bytes", st.Size())
	}
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), int64(before)*int64(size), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return record.New(mem, w.Rank, w.Size, w.RecordBits)
}

// recordMessages makes the engine record the messages of the communicator.
func (s *state) recordMessages() {
	s.level = &quiet
	if r := s.job.record; r != nil && s.id != finalID {
		s.level = r.Level()
		s.recorded = r.Comm(s.id, s.name())
		s.p2p.Record(s.recorded, 0)
		s.coll.Record(s.recorded, record.Collective)
	}
}

// unrecordMessages gives the communicator's entry in the record back, for another communicator.
func (s *state) unrecordMessages() {
	if r := s.job.record; r != nil && s.id != finalID {
		r.FreeComm(s.recorded)
	}
}

// enterRecord records that the rank enters the collective of l.
//
// Hot path: no allocation and no lock in steady state.
func (l *link) enterRecord() {
	r := l.s.job.record
	if r == nil || l.s.hidden {
		return
	}
	l.recording = true
	op := l.lookupOp()
	l.recordOp, l.alone = op.op, !op.background && l.env.Tag <= seqMask
	l.began, l.exact = r.Recent()
	if l.alone {
		r.Enter(l.recordOp, l.s.recorded, uint32(l.env.Tag))
	}
}

// recordedOp is a name of a collective in the record.
type recordedOp struct {
	name       string // link.name
	op         record.Op
	background bool // the collective is nonblocking or persistent
}

// lookupOp returns the entry of l.recordedOps for the name of the call. The list is short, and reading it
// takes no lock, but Recorder.Op takes one.
func (l *link) lookupOp() recordedOp {
	for _, known := range l.recordedOps {
		if known.name == l.name {
			return known
		}
	}
	name, background := l.name, l.name[0] == 'I' && !strings.HasPrefix(l.name, "Inter")
	if l.persistent {
		name, background = strings.TrimSuffix(name, "Init")+" (persistent)", true
	}
	added := recordedOp{l.name, l.s.job.record.Op(name, background), background}
	l.recordedOps = append(l.recordedOps, added)
	return added
}

// dropRecord forgets what enterRecord has recorded for the link of a persistent collective that is
// being made: the call of Init has recorded itself, and the rounds will.
func (l *link) dropRecord() {
	if l.recording && l.alone {
		l.s.job.record.Drop(l.s.recorded)
	}
	l.recording, l.recordedOps = false, nil
}

// leaveRecord records that the collective of l has ended.
//
// Hot path: no allocation.
func (l *link) leaveRecord() {
	if !l.recording {
		return
	}
	l.recording = false
	r := l.s.job.record
	e := record.Event{
		Start: l.began, Op: l.recordOp, Comm: l.s.recorded, Peer: noRank, Tag: int32(l.env.Tag),
		Bytes: int64(max(bytesOf(l.send, l.sendViews), bytesOf(l.recv, l.recvViews))),
	}
	if l.alone {
		r.Leave(&e, l.exact)
	} else {
		r.Call(&e, l.exact)
	}
}

// bytesOf returns the number of bytes of the data of one side of a collective: of buf or, if there are
// views, of these.
func bytesOf(buf []byte, views []elem.Buffer) int {
	if views == nil {
		return len(buf)
	}
	n := 0
	for _, v := range views {
		n += v.Size()
	}
	return n
}

// quiet is the level of communicators whose calls are not recorded.
var quiet atomic.Uint64

// began returns the time at which a call begins, if calls of the communicator are recorded with detail,
// and otherwise 0. If it is not 0, the call passes it to recordCall at its end, unless it has failed.
//
// Hot path: no allocation, no lock.
func (s *state) began() time.Duration {
	if s.level.Load() == 0 {
		return 0
	}
	return s.now()
}

//go:noinline
func (s *state) now() time.Duration { return s.job.record.Clock() }

// recordCall records the call op, which has just ended. peer and tag are noRank if the call has none.
func (s *state) recordCall(op callName, began time.Duration, peer, tag, bytes int) {
	s.job.record.Call(&record.Event{
		Start: began, Op: s.job.opNumbers[op], Comm: s.recorded, Peer: int32(peer), Tag: int32(tag), Bytes: int64(bytes),
	}, true)
}

// timing is the time of a call whose end is to be recorded. The zero timing records nothing. It is for
// calls in which a nanosecond does not matter; others use began.
type timing struct {
	s     *state
	start time.Duration
}

// timing begins to time a call of the communicator, if calls are recorded with detail.
func (c *Comm) timing() timing {
	if c == nil || c.s == nil {
		return timing{}
	}
	return timing{c.s, c.s.began()}
}

// timing is Comm.timing for a call of the window.
func (x *Win) timing() (t timing) {
	if x != nil {
		t = x.c.timing()
	}
	return t
}

// timingOf is Comm.timing for a call that waits for several requests.
func timingOf(rs []Request) (t timing) {
	for i := range rs {
		if rs[i].pending() {
			return rs[i].c.timing()
		}
	}
	return t
}

// end records the call op, which has just ended without an error. peer and tag are noRank if the call
// has none.
//
// Hot path: no allocation, and no lock without detail.
func (t *timing) end(op callName, peer, tag, bytes int) {
	if t.start != 0 {
		t.s.recordCall(op, t.start, peer, tag, bytes)
	}
}

// HideCalls makes the record leave out the calls of the communicator, because they are parts of calls
// of another package, which record themselves by StartCall.
func (c *Comm) HideCalls() {
	c.s.level = &quiet
	c.s.hidden = true
}

// StartCall begins to time a call of another package whose ranks are those of c. EndCall records it.
func (c *Comm) StartCall() CallTiming {
	if c == nil || c.s == nil || !c.s.job.record.Detail() {
		return CallTiming{}
	}
	return CallTiming{timing{c.s, c.s.now()}}
}

// CallTiming is the time of a call of another package. The zero CallTiming records nothing.
type CallTiming struct{ t timing }

// EndCall records the call, which has just ended. bytes is the size of its data.
func (x *CallTiming) EndCall(name string, bytes int) {
	if s := x.t.s; s != nil {
		s.job.record.Call(&record.Event{
			Start: x.t.start, Op: s.job.record.Op(name, false), Comm: s.recorded, Peer: noRank, Tag: noRank, Bytes: int64(bytes),
		}, true)
	}
}
