package launcher

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/live"
	"github.com/weft-hpc/weft/launcher/internal/ui"
)

// servePage starts the server of -ui, if the user wants it. endPage ends it.
func (s *session) servePage() error {
	if s.job.UI == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(s.job.UI)
	if err != nil {
		return fmt.Errorf("-ui %s: %w", s.job.UI, err)
	}
	page := ui.New(pageSource{s}, s.job.Name, s.host, host)
	at, stop, err := serveWeb(s.job.UI, page, webWriteTime)
	if err != nil {
		page.End(nil, "", false)
		page.Close()
		return fmt.Errorf("-ui %s: %w", s.job.UI, err)
	}
	s.page, s.stopPage = page, stop
	if a, err := netip.ParseAddrPort(at); err == nil && a.Addr().IsUnspecified() {
		at = fmt.Sprintf("%s:%d", s.host, a.Port())
	}
	// This line does not go to the tail: pictures of the page must not show the token.
	s.out.put(gorunOutput("gorun: live page at http://"+at+page.Path()+"\n"), nil)
	return nil
}

// endPage shows on the live page how the job has ended, and ends its server.
func (s *session) endPage(res Result) {
	if s.page == nil {
		return
	}
	text := fmt.Sprintf("The job has ended well after %v.", s.since())
	if f := res.Failure; f != nil {
		reason := f.Error()
		if reason == "" { // a signal to gorun has ended the job
			reason = "ended by " + signalName(f.Signal)
		}
		text = fmt.Sprintf("The job has failed after %v with exit code %d: %s", s.since(), res.ExitCode, reason)
	}
	s.page.End(s.final, text, res.Failure != nil)
	s.stopPage()
	s.page.Close()
}

// finalSnapshot returns the state of the job when the run is over.
func (r *run) finalSnapshot() *live.Snapshot {
	s := r.snapshot(nil)
	for i := range s.Ranks {
		if k := &s.Ranks[i]; k.State == "running" {
			k.State = "ended"
			if r.ranks[i].pid == 0 {
				k.State = "not started"
			}
		}
	}
	return s
}

// pageSource is the job of a session as the live page wants it.
type pageSource struct{ s *session }

// Snapshot implements [ui.Source].
func (p pageSource) Snapshot(ctx context.Context, peers bool) *live.Snapshot {
	if found := p.s.askSnapshot(ctx, peers); found != nil {
		return found
	}
	found := &live.Snapshot{Name: p.s.job.Name, Phase: "no rank runs", Begun: p.s.begun, At: time.Now()}
	if r := p.s.current.Load(); r != nil {
		state := r.askState(ctx)
		found.Job, found.Phase = state.ID, state.Phase
	}
	return found
}

// Inspect implements [ui.Source].
func (p pageSource) Inspect(ctx context.Context) ui.Inspection {
	r := p.s.current.Load()
	if r == nil {
		return ui.Inspection{Lines: []string{"no rank runs"}}
	}
	a := r.whatRanksDo(ctx, "")
	return ui.Inspection{Lines: a.lines, Late: a.late, Deadlocks: a.deadlocks}
}

// Output implements [ui.Source].
func (p pageSource) Output(from int) ([]ui.Line, int) { return p.s.tail.since(from) }
