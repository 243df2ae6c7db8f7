package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// MessageKind is the kind of a message that one rank's engine sends to another's.
type MessageKind uint8

// The kinds of message. A rendezvous, by which a large message is transferred, has these messages:
//
//	sender ── RTS ──► receiver            sender ── RTS ──► receiver
//	       ◄─ read ──  (by RMA)                  ◄── CTS ──
//	       ◄── FIN ──                            ── Data ──►  as often as necessary
//	   (the receiver can read                 (the receiver cannot read
//	    the sender's memory)                   the sender's memory)
//
// A partitioned message has in addition any number of MsgReady between its RTS and its last read, and
// the first one of its Partitions a MsgPull.
const (
	MsgEager MessageKind = iota + 1 // a message of the program with its data
	// A message of a synchronous send with its data. The receiver answers with MsgAck when a
	// receive takes the message, or with MsgFin after an error.
	MsgEagerSync
	// Ready to send: the sender has a message of Length bytes, at Addr in the memory region with
	// the key Key. Handle is the number of the sender's request.
	MsgRTS
	// Clear to send: the receiver asks for the first Length bytes of the sender's request Handle.
	// Key is the number of the receiver's request. Addr is the id of the receiver's partitions; 0:
	// the message is not partitioned.
	MsgCTS
	MsgData // a segment of the data for the receiver's request Handle; Addr is its offset in bytes
	// The receiver no longer needs the sender's request Handle. The data describes an error of the
	// receiver; empty: there is none. Or the sender cannot send the rest of the data for the
	// receiver's request Handle. Then the data describes the error.
	MsgFin
	MsgAck    // a receive has taken the MsgEagerSync of the sender's request Handle
	MsgCredit // has no content except Credit, which may be 0
	MsgRevoke // the communicator of the context is revoked; the data is the text of the reason
	MsgLeave  // the sender has called Finalize, and sends no message of its program after this one
	MsgWindow // a message of one-sided communication; see Window
	// The receiver of a partitioned message reads the sender's request Handle by RMA, and asks
	// which partitions are ready. Key is the id of the receiver's partitions.
	MsgPull
	// The Key partitions from number Addr on are ready. Handle is the id of the receiver's
	// partitions, and Tag the number of the message among theirs. Key is 0: no more partitions
	// become ready.
	MsgReady
	msgKindEnd
)

// Sizes of a message header in bytes.
const (
	MessageShort = 32 // header of MsgEager, MsgCredit, MsgRevoke and MsgLeave
	MessageLong  = 56 // header of all other kinds
)

// NoRegion is the Addr of a MsgRTS whose data is in no memory region. So the receiver cannot read
// the data by RMA, and asks for it by MsgCTS.
const NoRegion = math.MaxUint64

// Message is the header of a message between two engines. Its encoding is little endian:
//
//	 0      1      2        4           8                  16        20        24         32
//	┌──────┬──────┬────────┬───────────┬──────────────────┬─────────┬─────────┬──────────┐
//	│ kind │  0   │  sig   │  credit   │     context      │   tag   │   seq   │  length  │
//	├──────┴──────┴────────┴───────────┼──────────────────┼─────────┴─────────┼──────────┘
//	│ handle                           │ key              │ addr              │  long form only
//	└──────────────────────────────────┴──────────────────┴───────────────────┘
//	32                                 40                 48                  56
type Message struct {
	Kind MessageKind
	// The signature of the message's elements: of their type, or of the collective call that sends
	// them. 0 matches every signature. MsgWindow: see Window.Message.
	Sig uint16
	// Bytes of credit that the sender of this header returns to the receiver: memory for unexpected
	// messages that has become free.
	Credit  uint32
	Context uint64 // id of the communication context
	Tag     int32  // tag of the program's message; MsgWindow: see Window.Message
	Seq     uint32 // number of this message among all from its sender to its receiver, from 1 on, modulo 2³²
	// The number of bytes of data. MsgRTS and MsgCTS: those of the whole transfer. Other kinds:
	// those that follow this header.
	Length int
	// MsgRTS and MsgEagerSync: number of a request of the engine that sends this header. MsgCTS,
	// MsgData, MsgFin, MsgAck and MsgPull: number of a request of the engine that receives it. MsgReady:
	// see there. MsgWindow: see Window.Message.
	Handle uint64
	// MsgRTS: key of the memory region. MsgCTS: number of the receive's request. MsgPull and
	// MsgReady: see there. MsgWindow: see Window.Message.
	Key uint64
	// MsgRTS: address in the memory region. MsgData: offset in the data of the message. MsgCTS and
	// MsgReady: see there. MsgWindow: see Window.Message.
	Addr uint64
}

// HeaderLen returns the encoded size in bytes of the header of a message of kind k.
func (k MessageKind) HeaderLen() int {
	if k == MsgEager || k == MsgCredit || k == MsgRevoke || k == MsgLeave {
		return MessageShort
	}
	return MessageLong
}

