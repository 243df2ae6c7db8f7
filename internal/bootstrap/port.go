package bootstrap

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Processes of different jobs that meet at a port
//
// A rendezvous (rendezvous.go) needs a directory that all ranks share. Processes of different jobs
// need not share one; the program gives them the address of a port instead. The address has the IP
// addresses, the TCP port, and a secret. At a port, ranks that are numbered from 0 find rank 0,
// which has opened the port. They get a World of their own, with the key-value space of a
// rendezvous.

// Port is a port that this process has opened: a listening socket and a secret.
type Port struct {
	l      *net.TCPListener
	n      notice
	closed atomic.Bool
}

// portJob is the job in the notice of a port.
const portJob = "port"

// portMaxAddrs is the maximum number of IP addresses in the address of a port, which is a value of
// PMI-1 when a process spawns others.
const portMaxAddrs = 6

// portScheme begins the address of a port.
const portScheme = "weft:"

// errAddress is the error for a text that is not the address of a port.
var errAddress = errors.New("not the address of a port")

// OpenPort opens a port at which size processes can meet, this one included.
func OpenPort(size int) (*Port, error) {
	r := rendezvous{place: &place{}}
	l, addrs, err := r.listen()
	if err != nil {
		return nil, err
	}
	addrs = addrs[:min(len(addrs), portMaxAddrs)]
	secret := NewSecret()
	return &Port{l: l, n: notice{
		Version: noticeVersion, Job: portJob, Size: size, Host: hostKey(), Addrs: addrs, Port: l.Addr().(*net.TCPAddr).Port,
		Secret: secret[:], Seconds: 1,
	}}, nil
}

// Addr returns the address of the port, a text without spaces. A process that has it can connect to
// the port.
func (p *Port) Addr() string {
	text, _ := json.Marshal(&p.n) // a struct of texts and numbers has always a JSON form
	return portScheme + base64.RawURLEncoding.EncodeToString(text)
}

// parseAddr returns the notice in the address of a port.
func parseAddr(addr string) (*notice, error) {
	coded, ok := strings.CutPrefix(addr, portScheme)
	if !ok || len(coded) > noticeMaxBytes {
		return nil, errAddress
	}
	text, err := base64.RawURLEncoding.DecodeString(coded)
	if err != nil {
		return nil, errAddress
	}
	n, err := parseNotice(text)
	if err != nil || n.Job != portJob {
		return nil, errAddress
	}
	return n, nil
}

// PortSize returns the number of processes that can meet at the port with this address.
func PortSize(addr string) (int, error) {
	n, err := parseAddr(addr)
	if err != nil {
		return 0, err
	}
	return n.Size, nil
}

// Close closes the port, and ends a Meet that waits. Processes that have met there stay connected.
func (p *Port) Close() error {
	p.closed.Store(true)
	return p.l.Close()
}

// Meeting says how a process meets others at a port.
type Meeting struct {
	Own   *World        // the World of this process, whose parameters and cores the new one gets
	Limit time.Duration // time limit until all processes have met; 0: none
	// With is the World of an earlier meeting of rank 0 with a process, without which this meeting
	// cannot succeed: Meet fails if that process leaves the earlier one first. It may be nil.
	With *World
	// Exit is called after another process has aborted the meeting, with its exit code and a line
	// that names the reason. It ends this process, and returns only in tests.
	Exit func(code int, line string)
}

// Meet blocks until all processes have called Join with the address of the port, and returns the
// World of this process, rank 0. Several calls one after the other make several worlds.
func (p *Port) Meet(ctx context.Context, m Meeting) (*World, error) {
	r := m.rendezvous(0, p.n.Size)
	l, err := duplicate(p.l) // the hub closes its listener when all have met
	if err != nil {
		return nil, err
	}
	k := &hubKVS{}
	h := newHub(l, r.session(p.n.Secret), r.timeout, m.Exit)
	k.transport = h
	err = h.awaitAll(ctx, m.Limit, func() error {
		if p.closed.Load() {
			return net.ErrClosed
		}
		if m.With != nil && m.With.left() {
			return gone("a process that is needed has gone: %w", io.ErrUnexpectedEOF)
		}
		return nil
	})
	if err != nil {
		h.mu.Lock()
		h.fail(err)
		h.mu.Unlock()
		_ = h.close()
		return nil, err
	}
	return m.world(ctx, k, r, p.n.Secret)
}

