package value

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/weft-hpc/weft/internal/elem"
)

// Codec encodes values as bytes. comm.Codec has the same methods and documents them.
type Codec interface {
	Name() string
	Append(b []byte, v any) ([]byte, error)
	Decode(b []byte, v any) error
}

// Gob is the default codec: encoding/gob. Its messages have the forms of [Append].
type Gob struct{}

// Name returns "gob".
func (Gob) Name() string { return "gob" }

// Append calls the function [Append].
func (Gob) Append(b []byte, v any) ([]byte, error) { return Append(b, v) }

// Decode calls the function [Decode].
func (Gob) Decode(b []byte, v any) error { return Decode(b, v) }

// JSON is the codec of encoding/json.
type JSON struct{}

// Name returns "json".
func (JSON) Name() string { return "json" }

// Append appends the JSON text of v to b.
func (JSON) Append(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(b, text...), err
}

// Decode decodes b, a JSON text, into the variable that v points to.
func (JSON) Decode(b []byte, v any) error { return json.Unmarshal(b, v) }

// The message of a codec other than Gob has the name of the codec, because the ranks must use the
// same one:
//
//	"weft-cdc"  length  name  data           length: of the name, 1 byte; data: from Codec.Append
const magicCodec = "weft-cdc"

// nameKept is the length of the longest part of a codec's name that a message has.
const nameKept = 255

// Encode appends the message that holds v to b, encoded by codec, which may be nil for Gob. If the
// codec returns an error or panics, Encode returns nil and an error that wraps elem.ErrType. It may
// be called concurrently if the codec may be.
func Encode(b []byte, v any, codec Codec) ([]byte, error) {
	if isGob(codec) {
		return Append(b, v)
	}
	name := nameOf(codec)
	b = append(append(b, magicCodec...), byte(len(name)))
	b = append(b, name...)
	var err error
	if perr := protect(func() { b, err = codec.Append(b, v) }); perr != nil {
		err = perr
	}
	if err != nil {
		return nil, fmt.Errorf("%w: encode %T by %s: %w", elem.ErrType, v, name, err)
	}
	return b, nil
}

// DecodeBy decodes b, a message that Encode has made with the same codec, into the variable that v
// points to. b may hold any bytes. Errors wrap elem.ErrType. The variable may have changed then.
func DecodeBy(b []byte, v any, codec Codec) error {
	sent, data, isCodec := cutName(b)
	if isGob(codec) {
		if isCodec {
			return fmt.Errorf("%w: the value was encoded by %q and not by gob: pass the same codec on both sides", elem.ErrType, sent)
		}
		return Decode(b, v)
	}
	name := nameOf(codec)
	switch p := reflect.ValueOf(v); {
	case !isCodec && (bytes.HasPrefix(b, []byte(magicStream)) || bytes.HasPrefix(b, []byte(magicValue))):
		return fmt.Errorf("%w: the value was encoded by gob and not by %q: pass the same codec on both sides", elem.ErrType, name)
	case !isCodec:
		return errNoValue
	case sent != name:
		return fmt.Errorf("%w: the value was encoded by %q and not by %q: pass the same codec on both sides", elem.ErrType, sent, name)
	case p.Kind() != reflect.Pointer || p.IsNil():
		return fmt.Errorf("%w: the argument to receive into is a %T: pass a pointer to the type that was sent", elem.ErrType, v)
	}
	var err error
	if perr := protect(func() { err = codec.Decode(data, v) }); perr != nil {
		err = perr
	}
	if err != nil {
		return fmt.Errorf("%w: the message does not hold what a %T points to: receive the type that was sent: %w", elem.ErrType, v, err)
	}
	return nil
}

// cutName returns the name of the codec that has encoded the message b, and the data. ok is false
// if b is not the message of a codec other than Gob.
func cutName(b []byte) (name string, data []byte, ok bool) {
	rest, ok := bytes.CutPrefix(b, []byte(magicCodec))
	if !ok || len(rest) == 0 || len(rest) < 1+int(rest[0]) {
		return "", nil, false
	}
	n := 1 + int(rest[0])
	return string(rest[1:n]), rest[n:], true
}

func nameOf(codec Codec) string {
	name := codec.Name()
	return name[:min(len(name), nameKept)]
}

func isGob(codec Codec) bool {
	if codec == nil {
		return true
	}
	_, ok := codec.(Gob)
	return ok
}

// protect calls f, which calls a codec of the program, and returns its panic as an error.
func protect(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	f()
	return nil
}
