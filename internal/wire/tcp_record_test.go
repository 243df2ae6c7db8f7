package wire

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

var testSession = TCPSession{Secret: [32]byte{1}, JobID: "job", Size: 4, From: 1, To: 2, Initiator: TCPNonce{3}, Responder: TCPNonce{4}}

// sealers returns two sealers of one direction of a connection: that with which the initiator
// seals, and that with which the responder opens.
func sealers(t testing.TB, security TCPSecurity) (seal, open *TCPSealer) {
	t.Helper()
	a, err := testSession.Protection(security, true)
	require.NoError(t, err)
	b, err := testSession.Protection(security, false)
	require.NoError(t, err)
	return a.Seal, b.Open
}

// sealed returns the record that s makes of text.
func sealed(t testing.TB, s *TCPSealer, text []byte) []byte {
	t.Helper()
	b := make([]byte, TCPRecordHead+len(text)+TCPRecordTag)
	n, err := s.Seal(b, text)
	require.NoError(t, err)
	require.Len(t, b, n)
	return b
}

// open opens the record at the beginning of b, and returns its text.
func open(s *TCPSealer, b []byte) ([]byte, error) {
	n, err := s.Size(b)
	if err != nil {
		return nil, err
	}
	if n == 0 || n > len(b) {
		return nil, fmt.Errorf("%d bytes of %d", len(b), n)
	}
	text := make([]byte, n-TCPRecordHead-TCPRecordTag)
	return text, s.Open(text, b[:n])
}

func eachSecurity(t *testing.T, f func(t *testing.T, security TCPSecurity)) {
	t.Helper()
	for _, s := range []TCPSecurity{TCPIntegrity, TCPEncrypt} {
		t.Run(s.String(), func(t *testing.T) { f(t, s) })
	}
}

func TestTCPRecordRoundTrip(t *testing.T) {
	eachSecurity(t, func(t *testing.T, security TCPSecurity) {
		s, o := sealers(t, security)
		s.rekey, o.rekey = 3, 3
		keys := map[string]bool{}
		for i, size := range []int{0, 1, 15, 16, 17, 1000, TCPMaxRecord, 5, 5, 5, 5} {
			text := bytes.Repeat([]byte{byte(i)}, size)
			b := sealed(t, s, text)
			if size > 15 {
				require.Equal(t, security == TCPIntegrity, bytes.Contains(b, text), "%d bytes in plaintext", size)
			}
			keys[string(s.secret)] = true
			for short := range TCPRecordHead {
				n, err := o.Size(b[:short])
				require.NoError(t, err)
				require.Zero(t, n)
			}
			got, err := open(o, b)
			require.NoError(t, err)
			require.True(t, bytes.Equal(text, got))
		}
		require.Len(t, keys, 4, "a key lasts for three records")
	})
}

// TestTCPRecordInPlace: Seal can make a record in the buffer that already holds the bytes of the
// stream.
func TestTCPRecordInPlace(t *testing.T) {
	eachSecurity(t, func(t *testing.T, security TCPSecurity) {
		s, o := sealers(t, security)
		text := bytes.Repeat([]byte("weft"), 1000)
		b := make([]byte, TCPRecordHead+len(text)+TCPRecordTag)
		copy(b[TCPRecordHead:], text)
		n, err := s.Seal(b, b[TCPRecordHead:TCPRecordHead+len(text)])
		require.NoError(t, err)
		got, err := open(o, b[:n])
		require.NoError(t, err)
		require.Equal(t, text, got)
	})
}

// TestTCPRecordFinds: the receiver accepts the sender's record. It detects every flipped bit of the
// record, and a record that is repeated, left out or of the other direction.
func TestTCPRecordFinds(t *testing.T) {
	eachSecurity(t, func(t *testing.T, security TCPSecurity) {
		s, _ := sealers(t, security)
		text := bytes.Repeat([]byte{7}, 40)
		b := sealed(t, s, text)
		next := sealed(t, s, text)
		for bit := range 8 * len(b) {
			_, o := sealers(t, security)
			c := bytes.Clone(b)
			c[bit/8] ^= 1 << (bit % 8)
			got, err := open(o, c)
			require.ErrorIs(t, err, ErrTCPRecord, "bit %d", bit)
			require.NotContains(t, string(got), string(text[:8]))
		}
		_, o := sealers(t, security)
		_, err := open(o, next)
		require.ErrorIs(t, err, ErrTCPRecord, "one is missing")
		_, o = sealers(t, security)
		_, err = open(o, b)
		require.NoError(t, err)
		_, err = open(o, b)
		require.ErrorIs(t, err, ErrTCPRecord, "repeated")
		back, err := testSession.Protection(security, false)
		require.NoError(t, err)
		_, o = sealers(t, security)
		_, err = open(o, sealed(t, back.Seal, text))
		require.ErrorIs(t, err, ErrTCPRecord, "of the other direction")
	})
}

