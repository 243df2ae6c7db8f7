//go:build linux

package testbed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// Host is a host of a cluster.
type Host struct {
	cluster *Cluster
	info    hostInfo
	cut     atomic.Bool // Cut was called, and Join not since then
}

// hostInfo describes a host in the keeper's replies.
type hostInfo struct {
	Name, Addr string
	Namespaces string // directory with the files net, uts and mnt of the host's namespaces, in /proc
	// Switch is the field Namespaces of the control host. The other end of this host's link is
	// there, as a port of the bridge.
	Switch string
	Port   string // name of that other end
}

// Name returns the host's name. It resolves in the hosts and on this machine.
func (h *Host) Name() string { return h.info.Name }

// Address returns the host's IPv4 address.
func (h *Host) Address() string { return h.info.Addr }

// Cut cuts the host off, as if its cable were pulled: the network drops all packets from and to
// the host. Processes get no error until one of their own timeouts or one of TCP passes.
func (h *Host) Cut() {
	h.link("down")
	h.cut.Store(true)
}

// Join ends the effect of Cut. When it returns, new connections succeed at once, because Join also
// removes the ARP entries for addresses that did not answer.
func (h *Host) Join() {
	h.link("up")
	h.cut.Store(false)
	h.cluster.forgetNeighbors()
}

// forgetNeighbors removes the hosts' addresses from the ARP tables of all hosts and of this
// machine. Otherwise an ARP request that was sent before Join, and had no answer, could still make a
// new connection fail.
func (c *Cluster) forgetNeighbors() {
	flush := []string{program("ip"), "neigh", "flush", "to", networkOf(c.info.ID)}
	forget := []*exec.Cmd{exec.Command(flush[0], flush[1:]...)}
	for _, h := range c.info.Hosts {
		forget = append(forget, exec.Command("nsenter", append([]string{"--net=" + h.Namespaces + "/net", "--"}, flush...)...))
	}
	for _, cmd := range forget {
		if out, err := cmd.CombinedOutput(); err != nil {
			c.fail("%v: %v: %s", cmd, err, oneLine(out))
		}
	}
}

func (h *Host) link(state string) {
	cmd := exec.Command("nsenter", "--net="+h.info.Switch+"/net", "--", program("ip"), "link", "set", h.info.Port, state)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.cluster.fail("%s: ip link: %v: %s", h.info.Name, err, oneLine(out))
	}
}

// Connect connects two hosts by a further link, which is not part of the cluster's network: an interface
// with this name in each of them, with the addresses 10.92.0.1/24 in a and 10.92.0.2/24 in b. The test's
// cleanup removes it.
func Connect(t testing.TB, a, b *Host, name string) {
	t.Helper()
	in := func(h *Host, args ...string) {
		cmd := h.Command(t.Context(), program("ip"), args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: ip %v: %v: %s", h.info.Name, args, err, oneLine(out))
		}
	}
	in(a, "link", "add", name, "type", "veth", "peer", "name", name, "netns", b.info.Namespaces+"/net")
	t.Cleanup(func() {
		cmd := a.Command(context.Background(), program("ip"), "link", "del", name)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: ip link del: %v: %s", a.info.Name, err, oneLine(out))
		}
	})
	for addr, h := range map[string]*Host{"10.92.0.1/24": a, "10.92.0.2/24": b} {
		in(h, "addr", "add", addr, "dev", name)
		in(h, "link", "set", name, "up")
	}
}

// Command returns a command that runs in the host. Its directory is the current directory of this
// process; the field Dir of the result has no effect. A name without a slash is looked up in PATH,
// in the host. The process of the command is the program itself, so signals reach the program. When
// the keeper removes the host, also after the test was killed, it kills the program.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	ns := h.info.Namespaces
	// "ip netns exec" would mount a new /sys without cgroups, which slurmd needs.
	enter := []string{"--net=" + ns + "/net", "--uts=" + ns + "/uts", "--mount=" + ns + "/mnt", "--", "env", "-C", dir, "--", name}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// ip runs the commands of ip(8) in lines, up to the first one that fails.
func ip(lines ...string) error {
	cmd := exec.Command(program("ip"), "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, oneLine(out))
	}
	return nil
}

// oneLine returns a program's output in one line, for an error.
func oneLine(out []byte) string {
	return strings.Join(strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// program returns the path of a program, also of a daemon that is not in the user's PATH. If there is
// no such program, it returns name, so that the start of the program reports the error.
func program(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path
		}
	}
	return name
}

// requirePrograms returns an error if one of the programs is missing. packages maps each program to
// its Debian package, which the error names.
func requirePrograms(packages map[string]string) error {
	for name, pkg := range packages {
		if _, err := exec.LookPath(program(name)); err != nil {
			return fmt.Errorf("no %s: install %s (make test-deps does)", name, pkg)
		}
	}
	return nil
}
