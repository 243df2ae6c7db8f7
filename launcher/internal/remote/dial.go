package remote

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// newNetConn makes a Conn of a TLS connection. r reads from conn and may have bytes of it in its
// buffer. If otherwise is not nil, Cause calls it to find out why the stream has ended, and returns
// the network's error only if otherwise returns nil.
func newNetConn(host string, peer Greeting, r *bufio.Reader, conn *tls.Conn, otherwise func(host string) error) *Conn {
	n := &netConn{r: r, tls: conn}
	return &Conn{
		host: host, peer: peer, r: n, w: conn, net: n,
		end: func() error {
			// Close sends a TLS alert, and blocks if the other end does not read.
			t := time.AfterFunc(endGrace, func() { _ = conn.NetConn().Close() })
			defer t.Stop()
			_ = conn.Close()
			return nil
		},
		cause: func() error {
			err := n.failed()
			if otherwise != nil {
				if why := otherwise(host); why != nil {
					err = why
				}
			}
			if err != nil {
				return fmt.Errorf("%s: %w", host, err)
			}
			return nil
		},
	}
}

// netConn reads a TLS connection and keeps the error of the last Read.
type netConn struct {
	r   *bufio.Reader
	tls *tls.Conn

	mu  sync.Mutex
	err error // the last error of Read; mu guards it
}

func (n *netConn) Read(p []byte) (int, error) {
	k, err := n.r.Read(p)
	if err != nil {
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
	}
	return k, err
}

// failed returns the network's error, or nil if one end has closed the stream.
func (n *netConn) failed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if errors.Is(n.err, io.EOF) || errors.Is(n.err, net.ErrClosed) {
		return nil
	}
	var op *net.OpError
	if errors.As(n.err, &op) {
		return op.Err
	}
	return n.err
}

// readable reports whether a Read would not block: there are bytes, the end of the stream, or an
// error.
func (n *netConn) readable() bool {
	if n.r.Buffered() > 0 {
		return true
	}
	tcp, ok := n.tls.NetConn().(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true
	}
	var peeked error
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, peeked = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err != nil || !errors.Is(peeked, unix.EAGAIN)
}

const (
	firstPause = 50 * time.Millisecond // time between the first two attempts; later pauses are longer
	lastPause  = time.Second           // longest time between two attempts
)

// Dial connects this agent with the gorun that listens at a TCP address, and sends the greeting.
// Agents and gorun may start in any order: while the name does not resolve or gorun does not answer,
// Dial tries again, until ctx ends. name is the name by which gorun knows this host; "": gorun uses
// the hostname.
func Dial(ctx context.Context, addr string, secret Secret, name string) (*Conn, error) {
	greeting, err := newGreeting(name)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
	}
	if err != nil {
		return nil, fmt.Errorf("expected HOST:PORT, found %q: %w", addr, err)
	}
	var last error // of the last attempt that did not end because ctx did
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		conn, err := dial(ctx, addr, secret, greeting)
		if err == nil {
			pruneOwnCache()
			return conn, nil
		}
		err = fmt.Errorf("gorun at %s: %w", addr, err)
		if !retryable(err) {
			return nil, err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		}
	}
}

// errRefused is the error of Dial if the program at that address, gorun or another, does not have the
// agent's secret.
var errRefused = errors.New("it has another secret than this agent")

// retryable reports whether another attempt may succeed.
func retryable(err error) bool {
	var dns *net.DNSError
	var op *net.OpError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.As(err, &record), errors.As(err, &alert), errors.Is(err, errRefused):
		return false // the program at the address is not gorun, or is the gorun of another job
	case errors.As(err, &dns), errors.As(err, &op):
		return true
	}
	// The listener has closed the connection, because it has ended or has too many connections; or
	// the attempt has run into its time limit.
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// dial makes one attempt.
func dial(ctx context.Context, addr string, secret Secret, greeting Greeting) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	// The agent does not check the certificate. Instead both ends prove that they know the secret.
	conn := tls.Client(raw, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	err = prove(conn, secret, greeting)
	if !stop() {
		err = fmt.Errorf("it accepts connections but does not answer: %w", context.Cause(ctx))
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	host, _, _ := net.SplitHostPort(addr)
	return newNetConn(host, greeting, bufio.NewReader(conn), conn, nil), nil
}

// prove proves to gorun that this agent knows the secret, checks gorun's proof, and sends the
// greeting.
func prove(conn *tls.Conn, secret Secret, greeting Greeting) error {
	if err := conn.Handshake(); err != nil {
		return err
	}
	mine, err := secret.proof(conn, agentLabel)
	if err != nil {
		return err
	}
	if _, err := conn.Write(mine); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer[0] != answerAccepted {
		return errRefused
	}
	var proof [macBytes]byte
	if _, err := io.ReadFull(conn, proof[:]); err != nil {
		return err
	}
	known, err := secret.check(conn, gorunLabel, proof[:])
	if err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("it does not prove that it knows the secret: %w", errRefused)
	}
	var b strings.Builder
	if err := greeting.Greet(&b); err != nil {
		return err
	}
	_, err = io.WriteString(conn, b.String())
	return err
}
