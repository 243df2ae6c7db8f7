package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"math/bits"
)

// TCPCheck signs or verifies the headers of frames in one direction of a connection.
// Without a key (the zero TCPCheck) all checks are zero.
//
// A check is a Wegman–Carter code of 64 bits: a universal hash of the bytes under a
// secret key, plus a pad that is used once.
//
//	check = (Σ (m₂ᵢ+k₂ᵢ)·(m₂ᵢ₊₁+k₂ᵢ₊₁) mod 2⁶¹−1) + pad
//
//	m: the bytes as 32-bit numbers, k: secret random numbers
//
// If two inputs of equal size differ in m₂ᵢ, the difference of their hashes is linear in
// k₂ᵢ₊₁ (and the other way round): exactly one of the 2⁶¹−1 values of that key gives a
// given difference. The pads hide the hashes. So if the pads are random, a process without
// the key changes, repeats, drops or invents a header undetected with a probability of
// 2⁻⁶¹. AES is a permutation, so its blocks do not repeat as random blocks do: n frames of
// one direction add n²/2¹²⁹ to the probability, which is 2⁻⁴⁹ for 2⁴⁰ frames. The
// construction is Carter and Wegman's ("New hash functions and their use in authentication
// and set equality", 1981). The hash is NMH* of Halevi and Krawczyk ("MMH: Software message
// authentication in the Gbit/second rates", 1997). The size is not hashed: the first check
// covers eight bytes, and these bytes give the size of the second check's input.
//
// The pads are blocks of AES in counter mode. Frames have numbers, which are not on the
// wire: a frame's number selects its block, and the block holds a pad for each of the
// frame's two checks. Frames of different classes may overtake each other until they are
// written, so each class has its own numbers. The last frame of a connection holds the
// number of frames of each class (see [TCPFrame]), so the receiver also detects that the
// last frames of a class were left out.
type TCPCheck struct {
	keys    [tcpHashKeys]uint64
	on      bool
	classes [tcpClasses]tcpPads
}

// TCPClass is a class of frames. The frames of one class stay in order.
type TCPClass uint8

// The classes.
const (
	TCPMessages TCPClass = iota // msg
	TCPControls                 // read, refuse, ack, bye, giveup
	TCPBulk                     // data, end, write
	TCPRecords                  // the heads of records; the classes above are of frames
	tcpClasses
)

// TCPCounts holds a number of frames for each class.
type TCPCounts [TCPRecords]uint64

// Class returns the class of frames of type t.
func (t TCPType) Class() TCPClass {
	switch t {
	case TCPMsg:
		return TCPMessages
	case TCPData, TCPEnd, TCPWrite:
		return TCPBulk
	case TCPRead, TCPRefuse, TCPAck, TCPBye, TCPGiveUp:
	}
	return TCPControls
}

const (
	tcpHashKeys  = TCPMaxMsgHead / 4 // one for each 32 bits of the longest header
	tcpPrime     = 1<<61 - 1
	tcpPadsAhead = 16               // blocks made at a time
	tcpPadsKept  = 2 * tcpPadsAhead // so the blocks of the next tcpPadsAhead numbers always exist
)

// TCPCheckKeySize is the size of a TCPCheck's key in bytes.
const TCPCheckKeySize = 8*tcpHashKeys + 16

// TCPCheckAhead is the number of frames of a class that may be signed before the first of
// them is counted.
const TCPCheckAhead = tcpPadsAhead

// tcpPads are the pads of one class.
type tcpPads struct {
	next   uint64 // number of the next frame
	made   uint64 // blocks made so far
	stream cipher.Stream
	blocks [tcpPadsKept * aes.BlockSize]byte
}

// NewTCPCheck returns a TCPCheck with a key of TCPCheckKeySize bytes. The key must be
// uniformly random and serve no other purpose.
func NewTCPCheck(key []byte) (*TCPCheck, error) {
	block, err := aes.NewCipher(key[8*tcpHashKeys : TCPCheckKeySize])
	if err != nil {
		return nil, err
	}
	c := &TCPCheck{on: true}
	for i := range c.keys {
		c.keys[i] = binary.LittleEndian.Uint64(key[8*i:]) & tcpPrime // 2⁶¹−1 stands for 0, too, so 0 is twice as likely as other values: 2 in 2⁶¹
	}
	for class := range c.classes {
		iv := [aes.BlockSize]byte{byte(class)}
		c.classes[class] = tcpPads{stream: cipher.NewCTR(block, iv[:])}
	}
	return c, nil
}

// block returns the pads of frame n. n is less than p.next+TCPCheckAhead.
func (p *tcpPads) block(n uint64) *[aes.BlockSize]byte {
	for n >= p.made {
		p.refill()
	}
	return (*[aes.BlockSize]byte)(p.blocks[n%tcpPadsKept*aes.BlockSize:])
}

