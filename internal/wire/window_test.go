package wire

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func sampleWindows() []Window {
	var all []Window
	for k := WinPut; k < winKindEnd; k++ {
		all = append(all, Window{Kind: k, Op: 200, Flag: k%2 == 0, Count: math.MaxUint64, Addr: 1 << 40, Bytes: 77})
		if k <= WinFetch {
			all = append(all, Window{Kind: k, Flag: k%2 == 1, Runs: true, Count: 5, Bytes: 9})
		}
		if k == WinLock {
			all = append(all, Window{Kind: k, Flag: true, Try: true}, Window{Kind: k, Passes: true}, Window{Kind: k, Passes: true, Try: true})
		}
	}
	return all
}

func TestWindowSurvivesTheWire(t *testing.T) {
	for _, want := range sampleWindows() {
		var b [MessageLong]byte
		m := want.Message(1<<50, 0)
		n := m.Put(b[:])
		var parsed Message
		_, err := parsed.Parse(b[:n])
		require.NoError(t, err)
		require.Equal(t, uint64(1<<50), parsed.Context)
		var got Window
		require.NoError(t, got.Parse(&parsed))
		require.Equal(t, want, got)
	}
}

func TestWindowRefusesWhatIsNotOne(t *testing.T) {
	for name, m := range map[string]Message{
		"nothing": {Kind: MsgWindow},
		"kind":    {Kind: MsgWindow, Sig: uint16(winKindEnd)},
		"flag":    {Kind: MsgWindow, Sig: uint16(WinPut), Tag: 4},
		"try":     {Kind: MsgWindow, Sig: uint16(WinUnlock), Tag: 8},
		"no flag": {Kind: MsgWindow, Sig: uint16(WinLock), Tag: 16},
		"runs":    {Kind: MsgWindow, Sig: uint16(WinSwap), Tag: 2},
		"minus":   {Kind: MsgWindow, Sig: uint16(WinPut), Tag: -1},
		"data":    {Kind: MsgWindow, Sig: uint16(WinAck), Length: 1},
	} {
		var w Window
		require.Error(t, w.Parse(&m), name)
	}
}

func FuzzWindow(f *testing.F) {
	for _, w := range sampleWindows() {
		var b [MessageLong + 8]byte
		m := w.Message(3, 8)
		m.Put(b[:])
		f.Add(b[:])
		m = w.Message(3, 0)
		f.Add(b[:m.Put(b[:])])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var m Message
		var w Window
		if _, err := m.Parse(in); err != nil || m.Kind != MsgWindow || w.Parse(&m) != nil {
			return
		}
		again := w.Message(m.Context, m.Length)
		again.Credit, again.Seq = m.Credit, m.Seq
		require.Equal(t, m, again)
		require.True(t, m.Length == 0 || !w.Kind.Answer() || w.Kind == WinReply)
	})
}
