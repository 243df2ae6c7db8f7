// Package launcher runs a job: it builds or finds the programs, lays out
// addresses, starts the ranks, carries their input and output, serves PMI-1 to
// them, passes signals on, and ends with the job's exit code. One machine.
package launcher

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// Stdio is where a job reads and writes.
type Stdio struct {
	In  *os.File  // what Job.Stdin hands to the ranks; nil: nothing
	Out io.Writer // whole lines of the ranks' stdout; nil: discarded
	Err io.Writer // whole lines of the ranks' stderr, and what the launcher says; nil: discarded
}

// Result is how a job ended.
type Result struct {
	// ExitCode is what gorun exits with: 0; the first failure's exit code, or
	// 128+signal; 124 after the job's timeout; 127 or 126 for a program that
	// does not exist or cannot be executed; 1 for one that cannot be built;
	// 2 for a job that makes no sense.
	ExitCode int
	// Failure is the first failure in time; nil where the job ended well.
	// Run has already written it to Stdio.Err.
	Failure *Failure
}

// Failure says what failed first.
type Failure struct {
	Rank     int            // -1: the job as a whole (timeout, build, cancellation)
	Host     string         // where the rank ran
	Program  string         // as the job names it
	PID      int            // 0: it never started
	ExitCode int            // of the rank; 0 where Signal ended it
	Signal   syscall.Signal // that ended the rank; 0: none
	Reason   string         // why, where a code or a signal does not say it: an abort's reason, "exited without Finalize"
	Stderr   []string       // the rank's last lines of stderr, at most ten
}

// Run runs a job to its end and returns when every process of it has ended and
// everything that they wrote has been passed on. What goes wrong is told on
// stdio.Err, in lines that begin with "gorun: "; the caller only exits with
// Result.ExitCode.
//
// While it runs, Run catches INT, TERM, HUP, QUIT, USR1, USR2 and TSTP of this
// process and passes them to the ranks' process groups; a second INT kills the
// job at once. The end of ctx ends the job as a timeout does, with exit code 1.
//
// A process runs one job at a time: Run makes it the reaper of its orphaned
// descendants. It starts this executable once more as a watchdog, which takes
// over in this package's init: callers need do nothing for that.
func Run(ctx context.Context, j *job.Job, stdio Stdio) Result {
	r := &run{
		job: j, id: bootstrap.NewJobID(), host: hostname(), stderr: stdio.Err, begun: time.Now(),
		ep: -1, wake: -1, again: make(chan struct{}, 1), forked: make(chan struct{}), over: make(chan struct{}), wd: &watchdog{},
	}
	if r.stderr == nil {
		r.stderr = io.Discard
	}
	signals, stopSignals := catchSignals()
	defer stopSignals()
	defer r.close()

	p, err := r.prepare(ctx, signals)
	if err != nil {
		return r.unstarted(err)
	}
	in, err := r.open(p, stdio)
	if err != nil {
		return r.unstarted(err)
	}
	restore := becomeReaper()
	defer restore()

	relayed, done := make(chan struct{}), make(chan struct{})
	go r.output.loop() // ends in finish
	go r.forkAll(p)    // ends in finish
	go func() {        // ends with done
		defer close(relayed)
		r.relay(ctx, signals, done)
	}()
	r.control()
	r.finish(in)
	close(done)
	<-relayed
	return r.result()
}

