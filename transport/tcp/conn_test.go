package tcp

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// socketRank returns rank 0 of a job of two, which has a connection with rank 1. The test acts as
// rank 1: it uses the returned descriptor, which is the other end of the connection.
func socketRank(t testing.TB) (*testRank, int) {
	t.Helper()
	return socketRankOf(t, unix.SOCK_STREAM)
}

// socketRankOf is socketRank with a choice of the socket's type. With SOCK_SEQPACKET, each recv of
// the test returns the bytes that one system call of the rank has written.
func socketRankOf(t testing.TB, socketType int) (*testRank, int) {
	t.Helper()
	n, err := openRank(config(0, 2))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.dom.Close()) })
	_, err = n.dom.av.Insert([]transport.Address{"127.0.0.1:1", "127.0.0.1:2"})
	require.NoError(t, err)
	fds, err := unix.Socketpair(unix.AF_UNIX, socketType, 0)
	require.NoError(t, err)
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		require.NoError(t, unix.SetNonblock(fd, true))
	}
	c := n.dom.peer(1)
	c.state, c.fd, c.live = connUp, fds[0], 0
	c.buf = make([]byte, bufSize)
	// Without keys, all checks are zero.
	c.protect(&wire.TCPProtection{SignFrames: &wire.TCPCheck{}, CheckFrames: &wire.TCPCheck{}})
	n.dom.live = append(n.dom.live, c)
	require.NoError(t, n.dom.poller.Add(fds[0], 1, sys.In))
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	return n, fds[1]
}

// frame returns the bytes of a whole frame: its prefix, its header and payload. Its checks are
// zero, and its length is that of payload.
func frame(f wire.TCPFrame, payload ...byte) []byte {
	f.Length = uint32(len(payload))
	b := make([]byte, wire.TCPMaxHeader)
	if f.Type == wire.TCPMsg {
		wire.PutTCPMsg(b, 0, len(payload))
		return append(b[:wire.TCPPrefixSize], payload...)
	}
	return append(b[:f.Put(b)], payload...)
}

// TestViolations sends a rank frames that no correct peer sends. The rank reports PeerDown with a
// protocol error, and later Sends to the peer return that error.
func TestViolations(t *testing.T) {
	huge := frame(wire.TCPFrame{Type: wire.TCPMsg})
	huge[4], huge[5], huge[6], huge[7] = 0xff, 0xff, 0xff, 0xff
	for name, b := range map[string][]byte{
		"noise":          bytes.Repeat([]byte{0xff}, wire.TCPPrefixSize),
		"end of nothing": frame(wire.TCPFrame{Type: wire.TCPEnd}),
		"refusal":        frame(wire.TCPFrame{Type: wire.TCPRefuse, ID: 1, Status: wire.TCPKey}),
		"huge message":   huge,
		"reply to none":  frame(wire.TCPFrame{Type: wire.TCPData, ID: 1}, 1),
		"ack of none":    frame(wire.TCPFrame{Type: wire.TCPAck, ID: 1}),
		"ack far beyond": frame(wire.TCPFrame{Type: wire.TCPAck, ID: 1<<64 - 1}),
	} {
		t.Run(name, func(t *testing.T) {
			n, fd := socketRank(t)
			_, err := send(fd, b)
			require.NoError(t, err)
			c := await(t, []*testRank{n}, n, kind(transport.PeerDown))
			require.ErrorIs(t, c.Err, transport.ErrPeerDown)
			require.ErrorIs(t, c.Err, transport.ErrProtocol)
			_, err = n.ep.Send(&transport.Op{Peer: 1})
			require.ErrorIs(t, err, transport.ErrProtocol)
		})
	}
}

