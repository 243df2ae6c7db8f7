package procs

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

// staging provides the files that a job needs on this host. If a file with the same content exists
// here at the path that it has on gorun's host, that file is used; a program only if no user except
// root and this one can change it. Other files come from gorun in parts. They are written to a
// directory of the job, which is removed at the job's end.
type staging struct {
	id       string // the job's id
	watchdog *Watchdog
	dir      string                 // the job's directory; "": it does not exist
	files    map[string]*stagedFile // by hash
	names    []stagedName           // the files that are not programs
	need     []string               // hashes of the contents that have not arrived yet
}

// stagedFile is the content of one or several files of the job. Files with equal content share it.
type stagedFile struct {
	proto.File // the first file that has this content
	// at is the path on this host of the file, or of its copy, which may be incomplete. "": neither
	// is here.
	at   string
	out  *os.File  // the copy, open while parts arrive; otherwise nil
	hash hash.Hash // of the bytes that have arrived
	size int64     // number of bytes that have arrived
}

// stagedName is a file that is not a program. The job's directory must contain it under its name.
type stagedName struct {
	name string
	hash string
	at   string // path on this host of a file that need not be copied; "": the file must be copied
}

// HashFile returns the SHA-256 of a file, in hexadecimal digits, and its size.
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

// register records the files of the job. files begins with the programs of the apps that gorun
// copies. own means that this is gorun's host, where all files exist. After register, need holds
// the hashes of the files that are missing here.
func (s *staging) register(files []proto.File, apps []proto.App, own bool) {
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

// inPlace returns the path at which f exists on this host with the same content, or "". A rank gets
// the job's secret, so no other user may be able to change a program before it runs.
func inPlace(f proto.File) string {
	if !filepath.IsAbs(f.Path) {
		return ""
	}
	path, err := filepath.EvalSymlinks(f.Path)
	if err != nil || f.Mode&0o111 != 0 && !trusted(path) {
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

// trusted reports whether only root and this user can change or replace the file at a path. The
// file and each directory above it must belong to one of them, and no group or other user may have
// write permission, except on a directory with the sticky bit. path is absolute. If it leads
// through a symbolic link, trusted returns false.
func trusted(path string) bool {
	if dir := filepath.Dir(path); dir != path && !trusted(dir) {
		return false
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return false
	}
	sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	return st.Mode&0o022 == 0 || sticky
}

// missing returns the hashes of the contents that this host lacks.
func (s *staging) missing() []string { return slices.Clone(s.need) }

func (s *staging) waiting() bool { return len(s.need) > 0 }

// path returns the path on this host of a file with this hash. If there is no such file, path
// returns "".
func (s *staging) path(hash string) string {
	if f := s.files[hash]; f != nil {
		return f.at
	}
	return ""
}

// store writes a part of a file. If this host does not need the file, store does nothing. done
// means that this was the last part that this host needs. After an error this host waits for no
// more parts.
func (s *staging) store(m proto.FilePart) (done bool, err error) {
	f := s.files[m.Hash]
	if f == nil || f.at != "" && f.out == nil {
		return false, nil // this host has the file; the part is for another host
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
		return false, errors.New("the bytes that arrived have another hash")
	}
	s.need = slices.DeleteFunc(s.need, func(h string) bool { return h == f.Hash })
	return len(s.need) == 0, nil
}

// link makes a symbolic link in the job's directory to each file that is not a program and lies
// elsewhere.
func (s *staging) link() error {
	for _, n := range s.names {
		if err := s.makeDir(); err != nil {
			return err
		}
		to, at := filepath.Join(s.dir, n.name), n.at
		if at == "" {
			at = s.files[n.hash].at
		}
		if at == to { // create has written the file at this path
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
	if err == nil || slices.ContainsFunc(s.names, named) { // another file has or will have this name
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
