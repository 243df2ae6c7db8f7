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

// Secret is a secret that only gorun and the agents that dial in know. It never appears in an
// argument or in the environment.
type Secret struct{ key []byte }

const (
	minSecret = 16          // least number of bytes of a secret
	maxSecret = 4 << 10     // largest number of bytes of a file with a secret
	macBytes  = sha256.Size // size of a proof, in bytes
)

// NewSecret makes a secret.
func NewSecret() Secret {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return Secret{[]byte(hex.EncodeToString(key[:]))}
}

// ReadSecret reads a secret from a file: its contents without white space at both ends. "-" is
// stdin. The secret must be random, because a program at the address that the agent dials may
// record the proof and try to guess the secret. The file must belong to this user or to root. Only
// the owner may write it, and only the owner and the group may read it. The files of Kubernetes'
// secrets are like this.
func ReadSecret(file string) (Secret, error) {
	if file == "-" {
		return readSecret(os.Stdin, "stdin")
	}
	// With O_NONBLOCK, OpenFile does not wait for a writer if the file is a pipe.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
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
		return Secret{}, fmt.Errorf("secret: %s: it belongs to user %d", file, st.Uid)
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

// Text returns the secret in the form that ReadSecret reads.
func (s Secret) Text() string { return string(s.key) }

// String hides the secret in printed values.
func (s Secret) String() string { return "(secret)" }

// GoString hides the secret in printed values.
func (s Secret) GoString() string { return "(secret)" }

// The two ends prove to each other that they know the secret. A proof is a MAC over key material of
// this one TLS connection. So a proof is worthless on another connection, also for a man in the
// middle that speaks TLS with both ends. Each end has its own label, so a program that gets the
// agent's proof cannot send it back as gorun's. answer is one byte: accepted or refused.
//
//	agent                       gorun
//	  │ ◄──── TLS 1.3 ────────► │
//	  │ ── HMAC "agent" ──────► │
//	  │ ◄──────────── answer ── │
//	  │ ◄──── HMAC "gorun" ──── │
//	  │ ── greeting ──────────► │
const (
	agentLabel     = "weft agent"
	gorunLabel     = "weft gorun"
	exportLabel    = "EXPORTER-weft-dial-in"
	answerAccepted = 1
	answerRefused  = 2
)

// proof returns the bytes by which the end with this label proves that it knows the secret.
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

// check reports whether got is the proof of the end with this label.
func (s Secret) check(conn *tls.Conn, label string, got []byte) (bool, error) {
	want, err := s.proof(conn, label)
	return err == nil && hmac.Equal(want, got), err
}