// TestReasonSurvivesGiveUp has a peer break the protocol when the rank can no longer write to the
// connection. So the giveup frame, which a rank sends to such a peer, cannot be written. The rank
// still reports what the peer did wrong, and not that the write failed.
func TestReasonSurvivesGiveUp(t *testing.T) {
	for name, end := range map[string]func(n *testRank, fd int) error{
		"peer takes nothing": func(_ *testRank, fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) },
		"end of output": func(n *testRank, _ int) error {
			n.dom.peer(1).endOutput()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, fd := socketRank(t)
			require.NoError(t, end(n, fd))
			_, err := send(fd, bytes.Repeat([]byte{0xff}, wire.TCPPrefixSize))
			require.NoError(t, err)
			c := await(t, []*testRank{n}, n, kind(transport.PeerDown))
			require.ErrorIs(t, c.Err, transport.ErrProtocol)
			_, err = n.ep.Send(&transport.Op{Peer: 1})
			require.ErrorIs(t, err, transport.ErrProtocol)
		})
	}
}

// TestGatherTakesAllSources makes gather take as much as it can from each source of output: frames,
// messages with data, and a chunk that is all zeros because its region was closed. All iovecs are
// in use then. The chunk comes first, because its header is partly written. The frames that arrive
// are whole and in that order.
func TestGatherTakesAllSources(t *testing.T) {
	n, fd := socketRank(t)
	c, g := n.dom.peer(1), &n.dom.gather
	mr, err := n.dom.RegisterMemory(make([]byte, chunkSize), transport.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, c.onRead(&wire.TCPFrame{Type: wire.TCPRead, ID: 7, Key: mr.Key(), Total: chunkSize}))
	c.gather(g)
	const cut = 10
	header := bytes.Clone(c.cur.hdr[:cut])
	c.written(g, cut)
	require.NoError(t, mr.Close())
	c.control(wire.TCPFrame{Type: wire.TCPAck, ID: 5})
	for i := range gatherMsgs {
		_, err := n.ep.Send(numbered(i, 12))
		require.NoError(t, err)
	}
	c.gather(g)
	require.Equal(t, gatherIovs, g.niov)

	const size = wire.TCPDataSize + chunkSize + wire.TCPPrefixSize
	b := append(header, readSome(t, n, fd, size-cut+wire.TCPAckSize+gatherMsgs*(wire.TCPPrefixSize+12))...)
	var f wire.TCPFrame
	k, err := f.Parse(b)
	require.NoError(t, err)
	require.Equal(t, wire.TCPFrame{Type: wire.TCPData, ID: 7, Length: chunkSize}, f)
	require.Equal(t, make([]byte, chunkSize), b[k:k+chunkSize])
	_, err = f.Parse(b[k+chunkSize:])
	require.NoError(t, err)
	require.Equal(t, wire.TCPFrame{Type: wire.TCPEnd, Status: wire.TCPKey}, f)
	_, err = f.Parse(b[size:])
	require.NoError(t, err)
	require.Equal(t, wire.TCPFrame{Type: wire.TCPAck, ID: 5}, f)
	require.Equal(t, gatherMsgs, requireNumbered(t, b[size+wire.TCPAckSize:], 0))
}

// TestHugeRead has a peer request reads beyond a small region, of up to 2^64-1 bytes, and reads
// with wrong keys. The rank answers each with a refusal that says why. It answers a read of 0 bytes
// at the end of the region with a data frame.
func TestHugeRead(t *testing.T) {
	n, fd := socketRank(t)
	mr, err := n.dom.RegisterMemory(make([]byte, 100), transport.RemoteRead)
	require.NoError(t, err)
	for _, c := range []struct {
		key, addr, total uint64
		want             wire.TCPStatus
	}{
		{mr.Key(), 0, 1 << 63, wire.TCPBounds},
		{mr.Key(), 1, 1<<64 - 1, wire.TCPBounds},
		{mr.Key(), 1<<64 - 1, 2, wire.TCPBounds},
		{mr.Key(), 101, 0, wire.TCPBounds},
		{mr.Key() + 1<<40, 0, 1, wire.TCPKey},
		{1<<20 - 1, 0, 1, wire.TCPKey},
		{mr.Key(), 100, 0, wire.TCPOK},
	} {
		_, err := send(fd, frame(wire.TCPFrame{Type: wire.TCPRead, ID: 7, Key: c.key, Addr: c.addr, Total: c.total}))
		require.NoError(t, err)
		b := readSome(t, n, fd, wire.TCPDataSize)
		var f wire.TCPFrame
		_, err = f.Parse(b)
		require.NoError(t, err)
		want := wire.TCPFrame{Type: wire.TCPRefuse, ID: 7, Status: c.want}
		if c.want == wire.TCPOK {
			want.Type = wire.TCPData
		}
		require.Equal(t, want, f, "%+v", c)
	}
}

