package mpi

import (
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
	"github.com/weft-hpc/weft/internal/race"
)

// Checks of buffers
//
// A rank has a bufcheck.Checker if the tunable check is set, or if the program is built with -race.
// The calls of this package record their buffers with it. Without a Checker, a call makes one
// comparison with nil when it starts and one when it ends.

// checkCall records a blocking call with the checker, if there is one. The call reads the buffer
// read and writes the buffer write; a zero Buffer stands for none. The result is that of
// bufcheck.Checker.Call, or nil without a checker.
//
// Hot path: no allocation without check and -race.
func (s *state) checkCall(name callName, read, write elem.Buffer) (*bufcheck.Operation, error) {
	if s.check == nil {
		return nil, nil
	}
	return s.recordBlocking(name, read, write)
}

// recordBlocking does the work of checkCall on a rank with a checker. It is a function of its own,
// so that the compiler inlines checkCall.
func (s *state) recordBlocking(name callName, read, write elem.Buffer) (*bufcheck.Operation, error) {
	return s.check.Call(name.String(), parts(read), parts(write))
}

// checkStart records a nonblocking operation with the checker, if there is one. The operation reads
// the buffer read and writes the buffer write; a zero Buffer stands for none. The result is that of
// bufcheck.Checker.Start, or nil without a checker.
//
// Hot path: no allocation without check and -race.
func (s *state) checkStart(name callName, read, write elem.Buffer) (*bufcheck.Operation, error) {
	if s.check == nil {
		return nil, nil
	}
	return s.recordNonblocking(name, read, write)
}

// recordNonblocking does the work of checkStart on a rank with a checker. It is a function of its
// own, so that the compiler inlines checkStart.
func (s *state) recordNonblocking(name callName, read, write elem.Buffer) (*bufcheck.Operation, error) {
	return s.check.Start(name.String(), parts(read), parts(write))
}

// parts returns the memory of a buffer that a call uses; nil for the zero Buffer and for memory of a
// device, which the checker cannot read.
func parts(b elem.Buffer) [][]byte {
	if b.Type == nil || b.Type.HostErr() != nil {
		return nil
	}
	return b.Parts()
}

// Defunct implements bufcheck.Comm.
func (s *state) Defunct() bool { return s.closed.Load() || s.p2p.Err() != nil }

// buffers returns the memory that the collective of l reads and writes on this rank. If send and
// recv share memory, reads is nil, and writes holds recv or its parts.
func (l *link) buffers() (reads, writes [][]byte) {
	if l.sendViews != nil || l.recvViews != nil {
		return l.viewParts()
	}
	send, recv := [][]byte{l.send}, [][]byte{l.recv}
	switch l.what {
	case coll.KindBcast:
		if l.isRoot() {
			send, recv = recv, nil
		}
	case coll.KindGatherv, coll.KindAllgatherv:
		recv = partsOf(l.recv, l.recvCounts, l.recvDispls)
	case coll.KindScatterv:
		send = partsOf(l.send, l.sendCounts, l.sendDispls)
	case coll.KindAlltoallv:
		send, recv = partsOf(l.send, l.sendCounts, l.sendDispls), partsOf(l.recv, l.recvCounts, l.recvDispls)
	default:
	}
	if elem.Overlap(l.send, l.recv) {
		send = nil
	}
	return send, recv
}

// viewParts is buffers for a collective with views. Data that it sends or receives without a view
// is in l.send or l.recv. reads lacks the parts of a view whose memory overlaps that of a view that the
// collective writes, because the two may share elements.
func (l *link) viewParts() (reads, writes [][]byte) {
	for _, v := range l.sendViews {
		if !slices.ContainsFunc(l.recvViews, func(r elem.Buffer) bool { return elem.Overlap(v.Bytes(), r.Bytes()) }) {
			reads = append(reads, parts(v)...)
		}
	}
	for _, v := range l.recvViews {
		writes = append(writes, parts(v)...)
	}
	switch {
	case l.what == coll.KindBcast:
	case l.sendViews == nil:
		reads = [][]byte{l.send}
	case l.recvViews == nil:
		writes = [][]byte{l.recv}
	}
	return reads, writes
}

// partsOf returns the part of buf for each rank; counts and displs are in bytes. If buf is nil,
// because this rank does not use the buffer, partsOf returns nil.
func partsOf(buf []byte, counts, displs []int) [][]byte {
	if buf == nil {
		return nil
	}
	parts := make([][]byte, len(counts))
	for i, n := range counts {
		parts[i] = buf[displs[i]:][:n]
	}
	return parts
}

// checkStart records the nonblocking collective with the checker, if there is one.
//
// Hot path: no allocation without check and -race.
func (l *link) checkStart() (*bufcheck.Operation, error) {
	k := l.s.check
	if k == nil {
		return nil, nil
	}
	reads, writes := l.buffers()
	return k.Start(l.name, reads, writes)
}

// acquire declares to the race detector that the collective's writes happen after the accesses to
// the same buffers by the goroutine that the checker has started for the collective (see
// bufcheck.Checker).
func (l *link) acquire() {
	if race.Enabled {
		_, writes := l.buffers()
		for _, b := range writes {
			race.Acquire(b)
		}
	}
}

// runChecked does what run does, on a rank with the checker k.
func (l *link) runChecked(k *bufcheck.Checker) error {
	reads, writes := l.buffers()
	p, err := k.Call(l.name, reads, writes)
	// Deferred, because a reduction operation of the program (OpFunc) may call runtime.Goexit.
	defer func() { _ = p.End(nil) }()
	if err == nil {
		err = p.End(l.perform())
	}
	return l.end(err)
}
