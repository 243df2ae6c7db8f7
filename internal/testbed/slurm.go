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
	"syscall"
	"time"
)

// slurmTimeout is for a Slurm to come up, on a busy machine.
const slurmTimeout = 60 * time.Second

// slurm has a Slurm run over all hosts, with a munged, ports and files of its
// own, whatever else runs on this machine.
func (b *bed) slurm() error {
	if len(b.hosts) == 0 {
		return errors.New("slurm: no hosts")
	}
	ctx, cancel := context.WithTimeout(context.Background(), slurmTimeout)
	defer cancel()
	if b.checkSlurm() != nil || len(b.slurms) == 0 { // a test may have killed what it is made of
		b.endSlurm()
		if err := b.startSlurm(ctx); err != nil {
			b.endSlurm()
			return err
		}
	}
	for {
		waiting, err := b.busyNodes(ctx)
		if err == nil && waiting == "" {
			b.info.SlurmConf = b.slurmDir() + "/slurm.conf"
			return nil
		}
		if err := b.checkSlurm(); err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("slurm: hosts are not idle: %s: %w; %s", waiting, errors.Join(err, ctx.Err()), tail(b.slurmDir()+"/slurmctld.log"))
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
		"MpiDefault=none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n" +
		"SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\n" +
		"SchedulerParameters=batch_sched_delay=0\n")
	fmt.Fprintf(&s, "StateSaveLocation=%s/state\nSlurmctldPidFile=%s/slurmctld.pid\nSlurmctldLogFile=%s/slurmctld.log\n", dir, dir, dir)
	fmt.Fprintf(&s, "SlurmdSpoolDir=%s/spool.%%n\nSlurmdPidFile=%s/slurmd.%%n.pid\nSlurmdLogFile=%s/slurmd.%%n.log\n", dir, dir, dir)
	// PMIx of two hosts would want the same files.
	fmt.Fprintf(&s, "TmpFS=%s\n", b.info.Dir+"/tmp")
	for _, h := range b.hosts {
		fmt.Fprintf(&s, "NodeName=%s NodeAddr=%s CPUs=%d State=UNKNOWN\n", h.info.Name, h.info.Addr, SlurmCPUs)
	}
	s.WriteString("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n")
	return s.String()
}

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

// busyNodes are the hosts that Slurm would not start a job on now.
func (b *bed) busyNodes(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "sinfo", "--noheader", "--Node", "--format=%N %t")
	cmd.Env = append(os.Environ(), "SLURM_CONF="+b.slurmDir()+"/slurm.conf")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return oneLine(out), fmt.Errorf("sinfo: %w", err)
	}
	var waiting []string
	ready := 0
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && (f[1] == "idle" || f[1] == "mix" || f[1] == "alloc") {
			ready++
		} else {
			waiting = append(waiting, strings.TrimSpace(line))
		}
	}
	if ready < len(b.hosts) && len(waiting) == 0 {
		waiting = []string{"too few"}
	}
	return strings.Join(waiting, ", "), nil
}

// endSlurm ends the daemons and what they started.
func (b *bed) endSlurm() {
	if len(b.slurms) == 0 {
		return
	}
	for _, d := range b.slurms {
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	for _, pid := range marked(bedMark(b.info.ID)) {
		switch exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); filepath.Base(exe) {
		case "slurmstepd", "slurmctld", "slurmd": // slurmctld has a child
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	b.slurms, b.info.SlurmConf = nil, ""
	_ = os.RemoveAll(b.slurmDir())
}
