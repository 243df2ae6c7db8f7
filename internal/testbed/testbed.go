//go:build linux

// Package testbed makes hosts out of Linux namespaces, with sshd and Slurm, for tests that need
// several machines. "This machine" is the machine on which the tests run, outside of the hosts.
//
// A host has its own network, UTS and mount namespace. So it has its own address, network link,
// name, boot id, /dev/shm, /run, weft cache directory and [Cluster.Private] directory. Some files
// in /etc and settings of root are the same on all hosts of a process, but differ from those of
// this machine. Most other files, the process table and the cores are those of this machine.
//
//	test ──requests──► keeper: a second process of the test's binary
//	                     ├─ thread in host w7n1: sshd, slurmd
//	                     ├─ thread in host w7n2: sshd, slurmd
//	                     └─ thread in host w7c:  munged, slurmctld
//
// A bridge in the control host, w7c, connects all hosts, and this machine by its link weft7. (7 is
// the number of the cluster.) When the pipe of its requests is closed, also because the test is
// killed, the keeper kills all processes in the hosts, removes everything that it made, and ends.
// If the keeper itself is killed, the test or the next keeper removes all this.
//
// A test calls Up for hosts, and starts programs in them or on this machine:
//
//	func TestMain(m *testing.M) { testbed.Main(m) }
//
//	func TestAgents(t *testing.T) {
//		c := testbed.Up(t, 2)
//		out, err := c.Hosts()[0].Command(t.Context(), "ssh", c.Names()[1], "hostname").Output()
//		require.NoError(t, err)
//		assert.Equal(t, c.Names()[1]+"\n", string(out))
//		assert.Empty(t, c.Hosts()[1].Processes(testbed.Running("/usr/bin/hostname")))
//	}
//
// Tests of several packages can run at the same time: each process has its own hosts, names and
// addresses. As long as the hosts exist, their names are in /etc/hosts of this machine. A program
// on this machine sees the network links of all tests that run; a program in a host sees only the
// links of the host. To use hosts by hand, run this program, which keeps them until you interrupt
// it:
//
//	go run ./internal/testbed/up 4 --slurm
package testbed

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// MaxHosts is the largest number of hosts that a process can have.
const MaxHosts = 8

// shared holds the keeper of this process. All tests of the process share this keeper.
var shared struct {
	sync.Mutex         // guards keeper, and is held during a request to it
	keeper     *keeper // nil: none runs
}

// Cluster is a group of hosts in one network. A process has at most MaxHosts hosts. The Cluster that
// Up(t, n) returns consists of the first n of them.
type Cluster struct {
	t     testing.TB // the test that has called Up; nil: a program has called Open
	info  info
	hosts []*Host
}

// Up returns n hosts, 1 to MaxHosts. It makes the hosts that the process does not have yet. If it
// makes any, it ends a Slurm that runs over the existing ones. If the user is not root, Up skips
// the test. If root lacks CAP_SYS_ADMIN or CAP_NET_ADMIN, or if iproute2 or the OpenSSH server or
// client is missing, the test fails.
//
// All tests of a process share the hosts, so a test that calls [Host.Cut] must not run in
// parallel with others. At the end of the test a clean-up function of Up joins the hosts that the
// test has cut off. [Main] or [Down] removes the hosts.
func Up(t testing.TB, n int) *Cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("testbed: only root can make hosts of namespaces")
	}
	c, err := Open(n)
	if err != nil {
		t.Fatal(err)
	}
	c.t = t
	t.Cleanup(func() {
		for _, h := range c.hosts {
			if h.cut.Load() {
				h.Join()
			}
		}
	})
	return c
}

// Open does the same as [Up] for programs that are not tests, except that it returns an error
// instead of ending a test, and that nothing joins the hosts that the program cuts off.
func Open(n int) (*Cluster, error) {
	if n < 1 || n > MaxHosts {
		return nil, fmt.Errorf("testbed: the number of hosts is %d, not 1 to %d", n, MaxHosts)
	}
	in, err := ask(request{Op: opUp, N: n})
	if err != nil {
		return nil, err
	}
	c := &Cluster{info: in}
	for i := range n {
		c.hosts = append(c.hosts, &Host{cluster: c, info: in.Hosts[i]})
	}
	return c, nil
}

// Down removes the hosts of this process, and returns when they are gone. The next Up makes new
// ones.
func Down() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.keeper == nil {
		return nil
	}
	err := shared.keeper.end()
	shared.keeper = nil
	if err != nil {
		return fmt.Errorf("testbed: %w", err)
	}
	return nil
}

