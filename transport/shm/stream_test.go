//go:build linux && !portable

package shm

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// TestFullRings begins so many transfers by messages, in both directions at once, that both rings
// are full while no rank reads. Then both ranks read, and all transfers must end.
func TestFullRings(t *testing.T) {
	all := sides(t, 2, "off")
	const each, n = 2 * streamWindow, 70_000
	var ops [2][2 * each]outcome
	var mem [2][]byte
	var keys [2]uint64
	for i, s := range all {
		mem[i] = noise(uint64(i), n*(each+1))
		mr, err := s.RegisterMemory(mem[i], transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		keys[i] = mr.Key()
	}
	for i, s := range all {
		for k := range ops[i] {
			o := &ops[i][k]
			o.Op = transport.Op{Peer: transport.Addr(1 - i), RemoteKey: keys[1-i], Data: make([]byte, n)}
			if k%2 == 0 {
				copy(o.Data, noise(uint64(100*i+k), n))
				o.RemoteAddr = uint64(n * (1 + k/2))
			}
			require.NoError(t, s.post(o, k%2 == 0))
		}
		for range 100 {
			require.NoError(t, s.poll())
		}
		require.False(t, s.q.Arm())
	}
	for i := range all {
		for k := range ops[i] {
			o := &ops[i][k]
			pollUntilDone(t, o, all...)
			require.NoError(t, o.err)
			want := mem[1-i][:n]
			if k%2 == 0 {
				want = mem[1-i][n*(1+k/2):][:n]
			}
			require.True(t, bytes.Equal(want, o.Data), "operation %d of rank %d", k, i)
		}
	}
	for _, s := range all {
		require.NoError(t, s.poll())
		require.True(t, s.transfers.streams.idle())
	}
}

// TestMessagesAmongChunks sends a message after the begin of a large transfer by messages. The
// message must arrive before the transfer has ended.
func TestMessagesAmongChunks(t *testing.T) {
	all := sides(t, 2, "off")
	a, b := all[0], all[1]
	mr, err := b.RegisterMemory(make([]byte, 64<<20), transport.RemoteWrite)
	require.NoError(t, err)
	o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: make([]byte, 64<<20)}}
	require.NoError(t, a.post(o, true))
	for range 5 {
		require.NoError(t, a.poll())
		require.NoError(t, b.poll())
	}
	m := &transport.Op{Peer: 1, HeaderLen: 8}
	for {
		done, err := a.e.Send(m)
		if done {
			break
		}
		require.ErrorIs(t, err, transport.ErrAgain)
		require.NoError(t, b.poll())
	}
	for came := false; !came; {
		require.False(t, o.done)
		k, err := b.q.Read(b.comp)
		require.NoError(t, err)
		for _, c := range b.comp[:k] {
			came = came || c.Kind == transport.RecvDone
		}
	}
	pollUntilDone(t, o, a, b)
	require.NoError(t, o.err)
}

// TestCloseUnderStreams closes a region in the middle of transfers by messages.
func TestCloseUnderStreams(t *testing.T) {
	for _, write := range []bool{false, true} {
		all := sides(t, 2, "off")
		a, b := all[0], all[1]
		mem := make([]byte, 8<<20)
		mr, err := b.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: noise(1, len(mem))}}
		require.NoError(t, a.post(o, write))
		for range 10 {
			require.NoError(t, a.poll())
			require.NoError(t, b.poll())
		}
		require.NoError(t, mr.Close())
		was := noise(2, len(mem))
		copy(mem, was)
		pollUntilDone(t, o, a, b)
		require.ErrorIs(t, o.err, transport.ErrKey)
		require.True(t, bytes.Equal(was, mem), "touched after Close")
	}
}

