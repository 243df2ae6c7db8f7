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

// dialIn accepts the connections of agents that gorun does not start itself.
type dialIn struct {
	listener *remote.Listener
	step     *remote.Step  // srun, which has started the agents; nil: someone else starts them
	accepted chan struct{} // closed when the goroutine that accepts has ended

	mu         sync.Mutex              // guards the fields below
	conns      map[string]*remote.Conn // by host: the connection of its agent, until take hands it out
	changed    *sync.Cond              // signals changes of conns and err
	taken      map[string]bool         // hosts whose connection take has handed out
	want       int                     // number of agents that the job needs; 0: not known yet
	duplicates map[string]bool         // host names with which more than one agent has connected
	err        error                   // no more agents can connect
	closed     bool                    // dialIn closes new connections
}

// dialInTimeout is the default timeout for agents that someone else starts. Pods may wait for
// resources and for images.
const dialInTimeout = 10 * time.Minute

// agentTimeout returns the timeout for agents to connect: -connect-timeout, or the default
// byDefault if the user has not set it.
func (r *run) agentTimeout(byDefault time.Duration) time.Duration {
	if _, set := r.job.Source["launcher.connect_timeout"]; set {
		return r.job.ConnectTimeout
	}
	return byDefault
}

// listen begins to listen on addr for agents that know the secret.
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

// begin accepts agents until close, or until ctx ends.
func (d *dialIn) begin(ctx context.Context) {
	go func() { // ends with the listener; close waits for it
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
				d.step.HoldHelper() // the agents then survive when srun is killed
			}
			if d.closed {
				d.mu.Unlock()
				_ = conn.Close()
				continue
			}
			name := conn.Host()
			earlier := d.conns[name]
			if d.taken[name] || earlier != nil && !earlier.PeerClosed() { // a host has only one agent
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

// wait blocks until enough returns true. It returns an error if ctx ends or no more agents can
// connect. wait calls enough with d.mu held.
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

// take waits for the agent of a host, and returns the stream to it.
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
		if d.step != nil && (late || errors.Is(err, context.Canceled) && ctx.Err() == nil) { // srun may know why this agent has not connected
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

// expect sets the number of agents that the job needs. take closes the listener when it has handed
// out all of them.
func (d *dialIn) expect(agents int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.want = agents
}

// close closes the connections of all agents that take has not handed out, also of those that srun
// is still starting. Such an agent removes its copy of gorun. If gorun ended srun instead, the
// agent could not do that.
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

// findDialedHosts waits for agents that someone else starts, for example as pods. Their hosts are
// the hosts of the job, in the order of their names.
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
	var connected []string // hosts; d.mu guards it
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
				continue // another agent may connect in its place
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
		slices.SortFunc(connected, func(a, b string) int { // worker-2 before worker-10
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

func (r *run) printWaiting(d *dialIn, want int) {
	r.verbose("waiting for %s to connect to %s", plural(want, "agent"), d.listener.Addr())
}

// missing returns the hosts that the user has named and whose agents have not connected.
func missing(named []hosts.Host, connected []string) []string {
	var names []string
	for _, h := range named {
		if !slices.Contains(connected, h.Name) {
			names = append(names, h.Name)
		}
	}
	return names
}

// surplus returns a text about host names that several agents have, or "".
func (d *dialIn) surplus() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.duplicates) == 0 {
		return ""
	}
	return "; several agents have the name " + strings.Join(firstFew(slices.Sorted(maps.Keys(d.duplicates))), ", ")
}

// slurmTimeout is the default timeout for agents that srun starts. Slurm may have to end other
// steps first, and copies gorun to the nodes.
const slurmTimeout = time.Minute

// findSlurmHosts starts agents on the nodes of the allocation by srun. The tree waits for them to
// connect.
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
		KeepWaiting: r.job.OnFailure == job.FailRestart, // gorun needs to know which hosts cannot be used
	}
	if r.job.Verbose {
		srun.Log = r.printLine
	}
	if srun.Agent == "" { // the nodes may not have this gorun at the same path
		srun.CopyTo = "/tmp"
	}
	if d.step, err = srun.Start(); err != nil {
		_ = d.listener.Close()
		return err
	}
	d.listener.Cause = d.step.CauseOf
	r.connector = &connector{dialIn: d, timeout: r.agentTimeout(slurmTimeout)}
	d.expect(len(nodes))
	d.begin(context.WithoutCancel(ctx)) // ends with close
	sctx, cancel := d.step.Context(ctx)
	context.AfterFunc(sctx, func() { // runs when srun or the run ends
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

// exitCancelled is the exit code of a job that Slurm has ended, as after SIGTERM.
const exitCancelled = proto.ExitSignalFloor + int(syscall.SIGTERM)

// attributeToSlurm makes Slurm the cause of the outcome if Slurm has ended the job. Slurm sends its
// signals to ranks and agents alike, so chance decides which failure gorun hears of first.
func (r *run) attributeToSlurm() {
	v := r.outcome
	if v == nil || r.connector == nil || r.connector.dialIn == nil || r.connector.dialIn.step == nil {
		return
	}
	words, all := r.connector.dialIn.step.Cancelled()
	switch {
	case words == "", v.Rank >= 0 && v.Signal == 0 && v.ExitCode != 0: // a rank chose this exit code itself
		return
	case v.Rank < 0 && v.Signal != 0 && v.Signal != syscall.SIGTERM: // gorun itself got the signal, for example by ^C
		return
	case !all && v.Rank >= 0 && v.Signal != syscall.SIGTERM: // the rank failed first, and an agent was ended later
		return
	}
	r.outcome = &outcome{
		Failure: Failure{Rank: -1, Host: r.host, ExitCode: exitCancelled, Reason: "ended by Slurm: " + words},
		code:    exitCancelled, end: all && !strings.Contains(words, "NODE FAILURE"),
	}
}

// reachable returns the address by which a node connects with a listener on addr: the host of addr,
// or, if addr has none, this host's address on the route to the node.
func reachable(l net.Addr, addr, node string) string {
	_, port, err := net.SplitHostPort(l.String())
	if err != nil {
		return l.String()
	}
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "" {
		return net.JoinHostPort(host, port)
	}
	const discard = 9 // the port does not matter, because no datagram is sent
	if c, err := net.Dial("udp", net.JoinHostPort(node, strconv.Itoa(discard))); err == nil {
		defer func() { _ = c.Close() }()
		if host, _, err := net.SplitHostPort(c.LocalAddr().String()); err == nil {
			return net.JoinHostPort(host, port)
		}
	}
	return net.JoinHostPort(hostname(), port)
}
