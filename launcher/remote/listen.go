package remote

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

// Listener takes the agents that dial in.
type Listener struct {
	// Log is told of who was turned away; nil: nobody is. It is set before Accept is
	// called first.
	Log func(line string)
	// Cause is asked why the stream of the agent on a host has ended, as Step.CauseOf;
	// nil: nobody is. It is set before Accept is called first.
	Cause func(host string) error

	secret Secret
	tcp    net.Listener
	config *tls.Config
	proven chan *Conn
	closed chan struct{}
	ended  sync.WaitGroup
	begin  sync.Once

	// mu guards those who have not proved that they know the secret, in the order in
	// which they came.
	mu      sync.Mutex
	pending []*stranger
	room    chan struct{} // gets a value when one of them is gone
}

// stranger is a connection that has not proved anything.
type stranger struct {
	conn  net.Conn
	since time.Time
}

const (
	// maxStrangers bounds what strangers take of memory. Where there are as many, the
	// one that came first goes, but not before it had strangerTime.
	maxStrangers  = 256
	strangerTime  = time.Second
	handshakeTime = 10 * time.Second
)

// Listen listens on a TCP address for agents that know the secret.
func Listen(addr string, secret Secret) (*Listener, error) {
	cert, err := newCertificate()
	if err != nil {
		return nil, err
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Listener{
		secret: secret, tcp: tcp,
		config: &tls.Config{
			MinVersion:             tls.VersionTLS13,
			Certificates:           []tls.Certificate{cert},
			SessionTicketsDisabled: true,
		},
		proven: make(chan *Conn), closed: make(chan struct{}), room: make(chan struct{}, 1),
	}, nil
}

// newCertificate is one for TLS to work with. Nobody looks at it: it is the secret
// that counts.
func newCertificate() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

// Addr is where agents dial.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Accept waits for the next agent. Its executable may be another than this one: the
// same Version is enough, since who dials in was installed by somebody else. After
// Close it returns net.ErrClosed.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	l.begin.Do(func() {
		l.ended.Add(1)
		go l.listen() // ends with the TCP listener; Close waits
	})
	select {
	case conn := <-l.proven:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close turns away who waits and listens no more. Connections that Accept has
// returned stay.
func (l *Listener) Close() error {
	l.begin.Do(func() {})
	l.mu.Lock()
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	for _, s := range l.pending {
		_ = s.conn.Close()
	}
	l.mu.Unlock()
	err := l.tcp.Close()
	l.ended.Wait()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

func (l *Listener) log(format string, args ...any) {
	if l.Log != nil {
		l.Log(fmt.Sprintf(format, args...))
	}
}

func (l *Listener) listen() {
	defer l.ended.Done()
	for {
		conn, err := l.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // too many files, as a rule
			l.log("accepting an agent: %s", err.Error())
			select {
			case <-time.After(100 * time.Millisecond):
			case <-l.closed:
				return
			}
			continue
		}
		s := &stranger{conn: conn}
		if !l.admit(s) {
			_ = conn.Close()
			return
		}
		l.ended.Go(func() { // ends at its deadline at the latest; Close waits
			defer l.dismiss(s)
			if err := l.meet(s); err != nil {
				_ = conn.Close()
				l.log("turned away %s: %s", conn.RemoteAddr(), oneLine(err.Error()))
			}
		})
	}
}

// admit waits until there is room for a stranger; false: the listener is closed.
func (l *Listener) admit(s *stranger) bool {
	for {
		l.mu.Lock()
		select {
		case <-l.closed:
			l.mu.Unlock()
			return false
		default:
		}
		if len(l.pending) < maxStrangers {
			s.since = time.Now()
			l.pending = append(l.pending, s)
			l.mu.Unlock()
			return true
		}
		wait := time.Until(l.pending[0].since.Add(strangerTime))
		if wait <= 0 {
			_ = l.pending[0].conn.Close()
			l.pending = l.pending[1:]
		}
		l.mu.Unlock()
		if wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-l.room:
			case <-l.closed:
			case <-t.C:
			}
			t.Stop()
		}
	}
}

// dismiss makes room: s is no stranger any more, or gone.
func (l *Listener) dismiss(s *stranger) {
	l.mu.Lock()
	for i, p := range l.pending {
		if p == s {
			l.pending = append(l.pending[:i:i], l.pending[i+1:]...)
			break
		}
	}
	l.mu.Unlock()
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// meet has a stranger prove itself and greet, and hands it to Accept.
func (l *Listener) meet(s *stranger) error {
	raw := s.conn
	_ = raw.SetDeadline(time.Now().Add(handshakeTime))
	conn := tls.Server(raw, l.config)
	if err := conn.Handshake(); err != nil {
		return err
	}
	var proof [macBytes]byte
	if _, err := readFull(conn, proof[:]); err != nil {
		return fmt.Errorf("no proof that it knows the secret: %w", err)
	}
	known, err := l.secret.check(conn, agentLabel, proof[:])
	if err != nil {
		return err
	}
	if !known {
		_, _ = conn.Write([]byte{verdictWrong})
		_ = conn.Close()
		return errors.New("it does not know the secret")
	}
	mine, err := l.secret.proof(conn, gorunLabel)
	if err != nil {
		return err
	}
	if _, err := conn.Write(append([]byte{verdictKnown}, mine...)); err != nil {
		return err
	}
	lines := opening{r: bufio.NewReader(conn)}
	verb, text, err := lines.next()
	if err == nil && verb != verbUp {
		err = errNoGreeting
	}
	if err != nil {
		return err
	}
	peer, err := parseGreeting(text)
	if err != nil {
		return err
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return err
	}
	host := peer.Name
	if host == "" {
		host = peer.Hostname
	}
	c := newNetConn(host, peer, lines.r, conn, l.Cause)
	l.dismiss(s)
	select {
	case l.proven <- c:
		return nil
	case <-l.closed:
		return errors.New("gorun expects nobody any more")
	}
}
