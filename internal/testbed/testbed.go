//go:build linux

// Package testbed makes hosts out of namespaces, with sshd and Slurm, for tests
// that need several machines.
//
// A host has a network, a UTS and a mount namespace: an address and a link, a
// name, a boot id, /dev/shm, /run, weft's cache of the user and a directory,
// [Cluster.Private], of its own. Processes, cores and all other files are those
// of this machine.
//
//	test ──requests──► keeper, which is the test's binary once more
//	                     ├─ thread in host w7n1: sshd, slurmd
//	                     ├─ thread in host w7n2: sshd, slurmd
//	                     └─ thread in host w7c:  munged, slurmctld
//
// All hosts hang on a bridge of the control host, w7c, as does this machine by its
// link weft7. The keeper ends with the pipe that its requests come by, hence also
// with a test that is killed, and takes everything with it, all processes in the
// hosts too; what a killed keeper leaves, the test removes, or the next keeper.
//
// A test asks for hosts, and starts what it tests in them or on this machine:
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
// Tests of several packages can run at the same time: each process has hosts,
// names and addresses of its own. While they do, their names are in /etc/hosts, and
// a program on this machine sees the links of all of them, which come and go; in a
// host it sees one network. To try something by hand, have hosts until you
// interrupt it, which says how to reach them:
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

// MaxHosts is how many hosts a process can have.
const MaxHosts = 8

// shared is the cluster of this process.
var shared struct {
	sync.Mutex
	keeper *keeper
}

// Cluster is a process's hosts, or the first of them, as a test asked for them.
type Cluster struct {
	t     testing.TB // nil without a test
	info  info
	hosts []*Host
}

// Up returns n hosts, 1 to MaxHosts, and makes those that the process does not
// have yet, which ends a Slurm over fewer. It needs root with CAP_SYS_ADMIN and
// CAP_NET_ADMIN, iproute2 and the OpenSSH server, without which the test fails; as
// another user it is skipped. All tests of a process share the hosts: a test that
// cuts a host off must not be parallel to others. [Main] or [Down] removes them;
// at the end of the test the hosts that it cut off are joined again.
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

// Open is [Up] without a test.
func Open(n int) (*Cluster, error) {
	if n < 1 || n > MaxHosts {
		return nil, fmt.Errorf("testbed: %d hosts, not 1 to %d", n, MaxHosts)
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

// Down removes the hosts of this process and returns when they are gone. The
// next Up makes others.
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

// Main is for the TestMain of a package that has nothing else to do there: it
// runs the tests, removes the hosts and exits.
func Main(m *testing.M) {
	code := m.Run()
	if err := Down(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// ask has the keeper do something, and starts it for that if there is none.
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
	if errors.Is(err, errKeeper) { // or does not reply in time
		_ = shared.keeper.cmd.Process.Kill()
		err = errors.Join(err, shared.keeper.end())
		shared.keeper = nil
	}
	if err != nil {
		return info{}, fmt.Errorf("testbed: %w", err)
	}
	return in, nil
}

// Hosts are the n hosts that Up was asked for.
func (c *Cluster) Hosts() []*Host { return c.hosts }

// Names are the hosts' names.
func (c *Cluster) Names() []string {
	names := make([]string, len(c.hosts))
	for i, h := range c.hosts {
		names[i] = h.Name()
	}
	return names
}

// SSHConfig is a file for ssh -F: it knows the hosts, asks nothing and writes to
// no known_hosts. It holds in the hosts and outside of them.
func (c *Cluster) SSHConfig() string { return c.info.Dir + "/ssh_config" }

// SSH is the command of an ssh that reaches the hosts.
func (c *Cluster) SSH() string { return "ssh -F " + c.SSHConfig() }

// Address is this machine's in the network of the hosts.
func (c *Cluster) Address() string { return c.info.Address }

// Dir holds the cluster's files, which all hosts see and which go with it.
func (c *Cluster) Dir() string { return c.info.Dir }

// Private is a directory that is another one in each host and on this machine:
// what is put there exists here but not there.
func (c *Cluster) Private() string { return c.info.Dir + "/private" }

// BlackHole is the name of a host whose sshd lets connect and never says
// anything.
func (c *Cluster) BlackHole() string { return blackHoleName(c.info.ID) }

// Unused is the name of a host that has an address but does not exist.
func (c *Cluster) Unused() string { return unusedName(c.info.ID) }

// PasswordHost is the name, to ssh with SSHConfig only, of the first host's
// second sshd, on PasswordPort, which admits nobody without a password.
func (c *Cluster) PasswordHost() string { return passwordName(c.info.ID) }

// PasswordPort is the port of every host's sshd that wants a password.
const PasswordPort = 2222

// SlurmCPUs is how many processors a host has for Slurm.
const SlurmCPUs = 4

// Slurm starts a Slurm over the hosts, unless one runs that works, and returns
// when all are ready for jobs. The result is what the environment of srun,
// salloc, sbatch and the like needs besides; they run here or in a host, where
// they end with it. The jobs that there are when the test ends, and no other one
// uses Slurm, are cancelled. A host has SlurmCPUs processors and takes eight jobs
// at a time. Limits of time are in minutes, and Slurm looks after them every half
// a minute: "scontrol update JobId=7 EndTime=now+1" lets one pass.
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

// slurmTests is how many tests use Slurm now.
var slurmTests atomic.Int32

// StartSlurm is [Cluster.Slurm] without a test.
func (c *Cluster) StartSlurm() ([]string, error) {
	in, err := ask(request{Op: opSlurm})
	if err != nil {
		return nil, err
	}
	p := partition(len(c.hosts))
	return []string{"SLURM_CONF=" + in.SlurmConf, "SLURM_PARTITION=" + p, "SALLOC_PARTITION=" + p, "SBATCH_PARTITION=" + p}, nil
}

// fail ends the test that a cluster is of.
func (c *Cluster) fail(format string, args ...any) {
	if c.t == nil {
		panic("testbed: " + fmt.Sprintf(format, args...))
	}
	c.t.Helper()
	c.t.Fatalf("testbed: "+strings.TrimSpace(format), args...)
}
