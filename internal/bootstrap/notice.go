package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"golang.org/x/sys/unix"
)

// notice is the file in which rank 0 tells the other ranks where it is to be
// found. Its user alone may read it, and reads it only if it is his own.
type notice struct {
	Version int      `json:"version"`
	Job     string   `json:"job"` // place.job
	Size    int      `json:"size"`
	Host    string   `json:"host"`  // hostKey of rank 0
	Addrs   []string `json:"addrs"` // IP addresses of its host
	Port    int      `json:"port"`
	Secret  []byte   `json:"secret"`  // 32 bytes
	Seconds int      `json:"seconds"` // that the file is good for
}

const (
	noticeVersion  = 1
	noticeMaxBytes = 64 << 10
	noticeMaxAddrs = 32
)

// errNotice is wrapped by the error for a file that rank 0 has not written so.
var errNotice = errors.New("not a notice of rank 0")

func parseNotice(data []byte) (*notice, error) {
	n := &notice{}
	if len(data) > noticeMaxBytes {
		return nil, fmt.Errorf("%w: %d bytes", errNotice, len(data))
	}
	if err := json.Unmarshal(data, n); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotice, err)
	}
	switch {
	case n.Version != noticeVersion:
		return nil, fmt.Errorf("%w: version %d, this program reads version %d", errNotice, n.Version, noticeVersion)
	case n.Size < 2 || n.Size > maxSize || n.Port < 1 || n.Port > 65535 || n.Seconds < 1 ||
		len(n.Secret) != len(World{}.Secret) || len(n.Addrs) < 1 || len(n.Addrs) > noticeMaxAddrs:
		return nil, fmt.Errorf("%w: a value is out of range", errNotice)
	}
	for _, a := range n.Addrs {
		if _, err := netip.ParseAddr(a); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotice, err)
		}
	}
	return n, nil
}

// noticePath is the notice of a job.
func noticePath(getenv func(string) string, set *params.Set, job string) (string, error) {
	const key = "bootstrap.dir"
	p, _ := params.Lookup(key)
	dir := set.String(key)
	switch home := getenv("HOME"); {
	case dir == "" && !filepath.IsAbs(home):
		return "", fmt.Errorf("the ranks have no directory to meet in, since HOME=%q: set %s to one that all hosts share", home, p.Env())
	case dir == "":
		dir = filepath.Join(home, ".weft")
	case !filepath.IsAbs(dir):
		return "", fmt.Errorf("%s=%q is no absolute path", p.Env(), dir)
	}
	return filepath.Join(dir, job), nil
}

// write makes the file, in one step and in the place of what is there. It returns
// what it holds.
func (n *notice) write(path string) ([]byte, error) {
	n.Version = noticeVersion
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	dir, name := filepath.Split(path)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "."+name+".*") // for its user alone
	if err != nil {
		return nil, err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return nil, err
	}
	return text, nil
}

// readNotice reads a notice, and what it is made of. It does not follow links,
// and believes nothing that another user might have written.
func readNotice(path string) (*notice, []byte, error) {
	if d, err := os.Open(filepath.Dir(path)); err == nil {
		_ = d.Close() // NFS asks the server then, instead of remembering that there was no file
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() //nolint:errcheck // only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if uid := os.Geteuid(); st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o077 != 0 || int(st.Uid) != uid {
		return nil, nil, fmt.Errorf("%s has mode %#o and owner %d, and is not a file of user %d alone", path, st.Mode, st.Uid, uid)
	}
	data, err := io.ReadAll(io.LimitReader(f, noticeMaxBytes+1))
	if err != nil {
		return nil, nil, err
	}
	n, err := parseNotice(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return n, data, nil
}

// removeNotice removes a notice unless it holds something else. Should it become
// something else meanwhile, rank 0 finds it missing and writes it again.
func removeNotice(path string, text []byte) {
	if _, now, err := readNotice(path); err == nil && bytes.Equal(now, text) {
		_ = os.Remove(path)
	}
}

// staleAfter is how much longer than it is good for a notice is left alone.
const staleAfter = 10 * time.Minute

// What notices are called, by fileName, and before they are whole. Most processes
// never ask: they are compiled when one does.
var (
	noticeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^` + noticePattern + `$`) })
	noticePart = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\.` + noticePattern + `\.[0-9]+$`) })
)

const noticePattern = `(?:slurm|openmpi)-[A-Za-z0-9._-]{0,64}-[0-9a-f]{12}`

// sweepNotices removes what jobs that were killed have left beside a notice that
// has just been written. Both times are those of the file system.
func sweepNotices(path string) {
	now, err := os.Stat(path)
	if err != nil {
		return
	}
	dir := filepath.Dir(path)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		part := noticePart().MatchString(e.Name())
		if !part && !noticeName().MatchString(e.Name()) {
			continue
		}
		fi, err := e.Info()
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		old := filepath.Join(dir, e.Name())
		age := now.ModTime().Sub(fi.ModTime())
		if age < staleAfter {
			continue
		}
		n, _, err := readNotice(old)
		switch {
		case err == nil && age > staleAfter+time.Duration(n.Seconds)*time.Second:
		case err != nil && part:
		default:
			continue
		}
		_ = os.Remove(old)
	}
}
