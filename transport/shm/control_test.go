//go:build linux && !portable

package shm

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// TestBadControl handles control messages that no correct peer sends.
func TestBadControl(t *testing.T) {
	small := help{gen: 1, n: splitMin - 1}
	var b [helpSize]byte
	small.put(&b)
	for name, m := range map[string]struct {
		kind uint8
		b    []byte
	}{
		"unknown kind":                   {kindHelp + 1, nil},
		"short request":                  {kindHelp, make([]byte, helpSize-1)},
		"help with 0 bytes":              {kindHelp, make([]byte, helpSize)},
		"help with too few bytes to ask": {kindHelp, b[:]},
	} {
		d := sides(t, 2, "off")[0]
		require.ErrorIs(t, d.control(d.local(1), m.kind, m.b), transport.ErrProtocol, name)
	}
}

// TestHelpQueueFull sends more requests for help than the queue has room for. The rank drops the
// one for which there is no room. It accepts requests again after it has looked at those in the
// queue, which fit no transfer.
func TestHelpQueueFull(t *testing.T) {
	d := sides(t, 2, "auto")[0]
	p := d.local(1)
	require.NoError(t, d.authenticate(p))
	h := help{gen: 1, n: splitMin}
	var b [helpSize]byte
	h.put(&b)
	q := &d.transfers.helps
	for range len(q.list) + 1 {
		require.NoError(t, d.control(p, kindHelp, b[:]))
	}
	require.Equal(t, len(q.list), q.n)
	require.Zero(t, d.helpOn(), "no claim line has this generation")
	require.Zero(t, q.n)
	require.NoError(t, d.control(p, kindHelp, b[:]))
	require.Equal(t, 1, q.n)
}

// FuzzControl sends control messages to a rank that has reads and writes under way with the
// sender. Memory outside of the regions must not change, and all transfers must end. The input is
// a sequence of
//
//	│ kind │ how │ length │ bytes … │    how: bit 0: put the key of a region into the bytes
//	                                          bit 1: poll both ranks afterwards
func FuzzControl(f *testing.F) {
	message := func(kind, how byte, b []byte) []byte { return append([]byte{kind, how, byte(len(b))}, b...) }
	var request [helpSize]byte
	h := help{gen: 1, n: splitMin}
	h.put(&request)
	all := [][]byte{
		message(kindHelp, 1, request[:]), message(kindHelp, 3, make([]byte, helpSize)), message(kindHelp+1, 0, nil),
		message(kindMessage, 2, request[:]), message(kindSkip, 0, nil),
	}
	for _, b := range all {
		f.Add(b)
	}
	f.Add(bytes.Join(all, nil))
	f.Add(bytes.Repeat(all[0], len(helps{}.list)+1))
	f.Fuzz(func(t *testing.T, in []byte) {
		both := sides(t, 2, "auto")
		a, c := both[0], both[1]
		mem, intact := fenced(1000)
		mr, err := a.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		_, theirs, err := c.Alloc(1 << 20)
		require.NoError(t, err)
		var ops [2]outcome
		var around [2]func() bool
		for i := range ops {
			var dst []byte
			dst, around[i] = fenced(1 << 20)
			ops[i] = outcome{Op: transport.Op{Peer: 1, RemoteKey: theirs.Key(), Data: dst}}
			require.NoError(t, a.post(&ops[i], i == 1))
		}
		for len(in) >= 3 && c.local(0).err == nil {
			kind, how, n := in[0], in[1], min(int(in[2]), len(in)-3)
			b := bytes.Clone(in[3 : 3+n])
			in = in[3+n:]
			if how&1 != 0 && len(b) >= 24 {
				binary.LittleEndian.PutUint64(b[16:], mr.Key())
			}
			if !c.domain.post(c.local(0), kind, b) {
				break
			}
			require.NoError(t, a.poll())
			if how&2 != 0 {
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
