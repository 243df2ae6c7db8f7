// Package ui serves the live page of a running job: a web page, and the state of the job as server-sent
// events for the page.
//
//	Source ◄── loop: one snapshot per second, while a browser listens
//	             │
//	           board: the newest event of each kind
//	             │ │ │
//	           a goroutine per browser writes the events that it has not written yet
//
// A browser that reads slowly misses events and gets the newest ones later. So the memory of a page is
// bounded, and no browser delays another one or the job.
//
// A browser can also take a trace or a profile (capture.go).
package ui

import (
	"context"
	"crypto/rand"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/live"
)

// Source is the job that the page shows. Its methods may be called concurrently. They return soon after
// the end of ctx.
type Source interface {
	// Snapshot returns the state of the job. The snapshot has no ranks if none runs. peers says whether
	// it contains the messages to each rank.
	Snapshot(ctx context.Context, peers bool) *live.Snapshot
	// Inspect finds out what the ranks do.
	Inspect(ctx context.Context) Inspection
	// Capture records for the time d what the ranks do, and returns a trace or a profile of all ranks. kind is one
	// of captureKinds. The page makes one at a time.
	Capture(ctx context.Context, kind string, d time.Duration) (Captured, error)
	// Output returns the lines of the ranks' output with the numbers from to next-1. It leaves out
	// lines that it no longer has.
	Output(from int) (lines []Line, next int)
}

// Inspection says what the ranks do.
type Inspection struct {
	Lines     []string `json:"lines"` // as gorun -stacks prints them
	Late      []Late   `json:"-"`
	Deadlocks []string `json:"-"` // those of Lines that name deadlocks
}

// Captured is a trace or a profile.
type Captured struct {
	Name  string // of the file in which the user may keep it
	File  *os.File
	Lines []string // each says what the trace or profile lacks
}

// Late is a collective in which ranks wait for ranks that have not called it.
type Late struct {
	Group  int    // number of the ranks' group; 0: the ranks with which the job started
	Op     string // name of the call
	Comm   string // name of the communicator
	Seq    uint32 // number of the collective in the communicator; 0: not known
	Ranks  string // the ranks that have not called it, such as "ranks 3, 7"; "": none
	Silent string // ranks that have not answered, in the same form
}

// Line is a line of output.
type Line struct {
	From string `json:"from"` // the rank, such as "3" or "1.3", or "gorun"
	Err  bool   `json:"err"`  // the line was written to stderr
	Text string `json:"text"`
}

// The bounds of a page.
const (
	maxListeners = 8               // most browsers that get events at the same time
	matrixEvery  = 5               // updates from one matrix of messages to the next
	maxMatrix    = 512             // most ranks for which the page shows the matrix of messages
	maxHistory   = 120             // most points of a curve
	captureTime  = 5 * time.Second // how long a trace or a profile records
	ranksPerTick = 1000            // with more ranks, the updates are further apart: a second for each so many ranks
)

// Page is the live page of a job. It is an http.Handler.
type Page struct {
	source Source
	token  string
	folder string   // path of the folder of the page, between slashes
	hosts  []string // names by which a browser may call this host, besides addresses and localhost
	routes http.Handler

	tick      time.Duration // time between two updates
	stallTime time.Duration // a rank whose figures do not change for this time is quiet
	writeTime time.Duration // time limit for writing one event

	stopped context.Context // ends when End is called
	stop    context.CancelFunc
	wake    chan struct{} // capacity 1: a browser has begun to listen
	running sync.WaitGroup

	mu         sync.Mutex // guards the fields below
	board      board
	listeners  int
	history    [][3]int64 // by update: calls, messages and bytes per second of all ranks
	inspection Inspection // the last one
	inspecting bool       // an inspection because of a stall is under way

	capturing sync.Mutex // held while a trace or a profile is made
	captured  *Captured  // the last one; nil: there is none
	closed    bool       // Close was called
	captures  int        // number of those that were made

	view // used by loop, and by End after loop has ended
}

// New returns the page of a job. name is the name of the job. hosts are names of this host that a browser
// may use, besides addresses and localhost. The caller must call End and, after that, Close.
func New(source Source, name string, hosts ...string) *Page {
	hosts = slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return h == "" })
	p := &Page{
		source: source, token: rand.Text(), folder: "/" + rand.Text()[:12] + "/", hosts: hosts, tick: time.Second, stallTime: 5 * time.Second,
		writeTime: 10 * time.Second, wake: make(chan struct{}, 1), board: newBoard(),
	}
	p.stopped, p.stop = context.WithCancel(context.Background())
	p.routes = http.StripPrefix(strings.TrimSuffix(p.folder, "/"), p.router(name))
	p.running.Go(p.loop) // ends when End is called, which waits for it
	return p
}

// Path returns the path and query with which a browser opens the page. It contains the token.
func (p *Page) Path() string { return p.folder + "?token=" + p.token }

// loop measures and publishes while a browser listens.
func (p *Page) loop() {
	for {
		if p.idle() {
			p.before = nil // the rates since then would be means over a long time
			p.mu.Lock()
			p.history = nil
			p.mu.Unlock()
			select {
			case <-p.wake:
			case <-p.stopped.Done():
				return
			}
			continue
		}
		begun := time.Now()
		peers := p.updates%matrixEvery == 1 && len(p.names) <= maxMatrix
		s := p.source.Snapshot(p.stopped, peers)
		if p.stopped.Err() != nil {
			return
		}
		p.update(s, peers)
		wait := p.tick * time.Duration(1+len(p.names)/ranksPerTick)
		select {
		case <-p.stopped.Done():
			return
		case <-time.After(max(wait-time.Since(begun), p.tick/10)):
		}
	}
}

// signal puts an element into a channel of capacity 1, if it is empty.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// idle reports whether no browser listens.
func (p *Page) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listeners == 0
}

// inspect finds out what the ranks do, and publishes the answer.
func (p *Page) inspect(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stopped, cancel)()
	found := p.source.Inspect(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	p.inspection = found
	p.board.put(kindReport, found)
}

// End makes the last events of the page: the last state of the job, and how it has ended. The browsers
// get them, and then their requests for events end; End does not wait for that. final is the last state;
// nil: the ranks have not been placed. text says how the job has ended.
func (p *Page) End(final *live.Snapshot, text string, failed bool) {
	p.stop()
	p.running.Wait()
	if final == nil {
		final = &live.Snapshot{}
	}
	final.Phase, final.At = "ended", time.Now()
	p.before, p.updates = nil, 1 // no rates
	p.update(final, false)
	p.mu.Lock()
	p.board.put(kindEnd, struct {
		Text   string `json:"text"`
		Failed bool   `json:"failed"`
	}{strings.ToValidUTF8(text, "?"), failed})
	p.board.over = true
	p.mu.Unlock()
}

// Close frees what the page holds. Requests that are still under way get errors.
func (p *Page) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(nil)
	p.closed = true
}