// Main runs the tests, removes the hosts and exits. A package's TestMain calls it.
func Main(m *testing.M) {
	code := m.Run()
	if err := Down(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// ask sends a request to the keeper and returns the keeper's reply. It starts the keeper if there
// is none.
func ask(r request) (info, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.keeper == nil {
		k, err := startKeeper()
		if err != nil {
			return info{}, fmt.Errorf("testbed: %w", err)
		}
		shared.keeper = k
	}
	in, err := shared.keeper.ask(r)
	// With errKeeper, the keeper has ended or has not replied in time. The next call of ask starts
	// another keeper.
	if errors.Is(err, errKeeper) {
		_ = shared.keeper.cmd.Process.Kill()
		err = errors.Join(err, shared.keeper.end())
		shared.keeper = nil
	}
	if err != nil {
		return info{}, fmt.Errorf("testbed: %w", err)
	}
	return in, nil
}

// Hosts returns the hosts.
func (c *Cluster) Hosts() []*Host { return c.hosts }

// Names returns the names of the hosts.
func (c *Cluster) Names() []string {
	names := make([]string, len(c.hosts))
	for i, h := range c.hosts {
		names[i] = h.Name()
	}
	return names
}

// SSHConfig returns the path of a configuration file for ssh -F, in the hosts and on this machine.
// With this file ssh finds the hosts, uses the cluster's key, asks no questions about host keys and
// writes no known_hosts.
func (c *Cluster) SSHConfig() string { return c.info.Dir + "/ssh_config" }

// SSH returns an ssh command that reaches the hosts.
func (c *Cluster) SSH() string { return "ssh -F " + c.SSHConfig() }

// Address returns the address of this machine in the network of the hosts.
func (c *Cluster) Address() string { return c.info.Address }

// Dir returns the directory of the cluster's files. All hosts see it. Down removes it.
func (c *Cluster) Dir() string { return c.info.Dir }

// Private returns a path at which each host, and this machine, has its own directory.
func (c *Cluster) Private() string { return c.info.Dir + "/private" }

// BlackHole returns the name of a host that accepts connections on the port of sshd and never
// sends anything.
func (c *Cluster) BlackHole() string { return blackHoleName(c.info.ID) }

// Unused returns the name of a host that has an address but does not exist.
func (c *Cluster) Unused() string { return unusedName(c.info.ID) }

// PasswordHost returns a name by which ssh with SSHConfig reaches the second sshd of the first
// host, on PasswordPort. That sshd accepts only passwords, and root has none, so no login succeeds.
func (c *Cluster) PasswordHost() string { return passwordName(c.info.ID) }

// PasswordPort is the port on which each host has an sshd that requires a password.
const PasswordPort = 2222

// SlurmCPUs is the number of processors that a host has for Slurm.
const SlurmCPUs = 4

// Slurm starts a Slurm over all hosts of the process, unless one runs and works, and returns when
// all hosts are ready for jobs. It returns the variables that srun, salloc, sbatch and the other
// Slurm commands need in their environment; they select the hosts of c. The commands run on this
// machine or in a host. When the test ends and no other test uses Slurm, a clean-up function
// cancels the jobs that are left. If Slurm does not start, the test fails.
//
// A host has SlurmCPUs processors for Slurm, and up to eight jobs share a processor. Slurm's time
// limits are in minutes, and Slurm checks them every half minute. To let a limit pass earlier, run
// "scontrol update JobId=7 EndTime=now+1".
func (c *Cluster) Slurm(t testing.TB) []string {
	t.Helper()
	slurmTests.Add(1)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("slurmctld:", tail(c.Dir()+slurmLog))
		}
		if slurmTests.Add(-1) > 0 {
			return
		}
		if _, err := ask(request{Op: opJobs}); err != nil {
			t.Error(err)
		}
	})
	env, err := c.StartSlurm()
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// slurmTests is the number of tests that have called Cluster.Slurm and have not ended.
var slurmTests atomic.Int32

// StartSlurm does the same as [Cluster.Slurm] for programs that are not tests, except that it
// returns an error instead of ending a test, and that nothing cancels jobs.
func (c *Cluster) StartSlurm() ([]string, error) {
	in, err := ask(request{Op: opSlurm})
	if err != nil {
		return nil, err
	}
	p := partition(len(c.hosts))
	return []string{"SLURM_CONF=" + in.SlurmConf, "SLURM_PARTITION=" + p, "SALLOC_PARTITION=" + p, "SBATCH_PARTITION=" + p}, nil
}

// fail ends the cluster's test with an error. If Open has made the cluster, so that there is no
// test, fail panics.
func (c *Cluster) fail(format string, args ...any) {
	if c.t == nil {
		panic("testbed: " + fmt.Sprintf(format, args...))
	}
	c.t.Helper()
	c.t.Fatalf("testbed: "+strings.TrimSpace(format), args...)
}
