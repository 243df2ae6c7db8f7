//go:build !linux || portable

package launcher

import (
	"net"
	"os"
	"path/filepath"
)

// jobSocket is the first part of the name of a gorun's socket; the pid of the gorun follows. The
// socket is a file in the directory for temporary files. So gorun -stacks must have the same
// variable TMPDIR as the gorun that it asks.
var jobSocket = filepath.Join(os.TempDir(), "weft-gorun-")

// listenAs listens on the Unix socket name, which is a file. Closing the listener removes the file.
// If this process is killed, the watchdog removes the file.
func (s *session) listenAs(name string) (net.Listener, error) {
	_ = os.Remove(name) // a gorun that had the same pid and was killed may have left the file behind
	l, err := net.Listen("unix", name)
	if err == nil {
		s.watchdog.RemoveDir(name)
	}
	return l, err
}

// allJobSockets returns the names of the sockets of all gorun processes that use the same directory
// for temporary files as this process.
func allJobSockets() []string {
	names, _ := filepath.Glob(jobSocket + "*") // fails only if TMPDIR has characters of a pattern, such as "["
	return names
}
