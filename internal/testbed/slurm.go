//go:build linux

package testbed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// slurmLog is the path of slurmctld's log relative to the cluster's directory. This log explains most
// failures.
const slurmLog = "/slurm/slurmctld.log"

// slurmTimeout is the longest time for the start of Slurm. It is long because the machine may be
// busy.
const slurmTimeout = 60 * time.Second

// slurm starts Slurm over all hosts, unless it runs and works. Slurm has its own munged, ports and
// files, so it is independent of any other Slurm on this machine.
func (c *cluster) slurm(ctx context.Context) error {
	if len(c.hosts) == 0 {
		return errors.New("slurm: no hosts")
	}
	ctx, cancel := context.WithTimeout(ctx, slurmTimeout)
	defer cancel()
	if len(c.slurms) > 0 {
		// A test may have killed a daemon, or may have made Slurm stop using a host. Then the code
		// below starts Slurm again.
		if nodes, err := c.nodes(ctx); err != nil || nodes.lost != "" || c.checkSlurm() != nil {
			if err := c.endSlurm(); err != nil {
				return err
			}
		}
	}
	if len(c.slurms) == 0 {
		if err := c.startSlurm(ctx); err != nil {
			return errors.Join(err, c.endSlurm())
		}
	}
	for {
		nodes, err := c.nodes(ctx)
		if err == nil && nodes.ready == len(c.hosts) {
			c.info.SlurmConf = c.slurmDir() + "/slurm.conf"
			return nil
		}
		if err := c.checkSlurm(); err != nil {
			return errors.Join(err, c.endSlurm())
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			err = fmt.Errorf("slurm: hosts are not idle: %s: %w; %s", nodes, errors.Join(err, ctx.Err()), tail(c.info.Dir+slurmLog))
			return errors.Join(err, c.endSlurm())
		}
	}
}

func (c *cluster) slurmDir() string { return c.info.Dir + "/slurm" }

// startSlurm starts the daemons of Slurm.
func (c *cluster) startSlurm(ctx context.Context) error {
	err := requirePrograms(map[string]string{"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"})
	if err != nil {
		return err
	}
	dir := c.slurmDir()
	if err := os.MkdirAll(dir+"/state", 0o755); err != nil {
		return err
	}
	key := make([]byte, 1024)
	_, _ = rand.Read(key) // Read never fails
	for name, text := range map[string]string{
		"munge.key":   string(key),
		"slurm.conf":  c.slurmConfig(),
		"cgroup.conf": "CgroupPlugin=" + cgroupPlugin() + "\n",
	} {
		mode := os.FileMode(0o644)
		if name == "munge.key" {
			mode = 0o400
		}
		if err := os.WriteFile(dir+"/"+name, []byte(text), mode); err != nil {
			return err
		}
	}
	start := func(h *host, name string, args ...string) error {
		d, err := h.start(name, []string{"SLURM_CONF=" + dir + "/slurm.conf"}, program(name), args...)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", h.info.Name, name, err)
		}
		c.slurms = append(c.slurms, d)
		return nil
	}
	if err := start(c.control, "munged", "--foreground", "--force", "--key-file="+dir+"/munge.key", "--socket="+dir+"/munge.socket",
		"--pid-file="+dir+"/munged.pid", "--seed-file="+dir+"/munged.seed", "--log-file="+dir+"/munged.log"); err != nil {
		return err
	}
	if err := c.await(ctx, "unix", dir+"/munge.socket"); err != nil {
		return err
	}
	if err := start(c.control, "slurmctld", "-D", "-c", "-f", dir+"/slurm.conf"); err != nil {
		return err
	}
	if err := c.await(ctx, "tcp", c.control.info.Addr+":6817"); err != nil {
		return err
	}
	for _, h := range c.hosts {
		if err := start(h, "slurmd", "-D", "-f", dir+"/slurm.conf"); err != nil {
			return err
		}
	}
	return nil
}

// slurmConfig returns a minimal slurm.conf. With config_overrides, Slurm accepts SlurmCPUs processors
// for a host even if this machine has fewer. With KillWait=2, Slurm sends SIGKILL to a program that
// does not end within two seconds after SIGTERM.
func (c *cluster) slurmConfig() string {
	dir := c.slurmDir()
	var s strings.Builder
	fmt.Fprintf(&s, "ClusterName=weft%d\nSlurmctldHost=%s(%s)\n", c.info.ID, c.control.info.Name, c.control.info.Addr)
	fmt.Fprintf(&s, "AuthType=auth/munge\nAuthInfo=socket=%s/munge.socket\n", dir)
	s.WriteString("SlurmUser=root\nSlurmdUser=root\nSlurmctldPort=6817\nSlurmdPort=6818\nReturnToService=2\nKillWait=2\n" +
		// If srun misses the message that the nodes are free, it asks for a step again after
		// SlurmctldTimeout. The minimum that srun uses is 60 s.
		"SlurmctldTimeout=60\n" +
		"MpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n" +
		"PropagateResourceLimits=NONE\nEnforcePartLimits=ALL\n" +
		"SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n" +
		"SchedulerParameters=batch_sched_delay=0\n")
	fmt.Fprintf(&s, "StateSaveLocation=%s/state\nSlurmctldPidFile=%s/slurmctld.pid\nSlurmctldLogFile=%s/slurmctld.log\n", dir, dir, dir)
	fmt.Fprintf(&s, "SlurmdSpoolDir=%s/spool.%%n\nSlurmdPidFile=%s/slurmd.%%n.pid\nSlurmdLogFile=%s/slurmd.%%n.log\n", dir, dir, dir)
	// With the default, /tmp, which the hosts share, PMIx would use the same files in all hosts.
	fmt.Fprintf(&s, "TmpFS=%s\n", c.info.Dir+"/tmp")
	var names []string
	for i, h := range c.hosts {
		names = append(names, h.info.Name)
		fmt.Fprintf(&s, "NodeName=%s NodeAddr=%s CPUs=%d State=UNKNOWN\n", h.info.Name, h.info.Addr, SlurmCPUs)
		fmt.Fprintf(&s, "PartitionName=%s Nodes=%s Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n", partition(i+1), strings.Join(names, ","))
	}
	return s.String()
}

