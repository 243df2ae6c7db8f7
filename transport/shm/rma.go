//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/weft-hpc/weft/internal/bytecopy"
	"github.com/weft-hpc/weft/transport"
)

// One-sided transfers
//
//	                 the region
//	   ┌────────────────┬────────────────┐
//	 shared           this rank's      a peer's
//	 heap             private memory   private memory
//	   │                │                │ does the kernel let this rank copy?
//	   │                │                ├───────────────────┐
//	   │                │                yes                 no
//	 viaHeap          viaSelf          viaKernel           ErrNotSupported
//	 loads, stores    a copy           cma.go, split.go
//
// A transfer has these states. Each call of copyPieces copies some pieces:
//
//	copying ── no piece left to claim ──► draining ── helper done ──► completed
//	   │                                     ▲  │
//	   └────────── refused, failed ──────────┘  └── the helper failed ──► copying the rest
//
// Read and Write copy the first pieces themselves. Before the first transfer with private
// memory of a peer, this rank tries whether the kernel lets it copy (cma.go). If the kernel
// refuses a copy later, for example because the peer has changed its user, the peer counts as
// failed.

// maxRMASize is the largest number of bytes of a Read or Write.
const maxRMASize = 1 << 30

// kindHelp is the kind of a control message that asks for help with a transfer; see split.go.
const kindHelp = firstControl

var (
	errKind      = errors.New("a control message of unknown kind")
	errReach     = fmt.Errorf("%w: the kernel does not let this rank copy from and to the peer's private memory", transport.ErrNotSupported)
	errForbidden = fmt.Errorf("%w: the kernel no longer lets this rank copy from and to its memory (transport.shm.single_copy=off does without)", transport.ErrPeerDown)
)

// copyBudget is the number of copied bytes after which Read, Write and [domain.advance] return.
// They first finish the pieces that they have claimed, so they may copy more.
const copyBudget = 64 << 10

// aloneMax is the largest piece, in bytes, of a transfer that the peer does not help with. While a
// call copies a piece, the engine holds its lock, and other goroutines of the rank wait: 45 us at
// the 12 GB/s of one core.
const aloneMax = 512 << 10

// streamMax is the largest transfer, in bytes, for which this rank requests no help if another
// transfer by the kernel has begun since the last Read of the queue: in a stream of transfers the
// peer is busy with its own ones, and its help comes late.
const streamMax = 64 << 10

// route is the way by which a transfer's bytes are copied.
type route uint8

const (
	viaHeap route = iota
	viaSelf
	viaKernel
)

// transfer is a Read or Write under way. Transfers are reused.
type transfer struct {
	op       *transport.Op
	p        *peer
	write    bool
	route    route
	draining bool   // this rank claims no more pieces
	entry    *entry // viaKernel: the region's entry in the peer's table
	addr     uint64 // viaKernel: the address of the block in the peer's process
	piece    int    // size of a piece in bytes
	pieces   int    // number of pieces
	front    int    // number of pieces that this rank has claimed, from the front
	split    split
	err      error     // why the transfer fails; nil: no failure is known
	next     *transfer // in the list of transfers.first or transfers.free
}

// transfers is the domain's state of one-sided operations.
type transfers struct {
	regions    regions
	singleCopy bool
	nonce      []byte // the memory whose address is in the probe line; nil if singleCopy is false
	lines      lines
	helps      helps
	first      *transfer  // the transfers under way, in the order of posting, linked by next
	last       **transfer // where the next transfer is appended to that list
	free       *transfer  // transfers that can be reused, linked by next
	lastBegun  uint       // value of domain.reads when the last viaKernel transfer began
	small      [helpSize]byte
}

// initTransfers prepares one-sided operations. join calls it after it has mapped the segment
// and before it announces this rank.
func (d *domain) initTransfers() {
	t := &d.transfers
	t.last = &t.first
	t.lines.init()
	t.regions.init(view[entry](d.seg.regions(d.self)))
	t.singleCopy = d.singleCopy()
	if t.singleCopy {
		d.publishProbe()
	}
}

