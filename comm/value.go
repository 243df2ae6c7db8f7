package comm

import (
	"bytes"
	"encoding/gob"
	"fmt"

	"github.com/weft-hpc/weft/internal/engine"
)

// valueMagic begins every message of SendValue, so that another message is
// told from it.
const valueMagic = "weft-gob"

// SendValue sends any Go value that encoding/gob can encode, and blocks as
// Send does. It encodes, copies and allocates: for set-up, not for the hot
// loop. Values of interface fields need gob.Register. Errors: those of Send;
// ErrType for what gob cannot encode.
func SendValue(c *Comm, v any, dest, tag int) error {
	if _, err := c.checkSend(dest, tag); err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	b, err := encodeValue(v)
	if err != nil {
		return c.fail("SendValue", dest, tag, err)
	}
	return renamed(c.send(opSend, b, dest, tag, engine.Standard), "SendValue")
}

// RecvValue receives a value sent by SendValue into what v points to, by the
// rules of encoding/gob, and blocks. Status.Count is 1. From ProcNull nothing
// is received and Count is 0. Errors: those of Recv without ErrTruncate;
// ErrType where v is no pointer, the message is none of SendValue's, or it
// does not fit v; the message is lost then.
func RecvValue(c *Comm, v any, source, tag int) (Status, error) {
	b, st, err := RecvAlloc[byte](c, source, tag)
	if err != nil {
		return st, renamed(err, "RecvValue")
	}
	if st.Source == ProcNull {
		return st, nil
	}
	st.Count = 0
	if err := decodeValue(b, v); err != nil {
		return st, c.fail("RecvValue", st.Source, st.Tag, err)
	}
	st.Count = 1
	return st, nil
}

func encodeValue(v any) (b []byte, err error) {
	defer func() { // gob panics for a nil pointer
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: encode %T: %v", ErrType, v, p)
		}
	}()
	var buf bytes.Buffer
	buf.WriteString(valueMagic)
	if err := gob.NewEncoder(&buf).Encode(v); err != nil {
		return nil, fmt.Errorf("%w: encode %T: %w", ErrType, v, err)
	}
	return buf.Bytes(), nil
}

func decodeValue(b []byte, v any) (err error) {
	defer func() { // whatever a peer sends, and a v that gob panics for
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: decode into %T: %v", ErrType, v, p)
		}
	}()
	rest, ok := bytes.CutPrefix(b, []byte(valueMagic))
	if !ok {
		return fmt.Errorf("%w: the message was not sent by SendValue", ErrType)
	}
	if v == nil {
		return fmt.Errorf("%w: decode into nil", ErrType)
	}
	if err := gob.NewDecoder(bytes.NewReader(rest)).Decode(v); err != nil {
		return fmt.Errorf("%w: decode into %T: %w", ErrType, v, err)
	}
	return nil
}
