package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/sys"
)

// Published ports
//
// A process publishes its port under a name by a file in the directory of notices, which only its
// user can read. So all jobs of a user whose hosts share that directory find the port, whatever
// their launchers are. The file of a process that was killed stays. It is invalid when nobody
// listens at the port any more, and then another process may publish the name.

// publishedPath returns the path of the file of a published name.
func publishedPath(set *params.Set, name string) (string, error) {
	if name == "" || len(name) > 100 {
		return "", fmt.Errorf("the name %q of a port has %d bytes, and may have 1 to 100", name, len(name))
	}
	file := "port-" + url.QueryEscape(name)
	if len(file) > 255 { // longer than the name of a file may be
		hash := sha256.Sum256([]byte(name))
		file = "port-=" + hex.EncodeToString(hash[:]) // QueryEscape returns no =
	}
	return noticePath(os.Getenv, set, file)
}

// Publish publishes the port under a name, and returns the file that does so. Unpublish ends the
// publication.
func (p *Port) Publish(set *params.Set, name string) (path string, err error) {
	if path, err = publishedPath(set, name); err != nil {
		return "", err
	}
	text, err := json.Marshal(&p.n)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".port.*") // only this user can read the file
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // path is another link to the file
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	// If two processes replace the file of a killed process at the same time, one of them must not
	// remove what the other has just published. So a process checks and replaces with a lock.
	unlock, err := lockPublished(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer unlock()
	for range 3 { // other processes may end their publications, which needs no lock
		if err = os.Link(f.Name(), path); err == nil {
			return path, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return "", err
		}
		n, old, err := readNotice(path)
		if err == nil && n.listens() {
			return "", fmt.Errorf("a port is published as %q already", name)
		}
		if err == nil {
			_ = removeNotice(path, old) // the next Link reports what is wrong
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	return "", err
}

// Unpublish removes the file that Publish has returned, unless another process has replaced it.
func (p *Port) Unpublish(path string) error {
	text, err := json.Marshal(&p.n)
	if err != nil {
		return err
	}
	return removeNotice(path, text)
}

// lockPublished blocks until this process alone may replace published names in the directory, until
// it calls unlock, which removes the file of the lock. If the process is killed, the system ends the
// lock, and the file stays for the next process.
func lockPublished(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, ".port-lock")
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := sys.Lock(int(f.Fd()), 0, 1, true); err != nil {
			return nil, errors.Join(os.NewSyscallError("lock", err), f.Close())
		}
		same, err := sameFile(f, path)
		if same {
			return func() {
				_ = os.Remove(path)
				_ = f.Close() // which ends the lock
			}, nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		// The process that held the lock has removed this file.
	}
}

// sameFile reports whether path leads to the open file.
func sameFile(f *os.File, path string) (bool, error) {
	open, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(open, now), err
}

// listens reports whether a process listens at one of the addresses.
func (n *notice) listens() bool {
	for _, a := range n.Addrs {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(a, strconv.Itoa(n.Port)), time.Second)
		if err == nil {
			_ = c.Close()
			return true
		}
	}
	return false
}

// LookupPort returns the address of the port that a process has published under a name.
func LookupPort(set *params.Set, name string) (addr string, err error) {
	path, err := publishedPath(set, name)
	if err != nil {
		return "", err
	}
	n, _, err := readNotice(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("no port is published as %q", name)
	}
	if err != nil {
		return "", err
	}
	return (&Port{n: *n}).Addr(), nil
}
