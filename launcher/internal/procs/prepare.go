package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/netif"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// prepare handles Prepare: it prepares this host for the ranks (prepareHost), and emits Prepared.
func (c *Manager) prepare(m proto.Prepare) {
	c.job, c.phase = m, phasePrepared
	c.plan = proto.Plan{Index: c.cfg.Index}
	for _, p := range m.Plans {
		if p.Index == c.cfg.Index {
			c.plan = p
		}
	}
	answer := proto.Prepared{Group: m.Card.Group}
	ports, err := c.prepareHost()
	if c.prepareErr = err; err != nil {
		he := proto.HostError{Index: c.cfg.Index, Code: proto.ExitFailed, Cause: err.Error()}
		var se *errStart
		if errors.As(err, &se) {
			he.Code = se.code
		}
		answer.Failed = []proto.HostError{he}
	} else {
		answer.Need = c.files.missing()
		if c.noMem != nil {
			answer.NoMemory = []proto.HostError{{Index: c.cfg.Index, Cause: c.noMem.Error()}}
		}
		if ports != nil {
			answer.Ports = []proto.HostPorts{{Index: c.cfg.Index, Ports: ports}}
		}
	}
	c.cfg.Emit(answer)
}

// prepareHost checks that the ranks can run on this host, finds out which files are missing, makes
// the memory file, and binds the ranks' ports. If these are not the ports from Prepare.BasePort on,
// it returns them, by local rank; otherwise ports is nil.
func (c *Manager) prepareHost() (ports []int, err error) {
	m := &c.job
	c.ports = &layout{}
	c.files = &staging{watchdog: c.cfg.Watchdog, id: m.Card.JobID}
	if len(c.plan.Ranks) == 0 {
		return nil, nil
	}
	if m.Card.Group > 0 {
		c.cfg.Watchdog.also(m.Card.JobID)
	}
	if m.Segments {
		c.cfg.Watchdog.send("segments", strconv.FormatInt(c.begun.UnixNano(), 10))
	}
	if err := c.checkPlan(); err != nil {
		return nil, err
	}
	if err := c.checkFiles(); err != nil {
		return nil, err
	}
	c.files.register(m.Files, m.Apps, c.cfg.Own)
	for i, a := range m.Apps {
		c.apps = append(c.apps, app{path: a.Path})
		if !slices.ContainsFunc(c.plan.Ranks, func(r proto.Rank) bool { return r.App == i }) {
			continue // this host need not have the program
		}
		if err := checkDir(a.Wdir); err != nil {
			return nil, &errStart{proto.ExitFailed, fmt.Sprintf("working directory %s: %v", a.Wdir, err)}
		}
		if a.Staged == "" {
			if err := checkProgram(a); err != nil {
				return nil, err
			}
		}
	}
	if err := c.checkWrap(); err != nil {
		return nil, err
	}
	if m.Interface != "" {
		if err := netif.Check(m.Interface); err != nil {
			return nil, &errStart{proto.ExitUsage, fmt.Sprintf("-iface (transport.tcp.interface): %v", err)}
		}
	}
	if m.Memory {
		c.mem, err = bootstrap.MemoryFile(m.Card.JobID)
		if errors.Is(err, sys.ErrNoMemoryFiles) {
			c.noMem = err // the job starts all the same, and the ranks use another transport
		} else if err != nil {
			return nil, fmt.Errorf("memory file: %w", err)
		}
	}
	if c.plan.Address != "" {
		l, err := newLayout(c.plan.Address, m.BasePort, len(c.plan.Ranks), portRange{m.LowPort, m.HighPort}, m.UDP)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s: %w", c.plan.Address, err)
		}
		c.ports = l
		if l.base == 0 {
			ports = l.ports
		}
	}
	return ports, nil
}

// checkPlan returns an error for an invalid plan. gorun never sends one, but the process manager
// must not panic on one.
func (c *Manager) checkPlan() error {
	if len(c.job.Card.HostOf) == 0 {
		return errors.New("a job on no host")
	}
	for _, r := range c.plan.Ranks {
		if rank := r.Rank - c.job.First; r.App < 0 || r.App >= len(c.job.Apps) || rank < 0 || rank >= c.job.Card.Size {
			return fmt.Errorf("rank %d of app %d in a job of %d ranks and %d apps", rank, r.App, c.job.Card.Size, len(c.job.Apps))
		}
		for _, cpu := range r.CPUs {
			if cpu < 0 || cpu >= place.MaxCPUs {
				return fmt.Errorf("rank %d bound to cpu %d", r.Rank, cpu)
			}
		}
	}
	return nil
}

// checkDir returns an error if dir cannot be a rank's working directory.
func checkDir(dir string) error {
	st, err := os.Stat(dir)
	var cause *fs.PathError
	switch {
	case err == nil && !st.IsDir():
		return unix.ENOTDIR
	case err == nil:
		return unix.Access(dir, unix.X_OK)
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("no such directory")
	case errors.As(err, &cause):
		return cause.Err // without the operation and the path
	}
	return err
}

