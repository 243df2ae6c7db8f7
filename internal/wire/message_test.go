package wire

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func sampleMessages() []Message {
	var all []Message
	for k := MsgEager; k < msgKindEnd; k++ {
		m := Message{Kind: k, Sig: 0xbeef, Credit: 77, Context: 1 << 40, Tag: -3, Seq: math.MaxUint32}
		if k.HeaderLen() == MessageLong {
			m.Handle, m.Key, m.Addr = 5, math.MaxUint64, 9
		}
		if k == MsgRTS || k == MsgCTS {
			m.Length = math.MaxInt
		}
		all = append(all, m)
	}
	return all
}

func TestMessageSurvivesTheWire(t *testing.T) {
	for _, want := range sampleMessages() {
		var b [MessageLong]byte
		n := want.Put(b[:])
		var got Message
		data, err := got.Parse(b[:n])
		require.NoError(t, err)
		require.Empty(t, data)
		require.Equal(t, want, got)
	}
}

func TestMessageRefusesWhatIsNotOne(t *testing.T) {
	var b [MessageLong + 4]byte
	var got Message
	for name, spoil := range map[string]func() []byte{
		"empty":      func() []byte { return nil },
		"short":      func() []byte { return b[:MessageShort-1] },
		"no kind":    func() []byte { b[0] = 0; return b[:MessageShort] },
		"kind":       func() []byte { b[0] = byte(msgKindEnd); return b[:MessageShort] },
		"reserved":   func() []byte { b[1] = 1; return b[:MessageShort] },
		"half RTS":   func() []byte { (&Message{Kind: MsgRTS}).Put(b[:]); return b[:MessageLong-1] },
		"data short": func() []byte { (&Message{Kind: MsgEager, Length: 5}).Put(b[:]); return b[:MessageShort+4] },
		"data long":  func() []byte { (&Message{Kind: MsgEager, Length: 3}).Put(b[:]); return b[:MessageShort+4] },
		"2^63":       func() []byte { (&Message{Kind: MsgRTS, Length: math.MinInt}).Put(b[:]); return b[:MessageLong] },
		"fat credit": func() []byte { (&Message{Kind: MsgCredit}).Put(b[:]); return b[:MessageShort+1] },
	} {
		clear(b[:])
		_, err := got.Parse(spoil())
		require.Error(t, err, name)
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range sampleMessages() {
		var b [MessageLong]byte
		f.Add(b[:m.Put(b[:])])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var m Message
		data, err := m.Parse(in)
		if err != nil {
			return
		}
		var b [MessageLong]byte
		n := m.Put(b[:])
		require.Equal(t, in[:n], b[:n])
		require.Equal(t, in[n:], append([]byte{}, data...))
	})
}
