package coll

import (
	"encoding/binary"
	"slices"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// Exchanges between neighbours in shared memory
//
// Idea: a rank copies its block for each neighbour to its arena, and arrives. Then it waits for the
// arrivals of its sources, and copies their blocks. A block has a place in the sender's arrival
// line or, if it is too long, in the sender's data buffer. Blocks that fit neither travel as
// messages, which the caller of this package sends and receives.
//
//	arrival line   │ word │ signature │ D lengths + 1 │ D places │
//	data buffer    │ D lengths │ D places │                 D: number of destinations; 1 in an allgather
//
// The lengths in the line are bytes; 0 means that the length is in the data buffer. If a sender has
// too many destinations, all lengths are in the data buffer. A receiver compares the length of a
// block with the length that it expects, and finds the place by the latter. So both ranks of an
// edge choose the same place, or the receiver returns an error.
//
// A rank may write its data buffer of call k if the ranks that read its buffer of call k-2, and of
// the calls before that, have arrived at the call after. In an exchange, these ranks are the rank's
// destinations. In other calls any rank may read the buffer, so the first exchange after such a call
// waits until all ranks have finished that call. Apart from this, a rank waits for its neighbours
// only, except that it arrives at most ringLines-1 calls ahead of any rank of the host.
//
// Ranks that are not neighbours may use different element types. So the history has only the kind
// of the call. The line has the signature of the call, which a receiver compares with its own.
//
// Cost: two copies of every block.
// Source: MPI-4.1 section 8.6.
// Restrictions: none.

// EdgePlace identifies an edge at its sender: the edge is number Index of its Of destinations.
type EdgePlace struct{ Index, Of int }

// Edges describes the edges of one rank of a graph to the ranks of its host.
type Edges struct {
	in      []inEdge      // by source
	dests   []int         // by destination: its rank within the host, or noRank
	out     [2]edgeLayout // of this rank's arena; by [NeighborCall.form]
	readers []int         // the other ranks of the host among dests, each once
	self    []selfEdge
}

// inEdge is an edge to this rank.
type inEdge struct {
	rank  int           // of the source within the host; noRank: it is not on the host
	index int           // of the edge at the source
	at    [2]edgeLayout // of the source's arena; by [NeighborCall.form]
}

// selfEdge is an edge from this rank to itself: its number among the sources, and among the
// destinations.
type selfEdge struct{ source, dest int }

// edgeLayout is the layout of the arena of a sender.
type edgeLayout struct {
	head        int // offset of the places in the line; 0: the line has neither lengths nor places
	inlinePlace int // bytes of a place in the line; -1: there are no places
	base        int // offset of the places in the data buffer
	place       int // bytes of a place in the data buffer; -1: it has neither lengths nor places
}

// maxEdgeBytes is the most bytes of a block that moves through a data buffer. For longer blocks a
// message with one copy is faster.
const maxEdgeBytes = 8 << 10

// sigBytes is the number of bytes of the signature in the line.
const sigBytes = 2

func (h *Host) edgeLayout(of int) edgeLayout {
	s := edgeLayout{inlinePlace: -1, place: -1}
	if of < 1 || of > h.dataBufferBytes/16 {
		return s
	}
	s.base = (8*of + 63) &^ 63
	s.place = min(maxEdgeBytes, (h.dataBufferBytes-s.base)/of&^7)
	if head := sigBytes + of; head <= inlineBytes {
		s.head, s.inlinePlace = head, (inlineBytes-head)/of
	}
	return s
}

// NewEdges returns the edges of this rank. members holds the ranks of the host in ascending order,
// as ranks of the communicator. sources and dests are the neighbours, as ranks of the communicator;
// a number that is negative stands for no neighbour. places has an element for each source.
func NewEdges(h *Host, members, sources []int, places []EdgePlace, dests []int) *Edges {
	within := func(rank int) int {
		if i, ok := slices.BinarySearch(members, rank); ok {
			return i
		}
		return noRank
	}
	e := &Edges{out: [2]edgeLayout{h.edgeLayout(len(dests)), h.edgeLayout(1)}}
	for _, rank := range dests {
		r := within(rank)
		e.dests = append(e.dests, r)
		if r != noRank && r != h.Rank && !slices.Contains(e.readers, r) {
			e.readers = append(e.readers, r)
		}
	}
	for i, rank := range sources {
		p := places[i]
		r := within(rank)
		e.in = append(e.in, inEdge{r, p.Index, [2]edgeLayout{h.edgeLayout(p.Of), h.edgeLayout(1)}})
		if r == h.Rank {
			e.self = append(e.self, selfEdge{i, p.Index})
		}
	}
	return e
}

// NeighborCall is an exchange between neighbours. Lengths, counts and displacements are in bytes.
// If counts are nil, the blocks have equal lengths.
type NeighborCall struct {
	*Edges
	Kind                   Kind
	Sig                    uint16 // signature, which is the same on all ranks that are neighbours
	Same                   bool   // all of Send, or the first view, goes to each destination
	Send, Recv             []byte
	SendCounts, SendDispls []int
	RecvCounts, RecvDispls []int
	Views                  BlockViews // nil: the blocks are those of Send and Recv
	Messages               bool       // some blocks travel as messages; see SendsMessage
}

// BlockViews gives access to blocks that are not contiguous in memory.
type BlockViews interface {
	OutBytes(dest int) int         // length of the block for a destination
	InBytes(source int) int        // length of the block of a source
	PackBlock(to []byte, dest int) // copies the block for a destination to a slice of its length
	UnpackBlock(from []byte, source int)
}

func (c *NeighborCall) form() int {
	if c.Same {
		return 1
	}
	return 0
}

func (c *NeighborCall) outBytes(i int) int {
	switch {
	case c.Views != nil:
		return c.Views.OutBytes(i)
	case c.Same:
		return len(c.Send)
	case c.SendCounts != nil:
		return c.SendCounts[i]
	}
	return len(c.Send) / len(c.dests)
}

func (c *NeighborCall) inBytes(i int) int {
	switch {
	case c.Views != nil:
		return c.Views.InBytes(i)
	case c.RecvCounts != nil:
		return c.RecvCounts[i]
	}
	return len(c.Recv) / len(c.in)
}

// outBlock returns block i of Send, which has n bytes.
func (c *NeighborCall) outBlock(i, n int) []byte {
	switch {
	case c.Same:
		return c.Send
	case c.SendCounts != nil:
		return c.Send[c.SendDispls[i]:][:n]
	}
	return c.Send[i*n:][:n]
}

// inBlock returns block i of Recv, which has n bytes.
func (c *NeighborCall) inBlock(i, n int) []byte {
	if c.RecvCounts != nil {
		return c.Recv[c.RecvDispls[i]:][:n]
	}
	return c.Recv[i*n:][:n]
}

// write copies block i, which has n bytes, to the first n bytes of a place.
func (c *NeighborCall) write(place []byte, i, n int) {
	if c.Views != nil {
		c.Views.PackBlock(place[:n], i)
		return
	}
	bytecopy.Share(place, c.outBlock(i, n))
}

// read copies the first n bytes of a place to block i, which has n bytes.
func (c *NeighborCall) read(place []byte, i, n int) {
	if c.Views != nil {
		c.Views.UnpackBlock(place[:n], i)
		return
	}
	copy(c.inBlock(i, n), place)
}

// direct reports whether this rank copies the block of an edge between the rank within the host and
// itself without the arena.
func (h *Host) direct(c *NeighborCall, rank int) bool { return rank == h.Rank && c.Views == nil }

// SendsMessage reports whether the block for destination i, which is a neighbour, travels as a message.
func (h *Host) SendsMessage(c *NeighborCall, i int) bool {
	r := c.dests[i]
	return r == noRank || !h.direct(c, r) && c.outBytes(i) > c.out[c.form()].place
}

// ReceivesMessage reports whether the block of source i, which is a neighbour, travels as a message.
func (h *Host) ReceivesMessage(c *NeighborCall, i int) bool {
	e := &c.in[i]
	return e.rank == noRank || !h.direct(c, e.rank) && c.inBytes(i) > e.at[c.form()].place
}

// StartNeighbors begins a call and writes the blocks of this rank. FinishNeighbors reads those of
// its sources. If c.Messages is set, the caller starts the messages between the two, and waits for
// them after FinishNeighbors. When the call has ended, the caller calls TakePendingWake, as after
// Enter.
//
// Hot path: no allocation; no wait, unless a neighbour has not finished the call before the last.
func (h *Host) StartNeighbors(l HostLink, c *NeighborCall) error {
	h.Enter(l, uint16(c.Kind)+1)
	if h.exchanged != c.Edges || h.lastExchange != h.call-1 {
		h.exchanged, h.firstExchange = c.Edges, h.call
	}
	h.lastExchange = h.call
	h.deferWake = !c.Messages // a wait for messages does not call Wake
	return h.writeBlocks(c)
}

func (h *Host) writeBlocks(c *NeighborCall) error {
	l, err := h.line()
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint16(l.data[:], c.Sig)
	s := &c.out[c.form()]
	n := len(c.dests)
	if c.Same {
		n = min(1, len(c.readers))
		if c.Views != nil && len(c.self) > 0 { // this rank reads its own block from the arena
			n = 1
		}
	}
	var buf []byte // the data buffer; nil before its first use
	for i := range n {
		if !c.Same && (c.dests[i] == noRank || h.direct(c, c.dests[i])) {
			continue
		}
		have := c.outBytes(i)
		if have <= s.inlinePlace {
			l.data[sigBytes+i] = byte(have + 1)
			c.write(l.data[s.head+i*s.inlinePlace:], i, have)
			continue
		}
		if s.place < 0 {
			break
		}
		if buf == nil {
			if buf, err = h.edgeBuffer(); err != nil {
				return err
			}
		}
		if s.head > 0 {
			l.data[sigBytes+i] = 0
		}
		binary.NativeEndian.PutUint64(buf[8*i:], uint64(have))
		if have <= s.place {
			c.write(buf[s.base+i*s.place:], i, have)
		}
	}
	h.publishArrival(l)
	return nil
}

// edgeBuffer returns this rank's data buffer of the current call. Before that it waits until no
// rank reads the buffer's previous contents.
func (h *Host) edgeBuffer() ([]byte, error) {
	// Any rank may read what this rank has written before the exchanges began.
	if first := min(h.firstExchange, h.call-1); int64(h.arrivedAll-first) < 0 {
		if err := h.awaitEarlierCall(first); err != nil {
			return nil, err
		}
	}
	for _, r := range h.exchanged.readers {
		if err := h.awaitEarlierArrival(r, h.call-1); err != nil {
			return nil, err
		}
	}
	return h.dataBufferOf(h.Rank), nil
}

// FinishNeighbors reads the blocks that StartNeighbors of the sources has written. It returns the
// link's Mismatch or Miscount if a source has made another call or has sent another length.
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) FinishNeighbors(c *NeighborCall) error {
	if c.Views == nil {
		for _, e := range c.self {
			have, want := c.outBytes(e.dest), c.inBytes(e.source)
			if have != want {
				return h.link.Miscount(h.Rank, have, want)
			}
			move(c.inBlock(e.source, want), c.outBlock(e.dest, have))
		}
	}
	for i := range c.in {
		e := &c.in[i]
		if e.rank == noRank || h.direct(c, e.rank) {
			continue
		}
		if err := h.awaitArrival(e.rank); err != nil {
			return err
		}
		if err := h.readBlock(c, e, i); err != nil {
			return err
		}
	}
	return nil
}