// readSome reads count bytes from fd, and reads the queue of rank n meanwhile, so that n writes
// them.
func readSome(t testing.TB, n *testRank, fd, count int) []byte {
	t.Helper()
	b := make([]byte, count)
	for at, end := 0, time.Now().Add(testTimeout); at < count; {
		require.True(t, time.Now().Before(end), "%d of %d bytes arrived", at, count)
		n.read(t)
		k, err := recv(fd, b[at:])
		if err != errAgain { //nolint:errorlint // never wrapped
			require.NoError(t, err)
			require.NotZero(t, k)
		}
		at += k
	}
	return b
}

// TestRegionClosedMidRead closes a region while the rank sends its bytes to a peer that has
// requested three reads of it. All three reads end with wire.TCPKey. No byte that the rank has
// stored in the memory after the close (0xEE) is sent.
func TestRegionClosedMidRead(t *testing.T) {
	n, fd := socketRank(t)
	mem := bytes.Repeat([]byte{7}, 8<<20)
	mr, err := n.dom.RegisterMemory(mem, transport.RemoteRead)
	require.NoError(t, err)
	for id := range uint64(3) {
		_, err = send(fd, frame(wire.TCPFrame{Type: wire.TCPRead, ID: id, Key: mr.Key(), Total: uint64(len(mem))}))
		require.NoError(t, err)
	}
	first := readSome(t, n, fd, 100) // the first chunk is partly written
	require.NoError(t, mr.Close())
	for i := range mem {
		mem[i] = 0xEE
	}
	require.Zero(t, mr.(*region).uses)
	failed := map[uint64]bool{}
	b := first
	for len(failed) < 3 {
		for len(b) < wire.TCPDataSize {
			b = append(b, readSome(t, n, fd, 1)...)
		}
		var f wire.TCPFrame
		k, err := f.Parse(b)
		require.NoError(t, err)
		if miss := k + int(f.Length) - len(b); miss > 0 {
			b = append(b, readSome(t, n, fd, miss)...)
		}
		if f.Length > 0 { // an end frame follows the bytes
			at := k + int(f.Length)
			for len(b) < at+wire.TCPPrefixSize {
				b = append(b, readSome(t, n, fd, 1)...)
			}
			var end wire.TCPFrame
			_, err = end.Parse(b[at:])
			require.NoError(t, err)
			require.Equal(t, wire.TCPEnd, end.Type)
			f.Status = end.Status
			b = append(b[:at:at], b[at+wire.TCPPrefixSize:]...)
		}
		if f.Status != wire.TCPOK {
			require.Equal(t, wire.TCPKey, f.Status)
			failed[f.ID] = true
		}
		if f.Length == 0 {
			// a refusal has no data
		} else if i := bytes.LastIndexByte(b[k:k+int(f.Length)], 7); i >= 0 {
			// The rank wrote bytes of the region (7) to the socket before Close. Zeros follow
			// them.
			require.NotContains(t, b[k:k+i], byte(0xEE))
			require.Equal(t, make([]byte, int(f.Length)-i-1), b[k+i+1:k+int(f.Length)])
		}
		require.NotContains(t, b[k:k+int(f.Length)], byte(0xEE))
		b = b[k+int(f.Length):]
	}
	require.Zero(t, n.dom.peer(1).rma.serving)
}

