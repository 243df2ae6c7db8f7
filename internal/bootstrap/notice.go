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

// notice is the content of the file by which rank 0 gives its address and the secret to the other
// ranks. Only its user can read the file. A rank reads it only if the rank's own user owns it.
type notice struct {
	Version int      `json:"version"`
	Job     string   `json:"job"` // place.job, which identifies the job
	Size    int      `json:"size"`
	Host    string   `json:"host"`    // hostKey of rank 0
	Addrs   []string `json:"addrs"`   // IP addresses of rank 0's host
	Port    int      `json:"port"`    // TCP port on which rank 0 listens
	Secret  []byte   `json:"secret"`  // 32 bytes
	Seconds int      `json:"seconds"` // how long the file is valid, in seconds
}

const (
	noticeVersion  = 1
	noticeMaxBytes = 64 << 10
	noticeMaxAddrs = 32
)

// errNotice is the error for a file that is not a valid notice.
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

// noticePath returns the path of the notice of a job: in the directory that the parameter
// bootstrap.dir names, or by default in .weft in the user's home.
func noticePath(getenv func(string) string, set *params.Set, job string) (string, error) {
	const key = "bootstrap.dir"
	p, _ := params.Lookup(key)
	dir := set.String(key)
	switch home := getenv("HOME"); {
	case dir == "" && !filepath.IsAbs(home):
		return "", fmt.Errorf("no directory for the ranks to find each other, because HOME=%q: set %s to a directory that all hosts share", home, p.Env())
	case dir == "":
		dir = filepath.Join(home, ".weft")
	case !filepath.IsAbs(dir):
		return "", fmt.Errorf("%s=%q is not an absolute path", p.Env(), dir)
	}
	return filepath.Join(dir, job), nil
}

// write writes the notice to a file, by a rename, so that no reader sees a part of it. It replaces an
// existing file. It returns the file's content.
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
	f, err := os.CreateTemp(dir, "."+name+".*") // only this user can read the file
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

// readNotice returns a notice and the content of its file. It does not follow symbolic links, and
// rejects a file that another user could have written.
func readNotice(path string) (*notice, []byte, error) {
	if d, err := os.Open(filepath.Dir(path)); err == nil {
		_ = d.Close() // the open makes NFS ask its server; otherwise it may use a cached "no such file"
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() //nolint:errcheck // the file was only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if uid := os.Geteuid(); st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o077 != 0 || int(st.Uid) != uid {
		return nil, nil, fmt.Errorf("%s has mode %#o and owner %d, so it is not a file that only user %d can access", path, st.Mode, st.Uid, uid)
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

// removeNotice removes a notice if its content is still text; otherwise it returns nil. If another rank 0 replaces the notice
// during the call, removeNotice may remove the new one. Then that rank 0 finds its notice missing and
// writes it again.
func removeNotice(path string, text []byte) error {
	_, now, err := readNotice(path)
	if err == nil && bytes.Equal(now, text) {
		err = os.Remove(path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// staleAfter is how long a notice is kept after the end of its validity.
const staleAfter = 10 * time.Minute

// The names of notices, and of temporary files from which notice.write makes them. Most processes
// never use the expressions, so they are compiled at the first use.
var (
	noticeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^` + noticePattern + `$`) })
	noticePart = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\.` + noticePattern + `\.[0-9]+$`) })
)

const noticePattern = `(?:slurm|openmpi)-[A-Za-z0-9._-]{0,64}-[0-9a-f]{12}`

// removeStaleNotices removes files of killed jobs from the directory of path: notices, and complete
// temporary files, that have been invalid for staleAfter, and incomplete temporary files that are
// older than staleAfter. path is a notice that has just been written. Its modification time stands
// for the present time, because the clock of the file server may differ from that of this host.
func removeStaleNotices(path string) {
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