// TestBadRequests handles control messages that no correct peer sends.
func TestBadRequests(t *testing.T) {
	mem := make([]byte, 64)
	for name, bad := range map[string]func(d *domain, p *peer, key uint64) error{
		"unknown kind":  func(d *domain, p *peer, _ uint64) error { return d.control(p, 40, nil) },
		"short read":    func(d *domain, p *peer, _ uint64) error { return d.control(p, kindRead, make([]byte, readSize-1)) },
		"short write":   func(d *domain, p *peer, _ uint64) error { return d.control(p, kindWrite, make([]byte, writeHeader-1)) },
		"short data":    func(d *domain, p *peer, _ uint64) error { return d.control(p, kindData, make([]byte, 3)) },
		"short ack":     func(d *domain, p *peer, _ uint64) error { return d.control(p, kindAck, nil) },
		"stray data":    func(d *domain, p *peer, _ uint64) error { return d.control(p, kindData, make([]byte, 40)) },
		"stray ack":     func(d *domain, p *peer, _ uint64) error { return d.control(p, kindAck, make([]byte, ackSize)) },
		"short help":    func(d *domain, p *peer, _ uint64) error { return d.control(p, kindHelp, make([]byte, 8)) },
		"help with 0 B": func(d *domain, p *peer, _ uint64) error { return d.control(p, kindHelp, make([]byte, helpSize)) },
		"too many reads": func(d *domain, p *peer, key uint64) error {
			b := make([]byte, readSize)
			binary.LittleEndian.PutUint32(b[4:], 8)
			binary.LittleEndian.PutUint64(b[8:], key)
			for range streamWindow {
				require.NoError(t, d.control(p, kindRead, b))
			}
			return d.control(p, kindRead, b)
		},
		"too many writes": func(d *domain, p *peer, key uint64) error {
			b := make([]byte, writeHeader+8)
			binary.LittleEndian.PutUint32(b[4:], 8)
			binary.LittleEndian.PutUint64(b[16:], key)
			for range streamWindow {
				require.NoError(t, d.control(p, kindWrite, b))
			}
			return d.control(p, kindWrite, b)
		},
		"a chunk behind its end": func(d *domain, p *peer, key uint64) error {
			b := make([]byte, writeHeader+9)
			binary.LittleEndian.PutUint32(b[4:], 8)
			binary.LittleEndian.PutUint64(b[16:], key)
			return d.control(p, kindWrite, b)
		},
		"an empty chunk": func(d *domain, p *peer, key uint64) error {
			b := make([]byte, writeHeader)
			binary.LittleEndian.PutUint32(b[4:], 8)
			binary.LittleEndian.PutUint64(b[16:], key)
			return d.control(p, kindWrite, b)
		},
	} {
		d := sides(t, 2, "off")[0]
		mr, err := d.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		require.ErrorIs(t, bad(d.domain, d.local(1), mr.Key()), transport.ErrProtocol, name)
	}
}

// TestBadAnswers handles answers to a Read that no correct peer sends. The Read must continue.
func TestBadAnswers(t *testing.T) {
	answer := func(id uint32, st status, n int) []byte {
		b := make([]byte, dataHeader+n)
		putAnswer(b, id, st)
		return b
	}
	const id = 1<<8 | streamWindow - 1 // of the first call
	for name, b := range map[string][]byte{
		"another slot":       answer(id-1, statusOK, 4),
		"no slot":            answer(1<<8|200, statusOK, 4),
		"another generation": answer(id+1<<8, statusOK, 4),
		"no status":          answer(id, statuses, 0),
		"too long":           answer(id, statusOK, 101),
		"nothing":            answer(id, statusOK, 0),
		"refused with bytes": answer(id, statusKey, 4),
	} {
		all := sides(t, 2, "off")
		a, b2 := all[0], all[1]
		mr, err := b2.RegisterMemory(make([]byte, 100), transport.RemoteRead)
		require.NoError(t, err)
		dst, intact := fenced(100)
		o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: dst}}
		require.NoError(t, a.post(o, false))
		require.ErrorIs(t, a.control(a.local(1), kindData, b), transport.ErrProtocol, name)
		require.True(t, intact())
		require.NoError(t, a.control(a.local(1), kindData, answer(id, statusOK, 60)), name)
		require.NoError(t, a.control(a.local(1), kindData, answer(id, statusOK, 40)), name)
		require.NoError(t, a.poll())
		require.True(t, o.done && o.err == nil)
	}
}

