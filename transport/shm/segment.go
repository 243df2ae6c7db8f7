//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// segment is the memory file of the host's ranks, as this process maps it. Its methods
// take local ranks: 0 to layout.n-1 in the order of world ranks.
//
// Asleep, Notify and Signal may use front while Close runs. So Close does not unmap front: the
// garbage collector does, when no goroutine refers to the segment any more. Code that may run
// beside Close must keep the segment alive until it has used a word of front
// (runtime.KeepAlive).
type segment struct {
	layout
	self  int
	file  *os.File
	front []byte // the parts before the inboxes: header, ended, states, cards, claims, tables
	inbox []byte // the rings to this rank
}

// openSegment maps the file for rank self of n. The first rank sets the file's size, seals
// the size and writes label; openSegment fails for a rank with another n or label.
func openSegment(file *os.File, n, self int, label uint64) (*segment, error) {
	s := &segment{layout: newLayout(n), self: self, file: file}
	if err := s.fix(); err != nil {
		return nil, err
	}
	front, err := s.mapFile(0, int(s.inboxes))
	if err != nil {
		return nil, err
	}
	s.front = front
	runtime.AddCleanup(s, func(mem []byte) { _ = unix.Munmap(mem) }, front)
	if l := &s.header().label; !l.CompareAndSwap(0, label) && l.Load() != label {
		return nil, errors.New("the memory file belongs to another job, or the ranks do not agree on which of them are on this host")
	}
	if s.inbox, err = s.mapFile(s.ring(0, self), int(s.inboxSize())); err != nil {
		return nil, err
	}
	return s, nil
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// fix sets the file's size and seals it, unless another rank has done so. If that rank has
// sealed the file at another size, fix returns an error.
func (s *segment) fix() error {
	fd := int(s.file.Fd())
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("not a memory file: %w", err)
	}
	if have&seals != seals {
		if err := unix.Ftruncate(fd, s.size); err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("size the memory file, which is sparse, to %d bytes (EFBIG: see ulimit -f): %w", s.size, err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("seal the memory file: %w", err)
		}
		if have, err = unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
			return fmt.Errorf("seals of the memory file: %w", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat the memory file: %w", err)
	}
	if st.Size != s.size || have&seals != seals {
		return fmt.Errorf("the memory file has %d bytes and seals %#x, and should have %d and %#x", st.Size, have, s.size, seals)
	}
	return nil
}

// mapFile maps n bytes of the file from an offset that is a multiple of
// pageSize. The caller must unmap them with unmapFile.
func (s *segment) mapFile(off int64, n int) ([]byte, error) {
	skip := int(off & int64(os.Getpagesize()-1))
	mem, err := unix.Mmap(int(s.file.Fd()), off-int64(skip), n+skip, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map the memory file: %w", err)
	}
	return mem[skip:], nil
}

// unmapFile unmaps what mapFile returned.
func unmapFile(mem []byte) error {
	if err := unix.Munmap(fromPage(mem)); err != nil {
		return fmt.Errorf("unmap the memory file: %w", err)
	}
	return nil
}

// close unmaps the inbox. The garbage collector unmaps front later.
func (s *segment) close() {
	if s.inbox != nil {
		_ = unmapFile(s.inbox) // it cannot fail for a mapping
		s.inbox = nil
	}
}

func (s *segment) header() *fileHeader { return at[fileHeader](s.front, 0) }

// state returns a rank's rankState.
func (s *segment) state(rank int) *rankState {
	return at[rankState](s.front, s.states+int64(rank)*stateSize)
}

func (s *segment) card(rank int) *card { return at[card](s.front, s.cards+int64(rank)*pageSize) }

// ended returns the word in which the launcher notes that a rank's process has ended.
func (s *segment) ended(rank int) *atomic.Uint32 {
	return at[atomic.Uint32](s.front, wire.ShmEndedAt+4*int64(rank))
}

// endedOrLeft reports whether a rank has shut down or closed its domain, or its process
// has ended, perhaps before the rank joined.
func (s *segment) endedOrLeft(rank int) bool {
	st := s.state(rank)
	return st.alive.Load()&ownerDied != 0 || s.ended(rank).Load() != 0 || st.state.Load() >= cardLeft
}

// claims returns the page of a rank's hazard line, probe line and claim lines.
func (s *segment) claims(rank int) *claims {
	return at[claims](s.front, s.layout.claims+int64(rank)*pageSize)
}

// directory returns the memory in which a rank describes the extents of its heap (dirEntry).
func (s *segment) directory(rank int) []byte {
	off := s.tables + int64(rank)*tableSize
	return s.front[off : off+dirSize : off+dirSize]
}

// regions returns the memory in which a rank describes its private memory regions (entry).
func (s *segment) regions(rank int) []byte {
	off := s.tables + int64(rank)*tableSize
	return s.front[off+dirSize : off+tableSize : off+tableSize]
}

// ringFrom returns the ring from a rank to this one.
func (s *segment) ringFrom(rank int) []byte {
	off := int64(rank) * s.ringSize()
	return s.inbox[off : off+s.ringSize()]
}

// join maps the file and adds this rank to the ranks of the host. locals are the world ranks that
// share the file, in ascending order. If the ranks found the file by an address, nonce is the nonce
// of that address; else nil.
func (d *domain) join(file *os.File, locals []transport.Addr, nonce []byte) error {
	if len(locals) > maxLocals {
		return fmt.Errorf("%d ranks on one host: at most %d are possible", len(locals), maxLocals)
	}
	self := 0
	b := make([]byte, 0, 16+4*len(locals))
	b = binary.LittleEndian.AppendUint32(b, uint32(d.size))
	b = binary.LittleEndian.AppendUint64(b, d.start)
	for i, r := range locals {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
		if r == d.rank {
			self = i
		}
	}
	s, err := openSegment(file, len(locals), self, d.job.Label("file", append(b, nonce...)))
	if err != nil {
		return err
	}
	own, state := s.card(self), s.state(self)
	if !state.state.CompareAndSwap(cardAbsent, cardTaken) {
		s.close()
		return fmt.Errorf("rank %d has been opened before", d.rank)
	}
	d.seg, d.self, d.events, d.bit = s, self, &own.events, 1<<(self%64)
	d.ranks, d.locals = locals, d.peers
	if len(locals) < d.size {
		d.locals = make([]*peer, len(locals))
	}
	c := wire.ShmCard{Rank: uint32(d.rank), Size: uint32(d.size), PID: uint32(os.Getpid()), Nonce: newNonce()}
	c.Put(own.identity[:wire.ShmCardSize], &d.job)
	if err := d.liveness.begin(&state.alive, d.deaths); err != nil {
		return err
	}
	d.initTransfers()
	d.initHeap()
	d.announce()
	if err := d.authenticate(d.local(self)); err != nil {
		return err
	}
	d.attached.Store(s)
	if d.early.Swap(awake) == asleep { // a goroutine that waits must use the card's word from now on
		futexWake(&d.early)
	}
	return nil
}
