package crew

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// staging is the files that a job needs on this host. One that stands at the same
// path as on gorun's host and is the same is used where it stands, a program only if
// nobody else can change it; others come in parts and are written to a directory of the
// job's own, which goes with it.
type staging struct {
	id       string // of the job
	watchdog *Watchdog
	dir      string // "": nothing had to be written
	files    map[string]*stagedFile
	names    []stagedName
	need     []string // hashes still to come
}

// stagedFile is a content, by its hash.
type stagedFile struct {
	proto.File        // as it was first named
	at         string // its path here
	out        *os.File
	hash       hash.Hash
	size       int64
}

// stagedName is a file that is no program: it has to stand in the job's directory by
// its name, and shares its content with others perhaps.
type stagedName struct {
	name string
	hash string
	at   string // its path here, if it is used where it stands
}

// HashFile is the SHA-256 of a file, as hexadecimal digits, and its size.
func HashFile(name string) (sum string, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	size, err = io.Copy(h, f)
	if err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// want notes the files of the job, those that its apps run first. Those that are here
// already are not needed; where own is set, this is the host that they come from.
func (s *staging) want(files []proto.File, apps []proto.App, own bool) {
	s.files = make(map[string]*stagedFile)
	programs := make(map[string]int)
	for _, a := range apps {
		if a.Staged != "" {
			programs[a.Staged]++
		}
	}
	for _, f := range files {
		at := f.Path
		if !own {
			at = inPlace(f)
		}
		sf := s.files[f.Hash]
		if sf == nil {
			sf = &stagedFile{File: f}
			s.files[f.Hash] = sf
		}
		sf.Mode |= f.Mode
		if sf.at == "" {
			sf.at = at
		}
		if programs[f.Hash] > 0 {
			programs[f.Hash]--
			continue
		}
		n := stagedName{filepath.Base(f.Name), f.Hash, at}
		if !slices.ContainsFunc(s.names, func(o stagedName) bool { return o.name == n.name && o.hash == n.hash }) {
			s.names = append(s.names, n)
		}
	}
	for _, f := range files {
		if s.files[f.Hash].at == "" && !slices.Contains(s.need, f.Hash) {
			s.need = append(s.need, f.Hash)
		}
	}
}

// inPlace is where a file is here as it is on gorun's host; "": nowhere. What runs has
// the job's secret: a program must stay the same until it runs.
func inPlace(f proto.File) string {
	if !filepath.IsAbs(f.Path) {
		return ""
	}
	path, err := filepath.EvalSymlinks(f.Path)
	if err != nil || f.Mode&0o111 != 0 && !guarded(path) {
		return ""
	}
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() || st.Size() != f.Size || st.Mode().Perm()&0o111 != os.FileMode(f.Mode)&0o111 {
		return ""
	}
	if sum, _, err := HashFile(path); err != nil || sum != f.Hash {
		return ""
	}
	return path
}

// guarded says whether only root and this user can change what stands at a path, or
// put another thing there: it and each directory above it are theirs, and nobody else
// may write there, be it as one of a group, but for adding to a directory with a sticky
// bit. The path is absolute; one that leads through links is not guarded.
func guarded(path string) bool {
	if dir := filepath.Dir(path); dir != path && !guarded(dir) {
		return false
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return false
	}
	sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	return st.Mode&0o022 == 0 || sticky
}

func (s *staging) missing() []string { return slices.Clone(s.need) }

func (s *staging) waiting() bool { return len(s.need) > 0 }

// path is where a file is; "" if nobody has it.
func (s *staging) path(hash string) string {
	if f := s.files[hash]; f != nil {
		return f.at
	}
	return ""
}

// store takes a part; done says that it was the last that is needed here.
func (s *staging) store(m proto.FilePart) (done bool, err error) {
	f := s.files[m.Hash]
	if f == nil || f.at != "" && f.out == nil {
		return false, nil // for another host
	}
	defer func() {
		if err != nil {
			s.need = nil
			err = fmt.Errorf("copy of %s: %w", f.Name, err)
		}
	}()
	if f.out == nil {
		if err := s.create(f); err != nil {
			return false, err
		}
	}
	if _, err := f.out.Write(m.Data); err != nil {
		return false, err
	}
	_, _ = f.hash.Write(m.Data) // never fails
	f.size += int64(len(m.Data))
	if f.size < f.Size && !m.Last {
		return false, nil
	}
	if err := f.out.Close(); err != nil {
		return false, err
	}
	f.out = nil
	if sum := hex.EncodeToString(f.hash.Sum(nil)); sum != f.Hash {
		return false, errors.New("it arrived with another content")
	}
	s.need = slices.DeleteFunc(s.need, func(h string) bool { return h == f.Hash })
	return len(s.need) == 0, nil
}

// link has all files that are no programs stand in the job's directory by their
// names, also those that are used where they are.
func (s *staging) link() error {
	for _, n := range s.names {
		if err := s.makeDir(); err != nil {
			return err
		}
		to, at := filepath.Join(s.dir, n.name), n.at
		if at == "" {
			at = s.files[n.hash].at
		}
		if at == to { // it was written there
			continue
		}
		if err := os.Symlink(at, to); err != nil {
			return err
		}
	}
	return nil
}

func (s *staging) makeDir() (err error) {
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "gorun-"+s.id+"-"); err != nil {
			return err
		}
		s.watchdog.RemoveDir(s.dir)
	}
	return nil
}

func (s *staging) create(f *stagedFile) (err error) {
	if err := s.makeDir(); err != nil {
		return err
	}
	name := filepath.Base(f.Name)
	f.at = filepath.Join(s.dir, name)
	_, err = os.Lstat(f.at)
	named := func(n stagedName) bool { return n.name == name && n.hash != f.Hash }
	if err == nil || slices.ContainsFunc(s.names, named) { // another file is of that name, or will be
		sub := filepath.Join(s.dir, f.Hash[:12])
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
		f.at = filepath.Join(sub, name)
	}
	f.hash = sha256.New()
	f.out, err = os.OpenFile(f.at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, os.FileMode(f.Mode).Perm()|0o400)
	return err
}

func (s *staging) close() {
	for _, f := range s.files {
		closeFiles(f.out)
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