func (p *tcpPads) refill() {
	b := p.blocks[p.made%tcpPadsKept*aes.BlockSize:][:tcpPadsAhead*aes.BlockSize]
	clear(b)
	p.stream.XORKeyStream(b, b)
	p.made += tcpPadsAhead
}

// word hashes the first eight bytes of a frame.
func (c *TCPCheck) word(w uint64) uint64 {
	return tcpReduce(bits.Mul64(c.keys[0]+w&0xffffffff, c.keys[1]+w>>32))
}

// hash hashes at most TCPMaxMsgHead bytes. It pads them with zeros to a multiple of eight.
func (c *TCPCheck) hash(b []byte) uint64 {
	var hi, lo, carry uint64
	keys := c.keys[:]
	for len(b) >= 8 && len(keys) >= 2 {
		w := binary.LittleEndian.Uint64(b)
		h, l := bits.Mul64(keys[0]+w&0xffffffff, keys[1]+w>>32)
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry
		b, keys = b[8:], keys[2:]
	}
	if len(b) > 0 && len(keys) >= 2 {
		var w uint64
		for j, x := range b {
			w |= uint64(x) << (8 * j)
		}
		h, l := bits.Mul64(keys[0]+w&0xffffffff, keys[1]+w>>32)
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry
	}
	return tcpReduce(hi, lo)
}

// tcpReduce returns hi·2⁶⁴+lo mod 2⁶¹−1, where 2⁶¹ is 1 and 2⁶⁴ is 8.
func tcpReduce(hi, lo uint64) uint64 {
	x := lo&tcpPrime + lo>>61 + hi<<3&tcpPrime + hi>>58
	x = x&tcpPrime + x>>61
	if x >= tcpPrime {
		x -= tcpPrime
	}
	return x
}

// Next returns the number of the next frame of a class.
func (c *TCPCheck) Next(class TCPClass) uint64 { return c.classes[class].next }

// Counts returns the number of frames of each class that have been counted.
func (c *TCPCheck) Counts() (n TCPCounts) {
	for class := range n {
		n[class] = c.classes[class].next
	}
	return n
}

// Skip counts the next frame of a class.
func (c *TCPCheck) Skip(class TCPClass) { c.classes[class].next++ }

// Sign writes the checks of frame n of a class. b holds the frame up to the end of its
// header.
//
// Hot path: no allocation, no system call.
func (c *TCPCheck) Sign(b []byte, class TCPClass, n uint64) {
	le := binary.LittleEndian
	if !c.on {
		le.PutUint64(b[8:], 0)
		le.PutUint64(b[16:], 0)
		return
	}
	pads := c.classes[class].block(n)
	le.PutUint64(b[8:], c.word(le.Uint64(b))+le.Uint64(pads[:]))
	le.PutUint64(b[16:], c.hash(b[TCPPrefixSize:])+le.Uint64(pads[8:]))
}

// SignNext signs the next frame of a class, and counts it.
func (c *TCPCheck) SignNext(b []byte, class TCPClass) {
	c.Sign(b, class, c.classes[class].next)
	c.classes[class].next++
}

// SignWord writes only the first check of the next frame of a class, and counts the frame.
func (c *TCPCheck) SignWord(b []byte, class TCPClass) {
	p := &c.classes[class]
	binary.LittleEndian.PutUint64(b[8:], c.word(binary.LittleEndian.Uint64(b))+binary.LittleEndian.Uint64(p.block(p.next)[:]))
	p.next++
}

// WordHolds reports whether the first check of the next frame of a class holds. b begins
// with the frame's prefix.
//
// Hot path: no allocation, no system call.
func (c *TCPCheck) WordHolds(b []byte, class TCPClass) bool {
	le := binary.LittleEndian
	if !c.on {
		return le.Uint64(b[8:]) == 0
	}
	p := &c.classes[class]
	return c.word(le.Uint64(b))+le.Uint64(p.block(p.next)[:]) == le.Uint64(b[8:])
}

// HeaderHolds reports whether the second check of the next frame of a class holds, and
// counts the frame. b holds the frame up to the end of its header.
//
// Hot path: no allocation, no system call.
func (c *TCPCheck) HeaderHolds(b []byte, class TCPClass) bool {
	le := binary.LittleEndian
	p := &c.classes[class]
	n := p.next
	p.next++
	if !c.on {
		return le.Uint64(b[16:]) == 0
	}
	pads := p.block(n)
	return c.hash(b[TCPPrefixSize:])+le.Uint64(pads[8:]) == le.Uint64(b[16:])
}
