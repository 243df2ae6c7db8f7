package tcp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// withSecurity returns a function that sets transport.tcp.security in a rank's configuration. Rank
// i gets the i-th value; ranks beyond the last value get the last value.
func withSecurity(security ...string) func(*transport.Config) {
	return func(c *transport.Config) {
		c.Params = &params.Set{}
		if err := c.Params.Set("transport.tcp.security", security[min(int(c.Self), len(security)-1)], params.FromFlag); err != nil {
			panic(err) // the caller has passed an invalid value
		}
	}
}

// securities are the values of transport.tcp.security.
var securities = []string{"none", "integrity", "encrypt"}

// secured is a provider that opens its domains with a value of transport.tcp.security.
type secured struct {
	transport.Provider
	security string
}

func (s secured) Open(cfg transport.Config) (transport.Domain, error) {
	withSecurity(s.security)(&cfg)
	return s.Provider.Open(cfg)
}

func TestConformanceSecurity(t *testing.T) {
	for _, security := range securities[1:] { // TestConformance tests "none", the default
		t.Run(security, func(t *testing.T) {
			transporttest.Run(t, transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) {
				return secured{New(), security}, nil
			}), transporttest.WithRanks(2, 3, 4))
		})
	}
}

// Two ranks with different values of transport.tcp.security connect. Both report PeerDown, with an
// error that names both values.
func TestSecurityDiffers(t *testing.T) {
	for _, values := range [][2]string{{"none", "encrypt"}, {"encrypt", "none"}, {"integrity", "encrypt"}} {
		for from := range 2 {
			all := openRanks(t, 2, withSecurity(values[:]...))
			_, err := all[from].ep.Send(&transport.Op{Peer: transport.Addr(1 - from)})
			require.NoError(t, err)
			var down [2]error
			for end := time.Now().Add(testTimeout); down[0] == nil || down[1] == nil; {
				require.True(t, time.Now().Before(end), "%q, rank %d connects: %v", values, from, down)
				for i, n := range all {
					for _, c := range n.read(t) {
						if c.Kind == transport.PeerDown {
							down[i] = c.Err
						}
					}
				}
			}
			for i, err := range down {
				require.ErrorContains(t, err, fmt.Sprintf("transport.tcp.security is %q here and %q on rank %d", values[i], values[1-i], 1-i))
				require.ErrorIs(t, err, transport.ErrPeerDown)
			}
		}
	}
}

// A process on the network path sees the text of a message, except with "encrypt".
func TestPayloadIsSeen(t *testing.T) {
	text := bytes.Repeat([]byte("a secret of the user. "), 100)
	for _, security := range securities {
		x := newExchange(t, security, 0, flip{at: -1})
		op := &transport.Op{Peer: 1, Data: text}
		_, err := x.all[0].ep.Send(op)
		require.NoError(t, err)
		c := await(t, x.all, x.all[1], kind(transport.RecvDone))
		require.Equal(t, text, c.Msg)
		require.Equal(t, security != "encrypt", bytes.Contains(x.proxy.seen(0), text), security)
	}
}

// The bytes of a rank do not arrive as the rank sent them, so the receiver ends the connection. The
// sender reports errPeerEnded. The test changes the receiver's state, which has the same effect as
// a change of the bytes.
func TestPeerLearnsOfChange(t *testing.T) {
	for _, security := range securities {
		all := openRanks(t, 2, withSecurity(security))
		connected(t, all, 0, 1)
		c := all[1].dom.peer(0)
		c.check.Skip(wire.TCPMessages) // so that the check of the next message does not match
		if c.open != nil {
			require.ErrorIs(t, c.open.Open(nil, make([]byte, wire.TCPRecordHead+wire.TCPRecordTag)), wire.ErrTCPRecord)
		}
		_, err := all[0].ep.Send(&transport.Op{Peer: 1, HeaderLen: 8})
		require.NoError(t, err)
		down := await(t, all[1:], all[1], kind(transport.PeerDown))
		require.ErrorIs(t, down.Err, transport.ErrProtocol)
		down = await(t, all[:1], all[0], kind(transport.PeerDown))
		require.ErrorIs(t, down.Err, errPeerEnded, security)
	}
}

