package shm

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// TestFullRings has so many transfers by messages that neither ring has room,
// in both directions at once, while nobody reads; then all goes on.
func TestFullRings(t *testing.T) {
	all := sides(t, 2, "off")
	const each, n = 2 * window, 70_000
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
			turns(t, o, all...)
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

// TestMessagesAmongChunks has a message behind a large transfer in the queue of
// the sender arrive long before that has ended.
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
		require.False(t, o.over)
		k, err := b.q.Read(b.comp)
		require.NoError(t, err)
		for _, c := range b.comp[:k] {
			came = came || c.Kind == transport.RecvDone
		}
	}
	turns(t, o, a, b)
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
		turns(t, o, a, b)
		require.ErrorIs(t, o.err, transport.ErrKey)
		require.True(t, bytes.Equal(was, mem), "touched after Close")
	}
}

// TestBadRequests sends what no correct peer sends.
func TestBadRequests(t *testing.T) {
	mem := make([]byte, 64)
	for name, bad := range map[string]func(d *domain, p *peer, key uint64) error{
		"no kind":       func(d *domain, p *peer, _ uint64) error { return d.control(p, 40, nil) },
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
			for range window {
				require.NoError(t, d.control(p, kindRead, b))
			}
			return d.control(p, kindRead, b)
		},
		"too many writes": func(d *domain, p *peer, key uint64) error {
			b := make([]byte, writeHeader+8)
			binary.LittleEndian.PutUint32(b[4:], 8)
			binary.LittleEndian.PutUint64(b[16:], key)
			for range window {
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
		require.ErrorIs(t, bad(d.domain, d.locals[1], mr.Key()), transport.ErrProtocol, name)
	}
}

// TestBadAnswers answers a read that is under way as no correct peer does.
func TestBadAnswers(t *testing.T) {
	answer := func(id uint32, st status, n int) []byte {
		b := make([]byte, dataHeader+n)
		putAnswer(b, id, st)
		return b
	}
	const id = 1<<8 | window - 1 // the first
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
		require.ErrorIs(t, a.control(a.locals[1], kindData, b), transport.ErrProtocol, name)
		require.True(t, intact())
		require.NoError(t, a.control(a.locals[1], kindData, answer(id, statusOK, 60)), name)
		require.NoError(t, a.control(a.locals[1], kindData, answer(id, statusOK, 40)), name)
		require.NoError(t, a.poll())
		require.True(t, o.over && o.err == nil)
	}
}

// FuzzControl gives a domain with transfers under way whatever bytes.
func FuzzControl(f *testing.F) {
	b := make([]byte, writeHeader+8)
	binary.LittleEndian.PutUint32(b[4:], 8)
	f.Add(uint8(kindWrite), b)
	f.Add(uint8(kindRead), b[:readSize])
	f.Add(uint8(kindData), []byte{window - 1, 1, 0, 0, 0, 0, 0, 0, 5})
	f.Add(uint8(kindAck), []byte{window - 2, 1, 0, 0, 0, 0, 0, 0})
	f.Add(uint8(kindHelp), make([]byte, helpSize))
	all := sides(f, 2, "off")
	a, c := all[0], all[1]
	mem, intact := fenced(1000)
	mr, err := a.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(f, err)
	theirs, err := c.RegisterMemory(make([]byte, 64), transport.RemoteRead|transport.RemoteWrite)
	require.NoError(f, err)
	var ops [2]outcome
	var around [2]func() bool
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		for i := range ops {
			if !ops[i].over && ops[i].User != nil {
				continue
			}
			var dst []byte
			dst, around[i] = fenced(64)
			ops[i] = outcome{Op: transport.Op{Peer: 1, RemoteKey: theirs.Key(), Data: dst}}
			require.NoError(t, a.post(&ops[i], i == 1))
		}
		if len(b) >= readSize && kind%2 == 0 {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint64(b[8:], mr.Key())
		}
		if len(b) >= writeHeader && kind%2 == 1 {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint64(b[16:], mr.Key())
		}
		if err := a.control(a.locals[1], firstControl+kind%5, b); err != nil {
			require.ErrorIs(t, err, transport.ErrProtocol)
		}
		require.NoError(t, a.poll())
		require.NoError(t, c.poll())
		require.True(t, intact() && around[0]() && around[1]())
	})
}
