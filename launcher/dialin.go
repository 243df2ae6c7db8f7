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

// dialIn accepts connections that agents make to gorun. It is used if srun has started the agents,
// or if the user or another system starts them, for example as pods.
type dialIn struct {
	listener *remote.Listener
	step     *remote.Step  // the job step in which srun has started the agents; nil: srun does not start them
	accepted chan struct{} // closed when the goroutine that accepts connections has ended

	mu sync.Mutex // guards the fields below
	// conns has, by host name, the connection with the host's agent. It has nil after [dialIn.take]
	// has returned the connection.
	conns map[string]*remote.Conn
	// changed broadcasts changes of conns and err, and the end of the context of a call of
	// [dialIn.wait].
	changed    *sync.Cond
	taken      map[string]bool // names of the hosts whose connections [dialIn.take] has returned
	want       int             // number of agents that the job needs; 0: not known yet
	duplicates map[string]bool // names of hosts on which more than one agent has connected
	err        error           // why no more agents can connect; nil: agents can connect
	closed     bool            // [dialIn.close] was called: new connections are closed at once
}

// dialInTimeout is the default of how long gorun waits for agents that the user or another system
// starts. It is long, because pods may have to wait for resources and for images.
const dialInTimeout = 10 * time.Minute

// agentTimeout returns how long gorun waits for agents to connect: the value of -connect-timeout,
// or byDefault if the user has not set that option.
func (r *run) agentTimeout(byDefault time.Duration) time.Duration {
	if _, set := r.job.Source["launcher.connect_timeout"]; set {
		return r.job.ConnectTimeout
	}
	return byDefault
}

// listen begins to listen on addr for agents that know the secret. It accepts no agents: the caller
// must call [dialIn.begin] for that.
func (r *run) listen(addr string, secret remote.Secret) (*dialIn, error) {
	l, err := remote.Listen(addr, secret)
	if err != nil {
		return nil, fmt.Errorf("wait for agents: %w", err)
	}
	d := &dialIn{listener: l, accepted: make(chan struct{}), conns: make(map[string]*remote.Conn), taken: make(map[string]bool), duplicates: make(map[string]bool)}
	d.changed = sync.NewCond(&d.mu)
	l.Log = func(line string) { r.verbose("%s", line) }
	return d, nil
}

// begin starts the goroutine that accepts agents. The goroutine accepts them until [dialIn.take] or
// [dialIn.close] closes the listener, or until ctx ends.
func (d *dialIn) begin(ctx context.Context) {
	go func() { // ends when the listener is closed or ctx ends; close waits for it
		defer close(d.accepted)
		for {
			conn, err := d.listener.Accept(ctx)
			d.mu.Lock()
			if err != nil {
				d.err = err
				d.changed.Broadcast()
				d.mu.Unlock()
				return
			}
			if d.step != nil {
				d.step.HoldHelper() // so that the agents continue if srun is killed
			}
			if d.closed {
				d.mu.Unlock()
				_ = conn.Close()
				continue
			}
			name := conn.Host()
			earlier := d.conns[name]
			// If the host has an agent already, close the new connection: a host may have only one
			// agent.
			if d.taken[name] || earlier != nil && !earlier.PeerClosed() {
				d.duplicates[name] = true
				d.mu.Unlock()
				_ = conn.Close()
				d.listener.Log(fmt.Sprintf("closed the connection of another agent on %s, pid %d", name, conn.Peer().PID))
				continue
			}
			if earlier != nil {
				_ = earlier.Close()
			}
			d.conns[name] = conn
			d.changed.Broadcast()
			d.mu.Unlock()
			d.listener.Log(fmt.Sprintf("the agent on %s has connected, pid %d", name, conn.Peer().PID))
		}
	}()
}

// wait blocks until enough returns true. Before that it returns an error if ctx ends, or if no more
// agents can connect. wait calls enough with d.mu held, at first and after each change of d.conns.
func (d *dialIn) wait(ctx context.Context, enough func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.changed.Broadcast()
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
		d.changed.Wait()
	}
	return nil
}