// TestRegionClosedMidWrite closes a region after half of the data of a peer's write have arrived.
// The rank stores nothing of the other half in the memory, acknowledges the write with wire.TCPKey,
// and receives the message that follows.
func TestRegionClosedMidWrite(t *testing.T) {
	n, fd := socketRank(t)
	mem := make([]byte, 1000)
	mr, err := n.dom.RegisterMemory(mem, transport.RemoteWrite)
	require.NoError(t, err)
	b := frame(wire.TCPFrame{Type: wire.TCPWrite, ID: 5, Key: mr.Key(), Total: 1000}, bytes.Repeat([]byte{9}, 1000)...)
	b[4], b[5] = 1000&255, 1000>>8
	_, err = send(fd, b[:500])
	require.NoError(t, err)
	n.read(t)
	require.Equal(t, 1, mr.(*region).uses)
	require.NoError(t, mr.Close())
	clear(mem)
	_, err = send(fd, append(b[500:], frame(wire.TCPFrame{Type: wire.TCPMsg}, 1, 2)...))
	require.NoError(t, err)
	c := await(t, []*testRank{n}, n, kind(transport.RecvDone))
	require.Equal(t, []byte{1, 2}, c.Msg)
	var f wire.TCPFrame
	_, err = f.Parse(readSome(t, n, fd, wire.TCPAckSize))
	require.NoError(t, err)
	require.Equal(t, wire.TCPFrame{Type: wire.TCPAck, ID: 5, Status: wire.TCPKey}, f)
	require.Equal(t, make([]byte, 1000), mem)
}

// TestSmallBuffers has two ranks exchange messages, reads and writes in both directions, through
// sockets whose buffers have a few kilobytes, so most system calls write only a part of the output.
// All bytes arrive unchanged, and the messages in order.
func TestSmallBuffers(t *testing.T) {
	for _, security := range securities {
		t.Run(security, func(t *testing.T) { smallBuffers(t, security) })
	}
}

func smallBuffers(t *testing.T, security string) {
	all := openRanks(t, 2, withSecurity(security))
	connected(t, all, 0, 1)
	type side struct {
		mem, in []byte
		mr      transport.MemoryRegion
		sent    [][]byte
		got     int
		done    int
	}
	var s [2]side
	rng := rand.New(rand.NewPCG(1, 2))
	fill := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	for i, n := range all {
		c := n.dom.peer(transport.Addr(1 - i))
		require.NoError(t, unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
		require.NoError(t, unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 32<<10))
		s[i].mem, s[i].in = fill(1<<20), make([]byte, 1<<20)
		var err error
		s[i].mr, err = n.dom.RegisterMemory(s[i].mem, transport.RemoteRead)
		require.NoError(t, err)
	}
	var target [2]transport.MemoryRegion
	for i, n := range all {
		var err error
		target[i], err = n.dom.RegisterMemory(s[i].in, transport.RemoteWrite)
		require.NoError(t, err)
	}
	var reads [2]*transport.Op
	for i, n := range all {
		p := transport.Addr(1 - i)
		reads[i] = &transport.Op{Peer: p, RemoteKey: s[p].mr.Key(), Data: make([]byte, 1<<20)}
		require.NoError(t, n.ep.Read(reads[i]))
		require.NoError(t, n.ep.Write(&transport.Op{Peer: p, RemoteKey: target[p].Key(), Data: s[i].mem}))
		s[i].done -= 2
		for range 60 {
			op := &transport.Op{Peer: p, HeaderLen: rng.IntN(65), Data: fill(rng.IntN(20_000))}
			copy(op.Header[:], fill(64))
			s[i].sent = append(s[i].sent, append(op.Header[:op.HeaderLen:op.HeaderLen], op.Data...))
			done, err := n.ep.Send(op)
			require.NoError(t, err)
			if !done {
				s[i].done--
			}
		}
	}
	for end := time.Now().Add(testTimeout); s[0].done < 0 || s[1].done < 0 || s[0].got < 60 || s[1].got < 60; {
		require.True(t, time.Now().Before(end))
		for i, n := range all {
			for _, c := range n.read(t) {
				switch c.Kind {
				case transport.OpDone:
					require.NoError(t, c.Err)
					s[i].done++
				case transport.RecvDone:
					require.True(t, bytes.Equal(s[1-i].sent[s[i].got], c.Msg), "message %d", s[i].got)
					s[i].got++
				default:
					t.Fatalf("kind %d: %v", c.Kind, c.Err)
				}
			}
		}
	}
	for i := range s {
		require.True(t, bytes.Equal(s[1-i].mem, reads[i].Data))
		require.True(t, bytes.Equal(s[1-i].mem, s[i].in))
	}
}