// checkProgram returns an error if a program that gorun does not copy to the hosts cannot be run
// here.
func checkProgram(a proto.App) error {
	st, err := os.Stat(a.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &errStart{proto.ExitNotFound, fmt.Sprintf("%s: no such file; -stage copies it to the hosts", a.Path)}
	case err != nil:
		return &errStart{proto.ExitNotExec, err.Error()}
	case !st.Mode().IsRegular() || unix.Access(a.Path, unix.X_OK) != nil:
		return &errStart{proto.ExitNotExec, a.Path + ": cannot be executed"}
	}
	return nil
}

// checkWrap reads Prepare.Wrap, and returns an error if this host does not have the command for one of
// its ranks.
func (c *Manager) checkWrap() error {
	wrap, ok := job.ParseWrapper(c.job.Wrap)
	if !ok {
		return fmt.Errorf("invalid command %q of -wrap", c.job.Wrap)
	}
	c.wrap = wrap
	for i := range c.plan.Ranks {
		argv := wrap.Of(c.rankOf(i), c.cfg.Host, "")
		if argv == nil {
			continue
		}
		switch _, err := exec.LookPath(argv[0]); {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
			return &errStart{proto.ExitNotFound, fmt.Sprintf("-wrap (job.wrap): no such program: %s", argv[0])}
		case err != nil:
			return &errStart{proto.ExitNotExec, fmt.Sprintf("-wrap (job.wrap): %v", err)}
		}
	}
	return nil
}

// baseFiles is the number of descriptors that this process needs for a job besides those that
// checkFiles counts for each rank.
const baseFiles = 24

// checkFiles returns an error if this process needs more descriptors than its soft limit
// (RLIMIT_NOFILE) allows. Package os has raised the soft limit to the hard limit.
func (c *Manager) checkFiles() error {
	np := len(c.plan.Ranks)
	// While the job runs, a rank needs five descriptors: its control channel, its channel for
	// inspections, its pidfd, and two pipes. Before its start it needs five, too: both ends of the
	// two channels, and a listening socket.
	perRank := 5
	if c.job.Stdin == stdinAll {
		perRank += 2
	}
	if c.job.Notify {
		perRank += 2
	}
	if slices.ContainsFunc(c.plan.Ranks, func(r proto.Rank) bool { return len(r.CPUs) > 0 }) {
		perRank++ // the socket that claims its core
	}
	var limit unix.Rlimit
	c.reserved = np * perRank
	// The files of RankFiles stay open when the group has ended, so nothing frees these.
	files := np * len(c.job.RankFiles)
	need := uint64(c.cfg.shared.reserve(c.reserved+files) + baseFiles)
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || need <= uint64(limit.Cur) { //nolint:unconvert // an int64 on FreeBSD
		return nil
	}
	what := fmt.Sprintf("%d ranks need", np)
	if need > uint64(c.reserved+files+baseFiles) {
		what = fmt.Sprintf("%d more ranks raise the need to", np)
	}
	return &errStart{proto.ExitFailed, fmt.Sprintf("%s %d open files here, and %d are allowed: raise the limit (ulimit -n)", what, need, limit.Cur)}
}

// store handles FilePart. It emits Staged when this host has all files that it needs, or when the
// copy of a file has failed.
func (c *Manager) store(m proto.FilePart) {
	if c.files == nil || !c.files.waiting() {
		return
	}
	done, err := c.files.store(m)
	if err == nil && !done {
		return
	}
	s := proto.Staged{Group: c.job.Card.Group}
	if err != nil {
		s.Failed = []proto.HostError{{Index: c.cfg.Index, Cause: err.Error()}}
	}
	c.cfg.Emit(s)
}

// start handles Start. It makes what the ranks inherit (open), and starts the goroutine forkAll,
// which starts the ranks. If this host has no ranks, or open fails, start starts none and emits
// Started.
func (c *Manager) start(m proto.Start) {
	c.phase = phaseRunning
	if len(c.plan.Ranks) == 0 {
		c.phase = phaseEnded
		close(c.allExited)
		close(c.forked)
		c.cfg.Emit(proto.Started{Group: c.job.Card.Group})
		c.emitEnded()
		return
	}
	c.cfg.shared.join()
	ends, err := c.open(m)
	if err != nil {
		ends.close()
		c.ports.close()
		closeFiles(c.card)
		close(c.forked)
		c.allStarted(started{0, err})
		return // control calls finish, because no rank runs
	}
	if c.cgroup = newCgroup(c.job.Card.JobID); c.cgroup != nil {
		c.cfg.Watchdog.cgroup(c.cgroup.dir)
	}
	c.drainer.start()
	c.outputStarted = true
	go c.output.loop() // ends after Manager.finish has called output.finish
	go c.forkAll(ends) // ends when Manager.finish closes allExited
}