// A rank sends messages to a peer that does not read, until Send queues one. The connection then
// holds a single record that is to be written.
func TestOneRecordIsWritten(t *testing.T) {
	all := openRanks(t, 2, withSecurity("encrypt"))
	connected(t, all, 0, 1)
	c := all[0].dom.peer(1)
	for done := true; done; {
		var err error
		done, err = all[0].ep.Send(&transport.Op{Peer: 1, Data: make([]byte, 10_000)})
		require.NoError(t, err)
	}
	require.NotNil(t, c.out)
	require.Equal(t, recordRoom, len(c.out.b))
}

// flip names one bit among the bytes that pass a connection in one direction.
type flip struct {
	direction int // 0: from rank 0 to rank 1; 1: from rank 1 to rank 0
	at        int // index of the byte; -1: no bit is flipped
	bit       int // 0 to 7
}

// proxy relays the bytes of connections between two ranks, and flips one bit of one connection.
type proxy struct {
	listener net.Listener
	to       string // the address to which the proxy connects
	flip     flip
	done     atomic.Bool // the bit has been flipped

	mu sync.Mutex // guards passed and conns
	// One entry per connection. An attempt to connect may be repeated, so there may be several
	// connections.
	passed []*passed
	conns  []net.Conn // both ends of all connections
	wg     sync.WaitGroup
}

// passed stores the bytes that were sent on one connection.
type passed struct {
	bytes   [2][]byte // by flip.direction, before the flip
	flipped bool      // the flipped bit was on this connection
}

func newProxy(t testing.TB, f flip) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return &proxy{listener: l, flip: f}
}

// serve starts to relay connections to an address, until close.
func (p *proxy) serve(to string) {
	p.to = to
	p.wg.Add(1)
	go p.accept() // ends when close closes the listener; close waits for it
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) accept() {
	defer p.wg.Done()
	for {
		a, err := p.listener.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = a.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, a, b)
		s := &passed{}
		p.passed = append(p.passed, s)
		p.mu.Unlock()
		p.wg.Add(2)
		// Both goroutines end when a or b is closed, by a rank or by close. close waits for them.
		go p.pass(a, b, s, 0)
		go p.pass(b, a, s, 1)
	}
}

func (p *proxy) pass(from, to net.Conn, s *passed, direction int) {
	defer p.wg.Done()
	defer func() {
		_ = from.Close()
		_ = to.Close()
	}()
	b := make([]byte, 64<<10)
	for at := 0; ; {
		n, err := from.Read(b)
		p.mu.Lock()
		s.bytes[direction] = append(s.bytes[direction], b[:n]...)
		if i := p.flip.at - at; direction == p.flip.direction && i >= 0 && i < n && !p.done.Swap(true) {
			b[i] ^= 1 << p.flip.bit
			s.flipped = true
		}
		p.mu.Unlock()
		at += n
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// seen returns the bytes that were sent in one direction on the connection with the flipped bit. If
// no bit was flipped, seen returns the bytes of the last connection.
func (p *proxy) seen(direction int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.passed, func(s *passed) bool { return s.flipped })
	if i < 0 {
		i = len(p.passed) - 1
	}
	return bytes.Clone(p.passed[i].bytes[direction])
}

// exchange is two ranks and their communication: rank 0 sends five messages of several sizes, and
// rank 1 answers each; rank 0 also does a read and a write. Rank 0 connects to rank 1 through a
// proxy.
type exchange struct {
	all      []*testRank
	bulk     int // size of the read in bytes, and size of the write
	proxy    *proxy
	messages [2][][]byte // the messages that each rank must receive, in order
	got      [2]int      // number of messages that each rank has received
	wrong    bool        // a rank has received a message that is not the next one in messages
	region   []byte      // memory of rank 1: rank 0 reads from its beginning, and writes at offset bulk
	read     []byte      // where the read of rank 0 goes
	wrote    []byte      // what rank 0 writes
	ops      int         // number of operations of rank 0 whose completions have not been read
	down     [2]error    // error of the PeerDown that each rank has reported; nil: none
}

func newExchange(t testing.TB, security string, bulk int, f flip) *exchange {
	t.Helper()
	x := &exchange{bulk: bulk, proxy: newProxy(t, f)}
	t.Cleanup(x.close)
	addrs := make([]transport.Address, 2)
	for i := range addrs {
		cfg := config(i, 2)
		withSecurity(security)(&cfg)
		n, err := openRank(cfg)
		require.NoError(t, err)
		x.all = append(x.all, n)
		addrs[i] = n.ep.Address()
	}
	x.proxy.serve(string(addrs[1]))
	_, err := x.all[1].dom.av.Insert(addrs)
	require.NoError(t, err)
	_, err = x.all[0].dom.av.Insert([]transport.Address{addrs[0], transport.Address(x.proxy.listener.Addr().String())})
	require.NoError(t, err)
	return x
}

func (x *exchange) close() {
	for _, n := range x.all {
		_ = n.dom.Close()
	}
	x.all = nil
	x.proxy.close()
}

// start posts the operations of rank 0: five messages, a read and a write.
func (x *exchange) start(t testing.TB) {
	t.Helper()
	x.region = bytes.Repeat([]byte("region"), x.bulk/2)
	x.read, x.wrote = make([]byte, x.bulk), bytes.Repeat([]byte("w"), x.bulk)
	mr, err := x.all[1].dom.RegisterMemory(x.region, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	x.ops = 2
	for i, size := range []int{0, 8, 700, 1, 40} {
		x.send(t, 0, i, size)
	}
	require.NoError(t, x.all[0].ep.Read(&transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: x.read}))
	require.NoError(t, x.all[0].ep.Write(&transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: uint64(x.bulk), Data: x.wrote}))
}

