//go:build unix

// Package tempdir makes temporary directories for tests and benchmarks. If a process is killed, its directory
// stays. The next Make with the same prefix removes that directory, unless the process was killed in Make.
package tempdir

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// owner is a file in each directory. While the process runs, it holds a lock on this file (flock(2)).
const owner = ".owner"

// Dir is a temporary directory.
type Dir struct {
	Path string
	lock *os.File
}

// Make makes a directory in os.TempDir. Its name begins with prefix. Before that, Make
// removes the directories of ended processes.
func Make(prefix string) (*Dir, error) {
	removeLeft(prefix)
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: path}
	// The file gets its name when it is locked, because removeLeft takes an unlocked file for that of a process
	// that has ended.
	if d.lock, err = os.Create(filepath.Join(path, owner+".new")); err == nil {
		err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(d.lock.Name(), filepath.Join(path, owner))
	}
	if err != nil {
		return nil, errors.Join(err, d.Remove())
	}
	return d, nil
}

// Remove removes the directory and what is in it.
func (d *Dir) Remove() error {
	err := removeAll(d.Path)
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// removeAll removes a directory. The owner's file is the last to go, so that a later run can continue what a
// killed process or an error has interrupted.
func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != owner {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// removeLeft removes the directories of processes that have ended. It ignores errors, because the caller does not
// depend on it.
func removeLeft(prefix string) {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*", owner))
	for _, name := range left {
		f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		mine := unix.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Geteuid()
		if mine && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = removeAll(filepath.Dir(name))
		}
		_ = f.Close()
	}
}
