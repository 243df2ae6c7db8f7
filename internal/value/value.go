// Package value encodes Go values as messages, with encoding/gob.
package value

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/weft-hpc/weft/internal/elem"
)

// Values in messages
//
//	"weft-gob"  stream                          the output of a new gob.Encoder
//	"weft-gbt"  length   definitions   value    the same output; length: of the definitions, 4 bytes
//
// A gob stream begins with the definitions of the types of its first value. Definitions
// cost ten times as much to write and read as a small value. So this package keeps an
// encoder for each type, which writes the definitions only once, and a decoder for each
// sequence of definitions, which reads them only once. Every message still holds the
// definitions, so a receiver needs no other message to decode it.
//
// A value that holds interfaces may need further definitions. Its message has the first
// form.

const (
	magicStream = "weft-gob"
	magicValue  = "weft-gbt"
	magicSize   = len(magicStream)
	valueHead   = magicSize + 4
)

const (
	// Kept is the size of the largest message whose encoder and decoder are kept. Both keep
	// buffers as large as their largest message.
	Kept = 64 << 10
	// decodersKept bounds the number of decoders. Without a bound, peers could make this rank
	// keep a decoder for each message.
	decodersKept = 256
)

// valueEncoder encodes values of one type.
type valueEncoder struct {
	stream bool // the type holds interfaces, so messages have the first form and enc is not used

	mu   sync.Mutex // guards everything below
	enc  *gob.Encoder
	out  bytes.Buffer // output of enc
	head []byte       // the beginning of every message, up to the value; nil: enc has written nothing
}

var valueEncoders sync.Map // *valueEncoder by reflect.Type

func encoderOf(t reflect.Type) *valueEncoder {
	if e, ok := valueEncoders.Load(t); ok {
		return e.(*valueEncoder)
	}
	e, _ := valueEncoders.LoadOrStore(t, &valueEncoder{stream: holdsInterface(t, make(map[reflect.Type]bool))})
	return e.(*valueEncoder)
}

// Append appends the message that holds v to b. If gob cannot encode v, it returns
// elem.ErrType.
func Append(b []byte, v any) (_ []byte, err error) {
	defer func() { // gob panics for a nil pointer
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: encode %T: %v", elem.ErrType, v, p)
		}
	}()
	if v != nil {
		if e := encoderOf(reflect.TypeOf(v)); !e.stream && e.mu.TryLock() { // do not wait: another goroutine may encode a long value
			defer e.mu.Unlock()
			if b, err = e.encode(b, v); err != nil {
				return nil, fmt.Errorf("%w: encode %T: %w", elem.ErrType, v, err)
			}
			return b, nil
		}
	}
	buf := bytes.NewBuffer(append(b, magicStream...))
	if err := gob.NewEncoder(buf).Encode(v); err != nil {
		return nil, fmt.Errorf("%w: encode %T: %w", elem.ErrType, v, err)
	}
	return buf.Bytes(), nil
}

func (e *valueEncoder) encode(b []byte, v any) ([]byte, error) {
	enc := e.enc
	e.enc = nil // an encoder is not used again after an error
	e.out.Reset()
	if enc == nil {
		enc = gob.NewEncoder(&e.out)
		e.head = nil
	}
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	value := e.out.Bytes()
	if e.head == nil {
		n := definitions(value)
		e.head = append(binary.LittleEndian.AppendUint32([]byte(magicValue), uint32(n)), value[:n]...)
		value = value[n:]
	}
	b = append(append(b, e.head...), value...)
	if len(b) > Kept {
		e.out = bytes.Buffer{}
	} else {
		e.enc = enc
	}
	return b, nil
}

// definitions returns the number of bytes before the last message of a gob stream. These messages
// define types.
func definitions(stream []byte) int {
	at := 0
	for {
		n, size := gobUint(stream[at:])
		next := at + size + int(n)
		if next >= len(stream) {
			return at
		}
		at = next
	}
}

// gobUint reads an unsigned integer in gob's format. size is its encoded length; 0: it is
// malformed.
func gobUint(b []byte) (v uint64, size int) {
	if len(b) == 0 {
		return 0, 0
	}
	if b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	n := -int(int8(b[0]))
	if n > 8 || len(b) <= n {
		return 0, 0
	}
	for _, x := range b[1 : 1+n] {
		v = v<<8 | uint64(x)
	}
	return v, 1 + n
}