// FuzzControl sends control messages to a rank that has transfers under way with the
// sender. Memory outside of the regions must not change, and all transfers must end. The
// input is a sequence of
//
//	│ kind │ how │ length │ bytes … │    how: bit 0: put the key of a region into the bytes
//	                                          bit 1: put the id of a call that waits for an answer at their start
//	                                          bit 2: poll both ranks afterwards
func FuzzControl(f *testing.F) {
	message := func(kind, how byte, b []byte) []byte { return append([]byte{kind, how, byte(len(b))}, b...) }
	write := make([]byte, writeHeader+8)
	binary.LittleEndian.PutUint32(write[4:], 8)
	read := make([]byte, readSize)
	binary.LittleEndian.PutUint32(read[4:], 100)
	data := append(make([]byte, dataHeader), 1, 2, 3, 4, 5)
	all := [][]byte{
		message(kindWrite, 1, write), message(kindRead, 1, read), message(kindData, 2, data), message(kindAck, 2, data[:ackSize]),
		message(kindHelp, 1, make([]byte, helpSize)), message(kindAtomic, 1, make([]byte, atomicHeader+8)),
		message(kindAtomicDone, 0, make([]byte, atomicDoneLen)), message(kindMessage, 0, write), message(kindSkip, 0, nil),
	}
	for _, b := range all {
		f.Add(b)
	}
	f.Add(bytes.Join(all, nil))
	f.Add(bytes.Join([][]byte{all[0], all[0], all[1], message(kindRead, 5, read), all[2], all[2]}, nil))
	f.Add(bytes.Repeat(all[1], streamWindow+1))
	f.Fuzz(func(t *testing.T, in []byte) {
		both := sides(t, 2, "off") // the kernel would copy to any address in a message, and this process has both ranks
		a, c := both[0], both[1]
		mem, intact := fenced(1000)
		mr, err := a.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		theirs, err := c.RegisterMemory(make([]byte, 64), transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		var ops [3]outcome
		var around [2]func() bool
		for i := range around {
			var dst []byte
			dst, around[i] = fenced(64)
			ops[i] = outcome{Op: transport.Op{Peer: 1, RemoteKey: theirs.Key(), Data: dst}}
			require.NoError(t, a.post(&ops[i], i == 1))
		}
		ops[2] = *sumOf(1, theirs.Key(), 8, 1)
		require.NoError(t, ops[2].begin(a))
		for len(in) >= 3 && c.local(0).err == nil {
			kind, how, n := in[0], in[1], min(int(in[2]), len(in)-3)
			b := bytes.Clone(in[3 : 3+n])
			in = in[3+n:]
			at := 16 // of the key
			if kind == kindRead || kind == kindAtomic {
				at = 8
			}
			if how&1 != 0 && len(b) >= at+8 {
				binary.LittleEndian.PutUint64(b[at:], mr.Key())
			}
			if how&2 != 0 && len(b) >= 4 {
				slot := uint32(streamWindow - 1)
				if kind == kindAck {
					slot--
				}
				binary.LittleEndian.PutUint32(b, 1<<8|slot)
			}
			if !c.domain.post(c.local(0), kind, b) {
				break
			}
			require.NoError(t, a.poll())
			if how&4 != 0 {
				require.NoError(t, c.poll())
				require.NoError(t, a.poll())
			}
		}
		require.NoError(t, a.e.Disconnect(1))
		for i := range ops {
			pollUntilDone(t, &ops[i], a)
		}
		require.True(t, intact() && around[0]() && around[1]())
	})
}
