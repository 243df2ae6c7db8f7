package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var tcpFrames = []TCPFrame{
	{Type: TCPRead, ID: 1, Key: 2, Addr: 3, Total: 1 << 62},
	{Type: TCPData, ID: 1 << 40, Length: TCPMaxChunk},
	{Type: TCPRefuse, ID: 7, Status: TCPKey},
	{Type: TCPEnd},
	{Type: TCPEnd, Status: TCPKey},
	{Type: TCPWrite, ID: 9, Key: 1, Addr: 1 << 63, Total: 100, Offset: 60, Length: 40},
	{Type: TCPAck, ID: 5, Status: TCPBounds},
	{Type: TCPBye, Counts: TCPCounts{1, 1 << 40, 1<<64 - 1}},
	{Type: TCPGiveUp},
}

func TestTCPFrameRoundTrip(t *testing.T) {
	for _, f := range tcpFrames {
		var b [TCPMaxHeader]byte
		n := f.Put(b[:])
		for short := range n {
			var g TCPFrame
			size, err := g.Parse(b[:short])
			require.NoError(t, err)
			require.Zero(t, size)
		}
		var g TCPFrame
		size, err := g.Parse(b[:n])
		require.NoError(t, err)
		require.Equal(t, n, size)
		require.Equal(t, f, g)
	}
}

func TestTCPFrameRefused(t *testing.T) {
	for _, f := range []TCPFrame{
		{Type: 0}, {Type: TCPGiveUp + 1},
		{Type: TCPRefuse},
		{Type: TCPRefuse, Status: TCPKey, Length: 1},
		{Type: TCPEnd, Status: tcpStatusEnd},
		{Type: TCPData, Status: TCPKey},
		{Type: TCPData, Length: TCPMaxChunk + 1},
		{Type: TCPData, Length: 1, Status: TCPAccess},
		{Type: TCPAck, Status: tcpStatusEnd},
		{Type: TCPAck, Length: 1},
		{Type: TCPBye, Length: 1},
		{Type: TCPRead, Length: 1},
		{Type: TCPWrite, Total: 10, Offset: 11},
		{Type: TCPWrite, Total: 10, Offset: 9, Length: 2},
		{Type: TCPWrite, Total: 1<<64 - 1, Offset: 1<<64 - 1, Length: 1},
	} {
		var b [TCPMaxHeader]byte
		f.Put(b[:])
		var g TCPFrame
		_, err := g.Parse(b[:])
		require.ErrorIs(t, err, ErrTCPFrame, "%+v", f)
	}
}

func TestTCPMsgLen(t *testing.T) {
	var b [8]byte
	for _, head := range []int{0, 1, TCPMaxMsgHead} {
		PutTCPMsg(b[:], head, TCPMaxMsg)
		h, n, ok := TCPMsgLen(b[:])
		require.True(t, ok)
		require.Equal(t, head, h)
		require.Equal(t, TCPMaxMsg, n)
		PutTCPMsg(b[:], head, TCPMaxMsg+1)
		_, _, ok = TCPMsgLen(b[:])
		require.False(t, ok)
	}
	PutTCPMsg(b[:], TCPMaxMsgHead+1, TCPMaxMsgHead+1)
	_, _, ok := TCPMsgLen(b[:])
	require.False(t, ok)
	for _, i := range []int{1, 3} {
		PutTCPMsg(b[:], 8, 16)
		b[i]++
		_, _, ok := TCPMsgLen(b[:])
		require.False(t, ok)
	}
}

func TestTCPProofDependsOnEverything(t *testing.T) {
	base := TCPSession{JobID: "job", Size: 4, From: 1, To: 2}
	m := base.Proof()
	require.True(t, m.Equal(&m))
	for name, change := range map[string]func(*TCPSession){
		"secret": func(s *TCPSession) { s.Secret[31]++ },
		"job":    func(s *TCPSession) { s.JobID = "jobs" },
		"size":   func(s *TCPSession) { s.Size++ },
		"from":   func(s *TCPSession) { s.From++ },
		"to":     func(s *TCPSession) { s.To++ },
		"nonce1": func(s *TCPSession) { s.Initiator[0]++ },
		"nonce2": func(s *TCPSession) { s.Responder[0]++ },

		"security": func(s *TCPSession) { s.Security++ },
	} {
		s := base
		change(&s)
		o := s.Proof()
		require.False(t, m.Equal(&o), name)
	}
	seen := map[TCPMac]bool{m: true}
	for v := range tcpVerdictEnd {
		a := base.Answer(v)
		require.False(t, seen[a])
		seen[a] = true
	}
}

func FuzzTCPFrame(f *testing.F) {
	for _, fr := range tcpFrames {
		var b [TCPMaxHeader]byte
		f.Add(b[:fr.Put(b[:])])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr TCPFrame
		n, err := fr.Parse(b)
		if len(b) >= TCPPrefixSize {
			if head, n, ok := TCPMsgLen(b); ok {
				var again [TCPPrefixSize]byte
				PutTCPMsg(again[:], head, n)
				if err == nil || string(again[:8]) != string(b[:8]) {
					t.Fatalf("%x is a message of %d and %d bytes, and %+v", b, head, n, fr)
				}
			}
		}
		if err != nil || n == 0 {
			return
		}
		var again [TCPMaxHeader]byte
		if m := fr.Put(again[:]); m != n || string(again[:8]) != string(b[:8]) || string(again[TCPPrefixSize:m]) != string(b[TCPPrefixSize:n]) {
			t.Fatalf("%x parsed as %+v, which is %x", b[:n], fr, again[:m])
		}
	})
}

func FuzzTCPHandshake(f *testing.F) {
	var b [TCPHelloSize]byte
	h := TCPHello{From: 1, To: 2, Nonce: TCPNonce{3}, Mac: TCPMac{4}, Security: TCPEncrypt}
	h.Put(b[:])
	f.Add(b[:])
	var c [TCPChallengeSize]byte
	PutTCPChallenge(c[:], &TCPNonce{4})
	f.Add(c[:])
	var v [TCPVerdictSize]byte
	PutTCPVerdict(v[:], TCPBusy, &TCPMac{5})
	f.Add(v[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var h TCPHello
		if h.Parse(b) {
			var again [TCPHelloSize]byte
			h.Put(again[:])
			require.Equal(t, b, again[:])
		}
		var n TCPNonce
		if ParseTCPChallenge(b, &n) {
			var again [TCPChallengeSize]byte
			PutTCPChallenge(again[:], &n)
			require.Equal(t, b, again[:])
		}
		var m TCPMac
		if v, ok := ParseTCPVerdict(b, &m); ok {
			var again [TCPVerdictSize]byte
			PutTCPVerdict(again[:], v, &m)
			require.Equal(t, b, again[:])
		}
	})
}