// readBlock reads the block of source i, whose rank has arrived.
func (h *Host) readBlock(c *NeighborCall, e *inEdge, i int) error {
	l := &h.peers[e.rank].lines[h.call%ringLines]
	if binary.NativeEndian.Uint16(l.data[:]) != c.Sig {
		return h.link.Mismatch(e.rank)
	}
	s, index := &e.at[c.form()], e.index
	if s.place < 0 {
		return nil // a message, whose receiver compares the length
	}
	if c.Same {
		index = 0
	}
	want, have := c.inBytes(i), -1
	if s.head > 0 {
		have = int(l.data[sigBytes+index]) - 1
	}
	inline := have >= 0
	if !inline {
		have = int(binary.NativeEndian.Uint64(h.dataBufferOf(e.rank)[8*index:]))
	}
	switch {
	case have != want:
		return h.link.Miscount(e.rank, have, want)
	case inline && want <= s.inlinePlace:
		c.read(l.data[s.head+index*s.inlinePlace:], i, want)
	case want <= s.place:
		c.read(h.dataBufferOf(e.rank)[s.base+index*s.place:], i, want)
	}
	return nil
}

// startsAtOnce reports whether StartNeighbors would not wait, as far as this rank knows without a
// wait.
func (h *Host) startsAtOnce(c *NeighborCall) bool {
	first := h.call
	if h.exchanged == c.Edges && h.lastExchange == h.call {
		first = h.firstExchange
	}
	next := h.call + 1
	if int64(h.arrivedAll-first) < 0 || int64(h.arrivedAll-(next-ringLines+1)) < 0 {
		return h.othersHaveArrived()
	}
	for _, r := range c.readers {
		if !h.hasArrived(r, h.call) {
			return false
		}
	}
	return true
}

// haveSourcesArrived reports whether FinishNeighbors would not wait.
func (h *Host) haveSourcesArrived(c *NeighborCall) bool {
	for i := range c.in {
		if r := c.in[i].rank; r != noRank && !h.hasArrived(r, h.call) {
			return false
		}
	}
	return true
}
