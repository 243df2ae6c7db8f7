package procs

import (
	"errors"
	"fmt"
	"os"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// records holds the records of the ranks (package record): a memory file that all ranks of the host
// inherit, and in which each has a part of its own, in the order of their local ranks. The ranks write
// it, and the Manager reads it. There is none on systems without memory files.
type records struct {
	bits    int              // size of the rings; see record.Size
	file    *os.File         // nil: there is none, or the ranks have inherited it
	mem     []byte           // the memory of the file
	readers []*record.Reader // by local rank
}

// recordsMax is the memory, in bytes, that the records of all ranks of a host may take together. With
// more ranks, each has smaller rings.
const recordsMax = 1 << 30

// openRecords makes the records of n ranks of a group that has size ranks. With detail, the ranks record
// each call. If they are traced, the rings are larger.
func openRecords(n, size int, detail, traced bool) (*records, error) {
	r := &records{bits: record.FlightBits}
	if traced {
		r.bits = record.TraceBits
	}
	for r.bits > record.MinBits && n*record.Size(size, r.bits) > recordsMax {
		r.bits--
	}
	part := record.Size(size, r.bits)
	f, err := sys.MemoryFile("weft-record")
	if errors.Is(err, sys.ErrNoMemoryFiles) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	r.file = f
	if err = f.Truncate(int64(n * part)); err == nil {
		// No rank must be able to shorten the file, because this process reads it.
		err = sys.AddSeals(int(f.Fd()), sys.SealShrink|sys.SealGrow|sys.SealSeal)
	}
	if err == nil {
		r.mem, err = unix.Mmap(int(f.Fd()), 0, n*part, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	for i := 0; i < n && err == nil; i++ {
		var rd *record.Reader
		if rd, err = record.NewReader(r.mem[i*part:][:part:part], size, r.bits); err == nil {
			rd.SetDetail(detail)
			r.readers = append(r.readers, rd)
		}
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// events returns a reader of the events of each rank, for another goroutine than that of readers. There are none if
// r is nil.
func (r *records) events(size int) (list []*record.Reader, err error) {
	if r == nil {
		return nil, nil
	}
	part := record.Size(size, r.bits)
	for i := range r.readers {
		rd, err := record.NewReader(r.mem[i*part:][:part:part], size, r.bits)
		if err != nil {
			return nil, err
		}
		list = append(list, rd)
	}
	return list, nil
}

// measure returns the figures for which Measure asks, and makes the ranks record each call.
func (c *Manager) measure(m proto.Measure) []record.Figures {
	if c.records != nil {
		for _, rd := range c.records.readers {
			rd.SetDetail(true)
		}
	}
	return c.figures(m.Peers)
}

// figures returns the figures of the ranks that have begun a record. peers is Measure.Peers.
func (c *Manager) figures(peers bool) (list []record.Figures) {
	if c.records == nil {
		return nil
	}
	for i, rd := range c.records.readers {
		if f := rd.Figures(c.plan.Ranks[i].Rank, peers, c.ranks[i].exited); f != nil {
			list = append(list, *f)
		}
	}
	return list
}

// lastText returns what local rank i did last, in words; "": that is not known.
func (c *Manager) lastText(i int) string {
	if c.records == nil || i >= len(c.records.readers) {
		return ""
	}
	return c.records.readers[i].LastText(func(peer int) string { return "rank " + proto.RankName(c.job.Card.Group, peer) })
}

// inherited closes the file, which the ranks have inherited. The memory stays mapped.
func (r *records) inherited() {
	if r != nil {
		closeFiles(r.file)
		r.file = nil
	}
}

// close frees the records.
func (r *records) close() {
	if r == nil {
		return
	}
	r.inherited()
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
	}
	r.mem, r.readers = nil, nil
}
