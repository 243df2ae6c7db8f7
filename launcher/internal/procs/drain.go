package procs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/trace"
)

// drainer moves the events of the ranks from their rings, which hold few, to files. gorun reads these as it
// reads the files of ranks:
//
//	rank ── ring ──► drainer ──► spool ──► rankFiles
//
// One goroutine, run, does this for all ranks of a group on this host.
type drainer struct {
	files  *rankFiles
	file   int // number of the spools in rankFiles
	spools []*spool
	stop   func()        // makes run read the events recorded so far, and return
	stops  chan struct{} // closed by stop
	done   chan struct{} // closed when run has ended

	started bool // run was started
}

// spool is the file with the events of a rank.
type spool struct {
	rank   int // number in the job
	ranks  int // number of ranks of the group
	reader *record.Reader
	ended  atomic.Bool // the rank has ended: no more events come
	late   bool        // the spool begins now, and not with the rank's record; drain resets it
	limit  int64       // most bytes of the file; 0: there is no limit

	// Only drainer.run uses the following fields.
	out       spoolFile
	size      int64 // bytes of whole items in out
	enc       trace.Encoder
	begun     record.Times  // of the record that is read; zero: Encoder.Begin was not called
	from      time.Duration // events that ended before are left out; since the beginning of the record
	drained   bool          // all events of the rank that has ended are read
	ops       [256]string
	comms     [256]string
	err       error  // why no more events are written; nil: they are
	unwritten uint64 // number of events that were not written because of err, and of the lost ones since then
}

// spoolFile is what a spool needs of an *os.File.
type spoolFile interface {
	io.WriterAt
	Truncate(size int64) error
}

const (
	// The pause of the drainer between two readings is in this range. It becomes shorter if the rings
	// fill up.
	minDrainPause = time.Millisecond
	maxDrainPause = 20 * time.Millisecond
	// spoolBuffer is the number of bytes of a spool that are written at once.
	spoolBuffer = 64 << 10
)

// drain makes the drainer for the ranks. files has the files of each rank, and file is the index of its
// spool among them.
func (c *Manager) drain(file int, files [][]*os.File) error {
	readers, err := c.records.events(c.job.Card.Size)
	if err != nil || len(readers) == 0 {
		return err
	}
	d := newDrainer(&c.cfg.shared.files, file)
	for i, rd := range readers {
		d.spools = append(d.spools, &spool{rank: c.plan.Ranks[i].Rank, ranks: c.job.Card.Size, reader: rd, out: files[i][file]})
	}
	c.drainer = d
	return nil
}

// newDrainer returns a drainer without spools.
func newDrainer(files *rankFiles, file int) *drainer {
	d := &drainer{files: files, file: file, stops: make(chan struct{}), done: make(chan struct{})}
	d.stop = sync.OnceFunc(func() { close(d.stops) })
	return d
}

// start starts the goroutine. d may be nil.
func (d *drainer) start() {
	if d != nil {
		d.started = true
		go d.run() // ends after stop
	}
}

// rankEnded reports that a rank has ended. d may be nil.
func (d *drainer) rankEnded(i int) {
	if d != nil {
		d.spools[i].ended.Store(true)
	}
}

// wait makes run read what is left of the ranks, which have ended, and waits for its end. d may be nil.
func (d *drainer) wait() {
	if d != nil {
		for _, s := range d.spools {
			s.ended.Store(true)
		}
	}
	d.join()
}

// join makes run read the events recorded so far, and waits for its end. d may be nil.
func (d *drainer) join() {
	if d != nil && d.started {
		d.stop()
		<-d.done
	}
}

// run reads the rings until stop is called.
func (d *drainer) run() {
	defer close(d.done)
	pause := maxDrainPause
	for {
		select {
		case <-d.stops:
			for _, s := range d.spools {
				s.drain()
				s.flush()
				if s.err != nil {
					d.files.setRest(s.rank, d.file, trace.Cut(s.unwritten, reasonOf(s.err)))
				}
			}
			return
		case <-time.After(pause):
		}
		fill := 0.0
		for _, s := range d.spools {
			fill = max(fill, s.drain())
		}
		switch {
		case fill > 1./8:
			pause = minDrainPause
		case fill > 1./32:
			pause = max(pause/2, minDrainPause)
		default:
			pause = min(pause*2, maxDrainPause)
		}
	}
}

