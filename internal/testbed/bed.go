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

// The last number of an address in a cluster's network: hosts have 1 to
// MaxHosts.
const (
	unusedAddr    = 249
	blackHoleAddr = 250
	controlAddr   = 253
	outsideAddr   = 254
)

// bridge is what the hosts are connected by, in the control host.
const bridge = "br0"

const (
	base    = "/tmp" // whatever TMPDIR says, so that every keeper finds what others left
	prefix  = "weft-testbed-"
	maxBeds = 256
	allBeds = "10.91.0.0/16"
)

func bedDir(id int) string           { return fmt.Sprintf("%s/%s%d", base, prefix, id) }
func bedName(id int) string          { return fmt.Sprintf("%s%d", prefix, id) }
func markFile(id int) string         { return bedDir(id) + "/mark" }
func bedLink(id int) string          { return fmt.Sprintf("weft%d", id) }
func bedNet(id int) string           { return bedAddr(id, 0) + "/24" }
func bedAddr(id, last int) string    { return fmt.Sprintf("10.91.%d.%d", id, last) }
func hostName(id, number int) string { return fmt.Sprintf("w%dn%d", id, number) }
func controlName(id int) string      { return fmt.Sprintf("w%dc", id) }
func blackHoleName(id int) string    { return fmt.Sprintf("w%dhole", id) }
func unusedName(id int) string       { return fmt.Sprintf("w%dnone", id) }
func passwordName(id int) string     { return fmt.Sprintf("w%dpassword", id) }

// bed is a cluster as its keeper has it. One goroutine uses it.
type bed struct {
	info    info
	lock    *os.File // its directory, locked for as long as the keeper lives
	cells   []*cell  // all there are
	hosts   []*cell
	control *cell
	slurms  []*daemon // the daemons of Slurm, if it runs
}

// up has n hosts at least, or none where that fails.
func (b *bed) up(ctx context.Context, n int) error {
	if len(b.hosts) >= n {
		return nil
	}
	err := b.grow(ctx, n)
	if err != nil {
		err = errors.Join(err, b.down())
	}
	return err
}