// take waits until the agent of a host has connected, and returns the connection. The caller must
// close the connection. take returns an error if ctx ends or no more agents can connect.
func (d *dialIn) take(ctx context.Context, name string) (tree.Stream, error) {
	var conn *remote.Conn
	err := d.wait(ctx, func() bool {
		conn = d.conns[name]
		return conn != nil
	})
	if err != nil {
		late := errors.Is(err, context.DeadlineExceeded)
		if late {
			err = errors.New("its agent has not connected")
		}
		// If srun has started the agent, srun may know why it has not connected.
		if d.step != nil && (late || errors.Is(err, context.Canceled) && ctx.Err() == nil) {
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
	if all {
		_ = d.listener.Close()
	}
	return conn, nil
}

// expect sets the number of agents that the job needs. When [dialIn.take] has returned that many
// connections, it closes the listener.
func (d *dialIn) expect(agents int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.want = agents
}

// close closes the connections that [dialIn.take] has not returned, and stops accepting. If srun
// has started the agents, close gives srun a short time to end by itself before it closes the
// listener. Agents that srun starts in this time still connect, and their connections are closed at
// once. Such an agent then removes its copy of gorun and ends. If close killed srun at once
// instead, these copies would stay.
func (d *dialIn) close() {
	d.mu.Lock()
	d.closed = true
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

// findDialedHosts waits for agents that the user or another system starts, for example as pods. If
// the user has named hosts, it waits for the agents of these hosts. Otherwise it waits for as many
// agents as the user wants. The hosts of these agents are then the hosts of the job, in the order
// of their names, shorter names first. It waits at most until ctx ends, until the time limit for
// agents to connect, or until the job's timeout.
func (r *run) findDialedHosts(ctx context.Context) error {
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
		return usage("-on-failure restart: expected hosts whose agents gorun starts, found -listen; start gorun and the agents again instead")
	}
	secret, err := remote.ReadSecret(j.SecretFile)
	if err != nil {
		return usage(err.Error())
	}
	d, err := r.listen(j.Listen, secret)
	if err != nil {
		return err
	}
	r.connector = &connector{dialIn: d, timeout: r.job.ConnectTimeout}
	d.begin(r.stopped)
	r.printWaiting(d, want)
	timeout := r.agentTimeout(dialInTimeout)
	if !r.deadline.IsZero() {
		timeout = min(timeout, time.Until(r.deadline))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var connected []string // names of the wanted hosts whose agents have connected; d.mu guards it
	shown := r.showWhile(func() string {
		d.mu.Lock()
		defer d.mu.Unlock()
		line := fmt.Sprintf("%d of %s connected to %s", len(connected), plural(want, "agent"), d.listener.Addr())
		return line + waitingFor(missing(named, connected))
	})
	err = d.wait(ctx, func() bool {
		connected = connected[:0]
		for name, conn := range d.conns {
			if conn == nil || conn.PeerClosed() {
				// [dialIn.take] has returned the connection, or the agent has closed it, so that
				// another agent may connect in its place.
				continue
			}
			if len(named) == 0 || slices.ContainsFunc(named, func(h hosts.Host) bool { return h.Name == name }) {
				connected = append(connected, name)
			}
		}
		return len(connected) >= want
	})
	shown()
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !r.deadline.IsZero() && !time.Now().Before(r.deadline):
		return &startError{proto.ExitTimeout, fmt.Sprintf("the job ran longer than its timeout of %v, while it waited for %s, and %d had connected",
			j.Timeout, plural(want, "agent"), len(connected))}
	case errors.Is(err, context.DeadlineExceeded):
		text := fmt.Sprintf("%d of %s connected within %v", len(connected), plural(want, "agent"), timeout)
		if names := missing(named, connected); names != nil {
			text += "; missing: " + strings.Join(firstFew(names), ", ")
		}
		return errors.New(text + d.surplus())
	case err != nil:
		return err
	}
	if len(named) == 0 {
		slices.SortFunc(connected, func(a, b string) int { // shorter names first: worker-2 before worker-10
			return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
		})
		for _, name := range connected[:want] {
			named = append(named, hosts.Host{Name: name})
		}
		j.ApplySlots(named)
	}
	r.allocated = true
	d.expect(len(named))
	r.setHosts(named)
	return nil
}

// printWaiting prints, with -v, for how many agents gorun waits and on which address.
func (r *run) printWaiting(d *dialIn, want int) {
	r.verbose("waiting for %s to connect to %s", plural(want, "agent"), d.listener.Addr())
}

// missing returns the names of the hosts in named that are not in connected.
func missing(named []hosts.Host, connected []string) []string {
	var names []string
	for _, h := range named {
		if !slices.Contains(connected, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

// surplus returns the last part of a message, which names hosts on which several agents have
// connected. It returns "" if there are no such hosts.
func (d *dialIn) surplus() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.duplicates) == 0 {
		return ""
	}
	return "; several agents have the name " + strings.Join(firstFew(slices.Sorted(maps.Keys(d.duplicates))), ", ")
}

// slurmTimeout is the default of how long gorun waits for agents that srun starts. Slurm may have
// to end other job steps first, and then to copy gorun to the nodes.
const slurmTimeout = time.Minute

// findSlurmHosts starts agents by srun on all hosts of the run except this one. It does not wait
// for the agents to connect: [dialIn.take] does that, when the tree of agents wants the connection
// with a host.
func (r *run) findSlurmHosts() error {
	ctx := r.stopped
	var nodes []string
	for i := range r.hosts {
		if i > 0 || !r.usesThisHost() {
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
		// Before a restart, gorun must know which hosts cannot be used.
		KeepWaiting: r.job.OnFailure == job.FailRestart,
	}
	if r.job.Verbose {
		srun.Log = r.printLine
	}
	// Without AgentPath, srun copies gorun to /tmp, because the nodes may not have gorun at the
	// same path.
	if srun.Agent == "" {
		srun.CopyTo = "/tmp"
	}
	if d.step, err = srun.Start(); err != nil {
		_ = d.listener.Close()
		return err
	}
	d.listener.Cause = d.step.CauseOf
	r.connector = &connector{dialIn: d, timeout: r.agentTimeout(slurmTimeout)}
	d.expect(len(nodes))
	d.begin(context.WithoutCancel(ctx)) // accepts agents until [dialIn.close] is called, even if ctx ends
	sctx, cancel := d.step.Context(ctx)
	// This function runs when srun ends, when an agent fails (unless KeepWaiting is set), or when
	// ctx, the context of the run, ends.
	context.AfterFunc(sctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.err == nil {
			d.err = context.Cause(sctx)
		}
		d.changed.Broadcast()
	})
	context.AfterFunc(ctx, cancel)
	return nil
}

// maxCopies is how often gorun lets srun copy gorun to the nodes before it gives up.
const maxCopies = 4

// copyWasBusy reports whether srun has failed because a node could not execute the copy of gorun that
// srun had just made there (ETXTBSY). That happens if slurmd forks for another step while it writes
// the copy: until the child calls execve, it has the copy open for writing. No rank has run then.
func (r *run) copyWasBusy(v *outcome) bool {
	return v != nil && len(r.ranks) == 0 && r.connector != nil && r.connector.dialIn != nil && r.connector.dialIn.step != nil &&
		strings.Contains(v.Reason, "execve(): ") && strings.HasSuffix(v.Reason, ": Text file busy")
}

// exitCancelled is the exit code of a job that Slurm has ended. It is the same as after SIGTERM.
const exitCancelled = proto.ExitSignalFloor + int(syscall.SIGTERM)

// attributeToSlurm replaces the outcome by "ended by Slurm" if Slurm has ended the job or a node of
// it. Slurm sends its signals to ranks and agents alike, so it is chance which failure reaches
// gorun first and becomes the outcome. A failure that cannot come from Slurm stays the outcome.
func (r *run) attributeToSlurm() {
	v := r.outcome
	if v == nil || r.connector == nil || r.connector.dialIn == nil || r.connector.dialIn.step == nil {
		return
	}
	words, all := r.connector.dialIn.step.Cancelled()
	switch {
	case words == "", v.Rank >= 0 && v.Signal == 0 && v.ExitCode != 0: // a rank chose this exit code itself
		return
	case v.Rank < 0 && v.Signal != 0 && v.Signal != syscall.SIGTERM:
		// The user sent gorun the signal, for example by ^C.
		return
	case !all && v.Rank >= 0 && v.Signal != syscall.SIGTERM:
		// The rank failed first, and Slurm ended an agent later.
		return
	}
	if sig := r.signalBehind(); sig != 0 {
		r.outcome = r.startFailure(endedBeforeStart(sig))
		return
	}
	r.outcome = &outcome{
		Failure: Failure{Rank: -1, Host: r.host, ExitCode: exitCancelled, Reason: "ended by Slurm: " + words},
		code:    exitCancelled, end: all && !strings.Contains(words, "NODE FAILURE"),
	}
}

// outerSignalTime is how long gorun waits for a signal of the outer gorun when Slurm has ended the job before
// ranks ran.
const outerSignalTime = time.Second

// signalBehind returns the signal because of which Slurm has ended the job; 0: there is none. If a
// signal comes while salloc starts this gorun, the outer gorun sends it to salloc, which gives the
// allocation back, and then to this gorun. So Slurm may end the job before the signal arrives.
func (r *run) signalBehind() syscall.Signal {
	if !r.underSalloc || len(r.ranks) > 0 {
		return 0
	}
	late := time.After(outerSignalTime)
	for {
		select {
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok && terminates(sig) {
				return sig
			}
		case <-late:
			return 0
		}
	}
}

// reachable returns the address, HOST:PORT, by which a node can connect with gorun's listener. l is
// the address on which the listener listens, and addr the address that it was asked to listen on.
// PORT is the port of l, and HOST the host of addr. If addr has no host, HOST is this host's
// address on the route to the node or, if there is no route, this host's name.
func reachable(l net.Addr, addr, node string) string {
	_, port, err := net.SplitHostPort(l.String())
	if err != nil {
		return l.String()
	}
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "" {
		return net.JoinHostPort(host, port)
	}
	const discard = 9 // any port: connecting a UDP socket only selects the route, and no datagram is sent
	if c, err := net.Dial("udp", net.JoinHostPort(node, strconv.Itoa(discard))); err == nil {
		defer func() { _ = c.Close() }()
		if host, _, err := net.SplitHostPort(c.LocalAddr().String()); err == nil {
			return net.JoinHostPort(host, port)
		}
	}
	return net.JoinHostPort(hostname(), port)
}