// partition returns the name of the partition of the first n hosts, for tests that use n hosts.
// The partition of all hosts is the default.
func partition(n int) string { return fmt.Sprintf("first%d", n) }

// cgroupPlugin returns the name of a plugin for cgroup.conf that works on systems with any version of
// cgroups. slurmd needs a plugin, although this configuration does not use cgroups.
func cgroupPlugin() string {
	out, _ := exec.Command(program("slurmd"), "-V").Output() // "slurm-wlm 22.05.8"
	var major, minor int
	if words := strings.Fields(string(out)); len(words) > 1 {
		_, _ = fmt.Sscanf(words[1], "%d.%d", &major, &minor)
	}
	if major > 23 || major == 23 && minor >= 11 {
		return "disabled"
	}
	return "cgroup/v1"
}

// await waits until a daemon of Slurm listens at addr. If ctx ends or a daemon of Slurm has ended,
// await returns an error.
func (c *cluster) await(ctx context.Context, network, addr string) error {
	for {
		conn, err := net.DialTimeout(network, addr, time.Second)
		if err == nil {
			return conn.Close()
		}
		if err := c.checkSlurm(); err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// checkSlurm returns an error if a daemon of Slurm has ended.
func (c *cluster) checkSlurm() error {
	for _, d := range c.slurms {
		if err := d.check(); err != nil {
			return fmt.Errorf("%w; %s", err, tail(c.slurmDir()+"/"+filepath.Base(d.cmd.Path)+".log"))
		}
	}
	return nil
}

// nodes is the state of the hosts as sinfo reports it.
type nodes struct {
	ready int    // number of hosts that can start a job
	lost  string // names of hosts that Slurm does not use until an administrator intervenes
	all   string // output of sinfo
}

func (n nodes) String() string { return n.all }

func (c *cluster) nodes(ctx context.Context) (nodes, error) {
	out, err := c.slurmClient(ctx, "sinfo", "--noheader", "--Node", "--partition="+partition(len(c.hosts)), "--format=%N %t")
	if err != nil {
		return nodes{}, err
	}
	n := nodes{all: oneLine(out)}
	for line := range strings.Lines(string(out)) {
		name, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch strings.TrimSuffix(state, "-") { // the suffix "-" means that Slurm plans a job there
		case "idle", "mix", "alloc", "plnd":
			n.ready++
		case "comp": // a job is ending there: the host is not ready, but not lost either
		default:
			n.lost += name + " "
		}
	}
	return n, nil
}

// jobsTimeout is how long endJobs waits for the end of the jobs that it has cancelled. If they take
// longer, endJobs ends Slurm and all its processes, because a new start of Slurm is faster.
const jobsTimeout = 2 * time.Second

// endJobs cancels all jobs and waits for their end. Programs that wait for a job, such as srun, then
// end with an error.
func (c *cluster) endJobs(ctx context.Context) error {
	if len(c.slurms) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, jobsTimeout)
	defer cancel()
	for cancelled := false; ; cancelled = true {
		out, err := c.slurmClient(ctx, "squeue", "--noheader", "--format=%A")
		if err == nil && len(out) == 0 {
			return nil
		}
		if err == nil && !cancelled {
			_, err = c.slurmClient(ctx, "scancel", append([]string{"--quiet"}, strings.Fields(string(out))...)...)
		}
		if err != nil {
			return c.endSlurm()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return c.endSlurm()
		}
	}
}

func (c *cluster) slurmClient(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.slurmDir()+"/slurm.conf")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, oneLine(out))
	}
	return out, nil
}

// endSlurm kills the daemons of Slurm and the processes that they have started.
func (c *cluster) endSlurm() error {
	if len(c.slurms) == 0 {
		return nil
	}
	for _, d := range c.slurms {
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	c.slurms, c.info.SlurmConf = nil, ""
	err := killAll(c.info.Mark, ofSlurm)
	return errors.Join(err, os.RemoveAll(c.slurmDir()))
}

// ofSlurm reports whether a process belongs to a job of Slurm, or runs a program whose name begins
// with "slurm".
func ofSlurm(pid int) bool {
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if strings.HasPrefix(filepath.Base(exe), "slurm") { // for example slurmd-wlm, as Debian names slurmd
		return true
	}
	return Process{env: zeroEnded(fmt.Sprintf("/proc/%d/environ", pid))}.Getenv("SLURM_JOB_ID") != ""
}
