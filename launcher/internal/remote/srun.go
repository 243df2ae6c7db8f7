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

// Srun starts agents in an allocation of Slurm, one on each of some nodes, as
//
//	gorun -agent -connect HOST:PORT -secret-file -
//
// They read the secret from stdin, which srun passes on to all of them, and dial in
// to a Listener; main gives Dial the value of SLURMD_NODENAME for a name.
//
// When Slurm ends the job, by scancel or at its limit of time, the agents get SIGTERM
// and some time after that SIGKILL. Their streams end then, or they have said why
// before, and srun ends with a line about it, which Cause and Cancelled have. An agent
// that ends, or whose node fails, leaves the others alone: what is to become of them
// is gorun's to say.
//
// If srun is killed, the agents live on; see [Step.HoldHelper].
type Srun struct {
	// Command is srun and its first arguments; nil: srun.
	Command []string
	// Nodes are the nodes' names, as Slurm has them.
	Nodes []string
	// Connect is where the agents find gorun.
	Connect string
	Secret  Secret
	// Agent is the path of gorun on the nodes; "": as it is here.
	Agent string
	// CopyTo is a directory of the nodes that gorun is copied to first, as /tmp; by
	// RemoveBroadcast agents remove what they were started from. "": it is there already.
	CopyTo string
	// Log gets what srun and the agents write, a line at a time; nil: nothing does.
	Log func(line string)
	// Executable is what is run; the zero Executable: this program.
	Executable Executable
	// Patient has nobody give up those who have not dialled in when one agent has ended
	// badly; see [Step.Context].
	Patient bool
}

// Step is an srun that runs.
type Step struct {
	child  *child
	agents int
	copied string // path of the agents' executable on their nodes; empty: srun does not copy it
	words  srunWords
	read   chan struct{} // its stdout has been read
	failed chan struct{} // nil: nobody wants to know; closed when an agent has ended badly
	once   sync.Once     // closes failed
	hold   sync.Once     // of HoldHelper
}

const (
	// broadcastPrefix is what a copy for one step begins with; hash and a word of the
	// step's own follow.
	broadcastPrefix = "weft-gorun-"
	stepGrace       = 2 * time.Second // for the agents to end, and Slurm to notice
)

// Start starts srun. The agents dial in when they are there, see [Step.Context].
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
	if !s.Patient {
		st.failed = make(chan struct{})
	}
	note := func(line string) {
		if st.words.note(line); st.failed != nil && taskEnded(line) {
			st.once.Do(func() { close(st.failed) })
		}
		if s.Log != nil {
			s.Log(line)
		}
	}
	// Another step of the same allocation may be under way, gorun's own among them. An
	// srun that does not know the variable needs none.
	if s.CopyTo != "" {
		st.copied = filepath.Join(s.CopyTo, broadcastPrefix+exe.Hash+"-"+rand.Text())
	}
	c, err := start(s.argv(exe, st.copied), append(os.Environ(), "SLURM_OVERLAP=1"), note)
	if err != nil {
		return nil, err
	}
	c.grace = stepGrace
	st.child = c
	go func() { // ends with srun; Close waits
		defer close(st.read)
		out := tail{note: note}
		_, _ = io.Copy(&out, c.out)
		out.flush()
	}()
	// It fits in the pipe, so this does not wait for srun.
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

// argv is the command line of srun. Numbers stand there although they follow from the nodes:
// SLURM_NTASKS and the like are the allocation's. If copied is not empty, srun copies exe to
// that path.
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

// RemoveBroadcast removes the executable of this agent if Srun has copied it for its
// step. It is called when all agents of the step run, which may share the directory.
func RemoveBroadcast() {
	exe, err := Self()
	if err == nil && strings.HasPrefix(filepath.Base(exe.Path), broadcastPrefix+exe.Hash+"-") {
		_ = os.Remove(exe.Path)
	}
}

