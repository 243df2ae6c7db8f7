package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The stream of a tcp connection is a sequence of frames. All numbers are
// little endian.
//
//	0      1        2        3      4        8        16        24
//	┌──────┬────────┬────────┬──────┬────────┬────────┬─────────┬──────────┬──────────────┐
//	│ type │ status │ header │ zero │ length │ check  │ check   │ header   │ length bytes │
//	│      │        │ bytes  │      │        │ of 0–7 │ of 24–… │          │              │
//	└──────┴────────┴────────┴──────┴────────┴────────┴─────────┴──────────┴──────────────┘
//	msg     –        0 to 64                                     of the message, its data
//	read    –        32       length 0                           id key addr total
//	data    –        8                                           id        next bytes of the read
//	end     of data  0        length 0                           –
//	refuse  of read  8        length 0                           id
//	write   –        40                                          id key addr total offset, bytes at addr+offset
//	ack     of write 8        length 0                           id
//	bye     –        24       length 0                           messages, control, bulk: counts of frames
//	giveup  –        0        length 0                           –
//
// The answer to a read is a sequence of data frames whose lengths add up to total, or at
// any point a refuse. An end follows the bytes of each data frame. Its status says whether
// the bytes are the region's: the region may be withdrawn while they are written. The
// answer to each write frame is an ack; the frames of one write repeat key, addr and
// total. If a process ends the connection because of what it received, it sends a giveup
// if it can. A bye holds the number of frames of each class that its sender has sent,
// including the bye, so the receiver detects a frame that was left out before it.
//
// The checks (see [TCPCheck]) cover all of a frame except its length bytes. A receiver
// uses the first eight bytes as soon as the first check holds, so a changed length never
// makes it wait for bytes that do not come.

// TCPType is the type of a frame, its first byte.
type TCPType uint8

// The types of frame.
const (
	TCPMsg TCPType = iota + 1
	TCPRead
	TCPData
	TCPEnd
	TCPRefuse
	TCPWrite
	TCPAck
	TCPBye
	TCPGiveUp
)

// TCPStatus is the result of a read or write at its target.
type TCPStatus uint8

// The statuses.
const (
	TCPOK     TCPStatus = iota
	TCPKey              // no such memory region
	TCPBounds           // outside the region
	TCPAccess           // the region does not permit it
	tcpStatusEnd
)

// Sizes of frames.
const (
	TCPPrefixSize = 24 // the beginning of every frame; the whole of an end and of a giveup
	TCPReadSize   = TCPPrefixSize + 32
	TCPDataSize   = TCPPrefixSize + 8 // without its bytes
	TCPRefuseSize = TCPPrefixSize + 8
	TCPWriteSize  = TCPPrefixSize + 40 // without its bytes
	TCPAckSize    = TCPPrefixSize + 8
	TCPByeSize    = TCPPrefixSize + 8*len(TCPCounts{})
	TCPMaxHeader  = TCPWriteSize // the largest of them
	TCPMaxMsgHead = 64           // bytes of a msg's header
	TCPMaxMsg     = 1 << 17      // bytes of a msg, header and data
	TCPMaxChunk   = 1 << 20      // bytes of a data or write frame
)

// ErrTCPFrame reports that bytes are not a frame.
var ErrTCPFrame = errors.New("malformed tcp frame")

// Valid reports whether s is one of the statuses.
func (s TCPStatus) Valid() bool { return s < tcpStatusEnd }

// TCPFrame is a frame without its bytes.
type TCPFrame struct {
	Type   TCPType
	Status TCPStatus
	Length uint32 // bytes that follow
	ID     uint64 // of the read or write, chosen by its initiator
	Key    uint64
	Addr   uint64 // where the whole read or write begins
	Total  uint64 // bytes of the whole read or write
	Offset uint64 // of this frame's bytes in the whole write
	Counts TCPCounts
}

// header returns the size of the header after the prefix, without the length bytes. It
// returns -1 for an unknown type and for a type whose header size varies.
func (t TCPType) header() int {
	switch t {
	case TCPEnd, TCPGiveUp:
		return 0
	case TCPBye:
		return TCPByeSize - TCPPrefixSize
	case TCPRead:
		return TCPReadSize - TCPPrefixSize
	case TCPData, TCPRefuse, TCPAck:
		return TCPDataSize - TCPPrefixSize
	case TCPWrite:
		return TCPWriteSize - TCPPrefixSize
	case TCPMsg:
	}
	return -1
}