// Put encodes m into b and returns the number of bytes that it has written. b has at least
// MessageLong bytes.
//
// Hot path: no allocation, no lock, no system call.
func (m *Message) Put(b []byte) int {
	_ = b[MessageLong-1]
	putShort(b, m.Kind, m.Sig, m.Credit, m.Context, m.Tag, m.Seq, m.Length)
	n := m.Kind.HeaderLen()
	if n == MessageLong {
		binary.LittleEndian.PutUint64(b[32:], m.Handle)
		binary.LittleEndian.PutUint64(b[40:], m.Key)
		binary.LittleEndian.PutUint64(b[48:], m.Addr)
	}
	return n
}

// PutEager encodes the header of a MsgEager into b, which has at least MessageShort bytes, and
// returns MessageShort. It does what Put does for a Message with these fields, in less time.
//
// Hot path: no allocation, no lock, no system call.
func PutEager(b []byte, sig uint16, credit uint32, context uint64, tag int32, seq uint32, length int) int {
	putShort(b, MsgEager, sig, credit, context, tag, seq, length)
	return MessageShort
}

func putShort(b []byte, kind MessageKind, sig uint16, credit uint32, context uint64, tag int32, seq uint32, length int) {
	_ = b[MessageShort-1]
	binary.LittleEndian.PutUint64(b, uint64(kind)|uint64(sig)<<16|uint64(credit)<<32)
	binary.LittleEndian.PutUint64(b[8:], context)
	binary.LittleEndian.PutUint64(b[16:], uint64(uint32(tag))|uint64(seq)<<32)
	binary.LittleEndian.PutUint64(b[24:], uint64(length))
}

// ParseEager decodes a MsgEager: its header, and data, which is the rest of b. data shares memory
// with b. If b is another message or is malformed, ok is false, and the caller calls Message.Parse.
//
// Hot path: no allocation, no lock, no system call.
func ParseEager(b []byte) (sig uint16, credit uint32, context uint64, tag int32, seq uint32, data []byte, ok bool) {
	if len(b) < MessageShort {
		return
	}
	first := binary.LittleEndian.Uint64(b)
	third := binary.LittleEndian.Uint64(b[16:])
	data = b[MessageShort:]
	return uint16(first >> 16), uint32(first >> 32), binary.LittleEndian.Uint64(b[8:]), int32(uint32(third)), uint32(third >> 32), data,
		uint16(first) == uint16(MsgEager) && binary.LittleEndian.Uint64(b[24:]) == uint64(len(data))
}

// The errors of Message.Parse. Window.Parse returns errMsgLength too.
var (
	errMsgShort  = errors.New("message shorter than its header")
	errMsgKind   = errors.New("unknown message kind")
	errMsgLength = errors.New("message length differs from its header")
)

// Parse decodes the header at the beginning of b into m, and returns the bytes after it, which
// share memory with b. It checks that the kind exists, that a kind with data has Length bytes of
// it, and that a kind without data has none. The caller checks the other fields, such as Handle.
//
// Hot path: no allocation, no lock, no system call.
func (m *Message) Parse(b []byte) (data []byte, err error) {
	if len(b) < MessageShort {
		return nil, errMsgShort
	}
	w := binary.LittleEndian.Uint64(b)
	m.Kind = MessageKind(w)
	if m.Kind == 0 || m.Kind >= msgKindEnd || byte(w>>8) != 0 {
		return nil, errMsgKind
	}
	m.Sig, m.Credit = uint16(w>>16), uint32(w>>32)
	m.Context = binary.LittleEndian.Uint64(b[8:])
	w = binary.LittleEndian.Uint64(b[16:])
	m.Tag, m.Seq = int32(uint32(w)), uint32(w>>32)
	length := binary.LittleEndian.Uint64(b[24:])
	m.Handle, m.Key, m.Addr = 0, 0, 0
	// This case is the most frequent one, so it returns early.
	if m.Kind == MsgEager && length == uint64(len(b)-MessageShort) {
		m.Length = int(length)
		return b[MessageShort:], nil
	}
	n := m.Kind.HeaderLen()
	if n == MessageLong {
		if len(b) < MessageLong {
			return nil, errMsgShort
		}
		m.Handle = binary.LittleEndian.Uint64(b[32:])
		m.Key = binary.LittleEndian.Uint64(b[40:])
		m.Addr = binary.LittleEndian.Uint64(b[48:])
	}
	data = b[n:]
	if length > math.MaxInt {
		return nil, fmt.Errorf("%w: %d bytes", errMsgLength, length)
	}
	m.Length = int(length)
	switch m.Kind {
	case MsgEager, MsgEagerSync, MsgData, MsgFin, MsgRevoke, MsgWindow:
		if m.Length != len(data) {
			return nil, errMsgLength
		}
	case MsgAck, MsgCredit, MsgLeave, MsgRTS, MsgCTS, MsgPull, MsgReady:
		if len(data) != 0 {
			return nil, errMsgLength
		}
	case msgKindEnd: // the check of the kind above has rejected it
	}
	return data, nil
}
