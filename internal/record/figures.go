package record

import (
	"cmp"
	"fmt"
	"time"
)

// Figures are what a rank has done so far, as far as it has recorded it. Times and the counters of
// messages need a recorder with detail.
type Figures struct {
	Rank    int           `json:"rank"`
	Elapsed time.Duration `json:"elapsed"` // from Init to Finalize, or until now
	// Finalized: the rank has completed Finalize.
	Finalized bool `json:"finalized,omitempty"`
	// Ops are the operations that the rank has called, without those that it has not called.
	Ops []OpFigures `json:"ops,omitempty"`
	// The messages that the rank has sent: their number and bytes, and their number by size class, from
	// class 0 on (Class). Messages in shared memory, as of collectives on one host, do not count.
	Messages uint64   `json:"messages,omitempty"`
	Bytes    uint64   `json:"bytes,omitempty"`
	Sizes    []uint64 `json:"sizes,omitempty"`
	// Peers are the ranks to which the rank has sent messages, if the figures were asked for with peers.
	Peers []PeerFigures `json:"peers,omitempty"`
	// Inside is the collective in which the rank is; nil: it is in none.
	Inside *Inside `json:"inside,omitempty"`
	// Waiting is what the program waits for; nil: it does not wait, or has not waited long enough for the
	// rank to sleep.
	Waiting *Waiting `json:"waiting,omitempty"`
}

// Waiting is a wait of the program in calls of package comm.
type Waiting struct {
	Since time.Duration `json:"since"` // when the rank first slept in this wait, since the beginning of the record
	Kind  WaitKind      `json:"kind"`
	// Not for WaitOther:
	Peer       int    `json:"peer"`                 // world rank, or -1 for any
	Comm       string `json:"comm,omitempty"`       // name of the communicator; empty: not known
	Collective bool   `json:"collective,omitempty"` // the message is part of a collective
}

// String says in words what the program waits for.
func (w *Waiting) String() string {
	peer, of := "any rank", ""
	if w.Peer >= 0 {
		peer = fmt.Sprintf("rank %d", w.Peer)
	}
	if w.Comm != "" {
		of = " in " + w.Comm
	}
	if w.Collective {
		of = " in a collective of " + cmp.Or(w.Comm, "a communicator")
	}
	switch w.Kind {
	case WaitSend:
		return "waits to send to " + peer + of
	case WaitRecv, WaitProbe:
		return "waits for a message of " + peer + of
	default:
		return "waits"
	}
}

// PeerFigures are the messages that a rank has sent to the rank Rank.
type PeerFigures struct {
	Rank     int    `json:"rank"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Inside is a blocking collective that a rank has entered and not left.
type Inside struct {
	Op   string `json:"op"`   // its name
	Comm string `json:"comm"` // name of the communicator
	Seq  uint32 `json:"seq"`  // number of the collective in the communicator
}

// Figures returns the figures of the rank, or nil if the rank has not begun its record. rank is its
// number. peers says whether the figures contain Peers. ended says that the rank has ended.
func (r *Reader) Figures(rank int, peers, ended bool) *Figures {
	if !r.Begun() {
		return nil
	}
	f := &Figures{Rank: rank}
	t := r.Times()
	switch now := Monotonic(); {
	case t.End > 0:
		f.Elapsed, f.Finalized = t.End, true
	case ended:
		f.Elapsed = r.latest()
	default:
		f.Elapsed = max(now-t.Monotonic, 0)
	}
	for _, o := range r.Ops() {
		if o.Calls > 0 && o.Name != "" {
			f.Ops = append(f.Ops, o)
		}
	}
	for i, n := range r.Sizes() {
		if n > 0 {
			f.Sizes = append(f.Sizes, make([]uint64, i-len(f.Sizes))...)
			f.Sizes = append(f.Sizes, n)
		}
	}
	for i := range r.ranks {
		p := r.peer(i)
		if p.Messages == 0 {
			continue
		}
		f.Messages += p.Messages
		f.Bytes += p.Bytes
		if peers {
			f.Peers = append(f.Peers, PeerFigures{i, p.Messages, p.Bytes})
		}
	}
	if op, comm, seq, ok := r.inside(); ok {
		f.Inside = &Inside{Op: cmp.Or(r.OpName(op), "a collective"), Comm: cmp.Or(r.CommName(comm), "a communicator"), Seq: seq}
	}
	f.Waiting = r.waiting()
	return f
}

// latest returns the latest time in the record of a rank that has ended: that of the latest reading of the
// clock, or the end of a later call.
func (r *Reader) latest() time.Duration {
	latest := durationFrom(word(r.mem, nowAt).Load())
	_, calls := r.Last(64, true)
	for i := range calls {
		latest = max(latest, calls[i].Start+calls[i].Duration)
	}
	return latest
}