// hasStatus reports whether frames of the type carry a status.
func (t TCPType) hasStatus() bool { return t == TCPEnd || t == TCPRefuse || t == TCPAck }

// PutTCPMsg writes the prefix of a msg to b, without its checks. The msg has head bytes of
// header, and n bytes in all.
func PutTCPMsg(b []byte, head, n int) {
	binary.LittleEndian.PutUint64(b, uint64(TCPMsg)|uint64(head)<<16|uint64(n-head)<<32)
}

// Put writes the frame to b, without its checks and its length bytes, and returns the size
// written. b has room for TCPMaxHeader bytes. The frame is not a msg.
func (f *TCPFrame) Put(b []byte) int {
	le := binary.LittleEndian
	head := f.Type.header()
	le.PutUint64(b, uint64(f.Type)|uint64(f.Status)<<8|uint64(head)<<16|uint64(f.Length)<<32)
	switch f.Type {
	case TCPData, TCPRefuse, TCPAck:
		le.PutUint64(b[24:], f.ID)
	case TCPRead, TCPWrite:
		le.PutUint64(b[24:], f.ID)
		le.PutUint64(b[32:], f.Key)
		le.PutUint64(b[40:], f.Addr)
		le.PutUint64(b[48:], f.Total)
		if f.Type == TCPWrite {
			le.PutUint64(b[56:], f.Offset)
		}
	case TCPBye:
		for i, n := range f.Counts {
			le.PutUint64(b[24+8*i:], n)
		}
	case TCPMsg, TCPEnd, TCPGiveUp:
	}
	return TCPPrefixSize + head
}

// TCPMsgLen reads the first eight bytes of a msg, which has head bytes of header and n
// bytes in all. ok is false for any other frame; the caller then calls Parse.
func TCPMsgLen(b []byte) (head, n int, ok bool) {
	w := binary.LittleEndian.Uint64(b)
	head = int(w >> 16 & 0xff)
	n = int(w>>32) + head
	return head, n, w&0xff00ffff == uint64(TCPMsg) && head <= TCPMaxMsgHead && n <= TCPMaxMsg
}

// Parse reads a frame other than a msg from the front of b and returns its size without
// its length bytes, or 0 if b is too short. If only the part after the prefix is wrong,
// Parse returns the size with the error. Parse does not verify the checks.
func (f *TCPFrame) Parse(b []byte) (int, error) {
	if len(b) < TCPPrefixSize {
		return 0, nil
	}
	le := binary.LittleEndian
	*f = TCPFrame{Type: TCPType(b[0]), Status: TCPStatus(b[1]), Length: le.Uint32(b[4:])}
	head := f.Type.header()
	if head < 0 || int(b[2]) != head || b[3] != 0 {
		return 0, fmt.Errorf("%w: type %d", ErrTCPFrame, f.Type)
	}
	if f.Status != TCPOK && (!f.Type.hasStatus() || !f.Status.Valid()) || f.Status == TCPOK && f.Type == TCPRefuse {
		return 0, fmt.Errorf("%w: status %d in type %d", ErrTCPFrame, f.Status, f.Type)
	}
	if f.Length > TCPMaxChunk || f.Length > 0 && f.Type != TCPData && f.Type != TCPWrite {
		return 0, fmt.Errorf("%w: length %d in type %d", ErrTCPFrame, f.Length, f.Type)
	}
	size := TCPPrefixSize + head
	if len(b) < size {
		return 0, nil
	}
	switch f.Type {
	case TCPData, TCPRefuse, TCPAck:
		f.ID = le.Uint64(b[24:])
	case TCPRead, TCPWrite:
		f.ID = le.Uint64(b[24:])
		f.Key = le.Uint64(b[32:])
		f.Addr = le.Uint64(b[40:])
		f.Total = le.Uint64(b[48:])
		if f.Type == TCPWrite {
			f.Offset = le.Uint64(b[56:])
			if f.Offset > f.Total || uint64(f.Length) > f.Total-f.Offset {
				return size, fmt.Errorf("%w: write of %d at %d of %d bytes", ErrTCPFrame, f.Length, f.Offset, f.Total)
			}
		}
	case TCPBye:
		for i := range f.Counts {
			f.Counts[i] = le.Uint64(b[24+8*i:])
		}
	case TCPMsg, TCPEnd, TCPGiveUp:
	}
	return size, nil
}
