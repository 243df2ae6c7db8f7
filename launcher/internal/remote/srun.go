package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// Srun starts agents in an allocation of Slurm, one on each node, by the command
//
//	gorun -agent -connect HOST:PORT -secret-file -
//
// The agents read the secret from stdin, which srun passes on to all of them, and dial in to a
// Listener. The agent's main passes the value of SLURMD_NODENAME to Dial as the name.
//
// When Slurm ends the job, for example by scancel or at its time limit, the agents get SIGTERM and
// some time later SIGKILL. Their streams end, possibly after a message with the reason. srun prints a
// line with the reason, which [Step.Cause] and [Step.Cancelled] return. If an agent ends or its node
// fails, the other agents continue; gorun decides what to do with them.
//
// If srun is killed, the agents continue; see [Step.HoldHelper].
type Srun struct {
	// Command is srun and its first arguments; nil: srun.
	Command []string
	// Nodes are the names of the nodes in Slurm.
	Nodes []string
	// Connect is the address at which the agents dial gorun.
	Connect string
	Secret  Secret
	// Agent is the path of gorun on the nodes; "": the same path as here.
	Agent string
	// CopyTo is a directory on the nodes, such as /tmp. srun copies gorun to this directory before
	// it starts the agents. The agents remove the copy by RemoveBroadcast. "": gorun exists on the
	// nodes.
	CopyTo string
	// Log gets each line that srun and the agents write; nil: no log.
	Log func(line string)
	// Executable is the program to start; the zero Executable: this program.
	Executable Executable
	// KeepWaiting keeps the context that [Step.Context] returns from ending when an agent fails, so
	// that the caller still waits for the other agents to dial in.
	KeepWaiting bool
}

// Step is a running srun, and the step of the Slurm job that it has started.
type Step struct {
	child  *child
	agents int    // number of agents that srun was asked to start
	copied string // path of the agents' executable on their nodes; empty: srun does not copy it
	output srunOutput
	read   chan struct{} // closed when srun's stdout was read to the end
	failed chan struct{} // closed when an agent has failed; nil: Srun.KeepWaiting is set
	once   sync.Once     // closes failed only once
	hold   sync.Once     // makes only the first call of HoldHelper have an effect
}

const (
	// broadcastPrefix is the beginning of the name of a copy for one step. The hash and a random
	// word follow.
	broadcastPrefix = "weft-gorun-"
	stepGrace       = 2 * time.Second // time for the agents to end, and for Slurm to notice this
)

// Start starts srun. It does not wait for the agents to dial in; see [Step.Context]. The caller
// must call Close of the Step.
func (s *Srun) Start() (*Step, error) {
	exe := s.Executable
	if exe.Path == "" {
		var err error
		if exe, err = Self(); err != nil {
			return nil, err
		}
	}
	if len(s.Nodes) == 0 {
		return nil, errors.New("srun: no nodes")
	}
	st := &Step{agents: len(s.Nodes), read: make(chan struct{})}
	if !s.KeepWaiting {
		st.failed = make(chan struct{})
	}
	note := func(line string) {
		if st.output.note(line); st.failed != nil && taskEnded(line) {
			st.once.Do(func() { close(st.failed) })
		}
		if s.Log != nil {
			s.Log(line)
		}
	}
	if s.CopyTo != "" {
		st.copied = filepath.Join(s.CopyTo, broadcastPrefix+exe.Hash+"-"+rand.Text())
	}
	// Another step may run in the same allocation, for example gorun itself. SLURM_OVERLAP lets
	// the steps share the nodes. An srun that does not know the variable does not need it.
	c, err := start(s.argv(exe, st.copied), append(os.Environ(), "SLURM_OVERLAP=1"), note)
	if err != nil {
		return nil, err
	}
	c.grace = stepGrace
	st.child = c
	go func() { // ends when srun's stdout ends or is closed; Close waits for it
		defer close(st.read)
		out := tail{note: note}
		_, _ = io.Copy(&out, c.out)
		out.flush()
	}()
	// The secret fits into the pipe, so WriteString does not wait for srun to read it.
	_, err = io.WriteString(c.in, s.Secret.Text()+"\n")
	if err = errors.Join(err, c.in.Close()); err != nil {
		cause := st.Cause()
		_ = st.Close()
		if cause != nil {
			err = cause
		}
		return nil, err
	}
	return st, nil
}

