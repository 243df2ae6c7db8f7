package launcher

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// jobState describes a job that a gorun runs.
type jobState struct {
	ID    string    `json:"id"`
	PID   int       `json:"pid"`   // of the gorun
	Ranks int       `json:"ranks"` // 0: the ranks are not placed yet
	Hosts int       `json:"hosts"`
	Phase string    `json:"phase"`
	Began time.Time `json:"began"` // when gorun was started
	Name  string    `json:"name"`
}

// stateRequest asks [run.control] for the state of the job. then is called at most once, by the
// goroutine that runs [run.control], and must not block.
type stateRequest struct{ then func(*jobState) }

// askState returns the state of the job. It blocks until [run.control] answers, at most for
// answerTime, and not after the end of ctx; then it returns what is known without an answer. It does not
// block if run.control has ended; the job is "ending" then.
func (r *run) askState(ctx context.Context) *jobState {
	done := make(chan *jobState, 1)
	if !r.mail.post(stateRequest{func(s *jobState) { done <- s }}) {
		return r.stateIn("ending") // run.control has ended, so no goroutine changes the run
	}
	select {
	case s := <-done:
		return s
	case <-ctx.Done():
	case <-time.After(answerTime):
	}
	return &jobState{ID: r.id, PID: os.Getpid(), Phase: "ending", Began: r.begun, Name: r.job.Name}
}

// state returns the state of the job. Only the goroutine that runs [run.control] calls it.
func (r *run) state() *jobState {
	phase := "starting"
	switch {
	case r.phase == phaseOver || r.ending || r.outcome != nil:
		phase = "ending"
	case r.phase == phaseRunning:
		phase = "running"
	}
	return r.stateIn(phase)
}

func (r *run) stateIn(phase string) *jobState {
	return &jobState{ID: r.id, PID: os.Getpid(), Ranks: len(r.ranks), Hosts: len(r.hosts), Phase: phase, Began: r.begun, Name: r.job.Name}
}

// PS prints a table of the jobs that gorun runs for this user on this host, and returns the exit
// code. Root sees the jobs of all users. PS blocks until each gorun has answered, a time limit has
// passed, or ctx ends. It writes errors to stderr.
func PS(ctx context.Context, stdout, stderr io.Writer) int {
	var mu sync.Mutex
	var jobs []*jobState
	err := askJob(ctx, jobQuestion{About: aboutState}, func(_ net.Conn, a jobAnswer) {
		if a.State != nil {
			mu.Lock()
			defer mu.Unlock()
			jobs = append(jobs, a.State)
		}
	})
	code := 0
	if err != nil {
		fmt.Fprintf(stderr, "gorun: -ps: %v\n", err)
		code = proto.ExitFailed
	}
	if err := writeJobs(stdout, jobs, time.Now()); err != nil {
		fmt.Fprintf(stderr, "gorun: print: %v\n", err)
		code = proto.ExitFailed
	}
	return code
}

// writeJobs prints a table of jobs, the oldest first.
func writeJobs(w io.Writer, jobs []*jobState, now time.Time) error {
	slices.SortFunc(jobs, func(a, b *jobState) int { return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.PID, b.PID)) })
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tPID\tRANKS\tHOSTS\tTIME\tSTATE\tNAME")
	for _, j := range jobs {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%v\t%s\t%s\n", proto.OneLine(j.ID, 64), j.PID, j.Ranks, j.Hosts,
			now.Sub(j.Began).Round(time.Second), proto.OneLine(j.Phase, 64), proto.OneLine(j.Name, 64))
	}
	return t.Flush()
}

// Stop ends a running job, as SIGTERM to its gorun does, and returns the exit code. opts.Job names
// the job as in [Stacks]. Stop blocks until the job has ended or ctx ends. It writes errors to
// stderr.
func Stop(ctx context.Context, stderr io.Writer, opts job.Options) int {
	ended := false
	err := askJob(ctx, jobQuestion{Job: opts.Job, About: aboutEnd}, func(c net.Conn, a jobAnswer) {
		if a.State == nil {
			return
		}
		_ = c.SetDeadline(time.Time{})
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		_, _ = io.Copy(io.Discard, c) // until gorun closes the connection, or is gone
		ended = ctx.Err() == nil
	})
	switch {
	case ended:
		return 0
	case err == nil:
		err = cmp.Or(context.Cause(ctx), noJob(opts.Job))
	}
	fmt.Fprintf(stderr, "gorun: -stop: %v\n", err)
	return proto.ExitFailed
}