// left reports whether a process has left a meeting in which this process is rank 0.
func (w *World) left() bool {
	k, ok := w.KVS.(*hubKVS)
	if !ok {
		return false
	}
	h, ok := k.transport.(*hub)
	return ok && h.anyLeft()
}

func duplicate(l *net.TCPListener) (*net.TCPListener, error) {
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is a duplicate, which FileListener has duplicated again
	d, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return d.(*net.TCPListener), nil
}

// Join connects to the port with this address, and blocks until all processes have met there. It
// returns the World of this process, which has the given rank.
func Join(ctx context.Context, addr string, rank int, m Meeting) (*World, error) {
	n, err := parseAddr(addr)
	if err != nil {
		return nil, err
	}
	r := m.rendezvous(rank, n.Size)
	begun, wait := time.Now(), ctx
	if m.Limit > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, m.Limit)
		defer cancel()
	}
	pause := firstPause
	var cut time.Time // when the other side first ended the connection without an answer; zero: it has not
	for {
		c, err := r.dialPort(wait, n)
		if err == nil {
			k := &hubKVS{rank: rank, transport: newSpoke(c, n.Size, r.timeout, m.Exit)}
			return m.world(ctx, k, r, n.Secret)
		}
		again := errors.Is(err, errBusy) || errors.Is(err, os.ErrDeadlineExceeded)
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) {
			// Another process has taken the place, or the secret is wrong.
			if cut.IsZero() {
				cut = time.Now()
			}
			again = time.Since(cut) < cutLimit
		}
		if !again || wait.Err() != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, fmt.Errorf("connect to the port: after %v: %w", time.Since(begun).Round(time.Millisecond), err)
		}
		select { // the port is in use, or nobody accepts there yet
		case <-time.After(pause):
			pause = min(pause*3/2, lastPause)
		case <-wait.Done():
		}
	}
}

// cutLimit is how long Join tries again after the other side has ended a connection without an answer.
const cutLimit = 2 * time.Second

func (r *rendezvous) dialPort(ctx context.Context, n *notice) (net.Conn, error) {
	c, gone, err := r.connect(ctx, n)
	if gone {
		err = fmt.Errorf("nobody listens there, or the address has another secret: %w", err)
	}
	return c, err
}

func (m *Meeting) rendezvous(rank, size int) *rendezvous {
	return &rendezvous{
		place: &place{job: portJob, rank: rank, size: size}, path: "the port's address",
		timeout: m.Own.Params.Duration("bootstrap.timeout"), exit: m.Exit,
	}
}

// StartAbort sends an abort to the other ranks of a world of Meet or Join. It does not wait as
// KVS.Abort does: wait does that.
func (w *World) StartAbort(a Abort) (wait func()) {
	if m, ok := w.KVS.(*hubKVS); ok {
		if wait, err := m.startAbort(a); err == nil {
			return wait
		}
	}
	return func() {}
}

// world completes the meeting by the first fence.
func (m *Meeting) world(ctx context.Context, k *hubKVS, r *rendezvous, secret []byte) (*World, error) {
	hosts, err := k.firstFence(ctx, r.size)
	if err != nil {
		_ = k.transport.close() // the error above says more
		return nil, err
	}
	id := derive(secret, "job id")
	return &World{
		Rank: r.rank, Size: r.size, HostOf: hosts, Cores: m.Own.Cores,
		JobID: hex.EncodeToString(id[:8]), Secret: derive(secret, "job secret"),
		Launcher: "connection", Params: m.Own.Params, KVS: k,
	}, nil
}
