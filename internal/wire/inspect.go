package wire

import (
	"encoding/binary"
	"errors"
)

// Inspection: the launcher asks a rank what it does. The two communicate by a stream socket, of
// which the rank inherits one end. Both sides write frames to it:
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
// After a request of kind InspectState the rank answers with one frame of the same kind. After a
// request of kind InspectStacks it answers with two: one of kind InspectStacks, whose body is the
// text of the stacks of its goroutines, and then one of kind InspectState. An answer has the number
// of its request, so the launcher recognizes answers to older requests. Requests are numbered from
// 1 on.
//
// If a rank finds several requests at once, it answers only the last one with InspectState. If some
// of the requests ask for stacks, it answers the last of those with InspectStacks before.
const (
	InspectReady  = 1 // from the rank: it answers requests from now on; the body is empty
	InspectState  = 2 // from the launcher: asks for the state; from the rank: the body is a RankState as JSON
	InspectStacks = 3 // from the launcher: asks for the stacks and the state; from the rank: the body is the text of the stacks

	InspectHead      = 9         // bytes of a frame before its body
	InspectMaxState  = 64 << 10  // maximum length of a RankState as JSON, in bytes
	InspectMaxStacks = 256 << 10 // maximum length of the text of stacks in bytes; the rank cuts off the end of a longer text
)

// ErrInspect is the error of a frame whose kind is unknown, or whose body is too long for its kind.
var ErrInspect = errors.New("inspection: not a frame of a rank or its launcher")

// RankState describes what a rank does. Ranks in it are ranks of a communicator, unless a comment
// says otherwise.
type RankState struct {
	Calls []RankCall `json:"calls,omitempty"` // the goroutines that are in a call of package comm, or the first of them
	More  int        `json:"more,omitempty"`  // number of further goroutines in such a call, which Calls does not hold
	At    string     `json:"at,omitempty"`    // if Calls is empty: where the program is, for example "main.compute at main.go:33 (running)"

	// The other goroutines of the rank, which are in no call. Busy says that one of them runs.
	// Later holds the states of those that do not run, but may run again without another goroutine,
	// for example "sleep" and "IO wait".
	Busy  bool     `json:"busy,omitempty"`
	Later []string `json:"later,omitempty"`

	// The communicators that are open on the rank. If there are too many, MoreComms is set, and
	// Comms holds the world, those that Calls names, and the first ones of the others.
	Comms     []RankComm `json:"comms,omitempty"`
	MoreComms bool       `json:"morecomms,omitempty"`

	// Moves says that a transfer is under way that needs no further call of this rank's program.
	// Links counts the messages between this rank and its peers. If there are too many peers,
	// MoreLinks is set, and Links holds the first ones.
	Moves     bool       `json:"moves,omitempty"`
	Links     []RankLink `json:"links,omitempty"`
	MoreLinks bool       `json:"morelinks,omitempty"`
}

// RankLink counts the messages between a rank and a peer. It has three numbers: the world rank of
// the peer, the number of messages that the rank has sent to the peer, and the number that it has
// received from the peer. The counts wrap around. There is no RankLink for a peer without messages.
type RankLink [3]uint32

// RankCall describes a call of package comm that a goroutine of the rank is in.
type RankCall struct {
	Name      string `json:"name"`              // name of the function, for example "Recv"
	Where     string `json:"where,omitempty"`   // line of the program that made the call, for example "main.go:18"; empty: a goroutine of weft made it
	Goroutine int    `json:"goroutine"`         // number of the goroutine that made the call, as in the output of runtime.Stack
	Event     string `json:"event,omitempty"`   // text that differs for each wait; as long as the text stays the same, the goroutine is in the same wait
	Still     bool   `json:"still,omitempty"`   // the call waits, and has waited for the same event since the inspection began
	Follows   bool   `json:"follows,omitempty"` // the call waits for another call, which another goroutine makes
	Bounded   bool   `json:"bounded,omitempty"` // the context.Context of the call may end it

	// The event that the call waits for. These fields are set if Comm is not empty.
	Comm  string `json:"comm,omitempty"` // name of the communicator
	ID    uint64 `json:"id,omitempty"`   // number of the communicator, which is unique in the job
	Seq   uint32 `json:"seq,omitempty"`  // for a collective: its number among those of the communicator, from 1 on
	Wait  string `json:"wait,omitempty"` // kind of the event: WaitSend, WaitRecv, WaitProbe, WaitCollective or WaitMemory
	Peer  int    `json:"peer"`           // rank of the communicator that the call waits for; -1: any
	World int    `json:"world"`          // world rank of the same peer; -1: any
	Tag   int    `json:"tag"`            // for WaitSend, WaitRecv and WaitProbe: the tag; -1: any
}

// The values of RankCall.Wait: the kinds of event that a call waits for.
const (
	WaitSend       = "send"       // completion of a send
	WaitRecv       = "recv"       // completion of a receive
	WaitProbe      = "probe"      // a message for a probe
	WaitCollective = "collective" // other ranks in a collective
	WaitMemory     = "memory"     // completion of a one-sided operation
)

// RankComm describes a communicator that is open on a rank.
type RankComm struct {
	ID  uint64 `json:"id"`  // number of the communicator, which is unique in the job
	Seq uint32 `json:"seq"` // number of collectives that the rank has started on the communicator
}

// AppendInspect appends a frame to dst, with this request number, kind and body.
func AppendInspect(dst []byte, number uint32, kind byte, body []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, number)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(body)))
	dst = append(dst, kind)
	return append(dst, body...)
}

// ParseInspect reads the first frame of b. body shares memory with b, and rest is the part of b
// after the frame. ok is false if b does not hold the whole frame yet.
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