// send has a rank send a message of size bytes of data to the other rank. number sets its content.
func (x *exchange) send(t testing.TB, rank, number, size int) {
	t.Helper()
	op := &transport.Op{Peer: transport.Addr(1 - rank), HeaderLen: wire.MessageShort, Data: make([]byte, size)}
	for i := range op.HeaderLen {
		op.Header[i] = byte(number)
	}
	for i := range op.Data {
		op.Data[i] = byte(number + i)
	}
	x.messages[1-rank] = append(x.messages[1-rank], append(bytes.Clone(op.Header[:op.HeaderLen]), op.Data...))
	done, err := x.all[rank].ep.Send(op)
	if err != nil {
		require.ErrorIs(t, err, transport.ErrPeerDown)
		return
	}
	if rank == 0 && !done {
		x.ops++
	}
}

// complete reports whether both ranks have received their five messages and all operations of rank
// 0 are done.
func (x *exchange) complete() bool {
	return x.got[1] == 5 && x.got[0] == 5 && x.ops == 0
}

// run reads the queues of both ranks until stop returns true, and records what they report.
func (x *exchange) run(t testing.TB, stop func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !stop(); {
		require.True(t, time.Now().Before(end), "hangs: %+v, received %v, %d operations left, errors %v", x.proxy.flip, x.got, x.ops, x.down)
		for i, n := range x.all {
			for _, c := range n.read(t) {
				switch c.Kind {
				case transport.RecvDone:
					k := x.got[i]
					x.wrong = x.wrong || k >= len(x.messages[i]) || !bytes.Equal(x.messages[i][k], c.Msg)
					x.got[i]++
					if i == 1 && x.down[1] == nil && k < 5 { // rank 1 answers each message
						x.send(t, 1, 100+k, []int{300, 0, 8, 20, 2}[k])
					}
				case transport.OpDone:
					if i == 0 {
						x.ops--
					}
				case transport.PeerDown:
					require.Error(t, c.Err)
					x.down[i] = c.Err
				case transport.PeerLeft, transport.PeerNotice:
				}
			}
		}
	}
}

// right reports whether all received messages, and the bytes read and written, are what was sent.
func (x *exchange) right() bool {
	want := bytes.Repeat([]byte("region"), x.bulk/2)
	return !x.wrong && bytes.Equal(x.region[x.bulk:2*x.bulk], x.wrote) && bytes.Equal(x.read, want[:x.bulk])
}