// closeTransfers drops all transfers, without completions. Close calls it before it unmaps memory.
// When closeTransfers returns, no peer accesses the buffers of the transfers or writes to this
// rank's private regions any more.
func (d *domain) closeTransfers() {
	t := &d.transfers
	d.seg.claims(d.self).hazards.closed.Store(1)
	d.withdrawAll()
	for x := t.first; x != nil; x = x.next {
		s := &x.split
		if s.line == nil {
			continue
		}
		if !x.draining {
			_ = d.endClaims(x) // the transfer ends, whether or not the line was valid
		}
		at, helping := &d.seg.claims(x.p.local).hazards.helping, helpName(d.self, s.slot, s.gen)
		d.awaitIdle(x.p, func() bool { return at.Load() != helping })
	}
	t.first, t.last = nil, &t.first
	t.helps = helps{}
}

// Read copies from a region: by loads from the shared heap and from this rank's own memory, by the
// kernel from a peer's private memory; the peer may copy a part. Read returns after about
// copyBudget bytes; later Reads of the queue copy the rest. If ReachesRegion returns false, Read
// returns ErrNotSupported.
//
// Hot path: no allocation; a system call per piece of private memory.
func (e *endpoint) Read(op *transport.Op) error { return e.d.begin(op, false) }

// Write copies to a region, as Read does from it.
//
// Hot path: no allocation; a system call per piece of private memory.
func (e *endpoint) Write(op *transport.Op) error { return e.d.begin(op, true) }

func (d *domain) begin(op *transport.Op, write bool) error {
	if len(op.Data) > maxRMASize {
		return transport.ErrTooLarge
	}
	p, err := d.target(op.Peer)
	if err != nil {
		return err
	}
	if !d.reaches(p, op.RemoteKey) {
		return errReach
	}
	x := d.transfers.take()
	x.op, x.p, x.write = op, p, write
	if err := d.plan(x); err != nil {
		d.end(x, err)
		return nil
	}
	x.setPieces(aloneMax)
	if x.route == viaKernel {
		d.requestHelp(x)
		d.transfers.lastBegun = d.reads
	}
	if _, ended := d.copyPieces(x, copyBudget); !ended {
		t := &d.transfers
		*t.last, t.last = x, &x.next
	}
	return nil
}

// ReachesRegion reports whether a region is in the shared heap or is this rank's own, or the kernel
// lets this rank copy from and to the peer's memory. The first call for a private region of a peer
// tries that by a system call. For a peer that has not joined yet or whose end was reported, it
// returns false.
func (e *endpoint) ReachesRegion(peer transport.Addr, key uint64) bool {
	d := e.d
	if d.closed || d.seg == nil {
		return false
	}
	p := d.peer(peer)
	return p != nil && d.authenticate(p) == nil && d.reaches(p, key)
}

// reaches is ReachesRegion for a peer that is authenticated.
func (d *domain) reaches(p *peer, key uint64) bool {
	return key&heapKey == heapKey || p.local == d.self || d.direct(p)
}

func (t *transfers) take() *transfer {
	x := t.free
	if x == nil {
		return &transfer{}
	}
	t.free = x.next
	*x = transfer{}
	return x
}

func (t *transfers) put(x *transfer) {
	*x = transfer{next: t.free}
	t.free = x
}

// setPieces sets the size and the number of the pieces.
func (x *transfer) setPieces(piece int) {
	x.piece, x.pieces = piece, pieceCount(len(x.op.Data), piece)
}

// accessFor returns the access that the target's region must permit for a transfer.
func accessFor(write bool) transport.Access {
	if write {
		return transport.RemoteWrite
	}
	return transport.RemoteRead
}