// TestManyReads posts four times as many writes as the window holds, and then as many reads. All
// complete, and the reads return what was written.
func TestManyReads(t *testing.T) {
	all := openRanks(t, 2)
	mem := make([]byte, 4*window)
	mr, err := all[1].dom.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	for i := range 4 * window {
		op := &transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: uint64(i), Data: []byte{byte(i)}}
		require.NoError(t, all[0].ep.Write(op)) // no connection exists at the first call
	}
	count := 0
	allDone := func(c *transport.Completion) bool {
		require.Equal(t, transport.OpDone, c.Kind)
		require.NoError(t, c.Err)
		count++
		return count == 4*window
	}
	await(t, all, all[0], allDone)
	got := make([]byte, 4*window)
	count = 0
	for i := range got {
		require.NoError(t, all[0].ep.Read(&transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: uint64(i), Data: got[i : i+1]}))
	}
	await(t, all, all[0], allDone)
	require.Equal(t, mem, got)
	require.Equal(t, byte(5), got[5])
}

// TestHugeTransfer reads more than 2 GiB in one operation. The memory is zero except for four
// bytes: the first, the last, and those on both sides of 2 GiB. They arrive.
func TestHugeTransfer(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 2 GiB twice")
	}
	const size = 1<<31 + 12345
	all := openRanks(t, 2)
	src, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(src)) }()
	src[0], src[1<<31-1], src[1<<31], src[size-1] = 1, 2, 3, 4
	mr, err := all[1].dom.RegisterMemory(src, transport.RemoteRead)
	require.NoError(t, err)
	dst, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(dst)) }()
	op := &transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: dst}
	require.NoError(t, all[0].ep.Read(op))
	c := await(t, all, all[0], kind(transport.OpDone))
	require.NoError(t, c.Err)
	require.Equal(t, []byte{1, 2, 3, 4}, []byte{dst[0], dst[1<<31-1], dst[1<<31], dst[size-1]})
}

// TestKilled kills the process of a peer while this rank reads from the peer's memory. The read and
// later operations fail with ErrPeerDown, the read within two seconds.
func TestKilled(t *testing.T) {
	n, cmd := twoProcesses(t, "hang")
	all := []*testRank{n}
	m := await(t, all, n, kind(transport.RecvDone))
	var key uint64
	for i := range 8 {
		key |= uint64(m.Msg[i]) << (8 * i)
	}
	op := &transport.Op{Peer: 1, RemoteKey: key, Data: make([]byte, 1<<20)}
	require.NoError(t, n.ep.Read(op)) // the peer makes no progress, so the read cannot end
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	start := time.Now()
	c := await(t, all, n, kind(transport.OpDone))
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
	require.Less(t, time.Since(start), 2*time.Second)
	_, err := n.ep.Send(&transport.Op{Peer: 1})
	require.ErrorIs(t, err, transport.ErrPeerDown)
	require.ErrorIs(t, n.ep.Read(op), transport.ErrPeerDown)
}

// TestIdle checks that a rank uses almost no CPU time while it is in Wait and a connection is open.
func TestIdle(t *testing.T) {
	all := openRanks(t, 2)
	connected(t, all, 0, 1)
	for !all[0].cq.Arm() {
		all[0].read(t)
	}
	cpu := func() time.Duration {
		var u unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	debug.FreeOSMemory() // a garbage collection now, so that none runs while the test measures
	before := cpu()
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		require.NoError(t, all[0].cq.Wait(time.Until(end)))
	}
	require.Less(t, cpu()-before, 20*time.Millisecond)
}

