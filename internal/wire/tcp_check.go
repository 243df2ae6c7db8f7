package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"math/bits"
)

// TCPCheck computes the checks of frames, or verifies them, in one direction of a connection. The
// first check of a frame covers its first eight bytes, and the second check covers its header. A
// check is a code of 64 bits that only the two processes of the connection can compute. The zero
// TCPCheck has no key, and all its checks are zero.
//
// A check is a Wegman–Carter code: a universal hash of the bytes under a secret key, plus a pad,
// which is a random number that is used once.
//
//	check = (Σ (m₂ᵢ+k₂ᵢ)·(m₂ᵢ₊₁+k₂ᵢ₊₁) mod 2⁶¹−1) + pad   (mod 2⁶⁴)
//
//	m: the bytes as 32-bit numbers, k: secret random numbers
//
// If two inputs of equal size differ in m₂ᵢ, the difference of their hashes is linear in k₂ᵢ₊₁ (and
// the other way round). So exactly one of the 2⁶¹−1 values of that key gives a certain difference.
// The pads hide the hashes. So if the pads are random, a process without the key that changes,
// repeats, drops or invents a header remains undetected with a probability of 2⁻⁶¹. The pads here
// are blocks of AES. AES is a permutation, so its blocks do not repeat as random blocks do. Because
// of this, n frames of one direction add n²/2¹²⁹ to the probability, which is 2⁻⁴⁹ for 2⁴⁰ frames.
// The construction is that of Carter and Wegman ("New hash functions and their use in
// authentication and set equality", 1981). The hash is NMH* of Halevi and Krawczyk ("MMH: Software
// message authentication in the Gbit/second rates", 1997). The hash does not cover the size of its
// input, and need not: the first check covers eight bytes, and these bytes give the size of the
// second check's input.
//
// The pads are blocks of AES in counter mode. Frames have numbers, which are not transmitted: both
// sides count. The number of a frame selects its block, and the block holds a pad for each of the
// frame's two checks. Frames of different classes may overtake each other until they are written to
// the socket, so each class has its own numbers. A connection that ends in good order ends with a
// bye, which holds the number of frames of each class (TCPFrame.Counts). So the receiver also
// detects that the last frames of a class were left out.
type TCPCheck struct {
	keys    [tcpHashKeys]uint64 // secret keys of the hash: the numbers k of the formula
	on      bool                // the TCPCheck has a key; false: all checks are zero
	classes [tcpClasses]tcpPads // pads and frame numbers of each class
}

// TCPClass is a class of frames. The frames of one class stay in the order in which they were made.
type TCPClass uint8

// The classes, with the types of their frames.
const (
	TCPMessages TCPClass = iota // frames of type msg
	TCPControls                 // frames of the types read, refuse, ack, bye and giveup
	TCPBulk                     // frames of the types data, end and write
	TCPRecords                  // heads of records (see [TCPSealer]), which are not frames
	tcpClasses
)

// TCPCounts holds the number of frames of each class, except TCPRecords.
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
	tcpHashKeys  = TCPMaxMsgHead / 4 // one key for each 32 bits of the longest header
	tcpPrime     = 1<<61 - 1
	tcpPadsAhead = 16 // number of blocks that [tcpPads.refill] makes at a time
	// Number of blocks in memory. It is twice tcpPadsAhead, so that refill does not overwrite the
	// block of a frame that is not counted yet.
	tcpPadsKept = 2 * tcpPadsAhead
)

// TCPCheckKeySize is the size of a TCPCheck's key in bytes: the keys of the hash, and an AES-128
// key.
const TCPCheckKeySize = 8*tcpHashKeys + 16

// TCPCheckAhead is the number of frames of a class that may be signed, by Sign, before the first of
// them is counted, by Skip.
const TCPCheckAhead = tcpPadsAhead

// tcpPads holds the pads of one class of frames.
type tcpPads struct {
	next   uint64        // number of the next frame, from 0 on
	made   uint64        // number of blocks that were made so far
	stream cipher.Stream // AES in counter mode, which makes the blocks in order
	// The last tcpPadsKept blocks. Block n is at position n mod tcpPadsKept, counted in blocks from
	// 0.
	blocks [tcpPadsKept * aes.BlockSize]byte
}

