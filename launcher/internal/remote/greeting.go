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

// Version is of the protocol between gorun and its agents, package proto and this
// one. Both ends must have the same.
const Version = 3

// What comes first on a stream is lines: whatever the user's shell says when it
// starts, then those that begin with magic:
//
//	weft-agent 3 up {"hash":…}              the greeting; what follows is package proto
//	weft-agent 3 send Linux x86_64 /dir     the script found no gorun and waits for it
//	weft-agent 3 fail words                 the script gave up
//
// An empty line goes ahead of each, so that it begins a line also where the shell's
// words do not end one.
const magic = "weft-agent"

// The verbs.
const (
	verbUp   = "up"
	verbSend = "send"
	verbFail = "fail"
)

// maxNoise is how much may come before a greeting, and how long that may be.
const maxNoise = 64 << 10

// Greeting is what an agent says first.
type Greeting struct {
	Hash     string `json:"hash"` // of its executable, SHA-256 in hexadecimal digits
	Hostname string `json:"host"`
	PID      int    `json:"pid"`
	// Name is what gorun calls the host, where the agent has been told; else "".
	Name string `json:"name,omitempty"`
}

// errNoGreeting is of a stream that began with something else.
var errNoGreeting = errors.New("no greeting of an agent")

// versionError is the version of an agent that is not this one's.
type versionError string

func (e versionError) Error() string {
	return fmt.Sprintf("its gorun speaks version %s of weft's protocol, and this one version %d: they must be of the same release", string(e), Version)
}

// ExitCode is gorun's for it.
func (versionError) ExitCode() int { return proto.ExitVersion }

// newGreeting is what this process says as an agent.
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

// opening reads the first lines of a stream.
type opening struct {
	r     *bufio.Reader
	read  int    // bytes that were no line of ours
	noise string // the first of those lines
}

// next returns the next line of ours: its verb, and what stands behind that.
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

// line reads a line without its end. It takes no more than maxNoise of all lines.
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

// lineLimit is the number of characters of foreign text in a line of an error.
const lineLimit = 300

// oneLine makes foreign text fit for a line of an error.
func oneLine(s string) string { return proto.OneLine(s, lineLimit) }
