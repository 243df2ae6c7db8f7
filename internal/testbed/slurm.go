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

// slurmLog is the one to look at first, in the cluster's directory.
const slurmLog = "/slurm/slurmctld.log"

// slurmTimeout is for a Slurm to come up, on a busy machine.
const slurmTimeout = 60 * time.Second

// slurm has a Slurm run over all hosts, with a munged, ports and files of its
// own, whatever else runs on this machine.
func (b *bed) slurm(ctx context.Context) error {
	if len(b.hosts) == 0 {
		return errors.New("slurm: no hosts")
	}
	ctx, cancel := context.WithTimeout(ctx, slurmTimeout)
	defer cancel()
	if len(b.slurms) > 0 {
		// A test may have killed what it is made of, or have brought it to use a host
		// no more.
		if nodes, err := b.nodes(ctx); err != nil || nodes.lost != "" || b.checkSlurm() != nil {
			if err := b.endSlurm(); err != nil {
				return err
			}
		}
	}
	if len(b.slurms) == 0 {
		if err := b.startSlurm(ctx); err != nil {
			return errors.Join(err, b.endSlurm())
		}
	}
	for {
		nodes, err := b.nodes(ctx)
		if err == nil && nodes.ready == len(b.hosts) {
			b.info.SlurmConf = b.slurmDir() + "/slurm.conf"
			return nil
		}
		if err := b.checkSlurm(); err != nil {
			return errors.Join(err, b.endSlurm())
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			err = fmt.Errorf("slurm: hosts are not idle: %s: %w; %s", nodes, errors.Join(err, ctx.Err()), tail(b.info.Dir+slurmLog))
			return errors.Join(err, b.endSlurm())
		}
	}
}

func (b *bed) slurmDir() string { return b.info.Dir + "/slurm" }

