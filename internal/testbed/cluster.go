//go:build linux

package testbed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// The last numbers of addresses in a cluster's network. The hosts have the numbers 1 to MaxHosts.
const (
	unusedAddr    = 249 // no host has this address: see Cluster.Unused
	blackHoleAddr = 250 // the control host also has this one: see Cluster.BlackHole
	controlAddr   = 253 // the control host
	outsideAddr   = 254 // this machine
)

// bridge is the network bridge in the control host that connects the hosts.
const bridge = "br0"

const (
	// base is the directory of the clusters' directories. It is not TMPDIR, so that each keeper
	// finds the leftovers of others.
	base        = "/tmp"
	prefix      = "weft-testbed-"
	maxClusters = 256
	allNetworks = "10.91.0.0/16"
)

func clusterDir(id int) string       { return fmt.Sprintf("%s/%s%d", base, prefix, id) }
func clusterName(id int) string      { return fmt.Sprintf("%s%d", prefix, id) }
func markFile(id int) string         { return clusterDir(id) + "/mark" }
func linkName(id int) string         { return fmt.Sprintf("weft%d", id) }
func networkOf(id int) string        { return addressOf(id, 0) + "/24" }
func addressOf(id, last int) string  { return fmt.Sprintf("10.91.%d.%d", id, last) }
func hostName(id, number int) string { return fmt.Sprintf("w%dn%d", id, number) }
func controlName(id int) string      { return fmt.Sprintf("w%dc", id) }
func blackHoleName(id int) string    { return fmt.Sprintf("w%dhole", id) }
func unusedName(id int) string       { return fmt.Sprintf("w%dnone", id) }
func passwordName(id int) string     { return fmt.Sprintf("w%dpassword", id) }

// cluster is the keeper's state of its cluster. Only the goroutine that runs the function keep uses
// it.
type cluster struct {
	info    info
	lock    *os.File // the cluster's directory, locked until the cluster is removed; nil: there is no cluster
	all     []*host  // the elements of hosts, and control
	hosts   []*host
	control *host
	slurms  []*daemon // the daemons of Slurm, with munged; empty: Slurm does not run
}

// up makes hosts until there are at least n. If it fails, it removes all hosts.
func (c *cluster) up(ctx context.Context, n int) error {
	if len(c.hosts) >= n {
		return nil
	}
	err := c.grow(ctx, n)
	if err != nil {
		err = errors.Join(err, c.down())
	}
	return err
}