// TestTCPProtectionDependsOnEverything: if one value of a TCPSession, the security or the direction
// differs, the keys differ, so the same bytes get other checks or become another record.
func TestTCPProtectionDependsOnEverything(t *testing.T) {
	seen := map[string]string{}
	take := func(name string, s TCPSession, security TCPSecurity) {
		for _, initiator := range []bool{true, false} {
			p, err := s.Protection(security, initiator)
			require.NoError(t, err)
			b := make([]byte, TCPPrefixSize)
			if security == TCPPlain {
				p.SignFrames.SignNext(b, TCPMessages)
			} else {
				b = sealed(t, p.Seal, b)
			}
			name := fmt.Sprint(name, initiator)
			require.Empty(t, seen[string(b)], name)
			seen[string(b)] = name
		}
	}
	for _, security := range []TCPSecurity{TCPPlain, TCPIntegrity, TCPEncrypt} {
		take(security.String(), testSession, security)
		for name, change := range map[string]func(*TCPSession){
			"secret": func(s *TCPSession) { s.Secret[31]++ },
			"job":    func(s *TCPSession) { s.JobID = "jobs" },
			"size":   func(s *TCPSession) { s.Size++ },
			"from":   func(s *TCPSession) { s.From++ },
			"to":     func(s *TCPSession) { s.To++ },
			"nonce1": func(s *TCPSession) { s.Initiator[0]++ },
			"nonce2": func(s *TCPSession) { s.Responder[0]++ },
		} {
			s := testSession
			change(&s)
			take(security.String()+name, s, security)
		}
	}
}

func TestTCPSecurityNames(t *testing.T) {
	for s := range tcpSecurityEnd {
		got, err := ParseTCPSecurity(s.String())
		require.NoError(t, err)
		require.Equal(t, s, got)
		v := TCPSecurityVerdict(s)
		got, ok := v.OtherSecurity()
		require.True(t, ok)
		require.Equal(t, s, got)
	}
	_, err := ParseTCPSecurity("tls")
	require.Error(t, err)
	_, ok := TCPDead.OtherSecurity()
	require.False(t, ok)
}

// FuzzTCPRecord gives arbitrary bytes to a receiver, as a process without the key can send them.
// The receiver opens only records that the sender makes, in their order. It never waits for more
// bytes than the largest record has.
func FuzzTCPRecord(f *testing.F) {
	s, _ := sealers(f, TCPEncrypt)
	first := sealed(f, s, []byte("twelve bytes"))
	second := sealed(f, s, nil)
	f.Add(first, true)
	f.Add(append(bytes.Clone(first), second...), true)
	f.Add(append(bytes.Clone(first), first...), true)
	f.Add(second, false)
	f.Add(bytes.Repeat([]byte{0xff}, 100), false)
	f.Fuzz(func(t *testing.T, b []byte, encrypt bool) {
		security := TCPIntegrity
		if encrypt {
			security = TCPEncrypt
		}
		s, o := sealers(t, security)
		for len(b) >= TCPRecordHead {
			n, err := o.Size(b)
			if err != nil {
				return
			}
			if n < TCPRecordHead+TCPRecordTag || n > TCPRecordHead+TCPMaxRecord+TCPRecordTag {
				t.Fatalf("a record of %d bytes", n)
			}
			if n > len(b) {
				return
			}
			text, err := open(o, b[:n])
			if err != nil {
				return
			}
			if !bytes.Equal(b[:n], sealed(t, s, text)) {
				t.Fatalf("%x opened as %x", b[:n], text)
			}
			b = b[n:]
		}
	})
}

func TestTCPRecordAllocatesNothing(t *testing.T) {
	eachSecurity(t, func(t *testing.T, security TCPSecurity) {
		s, o := sealers(t, security)
		text := make([]byte, 100)
		got := make([]byte, 100)
		b := make([]byte, TCPRecordHead+len(text)+TCPRecordTag)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			n, err := s.Seal(b, text)
			if err != nil {
				t.Fatal(err)
			}
			if m, err := o.Size(b); m != n || err != nil {
				t.Fatal(m, err)
			}
			if err := o.Open(got, b[:n]); err != nil {
				t.Fatal(err)
			}
		}))
	})
}