// NewTCPCheck returns a TCPCheck with a key of TCPCheckKeySize bytes. The caller must have chosen
// the key at random, and must use it for nothing else.
func NewTCPCheck(key []byte) (*TCPCheck, error) {
	block, err := aes.NewCipher(key[8*tcpHashKeys : TCPCheckKeySize])
	if err != nil {
		return nil, err
	}
	c := &TCPCheck{on: true}
	for i := range c.keys {
		// A key of the hash is a number modulo 2⁶¹−1. The mask leaves numbers from 0 to 2⁶¹−1, and
		// modulo 2⁶¹−1 the last one is 0. So 0 has twice the probability of any other key.
		c.keys[i] = binary.LittleEndian.Uint64(key[8*i:]) & tcpPrime
	}
	for class := range c.classes {
		iv := [aes.BlockSize]byte{byte(class)}
		c.classes[class] = tcpPads{stream: cipher.NewCTR(block, iv[:])}
	}
	return c, nil
}

// block returns the block with the pads of frame n. n is at least p.next-1 and less than
// p.next+TCPCheckAhead.
func (p *tcpPads) block(n uint64) *[aes.BlockSize]byte {
	for n >= p.made {
		p.refill()
	}
	return (*[aes.BlockSize]byte)(p.blocks[n%tcpPadsKept*aes.BlockSize:])
}

// refill makes the next tcpPadsAhead blocks, in place of the oldest ones.
func (p *tcpPads) refill() {
	b := p.blocks[p.made%tcpPadsKept*aes.BlockSize:][:tcpPadsAhead*aes.BlockSize]
	clear(b)
	p.stream.XORKeyStream(b, b)
	p.made += tcpPadsAhead
}

// word returns the hash of w, the first eight bytes of a frame.
func (c *TCPCheck) word(w uint64) uint64 {
	return tcpReduce(bits.Mul64(c.keys[0]+w&0xffffffff, c.keys[1]+w>>32))
}

// hash returns the hash of b, which has at most TCPMaxMsgHead bytes. If the length of b is not a
// multiple of eight, the hash is that of b with zeros appended up to the next multiple.
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

// tcpReduce returns (hi·2⁶⁴+lo) mod 2⁶¹−1. It uses that 2⁶¹ mod 2⁶¹−1 is 1, and so 2⁶⁴ is 8.
func tcpReduce(hi, lo uint64) uint64 {
	x := lo&tcpPrime + lo>>61 + hi<<3&tcpPrime + hi>>58
	x = x&tcpPrime + x>>61
	if x >= tcpPrime {
		x -= tcpPrime
	}
	return x
}

// Next returns the number of the next frame of a class, from 0 on. It is the number of frames of
// the class that were counted so far.
func (c *TCPCheck) Next(class TCPClass) uint64 { return c.classes[class].next }

// Counts returns, for each class, the number of frames that SignNext, SignWord, HeaderHolds and
// Skip have counted.
func (c *TCPCheck) Counts() (n TCPCounts) {
	for class := range n {
		n[class] = c.classes[class].next
	}
	return n
}

// Skip counts the next frame of a class, without signing or verifying it.
func (c *TCPCheck) Skip(class TCPClass) { c.classes[class].next++ }

// Sign writes both checks of frame n of a class into b. b holds the prefix and the header of the
// frame. n is less than Next(class)+TCPCheckAhead. Sign does not count the frame.
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

// SignNext writes both checks of the next frame of a class into b, as Sign does, and counts the
// frame.
func (c *TCPCheck) SignNext(b []byte, class TCPClass) {
	c.Sign(b, class, c.classes[class].next)
	c.classes[class].next++
}

// SignWord writes only the first check of the next frame of a class into b, and counts the frame.
// It is for heads of records, which have only this check. c must have a key.
func (c *TCPCheck) SignWord(b []byte, class TCPClass) {
	p := &c.classes[class]
	binary.LittleEndian.PutUint64(b[8:], c.word(binary.LittleEndian.Uint64(b))+binary.LittleEndian.Uint64(p.block(p.next)[:]))
	p.next++
}

// WordHolds reports whether the first check of the next frame of a class is right. b begins with
// the first 16 bytes of the frame. WordHolds does not count the frame.
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

// HeaderHolds reports whether the second check of the next frame of a class is right, and counts
// the frame, also if the check is wrong. b holds the prefix and the header of the frame.
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