// open makes the channels of the ranks, their standard input, their job card, the links to their
// files, and the environment that the ranks of an app share. It also claims the ranks' cores, and
// adds this process's ends of the channels to the poller. It returns the ranks' ends, also if it
// fails.
func (c *Manager) open(m proto.Start) (ends childEnds, err error) {
	if c.prepareErr != nil {
		return ends, c.prepareErr
	}
	plan, card := c.plan, c.job.Card
	np := len(plan.Ranks)
	c.local = make(map[int]int, np)
	appnum := make([]int, np)
	c.ranks = make([]rank, np)
	for i, r := range plan.Ranks {
		c.local[r.Rank], appnum[i] = i, r.App
		c.ranks[i] = rank{app: r.App, cpus: r.CPUs, ctl: -1, notify: -1, pidfd: -1, answers: answers{fd: -1}}
	}
	c.claimCores()
	c.pmi = newPMIServer(card.KVSName, card.Size, processMapping(card.HostOf), appnum)
	c.pmi.countExited, c.pmi.group = c.job.Notify, card.Group
	if c.job.Universe > 0 {
		c.pmi.universe = c.job.Universe
	}
	maps.Copy(c.pmi.kvs, c.job.Preput)
	c.pmi.reply = c.reply
	c.pmi.fence = func(f proto.Fence) { c.cfg.Emit(f) }
	c.pmi.spawn = func(i int, s *wire.Spawn) {
		c.cfg.Emit(proto.Spawn{Rank: plan.Ranks[i].Rank, Request: *s})
	}
	c.pmi.request = func(i int, line []byte) {
		c.cfg.Emit(proto.Request{Rank: plan.Ranks[i].Rank, Line: append([]byte(nil), line...)})
	}
	if c.output, err = newOutput(c); err != nil {
		return ends, fmt.Errorf("output: %w", err)
	}
	if c.in, err = c.openInput(); err != nil {
		return ends, fmt.Errorf("stdin: %w", err)
	}
	for i := range c.ranks {
		if len(c.job.RankFiles) > 0 {
			files, err := c.cfg.shared.files.make(plan.Ranks[i].Rank, c.job.RankFiles)
			if err != nil {
				return ends, err
			}
			ends.rankFiles = append(ends.rankFiles, files)
		}
		own, end, err := socketpair()
		if err != nil {
			return ends, err
		}
		c.ranks[i].ctl = own
		ends.control = append(ends.control, end)
		if err := c.poller.Add(own, ctlIndex(i), sys.In); err != nil {
			return ends, err
		}
		if own, end, err = socketpair(); err != nil {
			return ends, err
		}
		c.ranks[i].answers.fd = own
		ends.inspect = append(ends.inspect, end)
		if err := c.poller.Add(own, answerIndex(i), sys.In); err != nil {
			return ends, err
		}
		if c.job.Notify {
			if own, end, err = socketpair(); err != nil {
				return ends, err
			}
			c.ranks[i].notify = own
			ends.notify = append(ends.notify, end)
			card.Failures = childNotify
		}
	}
	if c.records, err = openRecords(np, card.Size, c.job.Detail, slices.ContainsFunc(c.job.RankFiles, func(f proto.RankFile) bool { return f.Host })); err != nil {
		return ends, err
	}
	if c.records.file != nil {
		card.Record, card.RecordBits = childRecord, c.records.bits
	}
	for k, f := range c.job.RankFiles {
		if f.Host {
			if err := c.drain(k, ends.rankFiles); err != nil {
				return ends, err
			}
		} else {
			card.Files = append(card.Files, bootstrap.CardFile{Name: f.Name, FD: childFiles + k})
		}
	}
	card.Inspect = childInspect
	card.Control, card.Cores, card.Addrs = childControl, c.topo().Usable(), m.Addrs
	if c.mem != nil {
		card.Memory = childMemory
	}
	if c.noMem != nil {
		card.NoMemory = c.noMem.Error()
	}
	if m.Addrs != nil || c.plan.Address == "" {
		card.BasePort, card.Hosts = 0, nil
	}
	if c.card, err = card.Seal(); err != nil {
		return ends, err
	}
	if err := c.files.link(); err != nil {
		return ends, err
	}
	for i := range c.apps {
		a := &c.job.Apps[i]
		if a.Staged != "" {
			c.apps[i].path = c.files.path(a.Staged)
		}
		c.apps[i].keep = a.KeepProc
		c.apps[i].env = hostEnv(c.cfg.Environ, a.Env, a.Wdir, c.files.dir)
	}
	return ends, nil
}

func socketpair() (own, end int, err error) {
	pair, err := sys.Socketpair()
	if err != nil {
		return -1, -1, fmt.Errorf("socketpair: %w", err)
	}
	return pair[0], pair[1], nil
}