// TestShutdownLimit shuts down a rank whose peer never reads. Shutdown returns when its context
// ends. After that, Send returns ErrClosed, and the peer learns that the rank has left.
func TestShutdownLimit(t *testing.T) {
	all := openRanks(t, 2)
	connected(t, all, 0, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, all[0].ep.Shutdown(ctx), context.DeadlineExceeded)
	_, err := all[0].ep.Send(&transport.Op{Peer: 1})
	require.ErrorIs(t, err, transport.ErrClosed)
	await(t, all[1:], all[1], kind(transport.PeerLeft))
}

// TestAllocations checks that messages, reads, writes and registrations of memory do not allocate
// in steady state, with each value of transport.tcp.security.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, security := range securities {
		t.Run(security, func(t *testing.T) { allocations(t, security) })
	}
}

func allocations(t *testing.T, security string) {
	all := openRanks(t, 2, withSecurity(security))
	connected(t, all, 0, 1)
	mem := make([]byte, 1<<20)
	ops := [...]*transport.Op{
		{Peer: 1, HeaderLen: 64, Data: make([]byte, 8)}, {Peer: 1, HeaderLen: 8, Data: make([]byte, 64<<10)},
		{Peer: 1, Data: make([]byte, 1<<20)}, {Peer: 1, Data: make([]byte, 100)}, {Peer: 0, Data: make([]byte, 100)},
	}
	round := func() {
		mr, err := all[1].dom.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for i, op := range ops {
			op.RemoteKey = mr.Key()
			done := false
			switch i {
			case 2:
				err = all[0].ep.Read(op)
			case 3:
				err = all[0].ep.Write(op)
			default:
				want++
				done, err = all[0].ep.Send(op)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !done {
				want++
			}
		}
		for want > 0 {
			for _, n := range all {
				k, err := n.cq.Read(n.comp)
				if err != nil {
					t.Fatal(err)
				}
				want -= k
			}
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
	}
	round()
	require.Zero(t, testing.AllocsPerRun(200, round))
}

// FuzzConnection sends frames and random bytes to a rank, cut+1 bytes at a time. Whatever the bytes
// are, the rank does not panic, and all its operations end when the connection ends.
func FuzzConnection(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), uint8(3))
	var all []byte
	for _, fr := range []wire.TCPFrame{
		{Type: wire.TCPMsg}, {Type: wire.TCPRead, ID: 1, Total: 10}, {Type: wire.TCPWrite, ID: 2, Total: 0}, {Type: wire.TCPMsg},
		{Type: wire.TCPData, ID: 1 << 8}, {Type: wire.TCPAck, ID: 2<<8 | 254}, {Type: wire.TCPBye, Counts: wire.TCPCounts{2, 3, 2}},
	} {
		b := frame(fr)
		f.Add(b, uint8(7))
		all = append(all, b...)
	}
	f.Add(all, uint8(1))
	f.Add(all, uint8(200))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		n, fd := socketRank(t)
		withTransfers(t, n, fd, func(take func()) {
			for len(b) > 0 {
				k := min(len(b), int(cut)+1)
				if _, err := send(fd, b[:k]); err != nil {
					return
				}
				b = b[k:]
				take()
			}
		})
	})
}

