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

// spoke is the connection with rank 0 of a rank other than 0 after a rendezvous (rendezvous.go).
// hub is the other end.
type spoke struct {
	conn    net.Conn
	timeout time.Duration               // rank 0's limit of a fence; fence waits spokeExtraTime longer
	limit   int                         // maximum bytes of a frame's body
	exit    func(code int, line string) // called after an abort; ends the process, except in tests
	replies chan []byte                 // gets the pairs of all ranks at the end of a fence
	failed  chan struct{}               // closed when err is set
	ended   chan struct{}               // closed when listen has ended
	writing sync.Mutex                  // held while a frame is written
	err     error                       // why all further fences fail; set before failed is closed
}

// errBusy is the error of a rank that rank 0 has refused.
var errBusy = errors.New("rank 0 has a rank")

// handshake proves to rank 0 that this rank knows the secret, and checks that rank 0 knows it.
// refused is true if rank 0 has proved this and refuses this rank; err then says why.
func handshake(c net.Conn, s wire.TCPSession) (refused bool, err error) {
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
		return false, errNotAuthenticated
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
		return false, errNotAuthenticated
	}
	if v != wire.TCPWelcome {
		return true, fmt.Errorf("%w %d already: two processes have this number", errBusy, s.From)
	}
	return false, nil
}

func newSpoke(c net.Conn, size int, timeout time.Duration, exit func(int, string)) *spoke {
	s := &spoke{
		conn: c, timeout: timeout, limit: min(size*maxPuts, 1<<30), exit: exit,
		replies: make(chan []byte, 1), failed: make(chan struct{}), ended: make(chan struct{}),
	}
	go s.listen() // ends when the connection ends; close closes the connection and waits for listen
	return s
}

// listen reads the frames of rank 0 until the connection ends, an abort comes, or a frame is wrong.
// It runs all the time, because an abort may come at any time.
func (s *spoke) listen() {
	defer close(s.ended)
	for {
		kind, body, err := readFrame(s.conn, s.limit)
		switch {
		case err != nil:
			err = gone("rank 0, on %s, has gone: %w", host(s.conn), noEOF(err))
		case kind == framePairs && len(s.replies) == 0:
			s.replies <- body
			continue
		case kind == frameFail:
			err = errors.New(printable(body))
		case kind == frameGone:
			err = gone("%s", printable(body))
		case kind == frameAbort:
			code, text, bad := parseAbort(body)
			if err = bad; bad == nil {
				s.exit(code, text)
				err = errors.New("the job was aborted by " + text) // exit returns only in tests
			}
		default:
			err = errFrame
		}
		if s.err == nil {
			s.err = err
			close(s.failed)
		}
		if kind != frameFail && kind != frameGone { // after fail, continue to read, because an abort may follow
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

// spokeExtraTime is how much longer than rank 0 the other ranks wait for the end of a fence. Usually
// rank 0's limit is over first, and rank 0 reports which ranks are missing.
const spokeExtraTime = 10 * time.Second

func (s *spoke) fence(ctx context.Context, pairs []byte) ([]byte, error) {
	if err := s.send(s.timeout, frameFence, pairs); err != nil {
		select {
		case <-s.failed: // rank 0 may have reported the reason
			return nil, s.err
		case <-time.After(abortWait):
			return nil, gone("rank 0, on %s, has gone: %w", host(s.conn), err)
		}
	}
	expired := time.NewTimer(s.timeout + spokeExtraTime)
	defer expired.Stop()
	select {
	case all := <-s.replies:
		return all, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-expired.C:
		return nil, fmt.Errorf("rank 0, on %s, has not completed a fence within %v", host(s.conn), s.timeout+spokeExtraTime)
	case <-s.failed:
	}
	select {
	case all := <-s.replies: // the reply arrived before the failure
		return all, nil
	default:
		return nil, s.err // listen has set err before it closed failed
	}
}

// abort sends an abort to rank 0, which passes it on to the other ranks and ends after them. wait
// returns when rank 0 has ended, or after a time limit.
func (s *spoke) abort(_, code int, text string) (wait func()) {
	if s.send(abortWait, frameAbort, abortBody(code, text)) != nil {
		return func() {}
	}
	return func() {
		select {
		case <-s.ended:
		case <-time.After(3 * abortWait): // rank 0 takes up to 2 × abortWait
		}
	}
}

func (s *spoke) close() error {
	_ = s.send(abortWait, frameBye) // an error is harmless: rank 0 may have ended
	err := s.conn.Close()
	<-s.ended
	return err
}
