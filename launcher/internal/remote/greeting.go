package remote

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Version is the version of the protocol between gorun and its agents: package proto and this
// package. Both ends must have the same version.
const Version = 3

// A stream begins with lines: first any lines that the user's shell prints at its start, then lines
// that begin with magic:
//
//	weft-agent 3 up {"hash":…}              the greeting; package proto follows
//	weft-agent 3 send Linux x86_64 /dir     the script has not found gorun and waits for a copy
//	weft-agent 3 fail words                 the script has failed
//
// An empty line precedes each of them, because the shell's output may not end with a newline.
const magic = "weft-agent"

// The verbs: the third words of these lines.
const (
	verbUp   = "up"
	verbSend = "send"
	verbFail = "fail"
)

// maxNoise is the largest number of bytes of the lines up to the greeting, including the greeting.
const maxNoise = 64 << 10

// Greeting is the first message of an agent.
type Greeting struct {
	Hash     string `json:"hash"` // SHA-256 of its executable, in hexadecimal digits
	Hostname string `json:"host"`
	PID      int    `json:"pid"`
	// Name is the name by which gorun knows the host. "": the agent does not know this name.
	Name string `json:"name,omitempty"`
}

// errNoGreeting is the error of a stream that does not begin with a greeting.
var errNoGreeting = errors.New("no greeting of an agent")

// versionError is the error of an agent with another Version. The string is the agent's version.
type versionError string

func (e versionError) Error() string {
	return fmt.Sprintf("its gorun speaks version %s of weft's protocol, and this one version %d: they must be of the same release", string(e), Version)
}

// ExitCode returns gorun's exit code for this error.
func (versionError) ExitCode() int { return proto.ExitVersion }

// newGreeting returns the greeting of this process.
func newGreeting(name string) (Greeting, error) {
	exe, err := Self()
	if err != nil {
		return Greeting{}, err
	}
	host, err := os.Hostname()
	if err != nil {
		return Greeting{}, err
	}
	return Greeting{Hash: exe.Hash, Hostname: host, PID: os.Getpid(), Name: name}, nil
}

// Greet writes a greeting.
func (g Greeting) Greet(w io.Writer) error {
	body, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%s %d %s %s\n", magic, Version, verbUp, body)
	return err
}

func parseGreeting(text string) (Greeting, error) {
	var g Greeting
	if err := json.Unmarshal([]byte(text), &g); err != nil {
		return Greeting{}, fmt.Errorf("%w: %w", errNoGreeting, err)
	}
	if !isHash(g.Hash) || g.PID <= 0 || oneLine(g.Hostname) != g.Hostname || oneLine(g.Name) != g.Name {
		return Greeting{}, fmt.Errorf("%w: %s", errNoGreeting, oneLine(text))
	}
	return g, nil
}

func isHash(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == 32 && strings.ToLower(s) == s
}

// opening reads the lines with which a stream begins, see magic.
type opening struct {
	r     *bufio.Reader
	read  int    // number of bytes of all lines so far
	noise string // the first line that does not begin with magic, for errors
}

// next returns the next line that begins with magic: its verb and the text after it.
func (o *opening) next() (verb, text string, err error) {
	for {
		line, err := o.line()
		if err != nil {
			return "", "", err
		}
		words := strings.SplitN(line, " ", 4)
		if words[0] != magic || len(words) < 4 {
			if o.noise == "" {
				o.noise = oneLine(line)
			}
			continue
		}
		if version, err := strconv.Atoi(words[1]); err != nil || version != Version {
			return "", "", versionError(oneLine(words[1]))
		}
		return words[2], words[3], nil
	}
}

// line reads a line, and returns it without its end. It fails if all lines so far exceed maxNoise
// together.
func (o *opening) line() (string, error) {
	var line []byte
	for {
		part, err := o.r.ReadSlice('\n')
		if o.read += len(part); o.read > maxNoise {
			if o.noise == "" {
				o.noise = oneLine(string(append(line, part...)))
			}
			return "", fmt.Errorf("%w in the first %d KiB", errNoGreeting, maxNoise>>10)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return string(bytes.TrimRight(line, "\r\n")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			if o.noise == "" {
				o.noise = oneLine(string(line))
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
	}
}

// lineLimit is the largest number of characters of a text from another program or host in an error.
const lineLimit = 300

// oneLine makes a text from another program or host fit for an error: one line without control
// characters, at most lineLimit characters long.
func oneLine(s string) string { return proto.OneLine(s, lineLimit) }
