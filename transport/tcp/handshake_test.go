package tcp

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

func ident(rank uint32) *identity {
	return &identity{rank: rank, size: 4, jobID: "job", secret: [32]byte{9}}
}

// runHandshake runs both sides of a handshake over a pipe: a connects to the rank to, and b
// answers. It returns the verdict and the error that a gets, then the rank that b takes a for and
// b's error.
func runHandshake(t *testing.T, a, b *identity, to uint32) (wire.TCPVerdict, error, uint32, error) {
	t.Helper()
	ca, cb := net.Pipe()
	type result struct {
		rank uint32
		err  error
	}
	done := make(chan result)
	go func() { // ends with the handshake; the test receives from done below
		s, err := b.receiveHello(cb)
		if err == nil {
			err = b.challenge(cb, &s)
		}
		if err == nil {
			err = answer(cb, &s, wire.TCPWelcome)
		}
		_ = cb.Close()
		done <- result{s.From, err}
	}()
	v, _, err := a.initiate(ca, to)
	_ = ca.Close()
	r := <-done
	return v, err, r.rank, r.err
}

func TestHandshake(t *testing.T) {
	v, err, from, rerr := runHandshake(t, ident(1), ident(2), 2)
	require.NoError(t, err)
	require.NoError(t, rerr)
	require.Equal(t, wire.TCPWelcome, v)
	require.EqualValues(t, 1, from)
}

func TestHandshakeRefused(t *testing.T) {
	for name, change := range map[string]func(*identity){
		"secret":      func(i *identity) { i.secret[0]++ },
		"job":         func(i *identity) { i.jobID = "another" },
		"size":        func(i *identity) { i.size++ },
		"rank beyond": func(i *identity) { i.rank = 4 },
		"own rank":    func(i *identity) { i.rank = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			i := ident(1)
			change(i)
			_, err, _, rerr := runHandshake(t, i, ident(2), 2)
			require.Error(t, err)
			require.ErrorIs(t, rerr, errNotMember)
		})
	}
	_, err, _, rerr := runHandshake(t, ident(1), ident(2), 3) // the responder is not the rank that the hello names
	require.Error(t, err)
	require.ErrorIs(t, rerr, errNotMember)
}

// TestHandshakeReflected has a process that does not know the secret act as the responder: it sends
// the initiator's own messages back to the initiator. The initiator returns errNotProven.
func TestHandshakeReflected(t *testing.T) {
	ca, cb := net.Pipe()
	done := make(chan error)
	go func() { // ends with the handshake; the test receives from done below
		defer cb.Close()
		var hello [wire.TCPHelloSize]byte
		_, err := io.ReadFull(cb, hello[:])
		var h wire.TCPHello
		h.Parse(hello[:])
		var ch [wire.TCPChallengeSize]byte
		wire.PutTCPChallenge(ch[:], &h.Nonce)
		_, err2 := cb.Write(ch[:])
		var m wire.TCPMac
		_, err3 := io.ReadFull(cb, m[:])
		var v [wire.TCPVerdictSize]byte
		wire.PutTCPVerdict(v[:], wire.TCPWelcome, &m)
		_, err4 := cb.Write(v[:])
		done <- errors.Join(err, err2, err3, err4)
	}()
	_, _, err := ident(1).initiate(ca, 2)
	require.ErrorIs(t, err, errNotProven)
	require.ErrorIs(t, err, transport.ErrPeerDown)
	require.NoError(t, <-done)
}

// recorder is a connection that stores the bytes written to it.
type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) { r.sent.Write(b); return r.Conn.Write(b) }

// dialRank connects to a rank's listener, without a handshake.
func dialRank(t *testing.T, n *testRank) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", string(n.ep.Address()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	return c
}

// TestHandshakeReplayed has a process send the messages that the initiator of an earlier handshake
// sent. The rank sends no verdict, and reports a PeerNotice.
func TestHandshakeReplayed(t *testing.T) {
	all := openRanks(t, 2)
	r := &recorder{Conn: dialRank(t, all[0])}
	v, _, err := all[1].dom.links.id.initiate(r, 0)
	require.NoError(t, err)
	require.Equal(t, wire.TCPWelcome, v)

	c := dialRank(t, all[0])
	_, err = c.Write(r.sent.Bytes())
	require.NoError(t, err)
	got, _ := io.ReadAll(c) // the error does not matter: it may be a reset
	require.LessOrEqual(t, len(got), wire.TCPChallengeSize)
	n := await(t, all[:1], all[0], kind(transport.PeerNotice))
	require.ErrorIs(t, n.Err, errNotMember)
}