// plan sets a transfer's route, and checks that the region permits the transfer.
func (d *domain) plan(x *transfer) error {
	op := x.op
	n := len(op.Data)
	switch {
	case op.RemoteKey&heapKey == heapKey:
		x.route = viaHeap
		_, err := d.mapRange(x.p, op.RemoteKey, op.RemoteAddr, n)
		return err
	case x.p.local == d.self:
		x.route = viaSelf
		_, err := d.transfers.regions.find(op.RemoteKey, op.RemoteAddr, uint64(n), accessFor(x.write))
		return err
	}
	var err error
	x.route = viaKernel
	x.entry, x.addr, err = d.lookup(x.p, op.RemoteKey, op.RemoteAddr, uint64(n), accessFor(x.write))
	return err
}

// copyPieces copies pieces of a transfer, about budget bytes. If no piece is left, or a copy fails,
// it ends the transfer, unless the helper still copies. It returns how many bytes it has copied,
// and whether the transfer has ended.
func (d *domain) copyPieces(x *transfer, budget int) (copied int, ended bool) {
	for !x.draining {
		if copied >= budget && x.front < x.pieces {
			return copied, false
		}
		claimed, err := x.claimFront()
		if claimed > 0 {
			off := x.front * x.piece
			n := min(claimed*x.piece, len(x.op.Data)-off)
			x.front += claimed
			copied += n
			err = d.copyPiece(x, off, n)
		}
		if err != nil || claimed == 0 {
			d.drain(x, err)
		}
	}
	return copied, d.finish(x)
}

// drain stops the copying by this rank: all pieces are claimed, or err is the reason why the
// transfer fails. The helper may still copy. If the claim line is invalid, drain closes the peer.
func (d *domain) drain(x *transfer, err error) {
	x.draining, x.err = true, err
	if x.split.line == nil {
		return
	}
	if err := d.endClaims(x); err != nil {
		x.err = err
		_ = d.closeOnError(x.p, "copy with", err)
	}
}

// finish ends a drained transfer, unless its helper still copies. It reports whether the transfer
// has ended. If a copy of the helper has failed, this rank must copy the rest: finish then unsets
// draining and returns false.
func (d *domain) finish(x *transfer) bool {
	if s := &x.split; s.line != nil {
		done, ok := s.helperDone()
		switch {
		case done:
			d.freeLine(s)
			if x.err == nil && !ok {
				x.draining = false // this rank copies the pieces from front on alone
				return false
			}
		case d.helperActive(x):
			return false
		default:
			return d.endWithoutHelper(x)
		}
	}
	if x.err == nil && !x.write {
		x.err = d.validate(x)
	}
	d.end(x, x.err)
	return true
}

// endWithoutHelper ends a transfer whose helper has stopped before it counted as done all pieces
// that are claimed for it: the helper has died or is disconnected, or it broke the protocol.
func (d *domain) endWithoutHelper(x *transfer) bool {
	if done, _ := x.split.helperDone(); done {
		return false // it has finished just now
	}
	x.split.line = nil // the line is not used again
	if x.err == nil {
		x.err = protocolError(errClaims)
		if x.p.ended() {
			x.err = x.p.endReason()
		} else {
			_ = d.closeOnError(x.p, "copy with", x.err)
		}
	}
	d.end(x, x.err)
	return true
}

// validate checks, at the end of a Read, that the region was not closed while it was copied.
func (d *domain) validate(x *transfer) error {
	switch x.route {
	case viaHeap:
		_, err := d.mapRange(x.p, x.op.RemoteKey, x.op.RemoteAddr, len(x.op.Data))
		return err
	case viaKernel:
		return d.checkRegion(x)
	case viaSelf:
	}
	return nil
}

