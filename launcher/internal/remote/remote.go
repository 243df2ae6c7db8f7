// Package remote makes the byte streams between gorun and its agents, which are
// gorun itself on other hosts.
//
//	gorun (or an agent above)              an agent
//	SSH.Open ──► ssh ──► sshd ──► sh ──► gorun -agent            Stdio
//	Listener ◄──────── TLS ───────────── gorun -agent -connect   Dial
//	               started by Srun, by a cluster's manager, or by the user
//
// An agent greets first: with the version of the protocol, the hash of its
// executable, its host's name and its pid. SSH.Open and Listener.Accept return
// when they have read that.
//
// What main has to do for an agent:
//
//	gorun -agent -hash   PrintHash(os.Stdout), and no more
//	gorun -agent         conn, err := Stdio("")
//	gorun -agent -connect HOST:PORT -secret-file FILE
//	                     Dial(ctx, HOST:PORT, secret, os.Getenv("SLURMD_NODENAME"))
package remote

import (
	"context"
	"io"
	"sync"
	"time"
)

// Conn is a stream between gorun, or an agent, and an agent below it. It is a
// tree.Stream. Read and Write may run at the same time; Close unblocks both and may
// be called again.
type Conn struct {
	host  string
	peer  Greeting
	r     io.Reader
	w     io.Writer
	end   func() error
	cause func() error // nil: nothing is known
	net   *netConn     // nil: it is none

	closing  sync.Once
	closeErr error
}

// Host is the name of the host at the other end, as the one who connects knows it.
func (c *Conn) Host() string { return c.host }

// Peer is what the agent said first. At the agent's own end it is what the agent
// has said.
func (c *Conn) Peer() Greeting { return c.peer }

// Read reads what the other end has written.
func (c *Conn) Read(p []byte) (int, error) { return c.r.Read(p) }

// Write writes p. It blocks while the other end does not read.
func (c *Conn) Write(p []byte) (int, error) { return c.w.Write(p) }

// Cause says in one line, which begins with the host's name, why the stream has
// ended; nil: it does not know. It is asked after a Read has failed, and may take a
// second to see how ssh ends.
func (c *Conn) Cause() error {
	if c.cause == nil {
		return nil
	}
	return c.cause()
}

// Close ends the stream, and the ssh that it goes through. It returns when that has
// been reaped, within a second.
func (c *Conn) Close() error {
	c.closing.Do(func() { c.closeErr = c.end() })
	return c.closeErr
}

// Await is for an agent that has dialled in: it waits until gorun has something to
// say, however long it takes others to come, or until the stream ends, which the next
// Read tells. The end of ctx closes the stream.
func (c *Conn) Await(ctx context.Context) {
	if c.net == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // unblocks Peek
	defer stop()
	_, _ = c.net.r.Peek(1)
}

// Gone says whether an agent that has dialled in, and has been told nothing yet, is
// gone by now.
func (c *Conn) Gone() bool { return c.net != nil && c.net.readable() }

// defaultTimeout is how long a host may be silent while it is being connected.
const defaultTimeout = 10 * time.Second