// TestHelloRepeated has a process outside the job send the hello of a peer while that peer's own
// handshake is under way. The peer's handshake succeeds. The other process gets no answer, and the
// rank reports it with a PeerNotice.
func TestHelloRepeated(t *testing.T) {
	all := openRanks(t, 2)
	peer := dialRank(t, all[0])
	s := all[1].dom.links.id.session(1, 0)
	_, _ = rand.Read(s.Initiator[:])
	h := s.Hello()
	var hello [wire.TCPHelloSize]byte
	h.Put(hello[:])
	_, err := peer.Write(hello[:])
	require.NoError(t, err)
	var ch [wire.TCPChallengeSize]byte
	_, err = io.ReadFull(peer, ch[:])
	require.NoError(t, err)
	require.True(t, wire.ParseTCPChallenge(ch[:], &s.Responder))

	other := dialRank(t, all[0])
	_, err = other.Write(hello[:])
	require.NoError(t, err)
	got := make([]byte, 1)
	n, err := other.Read(got) // the error may be the end of the stream or a reset
	require.Zero(t, n)
	require.NotErrorIs(t, err, errTimeout)

	m := s.Proof()
	_, err = peer.Write(m[:])
	require.NoError(t, err)
	var vb [wire.TCPVerdictSize]byte
	_, err = io.ReadFull(peer, vb[:])
	require.NoError(t, err)
	v, ok := wire.ParseTCPVerdict(vb[:], &m)
	require.True(t, ok)
	require.Equal(t, wire.TCPWelcome, v)
	notice := await(t, all[:1], all[0], kind(transport.PeerNotice))
	require.ErrorContains(t, notice.Err, "it repeats what rank 1 sent")
}

// TestNoncesAreBounded checks that a rank keeps at most maxNonces nonces of a peer that tries to
// connect, and none of a peer that it is connected with.
func TestNoncesAreBounded(t *testing.T) {
	all := openRanks(t, 3)
	k := all[0].dom.links
	record := func(rank transport.Addr, i int) bool {
		var nonce wire.TCPNonce
		binary.LittleEndian.PutUint64(nonce[:], uint64(i))
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.recordNonceLocked(rank, nonce)
	}
	kept := func(rank transport.Addr) int {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.nonces[rank])
	}
	for i := range 3 * maxNonces {
		require.True(t, record(1, i))
		require.False(t, record(1, i))
		require.False(t, record(1, max(0, i-maxNonces+1)))
	}
	require.Equal(t, maxNonces, kept(1))
	require.True(t, record(2, 0))
	connected(t, all, 1, 0)
	require.Zero(t, kept(1))
	require.True(t, record(1, 0))
	require.Zero(t, kept(1))
	require.False(t, record(2, 0))
	k.refuse(2)
	require.Zero(t, kept(2))
}

// TestDuplicate has a connected peer connect a second time. The second attempt gets the verdict
// busy, and the first connection still works.
func TestDuplicate(t *testing.T) {
	all := openRanks(t, 2)
	connected(t, all, 1, 0)
	c, err := net.Dial("tcp", string(all[0].ep.Address()))
	require.NoError(t, err)
	defer c.Close()
	v, _, err := all[1].dom.links.id.initiate(c, 0)
	require.NoError(t, err)
	require.Equal(t, wire.TCPBusy, v)
	connected(t, all, 1, 0) // a message passes through the first connection
}

// TestInvalidHandshakes sends random bytes, some of them after a valid hello, to the listener of a
// rank. The rank answers at most with a challenge, reports a single PeerNotice, and its connection
// with a peer still works.
func TestInvalidHandshakes(t *testing.T) {
	all := openRanks(t, 2)
	connected(t, all, 0, 1)
	var magic [wire.TCPHelloSize]byte
	s := all[1].dom.links.id.session(1, 0)
	h := s.Hello()
	h.Put(magic[:])
	for i := range 60 {
		c, err := net.Dial("tcp", string(all[0].ep.Address()))
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
		b := make([]byte, 1+i*7)
		_, _ = rand.Read(b)
		if i%3 == 0 {
			b = append(magic[:len(magic):len(magic)], b...)
		}
		_, _ = c.Write(b) // the rank may have closed the connection
		_ = c.(*net.TCPConn).CloseWrite()
		got, _ := io.ReadAll(c)
		require.LessOrEqual(t, len(got), wire.TCPChallengeSize)
		require.NoError(t, c.Close())
	}
	await(t, all, all[0], kind(transport.PeerNotice))
	connected(t, all, 0, 1)
	for range 100 {
		for _, c := range all[0].read(t) {
			require.NotEqual(t, transport.PeerNotice, c.Kind, "a second notice: %v", c.Err)
		}
	}
}