// copyPiece copies n bytes at an offset of a transfer's block.
//
// Hot path: no allocation; a system call for private memory of a peer.
func (d *domain) copyPiece(x *transfer, off, n int) error {
	local := x.op.Data[off : off+n]
	key, addr := x.op.RemoteKey, x.op.RemoteAddr+uint64(off)
	switch {
	case x.route == viaSelf:
		mem, err := d.transfers.regions.find(key, addr, uint64(n), accessFor(x.write))
		if err != nil {
			return err
		}
		if x.write {
			bytecopy.Keep(mem, local)
		} else {
			bytecopy.Keep(local, mem)
		}
		return nil
	case !x.write && x.route == viaHeap:
		mem, err := d.mapRange(x.p, key, addr, n)
		if err != nil {
			return err
		}
		bytecopy.Keep(local, mem)
		return nil
	case !x.write:
		if err := d.checkRegion(x); err != nil {
			return err
		}
		return d.copyError(x, x.p.pull(local, x.addr+uint64(off)))
	}
	// During the write, the key is in this rank's hazard line: rule 2 of mr.go.
	at := &d.seg.claims(d.self).hazards.key
	at.Swap(key)
	defer at.Store(0)
	if x.route == viaHeap {
		mem, err := d.mapRange(x.p, key, addr, n)
		if err != nil {
			return err
		}
		bytecopy.Share(mem, local)
		return nil
	}
	if err := d.checkRegion(x); err != nil {
		return err
	}
	return d.copyError(x, x.p.push(local, x.addr+uint64(off)))
}

// checkRegion returns an error if a transfer's region is not in the peer's table any more, or
// the peer has ended: then its process id may be that of another process.
func (d *domain) checkRegion(x *transfer) error {
	if x.p.ended() {
		return x.p.endReason()
	}
	if x.entry.key.Load() != x.op.RemoteKey {
		return d.withdrawn(x.p)
	}
	return nil
}

// copyError returns the reason for err, the error of a copy by the kernel: the region may have
// been closed, and its memory unmapped, or the peer may have ended.
func (d *domain) copyError(x *transfer, err error) error {
	if err == nil {
		return nil
	}
	if why := d.checkRegion(x); why != nil {
		return why
	}
	if errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%w: %w", transport.ErrPeerDown, err)
	}
	return err
}

// end completes a transfer. If the kernel has refused a copy, end closes the peer.
func (d *domain) end(x *transfer, err error) {
	if errors.Is(err, syscall.EPERM) {
		err = errForbidden
		_ = d.closeOnError(x.p, "copy with", err)
	}
	d.completed(x.op, d.transferError(x, err))
	d.transfers.put(x)
}

// transferError returns the error of a transfer's completion: err with the operation and the peer,
// or nil if err is nil.
func (d *domain) transferError(x *transfer, err error) error {
	if err == nil {
		return nil
	}
	if _, whole := errors.AsType[*transport.Error](err); whole {
		return err
	}
	if x.write {
		return d.peerError("write", x.p.rank, err)
	}
	return d.peerError("read", x.p.rank, err)
}

// advance continues the transfers, in the order of posting, until it has copied about copyBudget
// bytes. If it has copied less, it helps a peer. busy reports that transfers of this rank, or of
// peers that this rank helps, need further calls.
//
// Hot path: no allocation; two loads if there is nothing to do.
func (d *domain) advance() (busy bool) {
	t := &d.transfers
	if t.first == nil && t.helps.n == 0 {
		return false
	}
	budget := copyBudget
	for at := &t.first; *at != nil && budget > 0; {
		x := *at
		next := x.next
		n, ended := d.copyPieces(x, budget)
		budget -= n
		if !ended {
			at = &x.next
			continue
		}
		*at = next
		if next == nil {
			t.last = at
		}
	}
	if budget > 0 && t.helps.n > 0 {
		d.helpOn()
	}
	return t.first != nil || t.helps.n > 0
}

// control handles a control message from a peer. An error is a protocol error, and the caller must
// close the peer. b is valid during the call.
func (d *domain) control(p *peer, kind uint8, b []byte) error {
	if kind != kindHelp {
		return protocolError(errKind)
	}
	return d.onHelp(p, b)
}

// dropTransfers makes all transfers with a closed peer fail with err. They end in later calls of
// advance, when the peer does not help with them any more. dropTransfers also drops the peer's
// requests for help. The caller has set p.err.
func (d *domain) dropTransfers(p *peer, err error) {
	t := &d.transfers
	for x := t.first; x != nil; x = x.next {
		if x.p == p && !x.draining {
			d.drain(x, err)
		}
	}
	for i := range t.helps.list {
		if h := &t.helps.list[i]; h.p == p {
			h.p = nil
		}
	}
}
