package wire

import (
	"encoding/binary"
	"errors"
)

// Inspection: a launcher asks a rank what it does. Each rank inherits one end of a stream socket
// of its own for inspection. Both sides write frames to it:
//
//	0        4        8      9
//	┌────────┬────────┬──────┬──────┐
//	│ number │ length │ kind │ body │   length counts body; little-endian
//	└────────┴────────┴──────┴──────┘
//
//	rank ── InspectReady ──► launcher             the rank answers from now on
//	rank ◄── InspectState, number ── launcher     request
//	rank ── InspectState, same number ──► launcher    RankState, as JSON
//
// If the request is InspectStacks, the rank answers with an InspectStacks frame, whose body is
// the text of the stacks of its goroutines, and then with an InspectState frame. An answer has
// its request's number, so the launcher recognizes answers to older requests. Requests are
// numbered from 1 on.
//
// If a rank finds several requests, it sends an InspectState frame for the last one only. Before
// it, the rank sends an InspectStacks frame for the last request that asks for stacks, if any.
const (
	InspectReady  = 1
	InspectState  = 2
	InspectStacks = 3

	InspectHead      = 9
	InspectMaxState  = 64 << 10  // bytes of a RankState
	InspectMaxStacks = 256 << 10 // bytes of stacks; the end of longer ones is cut off
)

// ErrInspect reports that a frame has an unknown kind or is too long for its kind.
var ErrInspect = errors.New("inspection: not a frame of a rank or its launcher")

// RankState describes what a rank does. Ranks are numbered as in the communicator, unless
// a field says otherwise.
type RankState struct {
	Calls []RankCall `json:"calls,omitempty"` // goroutines that are in a call of package comm
	More  int        `json:"more,omitempty"`  // number of further goroutines in a call
	At    string     `json:"at,omitempty"`    // without Calls: where the program is, as "main.compute at main.go:33 (running)"

	// Goroutines that are in no call. Busy: one of them runs. Later: the states of others
	// that may run without another goroutine, such as "sleep" and "IO wait".
	Busy  bool     `json:"busy,omitempty"`
	Later []string `json:"later,omitempty"`

	// Open communicators. If there are too many, MoreComms is set and Comms holds the
	// world, those of Calls and the first ones.
	Comms     []RankComm `json:"comms,omitempty"`
	MoreComms bool       `json:"morecomms,omitempty"`

	// Moves says that a transfer is under way that needs no further call of this rank's
	// program. If there are links to too many peers, MoreLinks is set and Links holds the
	// first ones.
	Moves     bool       `json:"moves,omitempty"`
	Links     []RankLink `json:"links,omitempty"`
	MoreLinks bool       `json:"morelinks,omitempty"`
}

// RankLink counts messages: the world rank of a peer, then the messages sent to this peer
// and received from it. The counters wrap around. A rank has no link to a peer with which
// there were no messages.
type RankLink [3]uint32

// RankCall is a goroutine in a call of package comm.
type RankCall struct {
	Name      string `json:"name"`            // such as "Recv"
	Where     string `json:"where,omitempty"` // the caller's line, as "main.go:18"; empty: weft's own goroutine
	Goroutine int    `json:"goroutine"`
	Event     string `json:"event,omitempty"`   // as long as it stays the same, the goroutine has not continued
	Still     bool   `json:"still,omitempty"`   // it waits, and has waited for the same event during the whole inspection
	Follows   bool   `json:"follows,omitempty"` // it waits for another call, which another goroutine makes
	Bounded   bool   `json:"bounded,omitempty"` // its context may end it

	// The event that the call waits for, if Comm is not empty.
	Comm  string `json:"comm,omitempty"`
	ID    uint64 `json:"id,omitempty"`   // of the communicator; unique in the job
	Seq   uint32 `json:"seq,omitempty"`  // of a collective: its number on the communicator, from 1 on
	Wait  string `json:"wait,omitempty"` // WaitSend and so on
	Peer  int    `json:"peer"`           // rank that it waits for; -1: any
	World int    `json:"world"`          // the peer's world rank; -1: any
	Tag   int    `json:"tag"`            // of WaitSend, WaitRecv and WaitProbe; -1: any
}

// Values of RankCall.Wait.
const (
	WaitSend       = "send"
	WaitRecv       = "recv"
	WaitProbe      = "probe"
	WaitCollective = "collective"
	WaitMemory     = "memory" // completion of a one-sided operation
)

// RankComm is a communicator that is open on a rank.
type RankComm struct {
	ID  uint64 `json:"id"`
	Seq uint32 `json:"seq"` // collectives that the rank has started on it
}

// AppendInspect appends a frame to dst.
func AppendInspect(dst []byte, number uint32, kind byte, body []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, number)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(body)))
	dst = append(dst, kind)
	return append(dst, body...)
}

// ParseInspect reads the first frame of b. body is a part of b, and rest is what
// follows the frame. ok is false if the frame is not complete yet.
func ParseInspect(b []byte) (number uint32, kind byte, body, rest []byte, ok bool, err error) {
	if len(b) < InspectHead {
		return 0, 0, nil, b, false, nil
	}
	number, kind = binary.LittleEndian.Uint32(b), b[8]
	limit := 0
	switch kind {
	case InspectReady:
	case InspectState:
		limit = InspectMaxState
	case InspectStacks:
		limit = InspectMaxStacks
	default:
		return 0, 0, nil, b, false, ErrInspect
	}
	n := binary.LittleEndian.Uint32(b[4:])
	if n > uint32(limit) {
		return 0, 0, nil, b, false, ErrInspect
	}
	b = b[InspectHead:]
	if uint32(len(b)) < n {
		return 0, 0, nil, b, false, nil
	}
	return number, kind, b[:n:n], b[n:], true, nil
}
