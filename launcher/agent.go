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

// AgentMain does what gorun -agent does, and returns its exit code.
func AgentMain(ctx context.Context, opts job.Options, stderr io.Writer) int {
	err := agentMain(ctx, opts)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "gorun: agent on %s: %v\n", hostname(), err)
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
		return Agent(ctx, up)
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
	up.Await(ctx) // until the job begins, for which other agents may have to come
	return Agent(ctx, up)
}

// Agent runs this process as gorun's agent on its host, over a stream to gorun, or
// to an agent between, and returns when that has said so, or is lost. No rank that
// it has started lives then.
func Agent(ctx context.Context, up tree.Stream) error {
	restore := procs.BecomeReaper()
	defer restore()
	// Who wants the job to end tells gorun. A resource manager that ends the step does so
	// by SIGTERM.
	ctx, stop := terminated(ctx)
	defer stop()
	// Not ignored, or the ranks would ignore them, too.
	unheard := make(chan os.Signal, 1)
	signal.Notify(unheard, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGPIPE)
	defer signal.Stop(unheard)
	var watchdog *procs.Watchdog
	var ranks *procs.Manager
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
		ranks, err = procs.New(procs.Config{
			Index: l.Index, Host: l.Hosts[0].Name, Environ: os.Environ(), Watchdog: watchdog,
			Emit:   func(m proto.Message) { emit(m) }, // nothing before the first message to the process manager
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
				return &settledProcs{Procs: ranks, ctx: ctx}
			},
			Open: func(ctx context.Context, h hosts.Host) (tree.Stream, error) { return openSSH(ctx, ssh, h) },
		}, nil
	})
}

// settledProcs is the process manager of an agent that was copied: what comes first from gorun comes
// when all agents are there.
type settledProcs struct {
	tree.Procs
	settled bool
	ctx     context.Context // context of the agent
}

func (c *settledProcs) Do(m proto.Message) {
	if !c.settled {
		c.settled = true
		remote.RemoveBroadcast()
	}
	if e, ok := m.(proto.End); ok && os.Getenv("SLURM_STEP_ID") != "" && errors.Is(context.Cause(c.ctx), remote.ErrTerminated) {
		e.Asked = true // Slurm sends its SIGTERM to all processes of a step
		m = e
	}
	c.Procs.Do(m)
}

// terminated is ctx, which ends by SIGTERM, too. stop has the signal do again what it
// did, and waits.
func terminated(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM)
	ended := make(chan struct{})
	go func() { // ends by stop, or with ctx
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
