package remote

import (
	"fmt"
	"os"
	"syscall"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// Stdio makes the stream to the parent from this agent's stdin and stdout, and sends the greeting.
// Afterwards stdin is /dev/null and stdout is stderr, so that no other code reads or writes the
// stream. If the parent has ended, Write returns an error, and the process gets no SIGPIPE. name is
// the name by which gorun knows this host; "": gorun uses the name by which it has connected.
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
	pruneOwnCache()
	return c, nil
}

// takeOver moves stdin or stdout to another descriptor, which children do not inherit. It puts
// /dev/null in the place of stdin and stderr in the place of stdout.
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
	// A nonblocking file, because Close must unblock Read and Write.
	if err := syscall.SetNonblock(moved, true); err != nil {
		_ = unix.Close(moved)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return os.NewFile(uintptr(moved), name), nil
}
