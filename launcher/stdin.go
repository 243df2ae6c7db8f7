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

// stdin sends gorun's standard input to hosts. At most proto.Window bytes are on the way.
type stdin struct {
	from  *procs.Source
	to    func(proto.Message)
	done  chan struct{} // closed when pump has ended
	pumps bool          // begin was called

	mu    sync.Mutex // guards the fields below
	room  int        // number of bytes that may be sent now
	more  *sync.Cond // signals changes of room and ended
	ended bool       // close was called
}

func newStdin(f *os.File, to func(proto.Message)) (*stdin, error) {
	from, err := procs.NewSource(f)
	if err != nil {
		return nil, err
	}
	s := &stdin{from: from, to: to, done: make(chan struct{}), room: proto.Window}
	s.more = sync.NewCond(&s.mu)
	return s, nil
}

// begin starts sending. The caller has sent Start to the hosts.
func (s *stdin) begin() {
	s.pumps = true
	go s.pump() // ends with the input, or with close, which waits for it
}

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
			s.room -= n // before the hosts can give credit for these bytes
			s.mu.Unlock()
			s.to(proto.Stdin{Data: buf[:n]})
		}
		if err != nil {
			if errors.Is(err, io.EOF) || n == 0 {
				s.to(proto.Stdin{}) // the end of the input
			}
			return
		}
	}
}

// take waits for room and returns the number of bytes that pump may read. It returns 0 after close.
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

// credit adds n bytes to the room.
func (s *stdin) credit(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = min(s.room+max(n, 0), proto.Window)
	s.more.Signal()
}

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

// readyIO makes the files for the ranks' output, and prepares the standard input of ranks on other
// hosts.
func (r *run) readyIO(m *proto.Prepare) error {
	if m.PerRank && r.epoch == 0 { // a restarted job appends to the files
		if err := r.interruptible(func() error { return emptyFiles(r.out.dir, len(r.ranks)) }); err != nil {
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
		return nil // the process manager of this host reads it for rank 0
	}
	if _, err := r.stdio.In.Stat(); err != nil {
		m.Stdin = string(job.StdinNone) // standard input is closed, as after <&- in a shell
		return nil
	}
	var err error
	r.stdin, err = newStdin(r.stdio.In, r.node.Do)
	return err
}
