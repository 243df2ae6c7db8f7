package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The stream of a tcp connection is a sequence of frames. A frame has a prefix of 24 bytes, a
// header, and a payload: the bytes that the field length counts. All numbers are little endian.
//
//	0      1        2        3      4        8        16        24
//	┌──────┬────────┬────────┬──────┬────────┬────────┬─────────┬──────────┬─────────┐
//	│ type │ status │ header │ zero │ length │ check  │ check   │ header   │ payload │
//	│      │        │ bytes  │      │        │ of 0–7 │ of 24–… │          │         │
//	└──────┴────────┴────────┴──────┴────────┴────────┴─────────┴──────────┴─────────┘
//
//	type    status    header bytes   header                           payload
//	msg     –         0 to 64        header of the message            data of the message
//	read    –         32             id key addr total                –
//	data    –         8              id                               next bytes of the read
//	end     of data   0              –                                –
//	refuse  of read   8              id                               –
//	write   –         40             id key addr total offset         bytes for addr+offset
//	ack     of write  8              id                               –
//	bye     –         24             counts of frames, by class       –
//	giveup  –         0              –                                –
//
// A msg carries a message of the engine. read and write are RMA operations on the memory of the
// process that gets the frame; id identifies the operation:
//   - The answer to a read is a sequence of data frames, whose lengths add up to total. Instead of
//     the next data frame, the answer may end with a refuse.
//   - An end follows each data frame that has a payload. Its status says whether the payload is the
//     content of the memory region: the region may be deregistered while the payload is written to
//     the socket. If the status is an error, the answer ends there.
//   - The data of one write may be in several write frames, which repeat key, addr and total. The
//     answer to each of them is an ack.
//
// A process that ends a connection because of a protocol error sends a giveup before, if it can. A
// process that ends a connection in good order sends a bye. The bye holds the number of frames of
// each class (see [TCPClass]) that its sender has sent, the bye included. So the receiver detects
// that frames before the bye were left out.
//
// The two checks (see [TCPCheck]) cover the first eight bytes and the header, but not the payload.
// A receiver does not use the first eight bytes, which hold the length, before it has verified the
// first check. So if the length was changed on its way, the receiver does not wait for bytes that
// never come.

// TCPType is the type of a frame: its first byte.
type TCPType uint8

// The types of frame, in the order of the table above.
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

// TCPStatus is the result of a read or write, which the process that has the memory returns in an
// end, a refuse or an ack.
type TCPStatus uint8

// The results of a read or write.
const (
	TCPOK     TCPStatus = iota // the operation was done
	TCPKey                     // no memory region has the key
	TCPBounds                  // some of the bytes are outside the region
	TCPAccess                  // the region does not permit the operation
	tcpStatusEnd
)

// Sizes in bytes. TCPReadSize, TCPDataSize, TCPRefuseSize, TCPWriteSize, TCPAckSize and TCPByeSize
// are those of prefix and header together, without the payload.
const (
	TCPPrefixSize = 24 // the prefix of every frame, and the whole of an end or a giveup
	TCPReadSize   = TCPPrefixSize + 32
	TCPDataSize   = TCPPrefixSize + 8
	TCPRefuseSize = TCPPrefixSize + 8
	TCPWriteSize  = TCPPrefixSize + 40
	TCPAckSize    = TCPPrefixSize + 8
	TCPByeSize    = TCPPrefixSize + 8*len(TCPCounts{})
	TCPMaxHeader  = TCPWriteSize // the largest of the sizes above
	TCPMaxMsgHead = 64           // maximum size of the header of a msg, without its prefix
	TCPMaxMsg     = 1 << 17      // maximum size of header and payload of a msg together, without its prefix
	TCPMaxChunk   = 1 << 20      // maximum size of the payload of a data or write frame
)

// ErrTCPFrame is the error of TCPFrame.Parse for bytes that are not a frame, and of TCPSealer.Size
// for a head that is not that of a record.
var ErrTCPFrame = errors.New("malformed tcp frame")

// Valid reports whether s is one of the constants above.
func (s TCPStatus) Valid() bool { return s < tcpStatusEnd }

// TCPFrame holds the prefix and the header of a frame that is not a msg, without the checks. A
// field that the type does not have is zero.
type TCPFrame struct {
	Type   TCPType
	Status TCPStatus // only in an end, a refuse or an ack; TCPOK in other types
	Length uint32    // size of the payload in bytes
	ID     uint64    // number of the read or write; the process that starts the operation chooses it
	Key    uint64    // key of the memory region
	Addr   uint64    // address at which the whole read or write begins
	Total  uint64    // number of bytes of the whole read or write
	Offset uint64    // offset of the payload in the whole write, in bytes
	Counts TCPCounts // only in a bye: numbers of frames that its sender has sent, the bye included
}

// header returns the size in bytes of the header of a frame of type t, which follows the prefix. It
// returns -1 for an unknown type, and for a msg, whose header has no fixed size.
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

// hasStatus reports whether frames of type t carry a status.
func (t TCPType) hasStatus() bool { return t == TCPEnd || t == TCPRefuse || t == TCPAck }

// PutTCPMsg writes the first eight bytes of a msg to b. It does not write the checks. The header of
// the msg has head bytes, and header and payload together have n bytes.
func PutTCPMsg(b []byte, head, n int) {
	binary.LittleEndian.PutUint64(b, uint64(TCPMsg)|uint64(head)<<16|uint64(n-head)<<32)
}

// Put writes the prefix, without the checks, and the header of the frame to b, and returns the size
// of prefix and header. b has room for TCPMaxHeader bytes. The frame is not a msg.
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

// TCPMsgLen reads the first eight bytes of a frame, which b must contain. If the frame is a msg,
// TCPMsgLen returns the size of its header, and the size n of header and payload together. For any
// other frame, and for a malformed one, ok is false, and the caller calls TCPFrame.Parse.
func TCPMsgLen(b []byte) (head, n int, ok bool) {
	w := binary.LittleEndian.Uint64(b)
	head = int(w >> 16 & 0xff)
	n = int(w>>32) + head
	return head, n, w&0xff00ffff == uint64(TCPMsg) && head <= TCPMaxMsgHead && n <= TCPMaxMsg
}

// Parse reads the prefix and the header of a frame other than a msg from the beginning of b. It
// returns the size of both together. If b does not hold all of them yet, it returns 0 and no error.
// Parse does not verify the two checks in the prefix (see [TCPCheck]): the caller does. So that the
// caller can verify the check of a header that is wrong, Parse returns the size together with the
// error if only the header is wrong.
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
