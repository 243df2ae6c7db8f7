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

// records holds the records of the ranks (package record): for each rank a memory file, which the
// rank inherits and writes, and the Manager reads. It is empty on systems without memory files.
type records struct {
	bits    int              // size of the rings; see record.Size
	files   []*os.File       // by local rank; the ranks inherit them
	mapped  [][]byte         // by local rank: the memory of the file
	readers []*record.Reader // by local rank
}

// recordsMax is the memory, in bytes, that the records of all ranks of a host may take together. With
// more ranks, each has smaller rings.
const recordsMax = 1 << 30

// openRecords makes the memory files for the records of n ranks of a group that has size ranks. With
// detail, for example for a trace, the rings are larger, and the ranks record each call.
func openRecords(n, size int, detail bool) (r *records, err error) {
	r = &records{bits: record.FlightBits}
	if detail {
		r.bits = record.TraceBits
	}
	for r.bits > record.MinBits && n*record.Size(size, r.bits) > recordsMax {
		r.bits--
	}
	defer func() {
		if err != nil {
			r.close()
			r = nil
		}
	}()
	for range n {
		f, err := sys.MemoryFile("weft-record")
		if errors.Is(err, sys.ErrNoMemoryFiles) {
			return r, nil
		}
		if err != nil {
			return r, fmt.Errorf("record: %w", err)
		}
		r.files = append(r.files, f)
		bytes := record.Size(size, r.bits)
		if err := f.Truncate(int64(bytes)); err != nil {
			return r, fmt.Errorf("record: %w", err)
		}
		// The rank must not be able to shorten the file, because this process reads it.
		if err := sys.AddSeals(int(f.Fd()), sys.SealShrink|sys.SealGrow|sys.SealSeal); err != nil {
			return r, fmt.Errorf("record: seal: %w", err)
		}
		mem, err := unix.Mmap(int(f.Fd()), 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return r, fmt.Errorf("record: mmap: %w", err)
		}
		r.mapped = append(r.mapped, mem)
		rd, err := record.NewReader(mem, size, r.bits)
		if err != nil {
			return r, err
		}
		rd.SetDetail(detail)
		r.readers = append(r.readers, rd)
	}
	return r, nil
}

// measure returns the figures for which Measure asks.
func (c *Manager) measure(m proto.Measure) []record.Figures {
	if c.records != nil && m.Detail {
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

// file returns the file that local rank i inherits; nil: there is none.
func (r *records) file(i int) *os.File {
	if r == nil || i >= len(r.files) {
		return nil
	}
	return r.files[i]
}

// inherited closes the files, which the ranks have inherited. The memory stays mapped.
func (r *records) inherited() {
	if r != nil {
		closeFiles(r.files...)
		r.files = nil
	}
}

// close frees the records.
func (r *records) close() {
	if r == nil {
		return
	}
	r.inherited()
	for _, mem := range r.mapped {
		_ = unix.Munmap(mem)
	}
	r.mapped, r.readers = nil, nil
}