// withTransfers starts reads and writes on rank n and calls talk, which sends bytes to the rank
// through fd. Then withTransfers closes a region and ends the connection, and checks that all reads
// and writes have ended. talk calls take to make the rank read its queue.
func withTransfers(t *testing.T, n *testRank, fd int, talk func(take func())) {
	mr, err := n.dom.RegisterMemory(make([]byte, 100), transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	ops := 0
	for i := range 4 {
		op := &transport.Op{Peer: 1, Data: make([]byte, 10*i)}
		if i%2 == 0 {
			err = n.ep.Read(op)
		} else {
			err = n.ep.Write(op)
		}
		require.NoError(t, err)
		ops++
	}
	take := func() {
		for _, c := range n.read(t) {
			if c.Kind == transport.OpDone {
				ops--
			}
		}
	}
	talk(take)
	require.NoError(t, mr.Close())
	require.NoError(t, unix.Shutdown(fd, unix.SHUT_RDWR))
	for range 100 {
		take()
	}
	require.Zero(t, ops, "operations that did not end")
	require.GreaterOrEqual(t, n.dom.peer(1).state, connLeft)
}

// FuzzRecords seals frames and random bytes into records, as a peer that knows the secret does, and
// sends the records to a rank. If flip is not 0, FuzzRecords changes a byte of the first record,
// and the rank must not use any byte of that record. All operations of the rank end when the
// connection ends.
func FuzzRecords(f *testing.F) {
	var all []byte
	for _, fr := range []wire.TCPFrame{
		{Type: wire.TCPMsg}, {Type: wire.TCPRead, ID: 1, Total: 10}, {Type: wire.TCPWrite, ID: 2, Total: 0},
		{Type: wire.TCPData, ID: 1 << 8}, {Type: wire.TCPAck, ID: 2<<8 | 254}, {Type: wire.TCPBye, Counts: wire.TCPCounts{1, 2, 2}},
	} {
		b := frame(fr)
		f.Add(b, uint8(7), uint16(0), true)
		all = append(all, b...)
	}
	f.Add(all, uint8(200), uint16(0), false)
	f.Add(all, uint8(3), uint16(9), true)
	f.Add([]byte{}, uint8(0), uint16(1), false)
	f.Fuzz(func(t *testing.T, b []byte, cut uint8, flip uint16, encrypt bool) {
		security := wire.TCPIntegrity
		if encrypt {
			security = wire.TCPEncrypt
		}
		n, fd := socketRank(t)
		session := wire.TCPSession{JobID: "fuzz", Size: 2, From: 1}
		own, err := session.Protection(security, false)
		require.NoError(t, err)
		theirs, err := session.Protection(security, true)
		require.NoError(t, err)
		n.dom.peer(1).protect(own)
		withTransfers(t, n, fd, func(take func()) {
			for {
				k := min(len(b), int(cut)+1)
				rec := make([]byte, wire.TCPRecordHead+k+wire.TCPRecordTag)
				_, err := theirs.Seal.Seal(rec, b[:k])
				require.NoError(t, err)
				changed := flip > 0
				if changed {
					rec[int(flip)%len(rec)] ^= byte(flip>>8) | 1
					flip = 0
				}
				for _, part := range [][]byte{rec[:len(rec)/2], rec[len(rec)/2:]} {
					if _, err := send(fd, part); err != nil {
						return
					}
					take()
				}
				if changed && n.dom.peer(1).rpos != n.dom.peer(1).wpos {
					t.Error("the rank used bytes of a changed record")
				}
				if b = b[k:]; len(b) == 0 {
					return
				}
			}
		})
	})
}

// TestShutdownAlone shuts down rank 0. Rank 0 reports nothing about rank 1, and a Send of rank 1 to
// rank 0 returns ErrPeerLeft. In a second job, a rank sends for the first time to a rank that is
// shutting down: the message fails with ErrPeerLeft.
func TestShutdownAlone(t *testing.T) {
	all := openRanks(t, 2)
	connected(t, all, 0, 1)
	left := make(chan error)
	// The goroutine ends when the peer has answered. The test receives from left below.
	go func() { left <- all[0].ep.Shutdown(context.Background()) }()
	await(t, all[1:], all[1], kind(transport.PeerLeft))
	require.NoError(t, <-left)
	for range 10 {
		require.Empty(t, all[0].read(t))
	}
	_, err := all[1].ep.Send(&transport.Op{Peer: 0})
	require.ErrorIs(t, err, transport.ErrPeerLeft)

	late := openRanks(t, 2) // rank 1 connects while rank 0 is shutting down
	late[0].dom.links.leaving.Store(true)
	op := &transport.Op{Peer: 0}
	_, err = late[1].ep.Send(op)
	require.NoError(t, err)
	c := await(t, late, late[1], kind(transport.OpDone))
	require.ErrorIs(t, c.Err, transport.ErrPeerLeft)
}
