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

// shake runs both sides of a handshake over a pipe.
func shake(t *testing.T, a, b *identity, to uint32) (wire.TCPVerdict, error, uint32, error) {
	t.Helper()
	ca, cb := net.Pipe()
	type result struct {
		rank uint32
		err  error
	}
	done := make(chan result)
	go func() { // ends with the handshake; received from below
		s, err := b.meet(cb)
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
	v, err, from, rerr := shake(t, ident(1), ident(2), 2)
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
			_, err, _, rerr := shake(t, i, ident(2), 2)
			require.Error(t, err)
			require.ErrorIs(t, rerr, errStranger)
		})
	}
	_, err, _, rerr := shake(t, ident(1), ident(2), 3) // to somebody else
	require.Error(t, err)
	require.ErrorIs(t, rerr, errStranger)
}

// TestHandshakeReflected has a process without the secret answer an initiator
// with the initiator's own messages.
func TestHandshakeReflected(t *testing.T) {
	ca, cb := net.Pipe()
	done := make(chan error)
	go func() { // ends with the handshake; received from below
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

// recorder keeps what is written through it.
type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) { r.sent.Write(b); return r.Conn.Write(b) }

// TestHandshakeReplayed plays an initiator's part of an earlier handshake.
func TestHandshakeReplayed(t *testing.T) {
	all := nodes(t, 2)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", string(all[0].ep.Address()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	r := &recorder{Conn: dial()}
	v, _, err := all[1].dom.links.id.initiate(r, 0)
	require.NoError(t, err)
	require.Equal(t, wire.TCPWelcome, v)

	c := dial()
	_, err = c.Write(r.sent.Bytes())
	require.NoError(t, err)
	got, _ := io.ReadAll(c) // its error may be a reset
	require.LessOrEqual(t, len(got), wire.TCPChallengeSize)
	n := await(t, all[:1], all[0], kind(transport.PeerNotice))
	require.ErrorIs(t, n.Err, errStranger)
}

// TestHelloRepeated has a stranger repeat the hello of a peer that is in the handshake: the
// peer's connection goes on, and the stranger gets nothing.
func TestHelloRepeated(t *testing.T) {
	all := nodes(t, 2)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", string(all[0].ep.Address()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	peer := dial()
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

	stranger := dial()
	_, err = stranger.Write(hello[:])
	require.NoError(t, err)
	got := make([]byte, 1)
	n, err := stranger.Read(got) // its error may be a reset
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

// TestNoncesAreBounded: a rank keeps the nonces of a peer that tries to connect, up to a
// number, and none of a peer that it has a connection with.
func TestNoncesAreBounded(t *testing.T) {
	all := nodes(t, 3)
	k := all[0].dom.links
	meet := func(rank transport.Addr, i int) bool {
		var nonce wire.TCPNonce
		binary.LittleEndian.PutUint64(nonce[:], uint64(i))
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.meetLocked(rank, nonce)
	}
	kept := func(rank transport.Addr) int {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.met[rank])
	}
	for i := range 3 * maxMet {
		require.True(t, meet(1, i))
		require.False(t, meet(1, i))
		require.False(t, meet(1, max(0, i-maxMet+1)))
	}
	require.Equal(t, maxMet, kept(1))
	require.True(t, meet(2, 0))
	connected(t, all, 1, 0)
	require.Zero(t, kept(1))
	require.True(t, meet(1, 0))
	require.Zero(t, kept(1))
	require.False(t, meet(2, 0))
	k.gone(2)
	require.Zero(t, kept(2))
}

// TestDuplicate has an authenticated peer connect a second time.
func TestDuplicate(t *testing.T) {
	all := nodes(t, 2)
	connected(t, all, 1, 0)
	c, err := net.Dial("tcp", string(all[0].ep.Address()))
	require.NoError(t, err)
	defer c.Close()
	v, _, err := all[1].dom.links.id.initiate(c, 0)
	require.NoError(t, err)
	require.Equal(t, wire.TCPBusy, v)
	connected(t, all, 1, 0) // the first is in order
}

// TestStrangers throws bytes at the listener of a job at work.
func TestStrangers(t *testing.T) {
	all := nodes(t, 2)
	connected(t, all, 0, 1)
	var magic [wire.TCPHelloSize]byte
	s := all[1].dom.links.id.session(1, 0)
	h := s.Hello()
	h.Put(magic[:])
	for i := range 60 {
		c, err := net.Dial("tcp", string(all[0].ep.Address()))
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		b := make([]byte, 1+i*7)
		_, _ = rand.Read(b)
		if i%3 == 0 {
			b = append(magic[:len(magic):len(magic)], b...)
		}
		_, _ = c.Write(b) // it may be closed already
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

// TestWrongSecret has a rank connect to one that closes the connection without a word.
func TestWrongSecret(t *testing.T) {
	all := nodes(t, 2, connectTimeout(t, "200ms"), func(c *transport.Config) { c.Secret[5] = byte(c.Self) })
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

// TestSimultaneous has two ranks connect to each other at once, again and
// again, each with messages waiting.
func TestSimultaneous(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	const count = 5
	for range rounds {
		all := make([]*node, 2)
		for i := range all {
			n, err := newNode(config(i, 2))
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
		for end := time.Now().Add(patience); got[0] < count || got[1] < count; {
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

// FuzzHandshake has a stranger say anything as the initiator and as the responder of a
// handshake. Neither side believes it.
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
		said := func(side func(c net.Conn) error) error {
			a, c := net.Pipe()
			done := make(chan struct{}, 2)
			go func() { // ends with the pipe
				_, _ = c.Write(b)
				_ = c.Close()
				done <- struct{}{}
			}()
			go func() { // the same
				_, _ = io.Copy(io.Discard, c)
				done <- struct{}{}
			}()
			err := side(a)
			_ = a.Close()
			<-done
			<-done
			return err
		}
		require.Error(t, said(func(c net.Conn) error {
			s, err := id.meet(c)
			if err == nil {
				err = id.challenge(c, &s)
			}
			return err
		}))
		require.Error(t, said(func(c net.Conn) error {
			_, _, err := id.initiate(c, 0)
			return err
		}))
	})
}
