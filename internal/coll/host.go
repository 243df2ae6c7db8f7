package coll

import (
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// Collectives within a host
//
// For each communicator, each rank of a host has an arena in shared memory. Only that rank writes
// to its arena; all ranks of the host map it and read it. So a rank publishes a value to all others
// by one store.
//
//	arena of a rank
//	┌ arrival lines ─────────┬ written ┬ consumed ┬ data buffer 0 ┬ data buffer 1 ┐
//	│ ring of 8, by call     │         │          │ calls 0, 2, … │ calls 1, 3, … │
//	└────────────────────────┴─────────┴──────────┴───────────────┴───────────────┘
//
//	arrival   call << 16 | history, and up to 56 bytes of data. call is the number of the call.
//	          Every rank writes one arrival line in every call. The history is a hash of the
//	          signatures of this call and of all calls before it. If ranks made different calls,
//	          and no rank waited for another in these calls, a later call detects the difference.
//	written   call << 24 | n: this rank has put the first n segments of the call into its data
//	          buffer; in some algorithms n counts other steps of the call
//	consumed  call << 24 | n: this rank no longer needs the first n segments in the data buffers
//	          of the other ranks; in some algorithms n counts rounds
//
// All ranks make the same calls in the same order, one at a time, so their call numbers are
// equal. A rank that has arrived at call k no longer reads what others wrote in call k-1 or
// before. So a rank may write
//
//   - the arrival line of call k if all ranks have arrived at call k-7, and
//   - its data buffer of call k if all ranks have arrived at call k-1.
//
// If the rank has waited for all others in call k-1, it knows that they have arrived; otherwise
// it waits for them (awaitEarlierCall). This wait cannot deadlock: the other ranks reach call
// k-1 without anything that this rank does in call k.
//
// Long data moves through the data buffers in segments, and the words written and consumed report
// the progress of the writer and of the readers. In most algorithms a buffer is divided into slots,
// each of which holds one segment. The writer fills all free slots before it waits for a reader, so
// ranks that share a core need few context switches.
//
// A rank never uses a value from another rank's arena as a length or an offset: lengths and
// offsets come from the arguments of its own call.

// HostLink is a Link whose ranks, or some of them, share memory.
type HostLink interface {
	Link
	// Host returns the Host that this call may use, and what [Pick] returned for the call, or
	// Unpicked. No other call uses h until this call ends. If h is nil, the call uses messages.
	Host() (h *Host, picked int)
	// Sig returns the call's [Signature], which is never 0.
	Sig() uint16
	// Await blocks until word is at least least, compared as sequence numbers: the difference, as
	// an int64, is not negative. rank is the number within the host of the rank that writes word.
	// If the call cannot continue, for example because that rank has failed, Await returns an
	// error.
	Await(rank int, word *atomic.Uint64, least uint64) error
	// Wake wakes the other ranks of the host that sleep in Await, so that they read their words
	// again. Before Wake the caller stores a word, and executes a full memory barrier.
	Wake()
	// Mismatch returns the error with which a call ends if another rank made a different call or
	// passed different arguments, in this call or in an earlier one. rank is that rank's number
	// within the host.
	Mismatch(rank int) error
	// Miscount returns the error with which a call ends if another rank has written have bytes for
	// this rank, but this rank expects want bytes. rank is that rank's number within the host.
	Miscount(rank, have, want int) error
}

// Host is one rank's view of the arenas of its host, for one communicator. One call at a time
// uses it.
type Host struct {
	Shape
	Rank int // of this rank within its host
	Size int // number of ranks of the host

	peers           []peer // by rank within the host
	dataBufferBytes int    // size of one data buffer; each arena has two
	// Most bytes of an element: it fits the smallest part into which a call divides a data buffer, on
	// every host.
	maxElem    int
	maxBytes   int   // most bytes of a vector: a call takes at most maxSteps steps for it
	leaders    []int // scratch: by host, its leader in this call
	leaderLink leaderLink

	call uint64 // number of the current call or, between calls, of the last one
	// Number of the last call at which, as this rank knows, all ranks of the host have arrived.
	arrivedAll uint64
	sig        uint16 // signature of the current call
	history    uint16 // hash of the signatures of this call and of all before it; see historyFactor
	// publishArrival does not call Wake; await or the caller of the call does so later (see
	// TakePendingWake).
	deferWake bool
	// publishArrival has not called Wake, because of deferWake; await and TakePendingWake clear this.
	wakePending bool
	link        HostLink
	tmp         []byte // scratch of the current call; nil before its first use
	slots       int    // number of slots of each data buffer in the current call

	// The calls from firstExchange to lastExchange were exchanges between the neighbours exchanged.
	exchanged                   *Edges
	firstExchange, lastExchange uint64
}

// peer is the arena of a rank of the host.
type peer struct {
	*control
	dataBuffers []byte // both data buffers, one after the other
}

// ringLines is the number of arrival lines. A rank that waits for no other rank can arrive at most
// ringLines-1 calls ahead of the others.
const ringLines = 8

// The number of segments that a data buffer holds: many if only one rank writes or only one rank
// reads, so that readers begin early; few if all ranks write and each waits for all others.
const (
	manySegments = 16
	fewSegments  = 4
)

// The low stepBits bits of the words written and consumed count steps, up to maxSteps.
const (
	stepBits = 24
	maxSteps = 1<<stepBits - 1
)

// dataBufferBytes returns the size of each data buffer on a host of size ranks. total is the
// approximate size that an arena may have. Up to fullRanks ranks, each arena has about total bytes.
// More ranks share the memory of fullRanks ranks, but each arena has at least about total/2 bytes. A
// data buffer holds at least two cache lines per rank.
func dataBufferBytes(total, size int) int {
	const unit, fullRanks = 64 * manySegments, 8
	total = max(total/2, total/max(size, fullRanks)*fullRanks)
	return (max(total/2, 2*64*size) + unit - 1) / unit * unit
}

// ArenaBytes returns the size in bytes of each arena on a host of size ranks. total is the argument
// of [dataBufferBytes].
func ArenaBytes(total, size int) int {
	return controlBytes + 2*dataBufferBytes(total, size) + pageBytes
}

// The arenas of the ranks begin at different offsets within a page. If a load and an earlier
// pending store have equal low 12 address bits, a processor can take them for the same address
// and delay the load (4K aliasing): the load of another rank's line would wait for the store to
// this rank's own line. The offsets also spread the lines of many ranks over the sets of a cache.
const (
	pageBytes    = 4096
	staggerBytes = 5 * 64 // 64 consecutive ranks begin at 64 different offsets
)

// stagger returns the part of a rank's arena that begins at the rank's offset within a page. The
// bytes before it are unused. rank is the rank within the host.
func stagger(arena []byte, rank int) []byte { return arena[rank*staggerBytes%pageBytes:] }

// NewHost returns the Host of a rank of the communicator. arenas are those of the ranks of its
// host, in rank order. The caller has zeroed them and aligned them to a cache line. Each must have
// at least ArenaBytes(total, len(arenas)) bytes; otherwise, or if their number is wrong, NewHost
// returns an error.
func NewHost(shape Shape, rank int, arenas [][]byte, total int) (*Host, error) {
	h := &Host{
		Shape: shape, Rank: -1, Size: len(arenas), dataBufferBytes: dataBufferBytes(total, len(arenas)),
		maxElem: dataBufferBytes(total, shape.largest) / max(2*shape.largest, manySegments), leaders: make([]int, shape.Hosts()),
	}
	own := shape.of[rank]
	n := 0
	for r, of := range shape.of {
		if of == own {
			if r == rank {
				h.Rank = n
			}
			n++
		}
	}
	if n != len(arenas) {
		return nil, fmt.Errorf("%d arenas for %d ranks of a host", len(arenas), n)
	}
	for r, a := range arenas {
		if len(a) < ArenaBytes(total, n) {
			return nil, fmt.Errorf("arena of %d bytes, want at least %d", len(a), ArenaBytes(total, n))
		}
		a = stagger(a, r)
		h.peers = append(h.peers, peer{controlOf(a), a[controlBytes : controlBytes+2*h.dataBufferBytes]})
	}
	// The method slices takes two steps per segment, which has at least maxElem/2 bytes.
	h.maxBytes = maxSteps / 4 * h.maxElem
	return h, nil
}

// enter begins a call within the host, in which also the arrival wakes sleeping ranks (deferWake is
// false).
func enter(l Link) *Host {
	hl := l.(HostLink)
	h, _ := hl.Host()
	h.Enter(hl, hl.Sig())
	h.deferWake = false
	return h
}

// Enter begins a call of [Host.Barrier], [Host.Bcast], [Host.Reduce], [Host.Allreduce],
// [Host.Allgather] or [Host.Alltoall]. They do what the package's functions of the same names do,
// but they do not check their arguments and do not choose an algorithm. The caller has checked with
// [SharedUpTo] that the call may use shared memory.
//
// When the call has ended, the caller calls [Host.TakePendingWake]. If that returns true, the
// caller executes a full memory barrier, for example a store of sync/atomic, and then calls l's
// Wake. If the caller has to do such a store anyway, this saves a barrier: the arrival is a plain
// store.
//
// Hot path: no allocation.
func (h *Host) Enter(l HostLink, sig uint16) {
	h.link, h.sig, h.tmp = l, sig, nil
	h.deferWake = true
	h.next()
}

// Mark returns a number that is equal on all ranks that have made the same calls.
func (h *Host) Mark() uint64 { return h.arrival() }

// Detach drops the references to the link of the last call, which is over. The next call calls
// Enter with the same or another link.
func (h *Host) Detach() {
	h.link, h.tmp, h.leaderLink, h.exchanged = nil, nil, leaderLink{}, nil
}

// TakePendingWake reports whether the Wake that follows this rank's arrival at the last call is
// still due. If so, the caller must call Wake; TakePendingWake returns true only once per call.
func (h *Host) TakePendingWake() bool {
	pending := h.wakePending
	h.wakePending = false
	return pending
}

// next begins a call within the host. A collective that uses the arena several times calls next
// before each further use: within the host each use counts as a call.
func (h *Host) next() {
	h.call++
	h.history = h.history*historyFactor + h.sig
	if h.call&(1<<32-1) == 0 {
		// Calls that do not use these words leave old values in them. After 2^39 calls an old
		// value would compare as a later one.
		h.own().written.word.Store(h.call << stepBits)
		h.own().consumed.word.Store(h.call << stepBits)
	}
}

// historyFactor is odd, so two histories that differ stay different while the ranks make equal
// calls.
const historyFactor = 0x9e37

// arrival returns the word that this rank stores in its arrival line of the current call.
func (h *Host) arrival() uint64 { return h.call<<16 | uint64(h.history) }

func (h *Host) own() *peer { return &h.peers[h.Rank] }

// after returns the i-th rank after this one, modulo Size. Each rank starts its loops at its own
// neighbour, so the ranks do not all read the same arena at the same time.
func (h *Host) after(i int) int {
	if r := h.Rank + i; r < h.Size {
		return r
	}
	return h.Rank + i - h.Size
}

// await blocks until word is at least least, as [HostLink] Await does. rank is the rank within the
// host that writes word.
//
// Hot path: no allocation; no lock and no system call if the rank stores the word soon.
func (h *Host) await(rank int, word *atomic.Uint64, least uint64) error {
	for range spinLimit {
		if int64(word.Load()-least) >= 0 {
			return nil
		}
	}
	if h.wakePending {
		h.wakePending = false
		// A full barrier: the others see the arrival before Wake looks for ranks that sleep.
		h.own().lines[h.call%ringLines].word.Add(0)
		h.link.Wake()
	}
	return h.link.Await(rank, word, least)
}

// spinLimit is how often await reads a word before it calls the link's Wake, if that is due, and
// Await. The reads take about as long as the transfer of a cache line between cores.
const spinLimit = 64

// awaitEarlierCall waits until all ranks of the host have arrived at the call with number call,
// which is before the current one. If it sees that a rank made a different call, it returns the
// link's Mismatch.
func (h *Host) awaitEarlierCall(call uint64) error {
	for i := 1; i < h.Size; i++ {
		if err := h.awaitEarlierArrival(h.after(i), call); err != nil {
			return err
		}
	}
	h.arrivedAll = call
	return nil
}

// awaitEarlierArrival does what awaitEarlierCall does, for one rank of the host.
func (h *Host) awaitEarlierArrival(rank int, call uint64) error {
	word := &h.peers[rank].lines[call%ringLines].word
	if err := h.await(rank, word, call<<16); err != nil {
		return err
	}
	// If the rank has already arrived at a later call that uses the same line, the history of this
	// call is gone, and cannot be compared.
	if v := word.Load(); v>>16 == call && v != h.own().lines[call%ringLines].word.Load() {
		return h.link.Mismatch(rank)
	}
	return nil
}

// line returns this rank's arrival line of the current call. Before that it waits until no rank
// reads the line's previous contents. The caller may write data to the line, and then publishes it
// with publishArrival.
func (h *Host) line() (*line, error) {
	if int64(h.arrivedAll-(h.call-ringLines+1)) < 0 {
		// Wait for a later call than necessary, so that the next calls need no wait.
		if err := h.awaitEarlierCall(h.call - ringLines/2); err != nil {
			return nil, err
		}
	}
	return &h.own().lines[h.call%ringLines], nil
}

// arrive publishes that this rank has arrived at the call, and that its arrival line and its data
// buffer may be read.
func (h *Host) arrive() error {
	l, err := h.line()
	if err != nil {
		return err
	}
	h.publishArrival(l)
	return nil
}

// publishArrival stores the word of the arrival line l of the current call. Unless deferWake is set,
// it also wakes the ranks that sleep.
func (h *Host) publishArrival(l *line) {
	if h.wakePending = h.deferWake; h.deferWake {
		storeRelease(&l.word, h.arrival())
		return
	}
	h.publish(&l.word, h.arrival())
}

// publish stores a word that other ranks may wait for, and wakes those that sleep.
func (h *Host) publish(word *atomic.Uint64, v uint64) {
	// Wake then reads whether a rank sleeps, so there must be a full barrier after the store of
	// the word. Store has one, except in a program built with -race, where later loads can pass
	// it. On amd64, without -race, both Store and Swap are XCHG.
	word.Swap(v)
	h.link.Wake()
}

// step returns the value of the words written and consumed after n steps of the current call.
func (h *Host) step(n int) uint64 { return h.call<<stepBits | uint64(n) }

// awaitArrival waits until a rank has arrived at the current call. If that rank made another
// call, awaitArrival returns the link's Mismatch.
func (h *Host) awaitArrival(rank int) error {
	word, want := &h.peers[rank].lines[h.call%ringLines].word, h.arrival()
	if word.Load() == want {
		return nil
	}
	if err := h.await(rank, word, h.call<<16); err != nil {
		return err
	}
	if word.Load() != want {
		return h.link.Mismatch(rank)
	}
	return nil
}

// awaitAllArrivals waits until all ranks of the host have arrived at the current call.
func (h *Host) awaitAllArrivals() error {
	for i := 1; i < h.Size; i++ {
		if err := h.awaitArrival(h.after(i)); err != nil {
			return err
		}
	}
	h.arrivedAll = h.call
	return nil
}

// FindMismatch returns a rank of the host whose calls differ from those of this rank, and whether
// there is one. It also finds differences in calls in which no rank waited for another. The caller
// ensures that all ranks have made all their calls. If a rank has already freed its arena, the
// arena may read as zero; FindMismatch skips words that are zero.
func (h *Host) FindMismatch() (rank int, ok bool) {
	for r := range h.peers {
		for i := range h.own().lines {
			v := h.peers[r].lines[i].word.Load()
			if v != 0 && v != h.own().lines[i].word.Load() {
				return r, true
			}
		}
	}
	return 0, false
}

// ownDataBuffer returns this rank's data buffer of the current call. Before that it waits until no
// rank reads the buffer's previous contents.
func (h *Host) ownDataBuffer() ([]byte, error) {
	if int64(h.arrivedAll-(h.call-1)) < 0 {
		if err := h.awaitEarlierCall(h.call - 1); err != nil {
			return nil, err
		}
	}
	return h.dataBufferOf(h.Rank), nil
}

// dataBufferOf returns a rank's data buffer of the current call.
func (h *Host) dataBufferOf(rank int) []byte {
	at := int(h.call%2) * h.dataBufferBytes
	return h.peers[rank].dataBuffers[at : at+h.dataBufferBytes : at+h.dataBufferBytes]
}

// publishData copies data to this rank's arrival line or data buffer, and arrives. data fits a
// data buffer. Readers find it with publishedData.
func (h *Host) publishData(data []byte) error {
	l, err := h.line()
	if err != nil {
		return err
	}
	if len(data) <= inlineBytes {
		copy(l.data[:], data)
	} else {
		dataBuffer, err := h.ownDataBuffer()
		if err != nil {
			return err
		}
		bytecopy.Share(dataBuffer, data)
	}
	h.publishArrival(l)
	return nil
}

// publishedData returns the n bytes that a rank has passed to publishData. The caller has waited
// for that rank's arrival.
func (h *Host) publishedData(rank, n int) []byte {
	if n <= inlineBytes {
		return h.peers[rank].lines[h.call%ringLines].data[:n]
	}
	return h.dataBufferOf(rank)[:n]
}

// splitDataBuffers divides the data buffers into slots for the current call, and returns the
// bytes of a segment: the whole elements that fit a slot.
func (h *Host) splitDataBuffers(slots, elem int) int {
	h.slots = slots
	return h.dataBufferBytes / slots / elem * elem
}

// slotOffset returns the offset of segment i in a data buffer.
func (h *Host) slotOffset(i int) int { return i % h.slots * (h.dataBufferBytes / h.slots) }

// segmentAt returns the n bytes of segment i in a data buffer.
func (h *Host) segmentAt(dataBuffer []byte, i, n int) []byte {
	at := h.slotOffset(i)
	return dataBuffer[at : at+n]
}

// segmentCount returns the number of segments that n bytes of data have. segment is the length of a
// segment in bytes.
func segmentCount(n, segment int) int { return (n + segment - 1) / segment }

// segmentOf returns segment i of buf. The last segment may be shorter.
func segmentOf(buf []byte, i, segment int) []byte {
	return buf[i*segment : min((i+1)*segment, len(buf))]
}

// waitSlotFree waits until the slot for segment i in this rank's data buffer is free, that is,
// until the reader has consumed the segment that was in the slot before. reader is a rank within
// the host, or allRanks for all other ranks.
func (h *Host) waitSlotFree(i, reader int) error {
	switch {
	case i < h.slots:
		return nil
	case reader != allRanks:
		return h.await(reader, &h.peers[reader].consumed.word, h.step(i-h.slots+1))
	}
	for x := 1; x < h.Size; x++ {
		if err := h.waitSlotFree(i, h.after(x)); err != nil {
			return err
		}
	}
	return nil
}

// allRanks stands for all ranks of the host.
const allRanks = -1

// publishConsumed publishes that this rank has consumed segment i. n is the number of segments. If
// no later segment needs the slot of segment i, no writer waits for the slot, and publishConsumed
// does nothing.
func (h *Host) publishConsumed(i, n int) {
	if i+h.slots < n {
		h.publish(&h.own().consumed.word, h.step(i+1))
	}
}

// scratch returns n bytes of memory that is valid until the collective call ends. Each call of
// scratch in the same collective call may return the same memory.
func (h *Host) scratch(n int) []byte {
	if len(h.tmp) < n {
		h.tmp = h.link.Scratch(n)
	}
	return h.tmp[:n]
}
