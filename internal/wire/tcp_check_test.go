package wire

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkKey returns a key for a TCPCheck, which follows from seed.
func checkKey(seed uint64) []byte {
	key := make([]byte, TCPCheckKeySize)
	rng := rand.New(rand.NewPCG(seed, seed))
	for i := range key {
		key[i] = byte(rng.Uint32())
	}
	return key
}

// newCheck returns a TCPCheck with the key of checkKey.
func newCheck(t testing.TB, seed uint64) *TCPCheck {
	t.Helper()
	c, err := NewTCPCheck(checkKey(seed))
	require.NoError(t, err)
	return c
}

// checkOf computes, by the formula in the comment of TCPCheck, a check of b in frame n of a class.
// which is 0 for the first check of the frame, and 1 for the second.
func checkOf(t testing.TB, key, b []byte, class TCPClass, n uint64, which int) uint64 {
	t.Helper()
	p := big.NewInt(1<<61 - 1)
	sum := new(big.Int)
	b = append(bytes.Clone(b), make([]byte, -len(b)&7)...)
	factor := func(i int) *big.Int {
		k := new(big.Int).SetUint64(binary.LittleEndian.Uint64(key[8*i:]) & (1<<61 - 1))
		return k.Add(k, new(big.Int).SetUint64(uint64(binary.LittleEndian.Uint32(b[4*i:]))))
	}
	for i := 0; 4*i < len(b); i += 2 {
		sum.Add(sum, new(big.Int).Mul(factor(i), factor(i+1)))
	}
	block, err := aes.NewCipher(key[8*tcpHashKeys:])
	require.NoError(t, err)
	pads := make([]byte, (n+1)*aes.BlockSize)
	iv := [aes.BlockSize]byte{byte(class)}
	cipher.NewCTR(block, iv[:]).XORKeyStream(pads, pads)
	return sum.Mod(sum, p).Uint64() + binary.LittleEndian.Uint64(pads[n*aes.BlockSize+uint64(8*which):])
}

// TestTCPCheckDefinition: SignNext writes the checks that the formula of TCPCheck gives, for all
// sizes of a header.
func TestTCPCheckDefinition(t *testing.T) {
	const seed = 5
	rng := rand.New(rand.NewPCG(seed, seed))
	c := newCheck(t, seed)
	for i := range 200 {
		head := i % (TCPMaxMsgHead + 1)
		b := make([]byte, TCPPrefixSize+head)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		if i%10 == 0 {
			copy(b, bytes.Repeat([]byte{0xff}, len(b)))
		}
		class := TCPClass(i % int(tcpClasses))
		n := c.Next(class)
		c.SignNext(b, class)
		require.Equal(t, checkOf(t, checkKey(seed), b[:8], class, n, 0), binary.LittleEndian.Uint64(b[8:]))
		require.Equal(t, checkOf(t, checkKey(seed), b[TCPPrefixSize:], class, n, 1), binary.LittleEndian.Uint64(b[16:]), "%d bytes", head)
	}
}

// TestTCPCheckFinds: the receiver accepts the frames of the sender in order. It detects every
// flipped bit of a prefix or header, and a frame that is repeated, left out, of another class or of
// another connection.
func TestTCPCheckFinds(t *testing.T) {
	const seed = 6
	signed := func(frames int) [][]byte {
		c := newCheck(t, seed)
		all := make([][]byte, frames)
		for i := range all {
			b := make([]byte, TCPPrefixSize+i%(TCPMaxMsgHead+1))
			PutTCPMsg(b, len(b)-TCPPrefixSize, 1000)
			c.SignNext(b, TCPMessages)
			all[i] = b
		}
		return all
	}
	holds := func(c *TCPCheck, b []byte) bool { return c.WordHolds(b, TCPMessages) && c.HeaderHolds(b, TCPMessages) }
	// at returns the check of a receiver that expects frame n.
	at := func(n int) *TCPCheck {
		c := newCheck(t, seed)
		for range n {
			c.Skip(TCPMessages)
		}
		return c
	}
	all := signed(100)
	c := newCheck(t, seed)
	for i, b := range all {
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			require.False(t, holds(at(i), b), "frame %d, bit %d", i, bit)
			b[bit/8] ^= 1 << (bit % 8)
		}
		require.False(t, holds(newCheck(t, seed+1), b), "of another connection")
		if i > 0 {
			require.False(t, holds(at(i), all[i-1]), "repeated")
			require.False(t, holds(at(i-1), b), "one is missing")
		}
		require.False(t, at(i).WordHolds(b, TCPControls), "of another class")
		require.True(t, holds(c, b), "frame %d", i)
	}
}

// TestTCPCheckAhead: a sender may sign up to TCPCheckAhead frames before it counts the first of
// them, and may sign a frame several times. The receiver accepts the frames that the sender counts.
func TestTCPCheckAhead(t *testing.T) {
	c, d := newCheck(t, 7), newCheck(t, 7)
	rng := rand.New(rand.NewPCG(7, 7))
	for range 1000 {
		var last []byte
		for ahead := range TCPCheckAhead {
			b := make([]byte, TCPPrefixSize+8)
			c.Sign(b, TCPBulk, c.Next(TCPBulk)+uint64(ahead))
			if ahead == 0 {
				last = b
			}
		}
		if rng.IntN(2) == 0 {
			continue
		}
		require.True(t, d.WordHolds(last, TCPBulk))
		require.True(t, d.HeaderHolds(last, TCPBulk))
		c.Skip(TCPBulk)
	}
}

// TestTCPCheckOfLargestNumbers: with the largest keys and the largest bytes, the sum in the hash
// does not overflow.
func TestTCPCheckOfLargestNumbers(t *testing.T) {
	key := bytes.Repeat([]byte{0xff}, TCPCheckKeySize)
	c, err := NewTCPCheck(key)
	require.NoError(t, err)
	b := bytes.Repeat([]byte{0xff}, TCPPrefixSize+TCPMaxMsgHead)
	c.SignNext(b, TCPMessages)
	require.Equal(t, checkOf(t, key, b[TCPPrefixSize:], TCPMessages, 0, 1), binary.LittleEndian.Uint64(b[16:]))
}

func TestTCPCheckAllocatesNothing(t *testing.T) {
	c, d := newCheck(t, 7), newCheck(t, 7)
	b := make([]byte, TCPPrefixSize+MessageShort)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		c.SignNext(b, TCPMessages)
		if !d.WordHolds(b, TCPMessages) || !d.HeaderHolds(b, TCPMessages) {
			t.Fatal("a check does not hold")
		}
	}))
}

func BenchmarkTCPCheck(b *testing.B) {
	c, d := newCheck(b, 7), newCheck(b, 7)
	m := make([]byte, TCPPrefixSize+MessageShort)
	b.Run("sign", func(b *testing.B) {
		for range b.N {
			c.SignNext(m, TCPMessages)
		}
	})
	b.Run("verify", func(b *testing.B) {
		for range b.N {
			d.WordHolds(m, TCPMessages)
			d.HeaderHolds(m, TCPMessages)
		}
	})
}