// startSlurm starts the daemons.
func (b *bed) startSlurm(ctx context.Context) error {
	err := need(map[string]string{"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "srun": "slurm-wlm", "munged": "munge"})
	if err != nil {
		return err
	}
	dir := b.slurmDir()
	if err := os.MkdirAll(dir+"/state", 0o755); err != nil {
		return err
	}
	key := make([]byte, 1024)
	_, _ = rand.Read(key) // never fails
	for name, text := range map[string]string{
		"munge.key":   string(key),
		"slurm.conf":  b.slurmConfig(),
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
	start := func(c *cell, name string, args ...string) error {
		d, err := c.start(name, []string{"SLURM_CONF=" + dir + "/slurm.conf"}, program(name), args...)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", c.info.Name, name, err)
		}
		b.slurms = append(b.slurms, d)
		return nil
	}
	if err := start(b.control, "munged", "--foreground", "--force", "--key-file="+dir+"/munge.key", "--socket="+dir+"/munge.socket",
		"--pid-file="+dir+"/munged.pid", "--seed-file="+dir+"/munged.seed", "--log-file="+dir+"/munged.log"); err != nil {
		return err
	}
	if err := b.await(ctx, "unix", dir+"/munge.socket"); err != nil {
		return err
	}
	if err := start(b.control, "slurmctld", "-D", "-c", "-f", dir+"/slurm.conf"); err != nil {
		return err
	}
	if err := b.await(ctx, "tcp", b.control.info.Addr+":6817"); err != nil {
		return err
	}
	for _, h := range b.hosts {
		if err := start(h, "slurmd", "-D", "-f", dir+"/slurm.conf"); err != nil {
			return err
		}
	}
	return nil
}

// slurmConfig has what a job needs and no more. A host has more processors for
// Slurm than it may have; a program that ends slowly is killed soon.
func (b *bed) slurmConfig() string {
	dir := b.slurmDir()
	var s strings.Builder
	fmt.Fprintf(&s, "ClusterName=weft%d\nSlurmctldHost=%s(%s)\n", b.info.ID, b.control.info.Name, b.control.info.Addr)
	fmt.Fprintf(&s, "AuthType=auth/munge\nAuthInfo=socket=%s/munge.socket\n", dir)
	s.WriteString("SlurmUser=root\nSlurmdUser=root\nSlurmctldPort=6817\nSlurmdPort=6818\nReturnToService=2\nKillWait=2\n" +
		// If srun misses the message that the nodes are free, srun waits for this time before
		// it asks for a step again. The minimum is 60 s.
		"SlurmctldTimeout=60\n" +
		"MpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n" +
		"PropagateResourceLimits=NONE\nEnforcePartLimits=ALL\n" +
		"SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n" +
		"SchedulerParameters=batch_sched_delay=0\n")
	fmt.Fprintf(&s, "StateSaveLocation=%s/state\nSlurmctldPidFile=%s/slurmctld.pid\nSlurmctldLogFile=%s/slurmctld.log\n", dir, dir, dir)
	fmt.Fprintf(&s, "SlurmdSpoolDir=%s/spool.%%n\nSlurmdPidFile=%s/slurmd.%%n.pid\nSlurmdLogFile=%s/slurmd.%%n.log\n", dir, dir, dir)
	// PMIx of two hosts would want the same files.
	fmt.Fprintf(&s, "TmpFS=%s\n", b.info.Dir+"/tmp")
	var names []string
	for i, h := range b.hosts {
		names = append(names, h.info.Name)
		fmt.Fprintf(&s, "NodeName=%s NodeAddr=%s CPUs=%d State=UNKNOWN\n", h.info.Name, h.info.Addr, SlurmCPUs)
		fmt.Fprintf(&s, "PartitionName=%s Nodes=%s Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n", partition(i+1), strings.Join(names, ","))
	}
	return s.String()
}

// partition is the one of the first n hosts, for a test that asked for no more.
// The last one is the default.
func partition(n int) string { return fmt.Sprintf("first%d", n) }

// cgroupPlugin is one that does not care what cgroups there are: nothing that is
// configured uses it.
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

// await waits until a daemon listens.
func (b *bed) await(ctx context.Context, network, addr string) error {
	for {
		conn, err := net.DialTimeout(network, addr, time.Second)
		if err == nil {
			return conn.Close()
		}
		if err := b.checkSlurm(); err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// checkSlurm is why Slurm does not work any more.
func (b *bed) checkSlurm() error {
	for _, d := range b.slurms {
		if err := d.check(); err != nil {
			return fmt.Errorf("%w; %s", err, tail(b.slurmDir()+"/"+filepath.Base(d.cmd.Path)+".log"))
		}
	}
	return nil
}

// nodes is what Slurm thinks of the hosts.
type nodes struct {
	ready int    // can start a job
	lost  string // will not before somebody intervenes
	all   string
}

func (n nodes) String() string { return n.all }

func (b *bed) nodes(ctx context.Context) (nodes, error) {
	out, err := b.slurmClient(ctx, "sinfo", "--noheader", "--Node", "--partition="+partition(len(b.hosts)), "--format=%N %t")
	if err != nil {
		return nodes{}, err
	}
	n := nodes{all: oneLine(out)}
	for line := range strings.Lines(string(out)) {
		name, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch strings.TrimSuffix(state, "-") { // planned for a job
		case "idle", "mix", "alloc", "plnd":
			n.ready++
		case "comp": // a job ends
		default:
			n.lost += name + " "
		}
	}
	return n, nil
}

// jobsTimeout is for the jobs to end that tests leave; those that take longer end
// with Slurm, which is sooner back than they would be gone.
const jobsTimeout = 2 * time.Second

// endJobs ends all jobs, so that who waits for them is told.
func (b *bed) endJobs(ctx context.Context) error {
	if len(b.slurms) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, jobsTimeout)
	defer cancel()
	for cancelled := false; ; cancelled = true {
		out, err := b.slurmClient(ctx, "squeue", "--noheader", "--format=%A")
		if err == nil && len(out) == 0 {
			return nil
		}
		if err == nil && !cancelled {
			_, err = b.slurmClient(ctx, "scancel", append([]string{"--quiet"}, strings.Fields(string(out))...)...)
		}
		if err != nil {
			return b.endSlurm()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return b.endSlurm()
		}
	}
}

func (b *bed) slurmClient(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+b.slurmDir()+"/slurm.conf")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, oneLine(out))
	}
	return out, nil
}

// endSlurm ends the daemons and what they started.
func (b *bed) endSlurm() error {
	if len(b.slurms) == 0 {
		return nil
	}
	for _, d := range b.slurms {
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	b.slurms, b.info.SlurmConf = nil, ""
	err := killAll(b.info.Mark, ofSlurm)
	return errors.Join(err, os.RemoveAll(b.slurmDir()))
}

// ofSlurm tells processes of jobs, those that serve them, and the child of
// slurmctld.
func ofSlurm(pid int) bool {
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if strings.HasPrefix(filepath.Base(exe), "slurm") { // slurmd-wlm
		return true
	}
	return Process{env: zeroEnded(fmt.Sprintf("/proc/%d/environ", pid))}.Getenv("SLURM_JOB_ID") != ""
}
