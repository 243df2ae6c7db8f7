package procs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// rankFiles are the files that ranks or this process fill and gorun reads: see package proto. They
// have no names, so the system removes them when this process and the ranks have closed them.
//
//	Manager.open ── make ──► files ──► rank writes
//	Host.Do ── fetch ──► queue ──► serve: reads files ──► Config.Emit
//
// The host fills some files itself; see drainer and capture.
//
// A goroutine of its own, serve, reads the files, because a disk may be slow.
type rankFiles struct {
	mu      sync.Mutex // guards the fields below
	files   map[rankFile]*os.File
	rests   map[rankFile][]byte // bytes that follow those of the file, because the disk has no room for them
	queue   []fetch             // requests that serve has not taken
	serving bool                // serve runs
	closed  bool
	current int            // Capture.File of the latest Capture; 0: there was none
	ended   sync.WaitGroup // serve, and goroutines that close files
}

// fetch is a request for bytes of a file.
type fetch struct {
	proto.Fetch
	emit func(proto.Message) // for the answer
}

// rankFile identifies a file.
type rankFile struct {
	rank int // number in the job
	file int // index in Prepare.RankFiles, or Capture.File
}

// make makes the files of a rank, in the order of want. The caller does not close them.
func (s *rankFiles) make(rank int, want []proto.RankFile) (list []*os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	for i, w := range want {
		f, err := s.add(rankFile{rank, i}, w)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

// add makes a file. The caller holds mu.
func (s *rankFiles) add(key rankFile, w proto.RankFile) (*os.File, error) {
	f, err := UnnamedFile("weft-"+w.Name, w.Large)
	if err != nil {
		return nil, fmt.Errorf("file for %s: %w", w.Name, err)
	}
	if s.files == nil {
		s.files = make(map[rankFile]*os.File)
	}
	s.files[key] = f
	return f, nil
}

// capture makes the file of a rank for a Capture. The caller does not close it. If gorun has read or forgotten
// the file before, a write to it fails.
func (s *rankFiles) capture(rank int, m proto.Capture) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, os.ErrClosed
	}
	return s.add(rankFile{rank, m.File}, proto.RankFile{Name: m.Kind, Large: m.Kind == proto.CaptureTrace})
}

// forget closes the files of all Captures whose number is not file. It does not block: to free a large file may take
// long.
func (s *rankFiles) forget(file int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = file
	var old []*os.File
	for key, f := range s.files {
		if s.isOld(key.file) {
			old = append(old, f)
			delete(s.files, key)
		}
	}
	for key := range s.rests {
		if s.isOld(key.file) {
			delete(s.rests, key)
		}
	}
	if len(old) > 0 && !s.closed {
		s.ended.Go(func() { closeFiles(old...) }) // ends when they are closed; close waits for it
	}
}

// isOld reports whether the number is that of an earlier Capture. The caller holds mu.
func (s *rankFiles) isOld(file int) bool { return file >= proto.FirstCapture && file != s.current }

// UnnamedFile makes an empty file without a name: in memory or, if it may be large or the system has no such
// files, in the directory for temporary files. No child inherits it by itself.
func UnnamedFile(name string, large bool) (*os.File, error) {
	if !large {
		f, err := sys.MemoryFile(name)
		if !errors.Is(err, sys.ErrNoMemoryFiles) {
			return f, err
		}
	}
	f, err := os.CreateTemp("", name+"-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// fetch makes serve answer a Fetch by emit. It does not block.
func (s *rankFiles) fetch(m proto.Fetch, emit func(proto.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.queue = append(s.queue, fetch{m, emit})
	if !s.serving {
		s.serving = true
		s.ended.Go(s.serve) // ends when the queue is empty; close waits for it
	}
}

// serve answers the requests in the queue, in their order.
func (s *rankFiles) serve() {
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.queue, s.serving = nil, false
			s.mu.Unlock()
			return
		}
		m := s.queue[0]
		s.queue = s.queue[1:]
		key := rankFile{m.Rank, m.File}
		f, rest := s.files[key], s.rests[key]
		s.mu.Unlock()
		p := part(f, rest, m.Fetch)
		if len(p.Data) < proto.MaxPart || p.Failed {
			s.mu.Lock()
			delete(s.files, key)
			delete(s.rests, key)
			s.mu.Unlock()
			closeFiles(f)
		}
		m.emit(p)
	}
}

// setRest sets the bytes that follow those of a file. If the file could not be made, they are all.
func (s *rankFiles) setRest(rank, file int, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOld(file) {
		return
	}
	if s.rests == nil {
		s.rests = make(map[rankFile][]byte)
	}
	s.rests[rankFile{rank, file}] = b
}

// part reads the bytes that m asks for. f is the file; nil: there is none. rest are the bytes that follow
// those of the file.
func part(f *os.File, rest []byte, m proto.Fetch) proto.Part {
	p := proto.Part{Index: m.Index, Rank: m.Rank, File: m.File}
	err := errors.New("the file is closed, or never existed")
	switch {
	case f != nil:
		p.Data = make([]byte, proto.MaxPart)
		var n int
		if n, err = f.ReadAt(p.Data, m.Offset); errors.Is(err, io.EOF) {
			err = nil
		}
		p.Data = p.Data[:n]
		if err == nil && len(rest) > 0 && n < proto.MaxPart {
			p.Data, err = appendRest(f, p.Data, rest, m.Offset)
		}
	case len(rest) > 0:
		rest = rest[min(max(m.Offset, 0), int64(len(rest))):]
		p.Data, err = rest[:min(len(rest), proto.MaxPart)], nil
	}
	if err != nil {
		p.Failed, p.Data = true, []byte(reasonOf(err))
	}
	return p
}

// appendRest appends to data, the bytes of f from the offset at on up to its end, what fits of rest.
func appendRest(f *os.File, data, rest []byte, at int64) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := min(max(at-st.Size(), 0), int64(len(rest)))
	rest = rest[from:]
	return append(data, rest[:min(len(rest), proto.MaxPart-len(data))]...), nil
}

// close closes all files, and waits for serve.
func (s *rankFiles) close() {
	s.mu.Lock()
	s.closed, s.queue = true, nil
	s.mu.Unlock()
	s.ended.Wait()
	for _, f := range s.files {
		_ = f.Close()
	}
	s.files = nil
}