// isValue reports whether b is one message of a gob stream that is not a definition.
func isValue(b []byte) bool {
	n, size := gobUint(b)
	if size == 0 || n != uint64(len(b)-size) {
		return false
	}
	id, idSize := gobUint(b[size:])
	return idSize > 0 && id&1 == 0 // a signed integer, negative for a definition
}

// valueDecoder decodes values that follow one sequence of definitions.
type valueDecoder struct {
	mu  sync.Mutex // guards everything below
	dec *gob.Decoder
	in  bytes.Reader // input of dec
}

var valueDecoders struct {
	mu    sync.Mutex
	after map[string]*valueDecoder // by definitions
}

func decoderAfter(definitions []byte) *valueDecoder {
	ds := &valueDecoders
	ds.mu.Lock()
	defer ds.mu.Unlock()
	d := ds.after[string(definitions)]
	if d == nil {
		if ds.after == nil || len(ds.after) == decodersKept {
			ds.after = make(map[string]*valueDecoder)
		}
		d = &valueDecoder{}
		ds.after[string(definitions)] = d
	}
	return d
}

// Decode decodes a message of Append into what v points to. b may hold any bytes. If b is not
// such a message, or does not fit v, Decode returns elem.ErrType.
func Decode(b []byte, v any) (err error) {
	defer func() { // gob panics for some values of v, and a peer may send any bytes
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the message does not hold what a %T points to: receive into a pointer to the type that was sent: %v", elem.ErrType, v, p)
		}
	}()
	if v == nil {
		return fmt.Errorf("%w: the argument to receive into is nil: pass a pointer to the type that was sent", elem.ErrType)
	}
	if len(b) >= magicSize && string(b[:magicSize]) == magicStream {
		err = gob.NewDecoder(bytes.NewReader(b[magicSize:])).Decode(v)
	} else if len(b) >= valueHead && string(b[:magicSize]) == magicValue {
		err = decodeAfter(b[valueHead:], binary.LittleEndian.Uint32(b[magicSize:]), v)
	} else {
		return fmt.Errorf("%w: the message was not sent by SendValue", elem.ErrType)
	}
	if err != nil {
		return fmt.Errorf("%w: the message does not hold what a %T points to: receive into a pointer to the type that was sent: %w", elem.ErrType, v, err)
	}
	return nil
}

// decodeAfter decodes a stream of n bytes of definitions and a value.
func decodeAfter(stream []byte, n uint32, v any) error {
	if uint64(n) > uint64(len(stream)) || !isValue(stream[n:]) {
		return errors.New("malformed message")
	}
	if len(stream) <= Kept {
		if d := decoderAfter(stream[:n]); d.mu.TryLock() {
			defer d.mu.Unlock()
			return d.decode(stream, stream[n:], v)
		}
	}
	return gob.NewDecoder(bytes.NewReader(stream)).Decode(v)
}

func (d *valueDecoder) decode(stream, value []byte, v any) error {
	dec := d.dec
	d.dec = nil // a decoder is not used again after an error
	defer d.in.Reset(nil)
	if dec == nil {
		dec = gob.NewDecoder(&d.in)
		value = stream
	}
	d.in.Reset(value)
	if err := dec.Decode(v); err != nil {
		return err
	}
	if d.in.Len() == 0 {
		d.dec = dec
	}
	return nil
}

// holdsInterface reports whether values of t may hold interfaces, and so values of types that t does
// not name. seen holds the types that were already visited.
func holdsInterface(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	for _, p := range []reflect.Type{t, reflect.PointerTo(t)} {
		if p.Implements(reflect.TypeFor[gob.GobEncoder]()) || p.Implements(reflect.TypeFor[encoding.BinaryMarshaler]()) {
			return t.Kind() == reflect.Interface
		}
	}
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Map:
		return holdsInterface(t.Key(), seen) || holdsInterface(t.Elem(), seen)
	case reflect.Array, reflect.Slice, reflect.Pointer:
		return holdsInterface(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if holdsInterface(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}
