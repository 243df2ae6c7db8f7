//go:build !portable

package launcher

import (
	"net"
	"os"
	"strings"
)

// jobSocket is the first part of the name of a gorun's socket; the pid of the gorun follows. The
// name is in the abstract name space, see unix(7), so the socket is not a file, and the kernel
// removes it with the process.
const jobSocket = "@weft-gorun-"

// listening is the flag __SO_ACCEPTCON of a socket that listens.
const listening = "00010000"

func (*session) listenAs(name string) (net.Listener, error) { return net.Listen("unix", name) }

// allJobSockets returns the names of the sockets of all gorun processes of this host. It reads them
// from /proc/net/unix, where the name is the eighth field, and the fourth says that the socket
// listens: see proc_net(5). Connections that a gorun has accepted have the same name.
func allJobSockets() (names []string) {
	list, _ := os.ReadFile("/proc/net/unix")
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) == 8 && f[3] == listening && strings.HasPrefix(f[7], jobSocket) {
			names = append(names, f[7])
		}
	}
	return names
}
