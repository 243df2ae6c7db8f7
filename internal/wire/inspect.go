package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Inspection: the launcher asks a rank what it does. The two processes share a stream socket: the
// launcher makes it, and the rank inherits one end. Both sides write frames to it:
//
//	0        4        8      9
//	┌────────┬────────┬──────┬──────┐
//	│ number │ length │ kind │ body │   length: bytes of the body; all numbers are little-endian
//	└────────┴────────┴──────┴──────┘
//
//	rank ── InspectReady ──► launcher             the rank answers from now on
//	rank ◄── InspectState, number ── launcher     request, with an empty body
//	rank ── InspectState, same number ──► launcher    RankState, as JSON
//	rank ◄── InspectProfile, number ── launcher       request for a profile
//	rank ── InspectProfile, same number … ──► launcher    the profile, in pieces
//
// The rank answers a request of kind InspectState with one frame of the same kind. It answers a
// request of kind InspectStacks with two frames: one of kind InspectStacks, whose body is the text
// of the stacks of its goroutines, and then one of kind InspectState. An answer has the number of
// its request, so the launcher recognizes answers to older requests. The launcher numbers requests
// from 1 on. The number of InspectReady is 0.
//
// If several requests have arrived when the rank reads, it sends InspectState for the last request
// only. If some of the requests ask for stacks, it first sends InspectStacks for the last of those.
//
// Requests for profiles have numbers of their own. The rank answers each with the frames of AppendProfile, whose
// bytes it puts into as many frames of kind InspectProfile as it likes, and then with one that has an empty
// body. Other frames may come between them. A request ends the profile of the one before.
const (
	// From the rank: it answers requests from now on. The body is empty.
	InspectReady = 1
	// From the launcher: a request for the state. From the rank: the body is a RankState as JSON.
	InspectState = 2
	// From the launcher: a request for the stacks and the state. From the rank: the body is the
	// text of the stacks.
	InspectStacks = 3
	// From the launcher: a request for a profile, in the form of AppendProfileRequest. From the rank: the body
	// is a piece of the answer; an empty one ends it.
	InspectProfile = 4

	InspectHead     = 9        // bytes of a frame before its body
	InspectMaxState = 64 << 10 // maximum length of a RankState as JSON, in bytes
	// The maximum length of the text of stacks in bytes. The rank cuts off the end of a longer
	// text.
	InspectMaxStacks = 256 << 10
	InspectMaxPiece  = 64 << 10 // maximum length of a piece of a profile, in bytes
	// The maximum number of bytes of all pieces of a profile: of ProfileBegun, and a frame with a body.
	InspectMaxProfile = 2*ProfileHead + ProfileMax
)

// ErrInspect is the error of a frame whose kind is unknown, or whose body is too long for its kind.
var ErrInspect = errors.New("inspection: not a frame of a rank or its launcher")

// RankState describes what a rank does at the time of its answer.
type RankState struct {
	// Calls of package comm that goroutines are in. A nonblocking collective is one of them while
	// its goroutine waits for another rank. The list has a maximum length.
	Calls []RankCall `json:"calls,omitempty"`
	More  int        `json:"more,omitempty"` // number of further such calls, which do not fit into Calls
	// If Calls is empty: where a goroutine of the program is, for example "main.compute at
	// main.go:33 (running)", or "" if that is unknown.
	At string `json:"at,omitempty"`

	// The goroutines that are in none of these calls. Busy says that one of them runs, or that the
	// rank does not know the states of all of them. Later holds the states of those that do not run,
	// but may continue without an action of another goroutine, for example "sleep" and "IO wait".
	Busy  bool     `json:"busy,omitempty"`
	Later []string `json:"later,omitempty"`

	Comms     []RankComm `json:"comms,omitempty"`     // communicators that are open on the rank
	MoreComms bool       `json:"morecomms,omitempty"` // other communicators are open too

	// A transfer is under way that continues without a further call by this rank's program or by
	// the peer's.
	Moves     bool       `json:"moves,omitempty"`
	Links     []RankLink `json:"links,omitempty"`     // messages between this rank and its peers
	MoreLinks bool       `json:"morelinks,omitempty"` // there are messages with other peers too
}

// RankLink counts the messages between a rank and a peer, including those that package engine sends
// for itself. It has three numbers: the world rank of the peer, the number of messages that the
// rank has sent to the peer, and the number that it has received from the peer. The two counts are
// modulo 2³². There is no RankLink for a peer without messages.
type RankLink [3]uint32