// drain reads the events that the rank has recorded since the last call. It returns how full the rings
// were: 1 if one of them may have been full.
func (s *spool) drain() (fill float64) {
	if s.drained {
		return 0
	}
	ended := s.ended.Load()
	if !s.reader.Begun() {
		s.drained = ended
		return 0
	}
	// A rank may run several programs, one after the other. Each of them begins a new record.
	if t := s.reader.Times(); t.Monotonic != s.begun.Monotonic || t.Wall != s.begun.Wall {
		s.begun = t
		if s.late {
			s.late, s.from = false, max(record.Monotonic()-t.Monotonic, 0)
			s.reader.Skip()
		} else {
			s.from = 0
			s.reader.Restart()
		}
		s.ops, s.comms = [256]string{}, [256]string{}
		if s.err == nil {
			s.enc.Begin(t, s.from)
			s.flush() // at once: the other ranks may fill the disk
		}
	}
	n := 0
	var named [2][256]bool // numbers of operations and communicators whose names have not changed
	lost := s.reader.Read(ended, func(e record.Event) {
		n++
		if e.Start+e.Duration < s.from {
			return // Skip has left it
		}
		if s.err == nil {
			s.name(&named, &e)
		}
		s.add(&e)
	})
	switch {
	case lost == 0:
	case s.err != nil:
		s.unwritten += lost
	default:
		s.enc.Lost(lost)
	}
	s.drained = ended
	return float64(uint64(n)+2*lost) / float64(s.reader.Room())
}

// name encodes the names of the operation and the communicator of an event, if they are new. The rank
// may give the number of a communicator that it has freed to another one.
func (s *spool) name(named *[2][256]bool, e *record.Event) {
	if e.Op != record.OpSent && e.Op != record.OpReceived && !named[0][e.Op] {
		named[0][e.Op] = true
		if name := s.reader.OpName(e.Op); name != s.ops[e.Op] {
			s.ops[e.Op] = name
			s.enc.Op(e.Op, name)
		}
	}
	if i := e.Comm; int(i) < len(s.comms) && !named[1][i] {
		named[1][i] = true
		if name := s.reader.CommName(i); name != s.comms[i] {
			s.comms[i] = name
			s.enc.Comm(i, name)
		}
	}
}

// add encodes an event, and writes what is encoded if that is much.
func (s *spool) add(e *record.Event) {
	switch message := e.Op == record.OpSent || e.Op == record.OpReceived; {
	case s.err != nil:
		s.unwritten++
		return
	case message && (e.Peer < 0 || int(e.Peer) >= s.ranks): // this memory is not what a rank has written
		s.enc.Lost(1)
	default:
		s.enc.Event(e)
	}
	if len(s.enc.Bytes()) >= spoolBuffer {
		s.flush()
	}
}

// flush writes what is encoded. If the disk is full, what was encoded since the last flush is lost, and
// all later events.
func (s *spool) flush() {
	if b := s.enc.Bytes(); s.err == nil && len(b) > 0 {
		err := error(nil)
		if s.limit > 0 && s.size+int64(len(b)) > s.limit {
			err = fmt.Errorf("they take more than %d MiB", s.limit>>20)
		} else {
			_, err = s.out.WriteAt(b, s.size)
		}
		if err != nil {
			s.err = err
			s.unwritten = s.enc.Events()
			// What follows the last whole item is of no use.
			_ = s.out.Truncate(s.size)
		} else {
			s.size += int64(len(b))
		}
	}
	s.enc.Reset()
}

// reasonOf returns what is wrong with a file, without its name, which does not exist any more.
func reasonOf(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return proto.OneLine(err.Error(), maxReason)
}

// maxReason is the largest number of characters of a reason for lost events.
const maxReason = 100
