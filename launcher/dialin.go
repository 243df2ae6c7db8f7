package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/remote"
	"github.com/weft-hpc/weft/launcher/internal/tree"
	"github.com/weft-hpc/weft/launcher/job"
)

// dialIn is the agents that come to gorun by themselves.
type dialIn struct {
	listener *remote.Listener
	step     *remote.Step // srun that has started them; nil: somebody else
	accepted chan struct{}

	mu    sync.Mutex // guards what follows
	conns map[string]*remote.Conn
	came  *sync.Cond
	taken map[string]bool
	want  int             // agents that the job needs; 0: not known yet
	twice map[string]bool // another agent has connected with the same name
	err   error           // no more agents can connect
	over  bool            // agents that connect are turned away
}

// dialPatience is for how long agents are waited for that somebody else starts,
// unless the user says it: pods may have to wait for room, and for images.
const dialPatience = 10 * time.Minute

// patience is for how long agents are waited for: usual, unless the user says it.
func (r *run) patience(usual time.Duration) time.Duration {
	if _, said := r.job.Source["launcher.connect_timeout"]; said {
		return r.job.ConnectTimeout
	}
	return usual
}

// listen takes agents that know the secret.
func (r *run) listen(addr string, secret remote.Secret) (*dialIn, error) {
	l, err := remote.Listen(addr, secret)
	if err != nil {
		return nil, fmt.Errorf("wait for agents: %w", err)
	}
	d := &dialIn{listener: l, accepted: make(chan struct{}), conns: make(map[string]*remote.Conn), taken: make(map[string]bool), twice: make(map[string]bool)}
	d.came = sync.NewCond(&d.mu)
	l.Log = func(line string) { r.verbose("%s", line) }
	return d, nil
}

// begin has agents come, until close, or the end of ctx.
func (d *dialIn) begin(ctx context.Context) {
	go func() { // ends with the listener; close waits for it
		defer close(d.accepted)
		for {
			conn, err := d.listener.Accept(ctx)
			d.mu.Lock()
			if err != nil {
				d.err = err
				d.came.Broadcast()
				d.mu.Unlock()
				return
			}
			if d.step != nil {
				d.step.HoldHelper() // before any rank starts
			}
			if d.over {
				d.mu.Unlock()
				_ = conn.Close()
				continue
			}
			name := conn.Host()
			earlier := d.conns[name]
			if d.taken[name] || earlier != nil && !earlier.PeerClosed() { // one host has one agent
				d.twice[name] = true
				d.mu.Unlock()
				_ = conn.Close()
				d.listener.Log(fmt.Sprintf("turned away another agent on %s, pid %d", name, conn.Peer().PID))
				continue
			}
			if earlier != nil {
				_ = earlier.Close()
			}
			d.conns[name] = conn
			d.came.Broadcast()
			d.mu.Unlock()
			d.listener.Log(fmt.Sprintf("the agent on %s has come, pid %d", name, conn.Peer().PID))
		}
	}()
}

// wait waits for some condition on those that have come. d.mu is held by then and by
// enough alone.
func (d *dialIn) wait(ctx context.Context, enough func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.came.Broadcast()
	})
	defer stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for !enough() {
		switch {
		case d.err != nil:
			return d.err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		d.came.Wait()
	}
	return nil
}