// RankCall describes a call of package comm that a goroutine of the rank is in.
type RankCall struct {
	Name string `json:"name"` // name of the function, for example "Recv"
	// The line of the program that made the call, for example "main.go:18". It is empty for a
	// nonblocking collective, which runs on a goroutine of weft.
	Where string `json:"where,omitempty"`
	// The number of the goroutine that is in the call, as in the output of runtime.Stack.
	Goroutine int `json:"goroutine"`
	// A text that differs for each wait: as long as it stays the same, the goroutine is in the same
	// wait. It is empty if the rank knows of no wait in the call.
	Event string `json:"event,omitempty"`
	// The call has waited for the same event since the rank began to answer, and the event needs a
	// further call by another rank's program.
	Still bool `json:"still,omitempty"`
	// The call waits for the end of a function that a goroutine of weft runs, such as a nonblocking
	// collective.
	Follows bool `json:"follows,omitempty"`
	Bounded bool `json:"bounded,omitempty"` // the context.Context of the call may end the wait

	// The event that the call waits for. If Comm is empty, the rank reports no event. If Connection is
	// set, the communicator belongs to a connection with other processes, so ID and Seq are 0, and
	// World is -1.
	Comm string `json:"comm,omitempty"` // name of the communicator
	ID   uint64 `json:"id,omitempty"`   // number of the communicator, which is unique in the job

	Connection bool `json:"connection,omitempty"`
	// For WaitCollective: the number of the collective among those of the communicator, from 1 on.
	Seq uint32 `json:"seq,omitempty"`
	// The kind of the event: WaitSend, WaitRecv, WaitProbe, WaitCollective or WaitMemory.
	Wait  string `json:"wait,omitempty"`
	Peer  int    `json:"peer"`  // rank of the peer in the communicator; -1: any, or not known
	World int    `json:"world"` // world rank of the same peer; -1: any, or not known
	Tag   int    `json:"tag"`   // for WaitSend, WaitRecv and WaitProbe: the tag; -1: any
}

// The values of RankCall.Wait: the kinds of event that a call waits for.
const (
	WaitSend       = "send"       // completion of a send
	WaitRecv       = "recv"       // completion of a receive
	WaitProbe      = "probe"      // a message for a probe
	WaitCollective = "collective" // a message or a store of another rank in a collective
	WaitMemory     = "memory"     // an event of one-sided communication, such as the completion of an operation
)

// RankComm describes a communicator that is open on a rank.
type RankComm struct {
	ID  uint64 `json:"id"`  // number of the communicator, which is unique in the job
	Seq uint32 `json:"seq"` // how many collectives the rank has started on the communicator
}

// AppendInspect appends a frame to dst. number is that of the request that the frame makes or
// answers, and 0 for InspectReady.
func AppendInspect(dst []byte, number uint32, kind byte, body []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, number)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(body)))
	dst = append(dst, kind)
	return append(dst, body...)
}

// AppendProfileRequest appends to dst the body of a request for a profile of a kind in ProfileKinds. d is how long
// the rank makes a CPU profile; profiles of other kinds take no time.
func AppendProfileRequest(dst []byte, kind string, d time.Duration) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(d)), kind...)
}

// ParseProfileRequest reads what AppendProfileRequest has made. The error wraps ErrInspect.
func ParseProfileRequest(b []byte) (kind string, d time.Duration, err error) {
	if len(b) < 8 {
		return "", 0, ErrInspect
	}
	kind, d = string(b[8:]), time.Duration(binary.LittleEndian.Uint64(b))
	if d < 0 || !slices.Contains(ProfileKinds, kind) {
		return "", 0, fmt.Errorf("%w: a request for a profile %q of %v", ErrInspect, kind, d)
	}
	return kind, d, nil
}

// ParseInspectHead reads the head of a frame, of InspectHead bytes. It does not check the kind, and n, the length
// of the body.
func ParseInspectHead(head []byte) (number uint32, kind byte, n uint32) {
	return binary.LittleEndian.Uint32(head), head[8], binary.LittleEndian.Uint32(head[4:])
}

// ParseInspect reads the first frame of b. body shares memory with b, and rest is the part of b
// after the frame. ok is false if b does not hold the whole frame yet; then the other results mean
// nothing. If the frame is malformed, the error is ErrInspect.
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
	case InspectProfile:
		limit = InspectMaxPiece
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
