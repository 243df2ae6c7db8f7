package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// MessageKind is the kind of a message between engines.
type MessageKind uint8

// The kinds of message. The messages of a rendezvous:
//
//	sender ── RTS ──► receiver            sender ── RTS ──► receiver
//	       ◄─ read ──  (by RMA)                  ◄── CTS ──
//	       ◄── FIN ──                            ── Data ──►  as often as necessary
//	   (a fabric with reads)                  (a fabric without)
const (
	MsgEager     MessageKind = iota + 1 // header, then the data
	MsgEagerSync                        // the same; the receiver answers with MsgAck when a receive has matched
	MsgRTS                              // ready to send: Length bytes wait at Key, Addr
	MsgCTS                              // clear to send: Length bytes of request Handle, to the receiver's request Key
	MsgData                             // a segment of data for request Handle, at offset Addr
	MsgFin                              // the receiver no longer needs request Handle; the data is the error text, empty without an error
	MsgAck                              // a receive has matched the MsgEagerSync of request Handle
	MsgCredit                           // carries only credit
	MsgRevoke                           // the context is revoked; the data is the error text
	MsgLeave                            // the sender has called Finalize and sends no message of its program after this one
	MsgWindow                           // message of one-sided communication; see Window
	msgKindEnd
)

// Sizes of a message header.
const (
	MessageShort = 32 // MsgEager, MsgCredit, MsgRevoke, MsgLeave
	MessageLong  = 56 // all others
)

// NoRegion as the Addr of a MsgRTS means that the receiver cannot read the data, and asks
// for it by MsgCTS.
const NoRegion = math.MaxUint64

// Message is the header of every message between two engines, little endian:
//
//	 0      1      2        4           8                  16        20        24         32
//	┌──────┬──────┬────────┬───────────┬──────────────────┬─────────┬─────────┬──────────┐
//	│ kind │  0   │  sig   │  credit   │     context      │   tag   │   seq   │  length  │
//	├──────┴──────┴────────┴───────────┼──────────────────┼─────────┴─────────┼──────────┘
//	│ handle                           │ key              │ addr              │  long form only
//	└──────────────────────────────────┴──────────────────┴───────────────────┘
//	32                                 40                 48                  56
type Message struct {
	Kind    MessageKind
	Sig     uint16 // signature of the collective call, or of the element type; 0: none
	Credit  uint32 // bytes of credit that the sender of this header returns
	Context uint64 // communication context
	Tag     int32
	Seq     uint32 // number of the message among those from one engine to another
	Length  int    // length of the whole message of the program, in bytes
	Handle  uint64 // request of the receiver of this header; of RTS and EagerSync: of its sender
	Key     uint64 // key of the memory region (RTS), or request of the receiver of the data (CTS)
	Addr    uint64 // address in the memory region (RTS), or offset in the message (Data)
}

// HeaderLen returns the encoded size of a header of this kind.
func (k MessageKind) HeaderLen() int {
	if k == MsgEager || k == MsgCredit || k == MsgRevoke || k == MsgLeave {
		return MessageShort
	}
	return MessageLong
}

// Put encodes m into b and returns the header's length. b has at least MessageLong bytes.
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

// PutEager is Put for the header of a MsgEager with these fields.
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

// ParseEager decodes a MsgEager with its data. ok is false if b is not exactly that; the caller
// then calls Message.Parse.
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

// Errors of Message.Parse.
var (
	errMsgShort  = errors.New("message shorter than its header")
	errMsgKind   = errors.New("unknown message kind")
	errMsgLength = errors.New("message length differs from its header")
)

// Parse decodes the header of a message and returns the bytes after it. It checks everything that
// does not depend on requests: the kind, that eager messages carry as many bytes as their headers
// say, and that lengths are possible.
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
	if m.Kind == MsgEager && length == uint64(len(b)-MessageShort) { // as most messages
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
	case MsgAck, MsgCredit, MsgLeave, MsgRTS, MsgCTS:
		if len(data) != 0 {
			return nil, errMsgLength
		}
	case msgKindEnd: // rejected above
	}
	return data, nil
}
