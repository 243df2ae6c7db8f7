package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// The limits of PMI-1 in bytes, with the values that MPICH's launchers report to their clients. The
// lengths of names, keys and values count the terminating NUL of clients in C. So a key in Go has
// at most PMIMaxKey-1 bytes.
const (
	PMIMaxLine    = 1024 // a line, with its newline
	PMIMaxKVSName = 256  // the name of a key-value space
	PMIMaxKey     = 64
	PMIMaxValue   = 1024
)

// The errors of PMILine, ParsePMI and PMIMessage.Append.
var (
	ErrPMILong    = errors.New("pmi: line is longer than 1024 bytes")
	ErrPMINoCmd   = errors.New("pmi: line has no cmd=")
	ErrPMIKey     = errors.New("pmi: key is empty or has a byte that a key cannot contain")
	ErrPMIValue   = errors.New("pmi: value has a space, a backslash or a control byte")
	ErrPMINewline = errors.New("pmi: newline within a line")
)

// PMIField is one field of a PMI-1 line, which has the form key=value.
type PMIField struct{ Key, Value string }

// PMIMessage is one line of PMI-1, for example "cmd=put kvsname=k key=a value=b\n". A spawn command
// has several lines. Its first line begins with mcmd= instead of cmd=; ParsePMI returns this line
// as a message whose Multi is set. The lines after it, up to the line "endcmd", have one field each
// and no command. They are no PMIMessage: ParsePMI returns ErrPMINoCmd for them.
type PMIMessage struct {
	Cmd    string
	Multi  bool
	Fields []PMIField
}

// NewPMI returns a message with the command cmd and with fields. kv holds the keys and values of
// the fields in turn.
func NewPMI(cmd string, kv ...string) PMIMessage {
	m := PMIMessage{Cmd: cmd}
	if len(kv) > 1 {
		m.Fields = make([]PMIField, 0, len(kv)/2)
	}
	for i := 0; i+1 < len(kv); i += 2 {
		m.Fields = append(m.Fields, PMIField{kv[i], kv[i+1]})
	}
	return m
}

// Get returns the value of the first field with this key, and whether there is one.
func (m PMIMessage) Get(key string) (string, bool) {
	for _, f := range m.Fields {
		if f.Key == key {
			return f.Value, true
		}
	}
	return "", false
}

// ParsePMI reads one line, with or without its newline. It ignores words without a '=', and
// repeated spaces. A value may contain '='. The message shares no memory with line.
func ParsePMI(line []byte) (PMIMessage, error) {
	if len(line) > PMIMaxLine {
		return PMIMessage{}, ErrPMILong
	}
	line = bytes.TrimSuffix(line, []byte{'\n'})
	if bytes.IndexByte(line, '\n') >= 0 {
		return PMIMessage{}, ErrPMINewline
	}
	var m PMIMessage
	seen := false
	for _, word := range strings.Split(string(line), " ") {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			continue
		}
		if !pmiKey(key) {
			return PMIMessage{}, ErrPMIKey
		}
		if !pmiValue(value) {
			return PMIMessage{}, ErrPMIValue
		}
		if !seen && (key == "cmd" || key == "mcmd") {
			m.Cmd, m.Multi, seen = value, key == "mcmd", true
			continue
		}
		m.Fields = append(m.Fields, PMIField{key, value})
	}
	if m.Cmd == "" {
		return PMIMessage{}, ErrPMINoCmd
	}
	return m, nil
}

// Append appends the line of m, with its newline, to dst. If m cannot be written as a line of
// PMI-1, Append returns dst unchanged and an error.
func (m PMIMessage) Append(dst []byte) ([]byte, error) {
	if m.Cmd == "" {
		return dst, ErrPMINoCmd
	}
	if !pmiValue(m.Cmd) {
		return dst, ErrPMIValue
	}
	out := dst
	if m.Multi {
		out = append(out, 'm')
	}
	out = append(append(out, "cmd="...), m.Cmd...)
	for _, f := range m.Fields {
		if !pmiKey(f.Key) {
			return dst, fmt.Errorf("%w: %q", ErrPMIKey, f.Key)
		}
		if !pmiValue(f.Value) {
			return dst, fmt.Errorf("%w: %q", ErrPMIValue, f.Value)
		}
		out = append(append(append(append(out, ' '), f.Key...), '='), f.Value...)
	}
	out = append(out, '\n')
	if len(out)-len(dst) > PMIMaxLine {
		return dst, ErrPMILong
	}
	return out, nil
}

// PMILine returns the first line of buf, without its newline, and the bytes after the newline. Both
// share memory with buf. ok is false if buf does not hold a whole line yet. If the first line, with
// its newline, is longer than PMIMaxLine, the error is ErrPMILong, even if the newline has not
// arrived yet.
func PMILine(buf []byte) (line, rest []byte, ok bool, err error) {
	i := bytes.IndexByte(buf, '\n')
	switch {
	case i >= PMIMaxLine, i < 0 && len(buf) >= PMIMaxLine:
		return nil, buf, false, ErrPMILong
	case i < 0:
		return nil, buf, false, nil
	}
	return buf[:i], buf[i+1:], true, nil
}

// pmiKey reports whether s can be the key of a field, before the '='.
func pmiKey(s string) bool { return s != "" && pmiValue(s) && !strings.Contains(s, "=") }

// pmiValue reports whether s can be the value of a field, after the '='.
func pmiValue(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c == '\\' || c == 0x7f {
			return false
		}
	}
	return true
}
