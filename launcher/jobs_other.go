//go:build !linux || portable

package launcher

import (
	"net"
	"os"
	"path/filepath"
)

// jobSocket is the first part of the name of a gorun's socket, a file in the directory for
// temporary files. So gorun -stacks must have the same TMPDIR as the gorun that it asks.
var jobSocket = filepath.Join(os.TempDir(), "weft-gorun-")

// listenAs makes the socket. Closing the listener removes the file; the watchdog removes it
// if this process is killed.
func (s *session) listenAs(name string) (net.Listener, error) {
	_ = os.Remove(name) // a killed process that had the same pid has left it
	l, err := net.Listen("unix", name)
	if err == nil {
		s.watchdog.RemoveDir(name)
	}
	return l, err
}

// allJobSockets returns the sockets of all gorun processes with the same directory for
// temporary files.
func allJobSockets() []string {
	names, _ := filepath.Glob(jobSocket + "*") // fails only if TMPDIR holds a bracket
	return names
}