// prepare checks the job, and finds or builds its programs.
func (r *run) prepare(ctx context.Context, signals <-chan os.Signal) (*plan, error) {
	j := r.job
	np := j.NP()
	if np < 1 {
		return nil, &startError{exitUsage, "the job has no ranks"}
	}
	for _, app := range j.Apps {
		if app.NP < 1 {
			return nil, &startError{exitUsage, fmt.Sprintf("%s: %d ranks", app.Program, app.NP)}
		}
		if st, err := os.Stat(app.Wdir); app.Wdir != "" && (err != nil || !st.IsDir()) {
			return nil, &startError{exitFailed, fmt.Sprintf("working directory %s: no such directory", app.Wdir)}
		}
	}
	p := newPlan(j)
	if err := r.checkSlots(np, p.topo); err != nil {
		return nil, err
	}
	if err := r.checkFiles(np); err != nil {
		return nil, err
	}
	if j.OutputDir != "" {
		if err := os.MkdirAll(j.OutputDir, 0o777); err != nil {
			return nil, &startError{exitFailed, err.Error()}
		}
	}
	r.wd = startWatchdog(r.id)
	if wantsLibfabric(j.Params) {
		r.wd.tell("segments", strconv.FormatInt(r.begun.UnixNano(), 10))
	}
	found := &programs{stderr: r.stderr, newDir: r.tempDir, mark: bootstrap.EnvJobID + "=" + r.id, libfabric: wantsLibfabric(j.Params)}
	bctx, stop := buildContext(ctx, signals)
	var err error
	for i, app := range j.Apps {
		path, _ := lookupEnv(p.env[i], "PATH")
		var exe string
		if exe, err = found.resolve(bctx, app, path); err != nil {
			break
		}
		arg0 := app.Program
		if found.dir != "" && strings.HasPrefix(exe, found.dir) {
			arg0 = exe
		}
		p.path = append(p.path, exe)
		r.path = append(r.path, exe)
		p.argv = append(p.argv, append([]string{arg0}, app.Args...))
	}
	if sig := stop(); sig != 0 {
		return nil, &startError{exitSignalFloor + int(sig), "ended by " + signalName(sig) + " before the ranks were started"}
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	if found.dir != "" {
		r.verbose("built after %v", time.Since(r.begun).Round(time.Millisecond))
	}
	return p, nil
}

// checkSlots tells of more ranks than slots.
func (r *run) checkSlots(np int, topo topology) error {
	slots, what := r.job.Slots, "slots"
	if slots == 0 {
		slots, what = len(topo.cpus), "cores"
	}
	if np <= slots {
		return nil
	}
	if r.job.StrictSlot {
		return &startError{exitUsage, fmt.Sprintf("%d ranks do not fit into the %d %s of this machine", np, slots, what)}
	}
	r.tell(fmt.Sprintf("%d ranks share the %d %s of this machine", np, slots, what))
	return nil
}

// spareFiles are the descriptors of a job that do not grow with its ranks.
const spareFiles = 24

// checkFiles refuses a job that would run out of descriptors while it is being
// started. The soft limit counts no more: package os has raised it.
func (r *run) checkFiles(np int) error {
	perRank := 4 // control channel, pidfd, two pipes
	if r.job.OutputDir != "" {
		perRank = 3 // control channel, its other end, listener
	}
	if r.job.Stdin == job.StdinAll {
		perRank += 2
	}
	var limit unix.Rlimit
	need := uint64(np*perRank + spareFiles)
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || need <= limit.Cur {
		return nil
	}
	return &startError{exitFailed, fmt.Sprintf("%d ranks need %d open files here, and %d are allowed: raise the limit (ulimit -n)", np, need, limit.Cur)}
}

// open makes the descriptors of the job: listeners, control channels, the job
// card, input and output.
func (r *run) open(p *plan, stdio Stdio) (in *input, err error) {
	np := r.job.NP()
	r.ranks = make([]rank, np)
	appnum := make([]int, 0, np)
	for a, app := range r.job.Apps {
		for range app.NP {
			appnum = append(appnum, a)
		}
	}
	for i := range r.ranks {
		r.ranks[i] = rank{app: appnum[i], cpus: p.topo.place(r.job.Bind, i, np), ctl: -1, pidfd: -1}
	}
	p.lay = &layout{}
	defer func() {
		if err == nil {
			return
		}
		p.lay.close()
		for _, fd := range p.ctl {
			_ = unix.Close(fd)
		}
		if p.card != nil {
			_ = p.card.Close()
		}
		if in != nil {
			in.close()
		}
		if r.output != nil {
			r.output.closeFDs()
		}
	}()
	// Where the ranks share memory no transport after it is opened; where the
	// user names an interface they listen there and exchange their addresses.
	if sharesMemory(r.job.Params) {
		if r.mem, err = bootstrap.MemoryFile(r.id); err != nil {
			return nil, err
		}
		p.mem = r.mem
	} else if !namesInterface(r.job.Params) {
		if p.lay, err = newLayout(np, wantsLibfabric(r.job.Params)); err != nil {
			p.lay = &layout{}
			return nil, fmt.Errorf("cannot listen: %w", err)
		}
	}
	kvs := "kvs_" + r.id
	r.pmi = newPMIServer(kvs, appnum, r.reply)
	if r.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if err = watch(r.ep, r.wake, wakeIndex); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	for i := range r.ranks {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("socketpair: %w", err)
		}
		r.ranks[i].ctl = pair[0]
		p.ctl = append(p.ctl, pair[1])
		if err := watch(r.ep, pair[0], ctlIndex-i); err != nil {
			return nil, fmt.Errorf("epoll: %w", err)
		}
	}
	secret := bootstrap.NewSecret()
	card := &bootstrap.Card{
		JobID: r.id, Secret: secret[:], Size: np, KVSName: kvs, Control: childControl,
		Nodes: []bootstrap.Run{{Value: 0, Count: np}}, AppNums: bootstrap.Runs(appnum),
		Cores:  usableCores(),
		Params: bootstrap.CardParams(r.job.Params),
	}
	if p.lay.base != 0 {
		card.Hosts, card.BasePort = []string{layoutHost}, p.lay.base
	}
	card.Addrs = p.lay.addrs
	if p.mem != nil {
		card.Memory = childMemory
	}
	if p.card, err = card.Seal(); err != nil {
		return nil, err
	}
	if in, err = newInput(r.job.Stdin, stdio.In, np); err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}
	p.in = in
	if r.output, err = newOutput(np, r.job.TagOutput, stdio.Out, stdio.Err); err != nil {
		return in, fmt.Errorf("output: %w", err)
	}
	if p.mem != nil {
		r.verbose("job %s: the ranks share memory", r.id)
	}
	if card.BasePort != 0 {
		r.verbose("job %s: rank i listens on %s, port %d+i", r.id, layoutHost, card.BasePort)
	}
	return in, nil
}

// tempDir makes the directory of built programs, which the watchdog removes
// where gorun cannot.
func (r *run) tempDir() (string, error) {
	dir, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "gorun-")
	if err == nil {
		r.dir = dir
		r.wd.tell("dir", dir)
	}
	return dir, err
}

// close releases what the job held.
func (r *run) close() {
	for i := range r.ranks {
		r.closeControl(i)
	}
	for _, fd := range []int{r.ep, r.wake} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if r.mem != nil {
		_ = r.mem.Close()
	}
	if r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
	r.wd.end()
}

// becomeReaper makes orphans of the ranks children of this process.
func becomeReaper() (restore func()) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return func() {}
	}
	return func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}
