package remote

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// Secret is what gorun and the agents that dial in know and nobody else does. It
// never stands in an argument or in the environment.
type Secret struct{ key []byte }

const (
	minSecret = 16
	maxSecret = 4 << 10
	macBytes  = sha256.Size
)

// NewSecret makes a secret.
func NewSecret() Secret {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return Secret{[]byte(hex.EncodeToString(key[:]))}
}

// ReadSecret reads a secret from a file, all that is in it but white space at its
// ends; "-" is stdin, up to its end. It is to be random, since who is dialled may try
// to guess it afterwards. Only the owner of the file, who is this user or root, may
// write it, and nobody but the group may read it besides, as in Kubernetes.
func ReadSecret(file string) (Secret, error) {
	if file == "-" {
		return readSecret(os.Stdin, "stdin")
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer is no secret
	if err != nil {
		return Secret{}, fmt.Errorf("secret: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	fi, err := f.Stat()
	if err != nil {
		return Secret{}, fmt.Errorf("secret: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return Secret{}, fmt.Errorf("secret: %s: expected a file, found %s", file, fi.Mode().Type())
	case fi.Mode().Perm()&0o027 != 0:
		return Secret{}, fmt.Errorf("secret: %s: others may read or change it (mode %#o): chmod 600 it", file, fi.Mode().Perm())
	case ok && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return Secret{}, fmt.Errorf("secret: %s: it is user %d's", file, st.Uid)
	}
	return readSecret(f, file)
}

func readSecret(r io.Reader, name string) (Secret, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSecret+1))
	if err != nil {
		return Secret{}, fmt.Errorf("secret: %w", err)
	}
	key := strings.TrimSpace(string(text))
	if len(text) > maxSecret || len(key) < minSecret {
		return Secret{}, fmt.Errorf("secret: %s: expected %d to %d bytes, found %s", name, minSecret, maxSecret, count(len(key), len(text)))
	}
	return Secret{[]byte(key)}, nil
}

func count(trimmed, read int) string {
	if read > maxSecret {
		return "more"
	}
	return fmt.Sprint(trimmed)
}

// Text is the secret as ReadSecret reads it.
func (s Secret) Text() string { return string(s.key) }

// String keeps a secret out of what is printed.
func (s Secret) String() string { return "(secret)" }

// GoString does so, too.
func (s Secret) GoString() string { return "(secret)" }

// The two ends prove to each other that they know the secret by a MAC over what TLS
// has agreed on for this connection alone. Hence a proof is of no use on another one,
// also for somebody who sits in between and speaks TLS with both; and since each end
// has a label of its own, one cannot be sent back.
//
//	agent                       gorun
//	  │ ◄──── TLS 1.3 ────────► │
//	  │ ── HMAC "agent" ──────► │
//	  │ ◄─────────── verdict ── │
//	  │ ◄──── HMAC "gorun" ──── │
//	  │ ── greeting ──────────► │
const (
	agentLabel   = "weft agent"
	gorunLabel   = "weft gorun"
	exportLabel  = "EXPORTER-weft-dial-in"
	verdictKnown = 1
	verdictWrong = 2
)

// proof is what the end with a label sends.
func (s Secret) proof(conn *tls.Conn, label string) ([]byte, error) {
	if len(s.key) < minSecret {
		return nil, errors.New("no secret")
	}
	state := conn.ConnectionState()
	material, err := state.ExportKeyingMaterial(exportLabel, []byte(label), 32)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, s.key)
	_, _ = mac.Write([]byte(label)) // never fails
	_, _ = mac.Write(material)
	return mac.Sum(nil), nil
}

// check says whether the other end has sent the proof with a label.
func (s Secret) check(conn *tls.Conn, label string, got []byte) (bool, error) {
	want, err := s.proof(conn, label)
	return err == nil && hmac.Equal(want, got), err
}
