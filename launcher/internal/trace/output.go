package trace

import (
	"bufio"
	"encoding/binary"
	"io"
)

// output writes bytes, and keeps the first error.
type output struct {
	w   *bufio.Writer
	err error
}

func newOutput(w io.Writer) *output { return &output{w: bufio.NewWriterSize(w, 256<<10)} }

func (o *output) write(b []byte) {
	if _, err := o.w.Write(b); err != nil && o.err == nil {
		o.err = err
	}
}

func (o *output) flush() error {
	if err := o.w.Flush(); err != nil && o.err == nil {
		o.err = err
	}
	return o.err
}

// The following functions append a field of a protocol buffer to b. n is the number of the field.

func appendUint(b []byte, n int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(n)<<3), v)
}

func appendInt(b []byte, n int, v int64) []byte { return appendUint(b, n, uint64(v)) }

func appendFixed64(b []byte, n int, v uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.AppendUvarint(b, uint64(n)<<3|1), v)
}

// appendBytes appends a field that is a string, or a message in its encoded form.
func appendBytes[T string | []byte](b []byte, n int, v T) []byte {
	b = binary.AppendUvarint(b, uint64(n)<<3|2)
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}
