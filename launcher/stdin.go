package launcher

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// stdin sends gorun's standard input to the hosts whose ranks read it. A goroutine of its own,
// which runs [stdin.pump], reads and sends. When proto.Window bytes are on the way, pump waits for
// StdinCredit before it sends more.
type stdin struct {
	from  *procs.Source
	to    func(proto.Message) // sends a message to the hosts
	done  chan struct{}       // closed when [stdin.pump] has ended
	pumps bool                // [stdin.begin] has started [stdin.pump]

	mu    sync.Mutex // guards the fields below
	room  int        // number of bytes that [stdin.pump] may send before it gets more credit
	more  *sync.Cond // signals changes of room and ended to [stdin.pump]
	ended bool       // [stdin.close] was called
}

// newStdin returns a stdin that reads f. The caller must call close.
func newStdin(f *os.File, to func(proto.Message)) (*stdin, error) {
	from, err := procs.NewSource(f)
	if err != nil {
		return nil, err
	}
	s := &stdin{from: from, to: to, done: make(chan struct{}), room: proto.Window}
	s.more = sync.NewCond(&s.mu)
	return s, nil
}

// begin starts the goroutine that sends standard input. The caller must have sent Start to the
// hosts.
func (s *stdin) begin() {
	s.pumps = true
	go s.pump() // ends at the end of the input, at an error, or when close is called; close waits for it
}

// pump reads the input and sends it, as far as there is credit. It returns at the end of the input,
// after a read error, or when close was called.
func (s *stdin) pump() {
	defer close(s.done)
	for {
		n := s.take()
		if n == 0 {
			return
		}
		buf := make([]byte, n)
		n, err := s.from.Read(buf)
		if n > 0 {
			s.mu.Lock()
			s.room -= n // before these bytes are sent, because the hosts may give credit for them at once
			s.mu.Unlock()
			s.to(proto.Stdin{Data: buf[:n]})
		}
		if err != nil {
			if errors.Is(err, io.EOF) || n == 0 {
				s.to(proto.Stdin{}) // no data means the end of the input
			}
			return
		}
	}
}

// take blocks until there is credit or close is called. It returns the number of bytes that pump
// may read at once, or 0 if close was called.
func (s *stdin) take() int {
	const most = 32 << 10
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.room <= 0 && !s.ended {
		s.more.Wait()
	}
	if s.ended {
		return 0
	}
	return min(s.room, most)
}

// credit handles StdinCredit: pump may send n more bytes. n comes from a host and may be wrong, so
// the credit stays at most proto.Window.
func (s *stdin) credit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = min(s.room+max(n, 0), proto.Window)
	s.more.Signal()
}

// close ends pump, waits for it, and frees s. It does not close the input file.
func (s *stdin) close() {
	s.mu.Lock()
	s.ended = true
	s.more.Signal()
	s.mu.Unlock()
	if s.pumps {
		s.from.Stop()
		<-s.done
	}
	s.from.Close()
}

// readyIO makes the files for the ranks' output, if the job wants them. If ranks on other hosts
// read standard input, readyIO also sets r.stdin. If there is no standard input, or it is closed,
// readyIO may set m.Stdin to none.
func (r *run) readyIO(m *proto.Prepare) error {
	if m.PerRank && r.epoch == 0 { // a restarted job appends to the files of its first run
		if err := r.interruptible(func() error { return r.out.emptyFiles(0, r.size) }); err != nil {
			return err
		}
	}
	if r.stdio.In == nil {
		m.Stdin = string(job.StdinNone)
	}
	if r.onlyThisHost() || m.Stdin == string(job.StdinNone) {
		return nil
	}
	if r.job.Stdin == job.StdinRank0 && r.usesThisHost() && r.ranks[0].host == 0 {
		return nil // the process manager of this host reads standard input for rank 0
	}
	if _, err := r.stdio.In.Stat(); err != nil {
		m.Stdin = string(job.StdinNone) // standard input is closed, as after <&- in a shell
		return nil
	}
	var err error
	r.stdin, err = newStdin(r.stdio.In, r.node.Do)
	return err
}
