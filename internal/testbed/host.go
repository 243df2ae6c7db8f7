//go:build linux

package testbed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
)

// Host is one of a cluster's.
type Host struct {
	cluster *Cluster
	info    hostInfo
	cut     atomic.Bool
}

// hostInfo is what the keeper tells of a host.
type hostInfo struct {
	Name, Addr string
	Namespaces string // folder of the files that stand for them
	Switch     string // that of the host that has the other end of its cable
	Port       string // which is this
}

// Name is the host's, which it has for itself and which resolves everywhere.
func (h *Host) Name() string { return h.info.Name }

// Address is the host's, IPv4.
func (h *Host) Address() string { return h.info.Addr }

// Cut pulls the host's cable: from now on nothing comes through, and nobody is
// told so.
func (h *Host) Cut() {
	h.link("down")
	h.cut.Store(true)
}

// Join puts the cable back. What is connected from then on goes through: no kernel
// remembers that this host, or another, did not answer.
func (h *Host) Join() {
	h.link("up")
	h.cut.Store(false)
	h.cluster.forgetNeighbors()
}

// forgetNeighbors empties the hosts' ARP tables, and of this machine's what is about
// them. An address that is being asked for there since before a cable was put back
// would still fail those who connect with it now.
func (c *Cluster) forgetNeighbors() {
	flush := []string{program("ip"), "neigh", "flush", "to", bedNet(c.info.ID)}
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

// Command is a command that runs in the host, in the directory of this process,
// whatever the Dir of the result. A name without a slash is looked up in the host.
// Its process is the program's, so that signals arrive, and ends with the host,
// also where the test is killed.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	ns := h.info.Namespaces
	// Not "ip netns exec", under whose new /sys there are no cgroups, which slurmd
	// needs.
	enter := []string{"--net=" + ns + "/net", "--uts=" + ns + "/uts", "--mount=" + ns + "/mnt", "--", "env", "-C", dir, "--", name}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// ip has iproute2 do what the lines say, up to the first that fails.
func ip(lines ...string) error {
	cmd := exec.Command(program("ip"), "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, oneLine(out))
	}
	return nil
}

// oneLine is a program's output in an error.
func oneLine(out []byte) string {
	return strings.Join(strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// program finds what need not be in the PATH of the user: a daemon. Where it is
// missing, starting the result says so.
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

// need says which package to install where programs are missing.
func need(packages map[string]string) error {
	for name, pkg := range packages {
		if _, err := exec.LookPath(program(name)); err != nil {
			return fmt.Errorf("no %s: install %s (make test-deps does)", name, pkg)
		}
	}
	return nil
}
