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
	"io"
	"math/big"
	"net"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/admission"
)

// Listener accepts the connections of agents.
type Listener struct {
	// Log gets a line for each connection that is refused, and for each error of accept(2); nil: no
	// log. The caller sets it before the first Accept.
	Log func(line string)
	// Cause returns why the stream of the agent on a host has ended. It may be Step.CauseOf, for
	// example. nil: Conn.Cause returns only the network's error. The caller sets Cause before the
	// first Accept.
	Cause func(host string) error

	secret Secret
	tcp    *net.TCPListener
	config *tls.Config
	proven chan *Conn    // connections that have proved that they know the secret, on their way to Accept
	closed chan struct{} // closed by Close

	mu   sync.Mutex      // guards gate and done
	gate *admission.Gate // nil: Accept has not been called
	done bool            // Close has been called
}

const (
	// maxUnproven is the largest number of connections that have not proved yet that they know the
	// secret.
	maxUnproven   = 256
	handshakeTime = 10 * time.Second // time for the handshake, the proofs and the greeting
)

// Listen listens on a TCP address for agents that know the secret. The caller must call Close.
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
		secret: secret, tcp: tcp.(*net.TCPListener),
		config: &tls.Config{
			MinVersion:             tls.VersionTLS13,
			Certificates:           []tls.Certificate{cert},
			SessionTicketsDisabled: true,
		},
		proven: make(chan *Conn), closed: make(chan struct{}),
	}, nil
}

// newCertificate makes a certificate because TLS needs one. Agents do not check it; they check the
// proof of the secret.
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

// Addr returns the address that agents dial.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Accept waits for the next agent. The agent may run another executable than this one, because the
// user may have installed it; only the Version must be the same. If ctx ends, Accept returns its
// cause. After Close it returns net.ErrClosed.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	l.mu.Lock()
	if l.gate == nil && !l.done {
		// The last argument is called if accept(2) fails, usually because of too many open files.
		l.gate = admission.Serve(l.tcp, maxUnproven, l.receive, func(err error) {
			l.log("accepting an agent: %s", err.Error())
		})
	}
	l.mu.Unlock()
	select {
	case conn := <-l.proven:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close closes the listener and the connections that Accept has not returned, and waits until this
// is done. Connections that Accept has returned stay open. Close is idempotent.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		l.done = true
		close(l.closed)
	}
	if l.gate == nil {
		if err := l.tcp.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
	l.gate.Close()
	l.gate.Wait()
	return nil
}

func (l *Listener) log(format string, args ...any) {
	if l.Log != nil {
		l.Log(fmt.Sprintf(format, args...))
	}
}

// receive performs the handshake of a connection. After an error it logs the error and closes the
// connection.
func (l *Listener) receive(c *admission.Conn) {
	if err := l.handshake(c); err != nil {
		_ = c.Close()
		l.log("turned away %s: %s", c.RemoteAddr(), oneLine(err.Error()))
	}
}

// handshake checks that the other end knows the secret, reads its greeting, and passes the
// connection to Accept.
func (l *Listener) handshake(c *admission.Conn) error {
	if err := c.Await(); err != nil {
		return err
	}
	c.Heard()
	raw := c.TCPConn
	_ = raw.SetDeadline(time.Now().Add(handshakeTime))
	conn := tls.Server(raw, l.config)
	if err := conn.Handshake(); err != nil {
		return err
	}
	var proof [macBytes]byte
	if _, err := io.ReadFull(conn, proof[:]); err != nil {
		return fmt.Errorf("no proof that it knows the secret: %w", err)
	}
	known, err := l.secret.check(conn, agentLabel, proof[:])
	if err != nil {
		return err
	}
	if !known {
		_, _ = conn.Write([]byte{answerRefused})
		_ = conn.Close()
		return errors.New("it does not know the secret")
	}
	mine, err := l.secret.proof(conn, gorunLabel)
	if err != nil {
		return err
	}
	if _, err := conn.Write(append([]byte{answerAccepted}, mine...)); err != nil {
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
	c.Proved()
	select {
	case l.proven <- newNetConn(host, peer, lines.r, conn, l.Cause):
		return nil
	case <-l.closed:
		return errors.New("gorun accepts no more agents")
	}
}
