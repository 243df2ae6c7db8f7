package remote

import (
	"fmt"
	"os"
	"syscall"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// Stdio makes the stream to the parent out of this agent's stdin and stdout, and
// greets. Afterwards stdin is empty and stdout is stderr, so that nobody else reads or
// writes the stream, and a parent that is gone is an error and no SIGPIPE. name is
// what gorun calls the host; "": as it has asked for it.
func Stdio(name string) (*Conn, error) {
	greeting, err := newGreeting(name)
	if err != nil {
		return nil, err
	}
	in, err := takeOver(0, "stdin")
	if err != nil {
		return nil, err
	}
	out, err := takeOver(1, "stdout")
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	c := &Conn{host: "gorun", peer: greeting, r: in, w: out, end: func() error {
		_ = in.Close()
		return out.Close()
	}}
	if err := greeting.Greet(out); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("greeting gorun: %w", err)
	}
	tidy()
	return c, nil
}

// takeOver moves a descriptor of stdio to where no child inherits it.
func takeOver(fd int, name string) (*os.File, error) {
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	instead := 2
	if fd == 0 {
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			_ = unix.Close(moved)
			return nil, fmt.Errorf("%s: %w", os.DevNull, err)
		}
		defer unix.Close(null) //nolint:errcheck // only read
		instead = null
	}
	if err := sys.DupTo(instead, fd); err != nil {
		_ = unix.Close(moved)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// Close is to unblock who reads or writes.
	if err := syscall.SetNonblock(moved, true); err != nil {
		_ = unix.Close(moved)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(moved), name), nil
}