// argv returns the command line of srun. If copied is not empty, srun copies exe to that path. argv
// gives the numbers of nodes and tasks although they follow from the list of nodes. Otherwise srun
// would use SLURM_NTASKS and other variables of the allocation.
func (s *Srun) argv(exe Executable, copied string) []string {
	argv := []string{"srun"}
	if len(s.Command) > 0 {
		argv = append([]string(nil), s.Command...)
	}
	n := strconv.Itoa(len(s.Nodes))
	argv = append(argv, "--nodes="+n, "--ntasks="+n, "--ntasks-per-node=1", "--nodelist="+strings.Join(s.Nodes, ","),
		"--kill-on-bad-exit=0", "--no-kill", "--mpi=none", "--cpu-bind=none", "--input=all")
	path := exe.Path
	switch {
	case copied != "":
		argv = append(argv, "--bcast="+copied)
	case s.Agent != "":
		path = s.Agent
	}
	return append(argv, path, "-agent", "-connect", s.Connect, "-secret-file", "-")
}

// RemoveBroadcast removes the executable of this agent if srun has copied it to the node (see
// Srun.CopyTo). Several nodes may share the directory, so the caller must make sure that all agents
// of the step have started.
func RemoveBroadcast() {
	exe, err := Self()
	if err == nil && strings.HasPrefix(filepath.Base(exe.Path), broadcastPrefix+exe.Hash+"-") {
		_ = os.Remove(exe.Path)
	}
}