// inHeader reports whether the byte frames[at] is part of a frame's prefix or header. frames is a
// sequence of whole frames.
func inHeader(t testing.TB, frames []byte, at int) bool {
	t.Helper()
	for pos := 0; ; {
		size, bytes := 0, 0
		if head, n, ok := wire.TCPMsgLen(frames[pos:]); ok {
			size, bytes = wire.TCPPrefixSize+head, n-head
		} else {
			var f wire.TCPFrame
			var err error
			size, err = f.Parse(frames[pos:])
			require.NoError(t, err)
			bytes = int(f.Length)
		}
		if at < pos+size {
			return true
		}
		if pos += size + bytes; at < pos {
			return false
		}
	}
}

// TestBitFlips runs many exchanges and flips one random bit in each. Both ranks report an error for
// each flip, and no rank waits forever. There are two exceptions. After a flip in the handshake,
// rank 0 reports an error or connects again. With security "none", no rank detects a flip in the
// data of a frame.
func TestBitFlips(t *testing.T) {
	part := 1
	if testing.Short() || raceEnabled {
		part = 20
	}
	const hello, answer = wire.TCPHelloSize + wire.TCPProofSize, wire.TCPChallengeSize + wire.TCPVerdictSize
	for _, c := range []struct {
		security    string
		bulk, count int
	}{{"none", 100, 4000}, {"integrity", 100, 2000}, {"integrity", 150_000, 1000}, {"encrypt", 100, 2000}, {"encrypt", 150_000, 1000}} {
		security, count := c.security, c.count/part
		t.Run(fmt.Sprint(security, "/", c.bulk), func(t *testing.T) {
			clean := newExchange(t, security, c.bulk, flip{at: -1})
			clean.start(t)
			clean.run(t, clean.complete)
			require.True(t, clean.right())
			sizes := [2]int{len(clean.proxy.seen(0)), len(clean.proxy.seen(1))}
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d, bytes %v", seed, sizes)
			rng := rand.New(rand.NewPCG(seed, seed))
			var found, payload, atStart, missed int
			for found+payload+atStart < count {
				f := flip{direction: rng.IntN(2), bit: rng.IntN(8)}
				f.at = rng.IntN(sizes[f.direction])
				x := newExchange(t, security, c.bulk, f)
				x.start(t)
				begin := [2]int{hello, answer}[f.direction]
				// In the handshake, rank 0 reports an error, or tries again and completes.
				if f.at < begin {
					x.run(t, func() bool { return x.complete() || x.down[0] != nil })
					require.True(t, x.down[0] != nil || x.right(), "%+v: silent", f)
					atStart++
					x.close()
					continue
				}
				x.run(t, func() bool {
					return x.complete() || x.down[0] != nil && x.down[1] != nil
				})
				// Load done only once, because the proxy may pass on the last bytes later.
				flipped := x.proxy.done.Load()
				if flipped && (x.down[0] == nil || x.down[1] == nil) {
					// Perhaps a rank has not read the flipped bit yet, or has not detected the end
					// of the connection. So continue until a later message has arrived, or both
					// ranks have reported an error.
					x.send(t, f.direction, 200, 8)
					x.run(t, func() bool {
						return x.got[1-f.direction] == 6 || x.down[0] != nil && x.down[1] != nil
					})
				}
				switch {
				case !flipped:
					// The ranks sent fewer bytes this time, or the exchange was complete before
					// the proxy passed on the byte.
					require.True(t, x.right())
					missed++
				case x.down[0] != nil && x.down[1] != nil:
					found++
				default:
					require.Equal(t, "none", security, "%+v: silent", f)
					require.False(t, inHeader(t, x.proxy.seen(f.direction)[begin:], f.at-begin), "%+v: silent in a header", f)
					require.False(t, x.right())
					payload++
				}
				x.close()
			}
			t.Logf("%d found, %d in payload, %d in a handshake; %d more were beyond the end", found, payload, atStart, missed)
			require.NotZero(t, found)
		})
	}
}