// take is the stream to a host whose agent has come, or comes in time.
func (d *dialIn) take(ctx context.Context, name string) (tree.Stream, error) {
	var conn *remote.Conn
	err := d.wait(ctx, func() bool {
		conn = d.conns[name]
		return conn != nil
	})
	if err != nil {
		late := errors.Is(err, context.DeadlineExceeded)
		if late {
			err = errors.New("its agent has not come")
		}
		if d.step != nil && (late || errors.Is(err, context.Canceled) && ctx.Err() == nil) { // srun ends for a cause that is not known of all
			if cause := d.step.CauseOf(name); cause != nil {
				err = cause
			}
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d.mu.Lock()
	d.conns[name], d.taken[name] = nil, true
	all := len(d.taken) == d.want
	d.mu.Unlock()
	if all { // no other agent is expected
		_ = d.listener.Close()
	}
	return conn, nil
}

// expect sets how many agents the job needs. When all have been taken, the listener
// closes.
func (d *dialIn) expect(agents int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.want = agents
}

// close turns away all agents that are not taken, also those that srun is still starting.
// An agent that is turned away removes its copy of gorun; if gorun had to end srun, the
// agent could not.
func (d *dialIn) close() {
	d.mu.Lock()
	d.over = true
	for _, c := range d.conns {
		if c != nil {
			_ = c.Close()
		}
	}
	d.mu.Unlock()
	if d.step != nil {
		_ = d.step.Close()
	}
	_ = d.listener.Close()
	<-d.accepted
}

// gatherDialled waits for agents that others start, as pods. They are the job's
// hosts, in the order of their names.
func (r *run) gatherDialled(ctx context.Context) error {
	j, named := r.job, slices.Clone(r.job.Hosts)
	usage := func(text string) error { return &startError{proto.ExitUsage, text} }
	want := max(j.Agents, len(named))
	switch {
	case j.Listen == "":
		return usage("-launcher dial: expected -listen HOST:PORT, which agents connect to")
	case want == 0:
		return usage("-listen: expected -agents N, or the names of hosts")
	case len(named) > 0 && j.Agents > len(named):
		return usage(fmt.Sprintf("-agents: expected as many as hosts are named, %d, found %d", len(named), j.Agents))
	case j.OnFailure == job.FailRestart:
		return usage("-on-failure restart: expected hosts whose agents gorun starts, found -listen; let those who start the agents start gorun anew")
	}
	secret, err := remote.ReadSecret(j.SecretFile)
	if err != nil {
		return usage(err.Error())
	}
	d, err := r.listen(j.Listen, secret)
	if err != nil {
		return err
	}
	r.reach = &reach{dialIn: d, patience: r.job.ConnectTimeout}
	d.begin(r.stopped)
	r.tellWaiting(d, want)
	patience := r.patience(dialPatience)
	if !r.deadline.IsZero() {
		patience = min(patience, time.Until(r.deadline))
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var came []string // d.mu guards it
	shown := r.showWhile(func() string {
		d.mu.Lock()
		defer d.mu.Unlock()
		line := fmt.Sprintf("%d of %s connected to %s", len(came), plural(want, "agent"), d.listener.Addr())
		return line + waitingFor(missing(named, came))
	})
	err = d.wait(ctx, func() bool {
		came = came[:0]
		for name, conn := range d.conns {
			if conn == nil || conn.PeerClosed() {
				continue // another may come in its place
			}
			if len(named) == 0 || slices.ContainsFunc(named, func(h hosts.Host) bool { return h.Name == name }) {
				came = append(came, name)
			}
		}
		return len(came) >= want
	})
	shown()
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !r.deadline.IsZero() && !time.Now().Before(r.deadline):
		return &startError{proto.ExitTimeout, fmt.Sprintf("the job ran longer than its timeout of %v, while it waited for %s, of which %d had come",
			j.Timeout, plural(want, "agent"), len(came))}
	case errors.Is(err, context.DeadlineExceeded):
		text := fmt.Sprintf("%d of %s came within %v", len(came), plural(want, "agent"), patience)
		if names := missing(named, came); names != nil {
			text += "; missing: " + strings.Join(firstFew(names), ", ")
		}
		return errors.New(text + d.surplus())
	case err != nil:
		return err
	}
	if len(named) == 0 {
		slices.SortFunc(came, func(a, b string) int { // worker-2 before worker-10
			return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
		})
		for _, name := range came[:want] {
			named = append(named, hosts.Host{Name: name})
		}
		j.GiveSlots(named)
	}
	r.allocated = true
	d.expect(len(named))
	r.setHosts(named)
	return nil
}

func (r *run) tellWaiting(d *dialIn, want int) {
	r.verbose("waiting for %s to connect to %s", plural(want, "agent"), d.listener.Addr())
}

// missing returns the hosts that the user has named and whose agents have not come.
func missing(named []hosts.Host, came []string) []string {
	var names []string
	for _, h := range named {
		if !slices.Contains(came, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

// surplus reports agents that have come by one name.
func (d *dialIn) surplus() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.twice) == 0 {
		return ""
	}
	return "; several call themselves " + strings.Join(firstFew(slices.Sorted(maps.Keys(d.twice))), ", ")
}

// slurmPatience is for how long agents that srun starts are waited for, unless the user
// says it: Slurm may have to end other steps, and gorun is copied to the nodes.
const slurmPatience = time.Minute

// gatherSlurm has srun start agents on the nodes of the allocation; the tree waits for
// them to come.
func (r *run) gatherSlurm() error {
	ctx := r.stopped
	var nodes []string
	for i := range r.hosts {
		if i > 0 || !r.hasOwn() {
			nodes = append(nodes, r.hosts[i].Name)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	addr := r.job.Listen
	if addr == "" {
		addr = ":0"
	}
	secret := remote.NewSecret()
	d, err := r.listen(addr, secret)
	if err != nil {
		return err
	}
	srun := &remote.Srun{
		Command: append([]string{"srun"}, r.job.SlurmArgs...), Nodes: nodes, Secret: secret,
		Connect: reachable(d.listener.Addr(), addr, nodes[0]), Agent: r.job.AgentPath,
		KeepWaiting: r.job.OnFailure == job.FailRestart, // it is to know which hosts are of no use
	}
	if r.job.Verbose {
		srun.Log = r.tell
	}
	if srun.Agent == "" { // whether the nodes have this gorun at its path nobody knows
		srun.CopyTo = "/tmp"
	}
	if d.step, err = srun.Start(); err != nil {
		_ = d.listener.Close()
		return err
	}
	d.listener.Cause = d.step.CauseOf
	r.reach = &reach{dialIn: d, patience: r.patience(slurmPatience)}
	d.expect(len(nodes))
	d.begin(context.WithoutCancel(ctx)) // until close
	sctx, cancel := d.step.Context(ctx)
	context.AfterFunc(sctx, func() { // with srun, or with the run
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.err == nil {
			d.err = context.Cause(sctx)
		}
		d.came.Broadcast()
	})
	context.AfterFunc(ctx, cancel)
	return nil
}

// exitCancelled is the exit code of a job that Slurm has ended, as if by SIGTERM.
const exitCancelled = proto.ExitSignalFloor + int(syscall.SIGTERM)

// judgeSlurm has the verdict say so where Slurm has ended the job: it sends its signals
// to ranks and agents alike, and which of them gorun hears of first is chance.
func (r *run) judgeSlurm() {
	v := r.verdict
	if v == nil || r.reach == nil || r.reach.dialIn == nil || r.reach.dialIn.step == nil {
		return
	}
	words, all := r.reach.dialIn.step.Cancelled()
	switch {
	case words == "", v.Rank >= 0 && v.Signal == 0 && v.ExitCode != 0: // which is a rank's own word
		return
	case v.Rank < 0 && v.Signal != 0 && v.Signal != syscall.SIGTERM: // gorun itself got the signal, for example by ^C
		return
	case !all && v.Rank >= 0 && v.Signal != syscall.SIGTERM: // somebody else has ended an agent, later
		return
	}
	r.verdict = &verdict{
		Failure: Failure{Rank: -1, Host: r.host, ExitCode: exitCancelled, Reason: "ended by Slurm: " + words},
		code:    exitCancelled, end: all && !strings.Contains(words, "NODE FAILURE"),
	}
}

// reachable is where a node finds a listener: at the address that this host has
// towards it, unless the user has named one.
func reachable(l net.Addr, addr, node string) string {
	_, port, err := net.SplitHostPort(l.String())
	if err != nil {
		return l.String()
	}
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "" {
		return net.JoinHostPort(host, port)
	}
	const discard = 9 // no datagram is sent
	if c, err := net.Dial("udp", net.JoinHostPort(node, strconv.Itoa(discard))); err == nil {
		defer func() { _ = c.Close() }()
		if host, _, err := net.SplitHostPort(c.LocalAddr().String()); err == nil {
			return net.JoinHostPort(host, port)
		}
	}
	return net.JoinHostPort(hostname(), port)
}