// Context returns a context for the time in which the caller waits for the agents to dial in. The
// context ends when parent or srun ends and, unless Srun.KeepWaiting is set, when an agent fails. If
// srun ends or an agent fails, context.Cause(ctx) is the reason. The caller must call cancel.
func (st *Step) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, stop := context.WithCancelCause(parent)
	go func() { // ends after cancel, or when parent or srun ends or an agent fails
		select {
		case <-st.child.ended:
			stop(st.Cause())
		case <-st.failed:
			stop(st.Cause())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { stop(nil) }
}

// Cause returns why srun has ended, or what srun has printed about agents that have ended. nil: not
// known. Cause may take a second, because it waits for the end of srun.
func (st *Step) Cause() error { return st.CauseOf("") }

// CauseOf returns why the agent on one node has ended. The caller calls it after that agent has
// ended. nil: not known. CauseOf may take a second, as Cause.
func (st *Step) CauseOf(node string) error {
	ended := st.child.wait(causeWait)
	if reason := st.output.best(ended, node); reason != "" {
		if !strings.HasPrefix(reason, "srun: ") && !strings.HasPrefix(reason, "slurm") {
			reason = "srun: " + reason
		}
		return errors.New(reason)
	}
	if !ended {
		return nil
	}
	return fmt.Errorf("srun has ended (%s), and the agents with it", st.child.state)
}

// Cancelled returns the reason if Slurm, and not gorun, has ended the step, for example by scancel,
// at the time limit, or because a node has failed. Otherwise reason is "". all reports that Slurm
// has meant to end all agents. If Slurm has signalled only some agents so far, all is false,
// because the others may have ended by themselves.
func (st *Step) Cancelled() (reason string, all bool) {
	reason = st.output.best(true, "")
	if isCancelled(reason) || strings.HasPrefix(reason, taskPrefix) && strings.HasSuffix(reason, " has expired") {
		return reason, true
	}
	st.output.mu.Lock()
	defer st.output.mu.Unlock()
	return strings.TrimPrefix(st.output.first, "gorun: "), st.output.terminated == st.agents
}

// Done returns a channel that is closed when srun has ended.
func (st *Step) Done() <-chan struct{} { return st.child.ended }

// Close waits for srun to end by itself, which srun does when all its agents have ended. After
// stepGrace Close ends srun. If srun has copied gorun, Close also removes the copy at that path on
// this host.
func (st *Step) Close() error {
	_ = st.child.in.Close()
	if !st.child.wait(stepGrace) {
		st.output.stop() // otherwise a line of srun about the signal would count as the cause
		_ = st.child.end()
	}
	_ = st.child.out.Close()
	<-st.read
	if st.copied != "" {
		_ = os.Remove(st.copied) // usually an agent has removed it; but perhaps none has run on this host
	}
	return nil
}

// srunOutput selects the line of srun's output that explains best why srun has ended. It gives each
// line a value. Of lines with the same value it keeps the first, because lines about consequences
// follow the line about the cause.
type srunOutput struct {
	mu         sync.Mutex
	line       string            // the line with the highest value so far
	value      int               // value of line; a line with a higher value explains more
	terminated int               // number of agents that got SIGTERM
	first      string            // the line of the first of these agents
	stopped    bool              // stop was called: note ignores further lines
	tasks      map[string]string // by node: Slurm's line about the failed agent there
}

// Some of the values by which srunOutput compares lines; a line with a higher value explains more.
const (
	agentValue = 6 // value of a line that an agent has written
	otherValue = 1 // value of a line of Slurm that is not about an error
	termValue  = 2 // value of a line about an agent that got SIGTERM
)

func (w *srunOutput) note(line string) {
	value := 0
	slurm := strings.HasPrefix(line, "srun: ") || strings.HasPrefix(line, "slurm")
	is := func(what string) bool { return strings.Contains(line, what) }
	switch {
	case is(" lacks support for cpu binding"):
	case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
		value = 10
	case slurm && is(" DUE TO "): // TIME LIMIT, NODE FAILURE, PREEMPTION
		value = 9
	case slurm && is(" CANCELLED AT "):
		value = 8
	case !slurm && is(": "+ErrTerminated.Error()):
		value = termValue
	case !slurm:
		value = agentValue
	case !is("error: "):
		value = otherValue
	case is(": Terminated"):
		value = termValue
	case is(": Exited with exit code "):
		value = 3
	case taskEnded(line): // such as Killed
		value = 5
	default:
		value = 7
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if !slurm && value == termValue {
		if w.terminated++; w.terminated == 1 {
			w.first = line
		}
	}
	if value > w.value {
		w.line, w.value = line, value
	}
	if !taskEnded(line) {
		return
	}
	if w.tasks == nil {
		w.tasks = make(map[string]string)
	}
	list, _, _ := strings.Cut(strings.TrimPrefix(line, taskPrefix), ": task")
	names, err := hosts.Expand(list)
	if err != nil {
		names = nil // the line does not begin with a list of nodes
	}
	for _, name := range names {
		if w.tasks[name] == "" {
			w.tasks[name] = line
		}
	}
}

// stop makes note ignore all further lines.
func (w *srunOutput) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
}

// taskPrefix is the beginning of Slurm's lines about failed tasks. The tasks' nodes follow.
const taskPrefix = "srun: error: "

// taskEnded reports whether a line says that tasks have failed.
func taskEnded(line string) bool {
	return strings.HasPrefix(line, taskPrefix) && (strings.Contains(line, ": task ") || strings.Contains(line, ": tasks "))
}

func isCancelled(line string) bool {
	return strings.HasPrefix(line, "slurm") && strings.Contains(line, " CANCELLED AT ")
}

// ErrTerminated is the error of an agent that ends because of SIGTERM. The agent prints it, and
// srunOutput recognizes the line by its text.
var ErrTerminated = errors.New("it got SIGTERM")

// best returns the line that explains best why srun has ended, or, if node is not "", why the agent
// on that node has ended. If no line explains this, best returns "". ended means that srun has
// ended. Before that, an agent's line, or a line of Slurm that is not about an error, counts only
// if Slurm has also reported the failure of an agent, because otherwise the line may be about
// something else. And a line about some agents does not explain the end of others.
func (w *srunOutput) best(ended bool, node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	task := w.tasks[node]
	// The line about any failed agent will do.
	if node == "" && !ended && w.value <= agentValue && len(w.tasks) > 0 {
		task = w.tasks[slices.Min(slices.Collect(maps.Keys(w.tasks)))]
	}
	switch {
	case w.value > agentValue+1: // the line is about all agents
	case task != "" && len(w.tasks) == 1: // only one agent has failed, so w.line is probably about this agent
	case task != "":
		return task
	case !ended && (w.value == agentValue || w.value == otherValue), !ended && node != "" && len(w.tasks) > 0:
		return ""
	}
	return w.line
}

// Salloc returns the command line of salloc that gets an allocation for np ranks on nodes and runs
// self, which is gorun, in it, with the arguments argv. args are the user's arguments for salloc.
// If args give a number of tasks, Salloc ignores np; if they name nodes, it ignores nodes. np is 0
// if it is not known, and nodes is nil if any nodes will do.
func Salloc(args []string, np int, nodes []string, self string, argv []string) []string {
	line := append([]string{"salloc"}, args...)
	if len(nodes) > 0 && !gives(args, "-w", "--nodelist") {
		line = append(line, "--nodelist="+strings.Join(nodes, ","))
		if !gives(args, "-N", "--nodes") {
			line = append(line, "--nodes="+strconv.Itoa(len(nodes)))
		}
		np = max(np, len(nodes)) // Slurm leaves out nodes without a task
	}
	if np > 0 && !gives(args, "-n", "--ntasks") {
		line = append(line, "--ntasks="+strconv.Itoa(np))
	}
	return append(append(line, self), argv...)
}

// gives reports whether the arguments of salloc contain an option, by its short or its
// long name.
func gives(args []string, short, long string) bool {
	for _, arg := range args {
		if name, _, _ := strings.Cut(arg, "="); name == long || strings.HasPrefix(arg, short) {
			return true
		}
	}
	return false
}
