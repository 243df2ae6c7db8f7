package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/remote"
	"github.com/weft-hpc/weft/launcher/internal/tree"
	"github.com/weft-hpc/weft/launcher/job"
)

// AgentMain runs this process as gorun's agent on a host, as gorun -agent does, and returns the
// exit code. opts come from [job.Parse]: a program that embeds a launcher calls AgentMain if Parse
// returns the action [job.Agent]. If opts.Hash is set, AgentMain only prints the hash of its
// executable. If opts.Connect is set, it connects with the gorun that listens at that address.
// Otherwise standard input and output are its connection with gorun, or with the agent that has
// started it. AgentMain blocks until the job has ended, the connection is lost, the process gets
// SIGTERM, or ctx ends. If it fails, it writes the error to stderr.
func AgentMain(ctx context.Context, opts job.Options, stderr io.Writer) int {
	err := agentMain(ctx, opts)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "gorun: agent on %s: %v\n", hostname(), err)
	if opts.Connect != "" && os.Getenv("SLURM_STEP_ID") == "" && errors.Is(err, remote.ErrTerminated) {
		return proto.ExitSignalFloor + int(syscall.SIGTERM) // the unit in deploy/systemd knows this code
	}
	return proto.ExitFailed
}

func agentMain(ctx context.Context, opts job.Options) error {
	if opts.Hash {
		return remote.PrintHash(os.Stdout)
	}
	if opts.Connect == "" {
		up, err := remote.Stdio("")
		if err != nil {
			return err
		}
		return serveAgent(ctx, up)
	}
	defer remote.RemoveBroadcast()
	ctx, stop := terminated(ctx)
	defer stop()
	secret, err := remote.ReadSecret(opts.SecretFile)
	if err != nil {
		return err
	}
	up, err := remote.Dial(ctx, opts.Connect, secret, os.Getenv("SLURMD_NODENAME"))
	if err != nil {
		return err
	}
	// Wait without a time limit for gorun's first message, because gorun may first wait for other
	// agents to connect.
	up.Await(ctx)
	return serveAgent(ctx, up)
}

// serveAgent runs the ranks of this host for gorun. up is the connection with this agent's parent
// in the tree of agents: gorun or another agent. serveAgent returns when the parent has ended the
// job, when the connection is lost, when ctx ends, at SIGTERM, or after an error. Before it
// returns, it kills the ranks that still run.
func serveAgent(ctx context.Context, up tree.Stream) error {
	restore := procs.BecomeReaper()
	defer restore()
	// At SIGTERM the agent ends its ranks and reports that to gorun. A resource manager that ends a
	// job sends SIGTERM to all processes of the job, agents too.
	ctx, stop := terminated(ctx)
	defer stop()
	// These signals have no effect on the agent. gorun sends messages to pass signals to the ranks,
	// and after a write to a broken pipe the agent gets an error. The agent catches the signals
	// instead of ignoring them, because its ranks would inherit ignored signals. No goroutine reads
	// the channel unread.
	unread := make(chan os.Signal, 1)
	signal.Notify(unread, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGPIPE)
	defer signal.Stop(unread)
	var watchdog *procs.Watchdog
	var ranks *procs.Host
	defer func() {
		if ranks != nil {
			ranks.Close()
		}
		if watchdog != nil {
			watchdog.End()
		}
	}()
	return tree.Serve(ctx, up, func(l proto.Launch) (tree.Config, error) {
		watchdog = procs.StartWatchdog(l.JobID)
		var node *tree.Node
		var emit func(proto.Message)
		var err error
		ranks, err = procs.NewHost(procs.Config{
			Index: l.Index, Host: l.Hosts[0].Name, Environ: os.Environ(), Watchdog: watchdog,
			// The process manager calls Emit only after it has got its first message. By then emit
			// is set.
			Emit:   func(m proto.Message) { emit(m) },
			Output: func(o proto.Output) error { return node.Output(o) },
			Stored: func(p proto.FilePart) { node.Stored(p) },
		})
		if err != nil {
			return tree.Config{}, err
		}
		ssh := &remote.SSH{Command: l.SSH, Agent: l.Agent, Timeout: l.Timeout}
		return tree.Config{
			Self: self(hostname()),
			Procs: func(n *tree.Node, e func(proto.Message)) tree.Procs {
				node, emit = n, e
				return &agentProcs{Procs: ranks, ctx: ctx}
			},
			Open: func(ctx context.Context, h hosts.Host) (tree.Stream, error) { return openSSH(ctx, ssh, h) },
		}, nil
	})
}

// agentProcs is the process manager of an agent. At its first message from gorun it removes the
// copy of gorun that srun has made on this host, if there is one. By then gorun has usually heard
// from all agents, so none of them still has to start from the copy.
type agentProcs struct {
	tree.Procs
	started bool            // [agentProcs.Do] was called
	ctx     context.Context // the context of serveAgent: SIGTERM ends it with the cause remote.ErrTerminated
}

func (c *agentProcs) Do(m proto.Message) {
	if !c.started {
		c.started = true
		remote.RemoveBroadcast()
	}
	if e, ok := m.(proto.End); ok && os.Getenv("SLURM_STEP_ID") != "" && errors.Is(context.Cause(c.ctx), remote.ErrTerminated) {
		// Slurm sends SIGTERM to all processes of a job step, so the ranks have got SIGTERM
		// already.
		e.Asked = true
		m = e
	}
	c.Procs.Do(m)
}

// terminated returns a context that ends with ctx or at SIGTERM. SIGTERM ends it with the cause
// remote.ErrTerminated. stop ends the context, stops catching SIGTERM for it, and waits for the
// goroutine of terminated. The caller must call stop.
func terminated(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() { // ends at SIGTERM, by stop, or with ctx
		defer close(ended)
		select {
		case <-got:
			cancel(remote.ErrTerminated)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
		signal.Stop(got)
	}
}
