package mpiio_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/comm/pio"
)

// mountReadOnly makes a directory read-only for the calling goroutine: its thread gets a mount
// namespace of its own. The goroutine keeps the thread until it ends, and the thread and the
// namespace end with it.
func mountReadOnly(dir string) error {
	runtime.LockOSThread()
	// A thread must not share its working directory and root with others to get a namespace.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	for _, m := range []struct {
		source, target string
		flags          uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{dir, dir, unix.MS_BIND},
		{"", dir, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
	} {
		if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// TestReadOnlyMount opens files in a directory that is mounted read-only on one rank. If the ranks
// want to write, all ranks get the error of that rank, the file stays as it was, and a file that Open
// has made with O_EXCL does not stay. If they only read, all ranks have the file.
func TestReadOnlyMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a mount namespace")
	}
	const old = "the old text"
	for _, x := range []struct {
		what  string
		fresh bool // the file does not exist yet
		flag  int
		fails bool
		stays bool // Open has made the file, and it stays
	}{
		{what: "write", flag: os.O_RDWR, fails: true},
		{what: "write only", flag: os.O_WRONLY, fails: true},
		{what: "truncate", flag: os.O_RDWR | os.O_TRUNC, fails: true},
		{what: "create an existing file", flag: os.O_RDWR | os.O_CREATE, fails: true},
		{what: "create", fresh: true, flag: os.O_RDWR | os.O_CREATE, fails: true, stays: true},
		{what: "create a new file", fresh: true, flag: os.O_RDWR | os.O_CREATE | os.O_EXCL, fails: true},
		{what: "read", flag: os.O_RDONLY},
	} {
		for _, odd := range []int{0, 1, 2} {
			t.Run(fmt.Sprintf("%s, rank %d", x.what, odd), func(t *testing.T) {
				name := filepath.Join(t.TempDir(), "file")
				if !x.fresh {
					require.NoError(t, os.WriteFile(name, []byte(old), 0o600))
				}
				commtest.Run(t, 3, func(c *comm.Comm) error {
					if c.Rank() == odd {
						if err := mountReadOnly(filepath.Dir(name)); err != nil {
							return err
						}
						if err := os.WriteFile(name, nil, 0o600); !errors.Is(err, syscall.EROFS) {
							return fmt.Errorf("the mount is not read-only: %w", err)
						}
					}
					if err := c.Barrier(); err != nil {
						return err
					}
					f, err := pio.Open(c, name, x.flag, 0o600)
					if x.fails {
						var e *comm.Error
						if f != nil || !errors.Is(err, syscall.EROFS) || !errors.As(err, &e) || e.Op != "Open" || e.Peer != odd {
							return fmt.Errorf("open on a read-only file system of rank %d: %w", odd, err)
						}
						return c.Barrier() // the communicator is usable
					}
					if err != nil {
						return err
					}
					v, err := pio.NewView[byte](f, 0, comm.Contiguous(1))
					if err != nil {
						return err
					}
					text := make([]byte, len(old))
					if n, err := pio.ReadAll(v, text); err != nil || string(text[:n]) != old {
						return fmt.Errorf("read %q: %w", text[:n], err)
					}
					return f.Close()
				})
				text, err := os.ReadFile(name)
				switch {
				case !x.fresh:
					require.NoError(t, err)
					require.Equal(t, old, string(text))
				case x.stays && odd != 0: // rank 0 has made it
					require.NoError(t, err)
					require.Empty(t, text)
				default:
					require.ErrorIs(t, err, os.ErrNotExist)
				}
			})
		}
	}
}