// Context is parent until srun ends, or unless Srun is patient an agent ends badly,
// which is an error then: as long as agents have not dialled in, and Accept is waited
// for. cancel releases what it holds.
func (st *Step) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, stop := context.WithCancelCause(parent)
	go func() { // ends by cancel, with parent, or with srun
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

// Cause is why srun has ended, or what it says of agents that have; nil: it does not
// know. It may take a second.
func (st *Step) Cause() error { return st.CauseOf("") }

// CauseOf is Cause for the agent on one of the nodes, which has ended.
func (st *Step) CauseOf(node string) error {
	ended := st.child.wait(causeWait)
	if words := st.words.best(ended, node); words != "" {
		if !strings.HasPrefix(words, "srun: ") && !strings.HasPrefix(words, "slurm") {
			words = "srun: " + words
		}
		return errors.New(words)
	}
	if !ended {
		return nil
	}
	return fmt.Errorf("srun has ended (%s), and the agents with it", st.child.state)
}

// Cancelled is what is said of it where Slurm has ended the step, and not gorun: by
// scancel, at the limit of time, or because of a node; else "". all says that it meant
// all agents: where it ended some of them the others may have ended by themselves
// before it came to them, and to its words.
func (st *Step) Cancelled() (words string, all bool) {
	words = st.words.best(true, "")
	if isCancelled(words) || strings.HasPrefix(words, taskPrefix) && strings.HasSuffix(words, " has expired") {
		return words, true
	}
	st.words.mu.Lock()
	defer st.words.mu.Unlock()
	return strings.TrimPrefix(st.words.first, "gorun: "), st.words.asked == st.agents
}

// Done is closed when srun has ended.
func (st *Step) Done() <-chan struct{} { return st.child.ended }

// Close waits a moment for srun to end, after the agents', then ends it.
func (st *Step) Close() error {
	_ = st.child.in.Close()
	if !st.child.wait(stepGrace) {
		st.words.stop() // it would say that it was ended
		_ = st.child.end()
	}
	_ = st.child.out.Close()
	<-st.read
	if st.copied != "" {
		_ = os.Remove(st.copied) // the agent removes the copy; if Slurm has not run an agent on this host, Close does
	}
	return nil
}

// srunWords chooses the line of srun's that says best why it has ended: consequences
// of all kinds follow on a cause.
type srunWords struct {
	mu    sync.Mutex
	line  string
	value int
	asked int               // agents that got SIGTERM
	first string            // what the first of them says
	over  bool              // no line counts any more
	tasks map[string]string // what Slurm says of the agent on a node that has ended badly
}

const (
	agentValue = 6 // of a line that an agent has written
	otherValue = 1 // of one of Slurm's that is about no error
	termValue  = 2 // of one about an agent that got SIGTERM
)

func (w *srunWords) note(line string) {
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
	case taskEnded(line): // Killed, and the like
		value = 5
	default:
		value = 7
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if !slurm && value == termValue {
		if w.asked++; w.asked == 1 {
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
		names = nil // whatever it is
	}
	for _, name := range names {
		if w.tasks[name] == "" {
			w.tasks[name] = line
		}
	}
}

// stop has no line count that comes now.
func (w *srunWords) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// taskPrefix begins what Slurm says of tasks that have ended badly; their nodes follow.
const taskPrefix = "srun: error: "

// taskEnded says whether a line tells that agents have ended badly.
func taskEnded(line string) bool {
	return strings.HasPrefix(line, taskPrefix) && (strings.Contains(line, ": task ") || strings.Contains(line, ": tasks "))
}

func isCancelled(line string) bool {
	return strings.HasPrefix(line, "slurm") && strings.Contains(line, " CANCELLED AT ")
}

// ErrTerminated is why an agent ends that has got SIGTERM.
var ErrTerminated = errors.New("it was asked to end, by SIGTERM")

// best is that line, or "", about all agents or the one on a node. As long as srun lives, a line that is not Slurm's about an
// error may be about anything, and one about some agents is not about others.
func (w *srunWords) best(ended bool, node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	task := w.tasks[node]
	if node == "" && !ended && w.value <= agentValue && len(w.tasks) > 0 { // of those that have ended any will do
		task = w.tasks[slices.Min(slices.Collect(maps.Keys(w.tasks)))]
	}
	switch {
	case w.value > agentValue+1: // it is about all
	case task != "" && len(w.tasks) == 1: // so is what an agent has written
	case task != "":
		return task
	case !ended && (w.value == agentValue || w.value == otherValue), !ended && node != "" && len(w.tasks) > 0:
		return ""
	}
	return w.line
}

// Salloc returns the command line that gets an allocation for np ranks on nodes and runs
// gorun in it, with the same arguments. args are the user's arguments for salloc. If args
// give a number of tasks, Salloc ignores np; if they name nodes, it ignores nodes. np is 0
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
