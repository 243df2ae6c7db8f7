// Package remote makes the byte streams between gorun and its agents. An agent is gorun on another
// host.
//
//	gorun (or the parent agent)            an agent
//	SSH.Open ──► ssh ──► sshd ──► sh ──► gorun -agent            Stdio
//	Listener ◄──────── TLS ───────────── gorun -agent -connect   Dial
//	               started by Srun, by a cluster's manager, or by the user
//
// An agent sends a greeting first: the version of the protocol, the hash of its executable, its
// hostname, its pid, and the name by which gorun knows its host, if the agent knows this name.
// SSH.Open and Listener.Accept return a stream only after its greeting was read.
//
// What main must do:
//
//	gorun -agent -hash   PrintHash(os.Stdout), and nothing else
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

// Conn is a stream between an agent and its parent. It is a tree.Stream. Read and Write may run at
// the same time. Close unblocks both, and is idempotent.
type Conn struct {
	host  string
	peer  Greeting
	r     io.Reader
	w     io.Writer
	end   func() error // ends the stream; Close calls it once
	cause func() error // Cause calls it; nil: Cause returns nil
	net   *netConn     // nil: the stream is not a TLS connection

	closing  sync.Once
	closeErr error
}

// Host returns the name of the host at the other end, as this end knows it. At an agent that has
// dialled in, this is the host in the address that it dialled; at an agent that ssh has started, it
// is "gorun".
func (c *Conn) Host() string { return c.host }

// Peer returns the agent's greeting. At an agent this is its own greeting.
func (c *Conn) Peer() Greeting { return c.peer }

// Read reads what the other end has written.
func (c *Conn) Read(p []byte) (int, error) { return c.r.Read(p) }

// Write writes p. It blocks while the other end does not read.
func (c *Conn) Write(p []byte) (int, error) { return c.w.Write(p) }

// Cause returns why the stream has ended, in one line that begins with the host's name. nil: the
// cause is not known, or the other end has ended normally. The caller calls it after a Read has
// failed. Cause may take a second, because it waits for the end of ssh or srun.
func (c *Conn) Cause() error {
	if c.cause == nil {
		return nil
	}
	return c.cause()
}

// Close ends the stream. If ssh carries the stream, Close also ends ssh, and returns when ssh was
// reaped, usually within a second.
func (c *Conn) Close() error {
	c.closing.Do(func() { c.closeErr = c.end() })
	return c.closeErr
}

// Await blocks, at an agent that has dialled in, until gorun sends something. It has no time limit,
// because gorun sends nothing before all agents have dialled in, and another agent may do this much
// later. Await also returns if the stream ends; the next Read reports that. If ctx ends, Await
// closes the stream. For a stream over ssh Await does nothing.
func (c *Conn) Await(ctx context.Context) {
	if c.net == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // unblocks Peek
	defer stop()
	_, _ = c.net.r.Peek(1)
}

// PeerClosed reports whether an agent that has dialled in has closed the stream. gorun may call it
// only while it has sent nothing to the agent: then the agent sends nothing either, so a readable
// stream has ended. For a stream over ssh PeerClosed returns false.
func (c *Conn) PeerClosed() bool { return c.net != nil && c.net.readable() }

// defaultTimeout is how long a host may be silent while gorun connects with it.
const defaultTimeout = 10 * time.Second