func (b *bed) grow(ctx context.Context, n int) error {
	if b.lock == nil {
		if err := need(map[string]string{"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client"}); err != nil {
			return err
		}
		if err := b.open(); err != nil {
			return err
		}
	}
	if err := b.endSlurm(); err != nil {
		return err
	}
	first := len(b.hosts)
	for i := first + 1; i <= n; i++ {
		h, err := b.plug(i)
		if err != nil {
			return err
		}
		b.hosts = append(b.hosts, h)
		b.info.Hosts = append(b.info.Hosts, h.info)
		if err := b.startSSH(h); err != nil {
			return err
		}
	}
	for _, h := range b.hosts[first:] {
		if err := h.awaitSSH(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open makes what a cluster has once.
func (b *bed) open() error {
	if err := b.reserve(); err != nil {
		return err
	}
	id := b.info.ID
	if err := b.writeFiles(); err != nil {
		return err
	}
	if err := removeHosts(hostsFile, bedName(id)); err != nil { // where somebody emptied /tmp
		return err
	}
	if err := addHosts(hostsFile, bedName(id), b.names()); err != nil {
		return err
	}
	var err error
	if b.control, err = b.cell(controlName(id)); err != nil {
		return err
	}
	b.control.info.Addr = bedAddr(id, controlAddr)
	// Here and not in the network of this machine, which may have a firewall that
	// lets nothing through from one port of a bridge to another, as Docker's does.
	// The bridge's own address is fixed, or it would change with its ports.
	err = b.control.run(func() error {
		return ip(
			"link set lo up",
			"link add "+bridge+" address 02:00:00:00:00:01 type bridge forward_delay 0",
			"addr add "+b.control.info.Addr+"/24 dev "+bridge,
			"addr add "+bedAddr(id, blackHoleAddr)+"/24 dev "+bridge,
			"link set "+bridge+" up",
			"route add default via "+bedAddr(id, outsideAddr),
		)
	})
	if err != nil {
		return fmt.Errorf("%s: no network (root needs CAP_NET_ADMIN): %w", b.control.info.Name, err)
	}
	err = b.control.blackHole(bedAddr(id, blackHoleAddr))
	if err == nil {
		err = ip("link add "+bedLink(id)+" type veth peer name out netns "+b.control.info.Namespaces+"/net",
			"addr add "+b.info.Address+"/24 dev "+bedLink(id),
			"link set "+bedLink(id)+" up")
	}
	if err == nil {
		err = b.control.run(func() error { return ip("link set out master " + bridge + " up") })
	}
	return err
}

// reserve finds a network that nobody uses and takes its number for the cluster,
// after removing what dead keepers left.
func (b *bed) reserve() error {
	lock, err := lockFile(base)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // only read
	if err := sweepLocked(); err != nil {
		return err
	}
	used, err := networks()
	if err != nil {
		return err
	}
	for id := range maxBeds {
		network := netip.PrefixFrom(netip.MustParseAddr(bedAddr(id, 0)), 24)
		if overlaps(used, network) || os.Mkdir(bedDir(id), 0o755) != nil {
			continue
		}
		if b.lock, err = lockFile(bedDir(id)); err != nil {
			return err
		}
		b.info.ID, b.info.Dir, b.info.Address = id, bedDir(id), bedAddr(id, outsideAddr)
		// Not to be mistaken for one in a container, whose processes are seen from here.
		b.info.Mark = bedName(id) + "-" + rand.Text()
		return os.WriteFile(markFile(id), []byte(b.info.Mark), 0o644)
	}
	return errors.New("no network 10.91.x.0/24 is free")
}

// networks are those that this machine has an address in or a route to.
func networks() ([]netip.Prefix, error) {
	out, err := exec.Command(program("ip"), "-4", "route", "show", "table", "all").Output()
	if err != nil {
		return nil, fmt.Errorf("ip route: %w", err)
	}
	var used []netip.Prefix
	for line := range strings.Lines(string(out)) {
		for _, word := range strings.Fields(line)[:min(2, len(strings.Fields(line)))] { // "local 10.0.0.1", "10.0.0.0/24"
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

// names are the lines of /etc/hosts.
func (b *bed) names() []string {
	id := b.info.ID
	var lines []string
	for i := 1; i <= MaxHosts; i++ {
		lines = append(lines, bedAddr(id, i)+" "+hostName(id, i))
	}
	return append(lines,
		bedAddr(id, unusedAddr)+" "+unusedName(id),
		bedAddr(id, blackHoleAddr)+" "+blackHoleName(id),
		bedAddr(id, controlAddr)+" "+controlName(id))
}

// cell makes a host that is not connected.
func (b *bed) cell(name string) (*cell, error) {
	c, err := newCell(b.info.Dir, b.info.Mark, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.cells = append(b.cells, c)
	return c, nil
}

// plug makes a host and connects it to the bridge.
func (b *bed) plug(number int) (*cell, error) {
	id := b.info.ID
	c, err := b.cell(hostName(id, number))
	if err != nil {
		return nil, err
	}
	c.info.Addr = bedAddr(id, number)
	c.info.Switch = b.control.info.Namespaces
	c.info.Port = fmt.Sprintf("port%d", number)
	err = b.control.run(func() error {
		return ip(
			"link add "+c.info.Port+" type veth peer name eth0 netns "+c.info.Namespaces+"/net",
			"link set "+c.info.Port+" master "+bridge+" up",
		)
	})
	if err == nil {
		err = c.run(func() error {
			return ip(
				"link set lo up",
				"addr add "+c.info.Addr+"/24 dev eth0",
				"link set eth0 up",
				"route add default via "+b.info.Address,
				"route add unreachable "+allBeds, // what else this machine may say that it has
			)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.info.Name, err)
	}
	return c, nil
}

// down removes everything that the cluster has.
func (b *bed) down() error {
	if b.lock == nil {
		return nil
	}
	err := remove(b.info.ID)
	for _, c := range b.cells {
		c.end()
	}
	_ = b.lock.Close()
	*b = bed{}
	return err
}

// remove is how a cluster ends, its keeper's and a dead one's.
func remove(id int) error {
	var errs []error
	if mark, err := os.ReadFile(markFile(id)); err == nil && len(mark) > 0 { // or it has had no hosts
		errs = append(errs, killAll(string(mark), anyProcess))
	}
	if err := ip("link del " + bedLink(id)); err != nil { // or it went with the network of its other end
		if _, gone := net.InterfaceByName(bedLink(id)); gone == nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, removeHosts(hostsFile, bedName(id)))
	errs = append(errs, os.RemoveAll(bedDir(id)))
	return errors.Join(errs...)
}

// sweep removes clusters whose keeper is gone.
func sweep() error {
	lock, err := lockFile(base)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // only read
	return sweepLocked()
}

// sweepLocked is sweep for who has the lock of base.
func sweepLocked() error {
	var errs []error
	for id := range maxBeds {
		fi, err := os.Lstat(bedDir(id))
		if err != nil || !fi.IsDir() || fi.Sys().(*syscall.Stat_t).Uid != 0 {
			continue
		}
		dir, err := os.Open(bedDir(id))
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

// lockFile opens a file or directory and waits until nobody else has its lock,
// which lasts until it is closed.
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
			return nil, fmt.Errorf("lock of %s: %w", name, err)
		}
	}
}
