package tcp

import (
	"bytes"
	"crypto/rand"
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
		s, err := b.greet(cb)
		if err == nil {
			err = answer(cb, &s, wire.TCPWelcome)
		}
		_ = cb.Close()
		done <- result{s.From, err}
	}()
	v, err := a.initiate(ca, to)
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
	_, err := ident(1).initiate(ca, 2)
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
	v, err := all[1].dom.links.id.initiate(r, 0)
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

// TestDuplicate has an authenticated peer connect a second time.
func TestDuplicate(t *testing.T) {
	all := nodes(t, 2)
	connected(t, all, 1, 0)
	c, err := net.Dial("tcp", string(all[0].ep.Address()))
	require.NoError(t, err)
	defer c.Close()
	v, err := all[1].dom.links.id.initiate(c, 0)
	require.NoError(t, err)
	require.Equal(t, wire.TCPBusy, v)
	connected(t, all, 1, 0) // the first is in order
}

// TestStrangers throws bytes at the listener of a job at work.
func TestStrangers(t *testing.T) {
	all := nodes(t, 2)
	connected(t, all, 0, 1)
	var magic [wire.TCPHelloSize]byte
	(&wire.TCPHello{From: 1, To: 0}).Put(magic[:])
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

// TestSilentStrangers holds connections open without a word; peers get through.
func TestSilentStrangers(t *testing.T) {
	all := nodes(t, 2)
	for range maxStrangers - 1 {
		c, err := net.Dial("tcp", string(all[1].ep.Address()))
		require.NoError(t, err)
		defer c.Close()
	}
	connected(t, all, 0, 1)
	await(t, all, all[1], kind(transport.PeerNotice)) // their time is up
}

func TestWrongSecret(t *testing.T) {
	all := nodes(t, 2, func(c *transport.Config) { c.Secret[5] = byte(c.Self) })
	op := &transport.Op{Peer: 1}
	done, err := all[0].ep.Send(op)
	require.NoError(t, err)
	require.False(t, done)
	c := await(t, all, all[0], kind(transport.OpDone))
	require.Same(t, op, c.Op)
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
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
