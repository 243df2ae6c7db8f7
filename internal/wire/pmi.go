package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// The limits of PMI-1, as MPICH's launchers state them. Both lengths count the
// terminating NUL of the C clients, so a key has at most PMIMaxKey-1 bytes.
const (
	PMIMaxLine    = 1024 // bytes of a line, its newline included
	PMIMaxKVSName = 256
	PMIMaxKey     = 64
	PMIMaxValue   = 1024
)

// The errors of lines that are not PMI-1.
var (
	ErrPMILong    = errors.New("pmi: line is longer than 1024 bytes")
	ErrPMINoCmd   = errors.New("pmi: line has no cmd=")
	ErrPMIKey     = errors.New("pmi: key is empty or has a byte that a key cannot contain")
	ErrPMIValue   = errors.New("pmi: value has a space, a backslash or a control byte")
	ErrPMINewline = errors.New("pmi: newline within a line")
)

// PMIField is one k=v of a PMI-1 line.
type PMIField struct{ Key, Value string }

// PMIMessage is one line of PMI-1: "cmd=put kvsname=k key=a value=b\n". The first line of a spawn
// block begins with mcmd= instead of cmd=: it is a message with Multi set. The lines after it, up
// to "endcmd", are single fields.
type PMIMessage struct {
	Cmd    string
	Multi  bool
	Fields []PMIField
}

// NewPMI returns a message with a command and fields. kv holds keys and values in turn.
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

// Get returns the value of the first field with this key.
func (m PMIMessage) Get(key string) (string, bool) {
	for _, f := range m.Fields {
		if f.Key == key {
			return f.Value, true
		}
	}
	return "", false
}

// ParsePMI reads one line, with or without its newline. It ignores words that have no '=', and
// repeated blanks; a value may contain '='. The message shares no memory with line.
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

// Append appends the line, with its newline, to dst. If the message cannot be written as a line,
// Append returns an error, and dst unchanged.
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

// PMILine returns the first line of buf, without its newline, and the bytes after it. ok is false
// if buf holds no complete line yet. If buf is so long that it can no longer become a line, the
// error is ErrPMILong.
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

// pmiKey and pmiValue report whether s may stand before, and after, a '='.
func pmiKey(s string) bool { return s != "" && pmiValue(s) && !strings.Contains(s, "=") }

func pmiValue(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c == '\\' || c == 0x7f {
			return false
		}
	}
	return true
}