func (c *cluster) grow(ctx context.Context, n int) error {
	if c.lock == nil {
		if err := requirePrograms(map[string]string{"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client"}); err != nil {
			return err
		}
		if err := c.open(); err != nil {
			return err
		}
	}
	if err := c.endSlurm(); err != nil {
		return err
	}
	first := len(c.hosts)
	for i := first + 1; i <= n; i++ {
		h, err := c.addHost(i)
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
		c.info.Hosts = append(c.info.Hosts, h.info)
		if err := c.startSSH(h); err != nil {
			return err
		}
	}
	for _, h := range c.hosts[first:] {
		if err := h.awaitSSH(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open makes the directory, the files, the control host and the network of the cluster.
func (c *cluster) open() error {
	if err := c.reserve(); err != nil {
		return err
	}
	id := c.info.ID
	if err := c.writeFiles(); err != nil {
		return err
	}
	// Lines of an earlier cluster with this number are left if its keeper was killed and somebody has
	// emptied /tmp, where removeLeftovers looks for clusters.
	if err := removeHosts(hostsFile, clusterName(id)); err != nil {
		return err
	}
	if err := addHosts(hostsFile, clusterName(id), c.names()); err != nil {
		return err
	}
	var err error
	if c.control, err = c.newHost(controlName(id)); err != nil {
		return err
	}
	c.control.info.Addr = addressOf(id, controlAddr)
	// The bridge is in the control host, because this machine may have a firewall that drops
	// packets between ports of a bridge, as Docker's does. The bridge gets a fixed hardware address.
	// Otherwise its hardware address would change whenever a port is added to it.
	err = c.control.run(func() error {
		return ip(
			"link set lo up",
			"link add "+bridge+" address 02:00:00:00:00:01 type bridge forward_delay 0",
			"addr add "+c.control.info.Addr+"/24 dev "+bridge,
			"addr add "+addressOf(id, blackHoleAddr)+"/24 dev "+bridge,
			"link set "+bridge+" up",
			"route add default via "+addressOf(id, outsideAddr),
		)
	})
	if err != nil {
		return fmt.Errorf("%s: no network (root needs CAP_NET_ADMIN): %w", c.control.info.Name, err)
	}
	err = c.control.blackHole(addressOf(id, blackHoleAddr))
	if err == nil {
		err = ip("link add "+linkName(id)+" type veth peer name out netns "+c.control.info.Namespaces+"/net",
			"addr add "+c.info.Address+"/24 dev "+linkName(id),
			"link set "+linkName(id)+" up")
	}
	if err == nil {
		err = c.control.run(func() error { return ip("link set out master " + bridge + " up") })
	}
	return err
}

// reserve finds a network 10.91.x.0/24 that is not in use and takes x as the number of the cluster.
// Before that it removes the leftovers of keepers that were killed.
func (c *cluster) reserve() error {
	lock, err := lockFile(base)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // only read
	if err := removeLeftoversLocked(); err != nil {
		return err
	}
	used, err := networks()
	if err != nil {
		return err
	}
	for id := range maxClusters {
		network := netip.PrefixFrom(netip.MustParseAddr(addressOf(id, 0)), 24)
		if overlaps(used, network) || os.Mkdir(clusterDir(id), 0o755) != nil {
			continue
		}
		if c.lock, err = lockFile(clusterDir(id)); err != nil {
			return err
		}
		c.info.ID, c.info.Dir, c.info.Address = id, clusterDir(id), addressOf(id, outsideAddr)
		// The mark contains a random word, because the number of a cluster is not unique: a cluster
		// in a container may have the same number, and this keeper sees its processes, too.
		c.info.Mark = clusterName(id) + "-" + rand.Text()
		return os.WriteFile(markFile(id), []byte(c.info.Mark), 0o644)
	}
	return errors.New("no network 10.91.x.0/24 is free")
}

// networks returns the networks and addresses in the routing tables of this machine.
func networks() ([]netip.Prefix, error) {
	out, err := exec.Command(program("ip"), "-4", "route", "show", "table", "all").Output()
	if err != nil {
		return nil, fmt.Errorf("ip route: %w", err)
	}
	var used []netip.Prefix
	for line := range strings.Lines(string(out)) {
		// A line begins with "local 10.0.0.1" or with "10.0.0.0/24", for example.
		for _, word := range strings.Fields(line)[:min(2, len(strings.Fields(line)))] {
			if p, err := netip.ParsePrefix(word); err == nil {
				used = append(used, p)
			} else if a, err := netip.ParseAddr(word); err == nil {
				used = append(used, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return used, nil
}

func overlaps(used []netip.Prefix, p netip.Prefix) bool {
	for _, u := range used {
		if u.Bits() > 0 && u.Overlaps(p) {
			return true
		}
	}
	return false
}

// names returns the lines of /etc/hosts with the addresses and names in the cluster.
func (c *cluster) names() []string {
	id := c.info.ID
	var lines []string
	for i := 1; i <= MaxHosts; i++ {
		lines = append(lines, addressOf(id, i)+" "+hostName(id, i))
	}
	return append(lines,
		addressOf(id, unusedAddr)+" "+unusedName(id),
		addressOf(id, blackHoleAddr)+" "+blackHoleName(id),
		addressOf(id, controlAddr)+" "+controlName(id))
}

// newHost makes a host without a network link.
func (c *cluster) newHost(name string) (*host, error) {
	h, err := newHost(c.info.Dir, c.info.Mark, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.all = append(c.all, h)
	return h, nil
}

// addHost makes a host and connects it to the bridge.
func (c *cluster) addHost(number int) (*host, error) {
	id := c.info.ID
	h, err := c.newHost(hostName(id, number))
	if err != nil {
		return nil, err
	}
	h.info.Addr = addressOf(id, number)
	h.info.Switch = c.control.info.Namespaces
	h.info.Port = fmt.Sprintf("port%d", number)
	err = c.control.run(func() error {
		return ip(
			"link add "+h.info.Port+" type veth peer name eth0 netns "+h.info.Namespaces+"/net",
			"link set "+h.info.Port+" master "+bridge+" up",
		)
	})
	if err == nil {
		err = h.run(func() error {
			return ip(
				"link set lo up",
				"addr add "+h.info.Addr+"/24 dev eth0",
				"link set eth0 up",
				"route add default via "+c.info.Address,
				"route add unreachable "+allNetworks, // other clusters, to which this machine would route packets
			)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.info.Name, err)
	}
	return h, nil
}

// down removes the cluster.
func (c *cluster) down() error {
	if c.lock == nil {
		return nil
	}
	err := remove(c.info.ID)
	for _, h := range c.all {
		h.end()
	}
	_ = c.lock.Close()
	*c = cluster{}
	return err
}

// remove kills the processes of a cluster, and removes the cluster's link, its names and its files.
// It is the cluster of this keeper, or of a keeper that was killed.
func remove(id int) error {
	var errs []error
	// A cluster without a mark has no hosts yet.
	if mark, err := os.ReadFile(markFile(id)); err == nil && len(mark) > 0 {
		errs = append(errs, killAll(string(mark), anyProcess))
	}
	if err := ip("link del " + linkName(id)); err != nil {
		if _, gone := net.InterfaceByName(linkName(id)); gone == nil { // the link exists, so the error counts
			errs = append(errs, err)
		}
	}
	errs = append(errs, removeHosts(hostsFile, clusterName(id)))
	errs = append(errs, os.RemoveAll(clusterDir(id)))
	return errors.Join(errs...)
}

// removeLeftovers removes clusters whose keeper has ended.
func removeLeftovers() error {
	lock, err := lockFile(base)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // only read
	return removeLeftoversLocked()
}

// removeLeftoversLocked does the work of removeLeftovers. The caller holds the lock of base. A keeper
// that lives holds the lock of its cluster's directory.
func removeLeftoversLocked() error {
	var errs []error
	for id := range maxClusters {
		fi, err := os.Lstat(clusterDir(id))
		if err != nil || !fi.IsDir() || fi.Sys().(*syscall.Stat_t).Uid != 0 {
			continue
		}
		dir, err := os.Open(clusterDir(id))
		if err != nil {
			continue
		}
		if syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			errs = append(errs, remove(id))
		}
		_ = dir.Close()
	}
	return errors.Join(errs...)
}

// lockFile opens a file or directory and locks it by flock(2). If another process holds the lock,
// lockFile waits up to 30 seconds. The lock ends when the caller closes the file.
func lockFile(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
	}
}
