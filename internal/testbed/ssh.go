//go:build linux

package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// writeFiles writes the files that the hosts share: names, keys, and settings of ssh, sshd and
// logins.
func (c *cluster) writeFiles() error {
	id, dir := c.info.ID, c.info.Dir
	for _, key := range []string{"key", "hostkey"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", clusterName(id), "-f", dir+"/"+key).CombinedOutput(); err != nil {
			return fmt.Errorf("ssh-keygen: %w: %s", err, oneLine(out))
		}
	}
	outside, err := os.Hostname()
	if err != nil {
		return err
	}
	hosts := append([]string{"127.0.0.1 localhost", c.info.Address + " " + outside}, c.names()...)
	files := map[string]string{
		"hosts": strings.Join(hosts, "\n") + "\n",
		// Without DNS, so that the lookup of an unknown name fails at once.
		"nsswitch": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
		// No password fits "*". With "!" instead, the user would be locked, and sshd refuses locked
		// users.
		"shadow":     "root:*:19000:0:99999:7:::\n",
		"ssh_config": c.sshConfig(),
		"empty":      "",
	}
	for name, text := range files {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Chmod(dir+"/shadow", 0o600); err != nil {
		return err
	}
	return c.sshdConfig()
}

func (c *cluster) sshConfig() string {
	id := c.info.ID
	var s strings.Builder
	add := func(name string, last int) { fmt.Fprintf(&s, "Host %s\n  HostName %s\n", name, addressOf(id, last)) }
	for i := 1; i <= MaxHosts; i++ {
		add(hostName(id, i), i)
	}
	add(unusedName(id), unusedAddr)
	add(blackHoleName(id), blackHoleAddr)
	add(passwordName(id), 1)
	fmt.Fprintf(&s, "  Port %d\n", PasswordPort)
	fmt.Fprintf(&s, "Host w%dn* %s.*\n  BatchMode yes\n", id, strings.TrimSuffix(addressOf(id, 0), ".0"))
	fmt.Fprintf(&s, `Host *
  User root
  IdentityFile %s/key
  IdentitiesOnly yes
  KexAlgorithms curve25519-sha256
  IdentityAgent none
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
`, c.info.Dir)
	return s.String()
}

// sshdConfig writes the settings of the two sshd of every host.
func (c *cluster) sshdConfig() error {
	dir := c.info.Dir
	common := "HostKey " + dir + "/hostkey\nPidFile none\nUsePAM no\nUseDNS no\nStrictModes no\nPrintMotd no\n" +
		"MaxStartups 512\nMaxSessions 512\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
	// Newer versions of sshd refuse, for a while, clients that have connected and left without a
	// login, as tests do. PerSourcePenalties no prevents this; older versions do not know this
	// setting.
	if exec.Command(program("sshd"), "-t", "-h", dir+"/hostkey", "-o", "PerSourcePenalties=no", "-f", "/dev/null").Run() == nil {
		common += "PerSourcePenalties no\n"
	}
	for name, text := range map[string]string{
		"sshd_config":          "Port 22\nAuthorizedKeysFile " + dir + "/key.pub\nPasswordAuthentication no\n",
		"sshd_password_config": "Port " + strconv.Itoa(PasswordPort) + "\nPubkeyAuthentication no\nPasswordAuthentication yes\n",
	} {
		if err := os.WriteFile(dir+"/"+name, []byte(common+text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// startSSH starts both sshd of a host.
func (c *cluster) startSSH(h *host) error {
	for _, config := range []string{"sshd_config", "sshd_password_config"} {
		d, err := h.start(config, nil, program("sshd"), "-D", "-e", "-f", c.info.Dir+"/"+config)
		if err != nil {
			return fmt.Errorf("%s: %w", h.info.Name, err)
		}
		h.sshd = append(h.sshd, d)
	}
	return nil
}

// awaitSSH waits until both sshd of the host answer.
func (h *host) awaitSSH(ctx context.Context) error {
	for i, port := range []int{22, PasswordPort} {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			err := greeted(net.JoinHostPort(h.info.Addr, strconv.Itoa(port)))
			if err == nil {
				break
			}
			if ended := h.sshd[i].check(); ended != nil {
				return fmt.Errorf("%s: %w", h.info.Name, ended)
			}
			if time.Now().After(end) || ctx.Err() != nil {
				return fmt.Errorf("%s: sshd: %w", h.info.Name, err)
			}
		}
	}
	return nil
}

// greeted returns nil if an SSH server listens at addr and sends the beginning of its greeting.
func greeted(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	var hello [4]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return err
	}
	if string(hello[:]) != "SSH-" {
		return errors.New("not an SSH server")
	}
	return nil
}
