package bootstrap

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
)

// spoke is the end of a rendezvous of a rank other than 0.
type spoke struct {
	conn    net.Conn
	timeout time.Duration
	limit   int // bytes of a frame
	exit    func(code int, line string)
	replies chan []byte   // the pairs of the fence that this rank is in
	failed  chan struct{} // closed when err is set
	ended   chan struct{} // listen has ended
	writing sync.Mutex    // held while a frame is written
	err     error         // why no fence can end any more
}

// shake has rank 0, if it is one, and this rank show each other that they know
// the secret. refused is what rank 0 then says against this rank.
func shake(c net.Conn, s wire.TCPSession) (refused bool, err error) {
	_, _ = rand.Read(s.Initiator[:]) // never fails
	var hello [wire.TCPHelloSize]byte
	h := s.Hello()
	h.Put(hello[:])
	if _, err := c.Write(hello[:]); err != nil {
		return false, err
	}
	var challenge [wire.TCPChallengeSize]byte
	if _, err := io.ReadFull(c, challenge[:]); err != nil {
		return false, noEOF(err)
	}
	if !wire.ParseTCPChallenge(challenge[:], &s.Responder) {
		return false, errStranger
	}
	proof := s.Proof()
	if _, err := c.Write(proof[:]); err != nil {
		return false, err
	}
	var b [wire.TCPVerdictSize]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return false, noEOF(err)
	}
	var mac wire.TCPMac
	v, ok := wire.ParseTCPVerdict(b[:], &mac)
	if want := s.Answer(v); !ok || !mac.Equal(&want) {
		return false, errStranger
	}
	if v != wire.TCPWelcome {
		return true, fmt.Errorf("rank 0 has a rank %d already: two processes have this number", s.From)
	}
	return false, nil
}

func newSpoke(c net.Conn, size int, timeout time.Duration, exit func(int, string)) *spoke {
	s := &spoke{
		conn: c, timeout: timeout, limit: min(size*maxPuts, 1<<30), exit: exit,
		replies: make(chan []byte, 1), failed: make(chan struct{}), ended: make(chan struct{}),
	}
	go s.listen() // ends with the connection, which close closes and waits
	return s
}

// listen hears rank 0 for as long as it is there: an abort may come at any time.
func (s *spoke) listen() {
	defer close(s.ended)
	for {
		kind, body, err := readFrame(s.conn, s.limit)
		switch {
		case err != nil:
			err = fmt.Errorf("rank 0, on %s, has gone: %w", host(s.conn), noEOF(err))
		case kind == framePairs && len(s.replies) == 0:
			s.replies <- body
			continue
		case kind == frameFail:
			err = errors.New(printable(body))
		case kind == frameAbort:
			code, text, bad := parseAbort(body)
			if err = bad; bad == nil {
				s.exit(code, text)
				err = errors.New("the job was aborted by " + text) // after exit, which comes back in tests alone
			}
		default:
			err = errFrame
		}
		if s.err == nil {
			s.err = err
			close(s.failed)
		}
		if kind != frameFail { // after which an abort may come
			return
		}
	}
}

func (s *spoke) send(limit time.Duration, kind byte, bodies ...[]byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(limit))
	_, err := s.conn.Write(newFrame(kind, bodies...))
	return err
}

// spokeGrace is how much longer than rank 0, which knows who is missing, the
// others wait.
const spokeGrace = 10 * time.Second

func (s *spoke) fence(ctx context.Context, pairs []byte) ([]byte, error) {
	if err := s.send(s.timeout, frameFence, pairs); err != nil {
		select {
		case <-s.failed: // rank 0 may have said why
			return nil, s.err
		case <-time.After(abortWait):
			return nil, err
		}
	}
	expired := time.NewTimer(s.timeout + spokeGrace)
	defer expired.Stop()
	select {
	case all := <-s.replies:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-expired.C:
		return nil, fmt.Errorf("rank 0, on %s, has not ended a fence of all within %v", host(s.conn), s.timeout+spokeGrace)
	case <-s.failed:
	}
	select {
	case all := <-s.replies: // it came before
		return all, nil
	default:
		return nil, s.err // written before failed was closed
	}
}

// abort returns when rank 0 has ended, as the last, or after a time.
func (s *spoke) abort(_, code int, text string) {
	if s.send(abortWait, frameAbort, abortBody(code, text)) != nil {
		return
	}
	select {
	case <-s.ended:
	case <-time.After(3 * abortWait): // rank 0 takes up to two
	}
}

func (s *spoke) close() error {
	_ = s.send(abortWait, frameBye) // rank 0 may have gone, and that is well
	err := s.conn.Close()
	<-s.ended
	return err
}
