// Package value encodes Go values as messages: with encoding/gob, or with a codec of the program.
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
// A message has one of two forms. Each begins with eight characters that name the form:
//
//	"weft-gob"  stream                          stream: the output of a new gob.Encoder for the value
//	"weft-gbt"  length   definitions   value    the same output in two parts; length: of definitions in bytes, as 4 bytes
//
// A gob stream begins with type definitions, which describe the types of its first value. It takes
// ten times as long to write and read the definitions as a small value. So this package keeps a
// gob.Encoder for each type, which writes the definitions only once, and a gob.Decoder for each
// sequence of definitions, which reads them only once. Every message still holds the
// definitions, so a receiver needs no other message to decode it.
//
// A value that holds interfaces may need definitions that earlier values of its type did not need.
// Its message has the first form. So has the message of a value whose encoder another goroutine is
// using.

const (
	magicStream = "weft-gob"
	magicValue  = "weft-gbt"
	magicSize   = len(magicStream)
	valueHead   = magicSize + 4
)

const (
	// Kept is the length in bytes of the longest message after which this package keeps the encoder or
	// decoder, because both keep buffers as large as their longest message.
	Kept = 64 << 10
	// decodersKept is the maximum number of decoders that a process keeps. If one more is needed, the
	// process drops all of them. Without a limit, other ranks could make this rank keep a decoder for
	// each message.
	decodersKept = 256
)

// valueEncoder encodes values of one type.
type valueEncoder struct {
	// Values of the type hold interfaces, so their messages have the form "weft-gob", and enc is
	// not used.
	stream bool

	mu  sync.Mutex   // guards everything below
	enc *gob.Encoder // nil: not made yet, or dropped after an error or a long message
	out bytes.Buffer // output of enc
	// The part of a message before the value. It is the same for all values. nil: enc has written
	// nothing.
	head []byte
}

var valueEncoders sync.Map // the *valueEncoder of each reflect.Type

func encoderOf(t reflect.Type) *valueEncoder {
	if e, ok := valueEncoders.Load(t); ok {
		return e.(*valueEncoder)
	}
	e, _ := valueEncoders.LoadOrStore(t, &valueEncoder{stream: holdsInterface(t, make(map[reflect.Type]bool))})
	return e.(*valueEncoder)
}

// Append appends the message that holds v to b. If gob cannot encode v, it returns nil and an error
// that wraps elem.ErrType. It may be called concurrently.
func Append(b []byte, v any) (_ []byte, err error) {
	defer func() { // gob panics if v is a nil pointer
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: encode %T: %v", elem.ErrType, v, p)
		}
	}()
	if v != nil {
		// If another goroutine uses the encoder, do not wait for it, but make a new one below.
		if e := encoderOf(reflect.TypeOf(v)); !e.stream && e.mu.TryLock() {
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

// definitions returns the length in bytes of the type definitions in a gob stream of one value: of
// all gob messages before the last one, which holds the value.
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

// gobUint decodes the unsigned integer in gob's format at the start of b. size is its encoded
// length in bytes, or 0 if it is malformed.
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

// isValue reports whether b is exactly one message of a gob stream, and not a type definition.
func isValue(b []byte) bool {
	n, size := gobUint(b)
	if size == 0 || n != uint64(len(b)-size) {
		return false
	}
	id, idSize := gobUint(b[size:])
	// The id is a signed integer, whose lowest bit is the sign. It is negative for a definition.
	return idSize > 0 && id&1 == 0
}

// valueDecoder decodes the values of messages that have the same definitions.
type valueDecoder struct {
	mu  sync.Mutex   // guards everything below
	dec *gob.Decoder // has read the definitions; nil: not made yet, or dropped after an error
	in  bytes.Reader // input of dec
}

var valueDecoders struct {
	mu    sync.Mutex
	after map[string]*valueDecoder // by the bytes of their definitions; guarded by mu
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

// errNoValue is the error for a message that holds no value.
var errNoValue = fmt.Errorf("%w: the message was not sent as a value, by SendValue", elem.ErrType)

// Decode decodes b, a message that Append has encoded, into the variable that v points to. b may
// hold any bytes. If b is not such a message, or its value does not fit the variable, Decode
// returns an error that wraps elem.ErrType, and may have changed the variable. It may be called
// concurrently.
func Decode(b []byte, v any) (err error) {
	defer func() { // gob panics for some values of v, and a peer may send any bytes
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the message does not hold what a %T points to: receive the type that was sent: %v", elem.ErrType, v, p)
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
		return errNoValue
	}
	if err != nil {
		return fmt.Errorf("%w: the message does not hold what a %T points to: receive the type that was sent: %w", elem.ErrType, v, err)
	}
	return nil
}

// decodeAfter decodes stream, which consists of n bytes of definitions and of a value, into the
// variable that v points to.
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

// holdsInterface reports whether values of t may hold interfaces, and so values of types that
// cannot be known from t. seen holds the types that the function has visited already, because types
// may be recursive.
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