// TestWrongSecret has rank 0 send a message to rank 1, which has another secret. Rank 1 closes the
// connections of rank 0 without an answer. The message fails after transport.tcp.connect_timeout,
// and its error has the rank and the address of rank 1.
func TestWrongSecret(t *testing.T) {
	all := openRanks(t, 2, connectTimeout(t, "200ms"), func(c *transport.Config) { c.Secret[5] = byte(c.Self) })
	op := &transport.Op{Peer: 1}
	done, err := all[0].ep.Send(op)
	require.NoError(t, err)
	require.False(t, done)
	c := await(t, all, all[0], kind(transport.OpDone))
	require.Same(t, op, c.Op)
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
	require.ErrorContains(t, c.Err, "no connection within 200ms (transport.tcp.connect_timeout)")
	var te *transport.Error
	require.ErrorAs(t, c.Err, &te)
	require.Equal(t, transport.Addr(1), te.Peer)
	require.Equal(t, all[1].ep.Address(), te.Address)
	_, err = all[0].ep.Send(op)
	require.ErrorIs(t, err, transport.ErrPeerDown)
}

// TestSimultaneous has two ranks connect to each other at the same time, each with five queued
// messages, many times. All messages arrive in order, and each rank keeps one connection.
func TestSimultaneous(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	const count = 5
	for range rounds {
		all := make([]*testRank, 2)
		for i := range all {
			n, err := openRank(config(i, 2))
			require.NoError(t, err)
			all[i] = n
		}
		for _, n := range all {
			_, err := n.dom.av.Insert([]transport.Address{all[0].ep.Address(), all[1].ep.Address()})
			require.NoError(t, err)
		}
		for i, n := range all {
			for k := range count {
				op := &transport.Op{Peer: transport.Addr(1 - i), HeaderLen: 1}
				op.Header[0] = byte(k)
				_, err := n.ep.Send(op)
				require.NoError(t, err)
			}
		}
		var got, done [2]int
		for end := time.Now().Add(testTimeout); got[0] < count || got[1] < count; {
			require.True(t, time.Now().Before(end), "got %v, done %v", got, done)
			for i, n := range all {
				for _, c := range n.read(t) {
					switch c.Kind {
					case transport.RecvDone:
						require.Equal(t, []byte{byte(got[i])}, c.Msg)
						got[i]++
					case transport.OpDone:
						require.NoError(t, c.Err)
						done[i]++
					default:
						t.Fatalf("kind %d: %v", c.Kind, c.Err)
					}
				}
			}
		}
		for _, n := range all {
			require.Len(t, n.dom.live, 1)
			require.NoError(t, n.dom.Close())
		}
	}
}

// FuzzHandshake sends arbitrary bytes to the responder and to the initiator of a handshake, as a
// process without the secret could. Both return an error.
func FuzzHandshake(f *testing.F) {
	id := identity{rank: 1, size: 2, jobID: "j", secret: [32]byte{1}, security: wire.TCPEncrypt}
	s := wire.TCPSession{Secret: [32]byte{2}, JobID: "j", Size: 2, To: 1, Security: wire.TCPEncrypt}
	h := s.Hello()
	hello := make([]byte, wire.TCPHelloSize)
	h.Put(hello)
	m := s.Proof()
	f.Add(append(hello, m[:]...))
	answer := make([]byte, wire.TCPChallengeSize+wire.TCPVerdictSize)
	wire.PutTCPChallenge(answer, &wire.TCPNonce{3})
	wire.PutTCPVerdict(answer[wire.TCPChallengeSize:], wire.TCPBusy, &m)
	f.Add(answer)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		handshake := func(side func(c net.Conn) error) error {
			a, c := net.Pipe()
			done := make(chan struct{}, 2)
			go func() { // ends when the pipe is closed
				_, _ = c.Write(b)
				_ = c.Close()
				done <- struct{}{}
			}()
			go func() { // ends when the pipe is closed
				_, _ = io.Copy(io.Discard, c)
				done <- struct{}{}
			}()
			err := side(a)
			_ = a.Close()
			<-done
			<-done
			return err
		}
		require.Error(t, handshake(func(c net.Conn) error {
			s, err := id.receiveHello(c)
			if err == nil {
				err = id.challenge(c, &s)
			}
			return err
		}))
		require.Error(t, handshake(func(c net.Conn) error {
			_, _, err := id.initiate(c, 0)
			return err
		}))
	})
}
