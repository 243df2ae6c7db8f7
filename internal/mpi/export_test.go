package mpi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"runtime"
	"testing"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/arena"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
	"github.com/weft-hpc/weft/internal/mpi/calls"
	"github.com/weft-hpc/weft/internal/mpi/inspect"
	"github.com/weft-hpc/weft/internal/mpi/stack"
	"github.com/weft-hpc/weft/internal/wire"
)

// OpenWindow does only the first step of NewWin: it calls openWindow and drops the window.
func OpenWindow[T any](c *Comm, n int) error {
	l, err := c.begin("NewWin")
	if err != nil {
		return err
	}
	return l.openWindow(&Win{elem: elem.Of[T](), flavor: FlavorAllocated}, n, math.MaxUint64)
}

// ProgramLine exports stack.ProgramLine for tests.
func ProgramLine() string { return stack.ProgramLine() }

// Guard exports guard for tests.
func Guard(c *Comm, run func(c *Comm) error) { guard(c, run) }

// IsConsequence exports isConsequence for tests.
func IsConsequence(err error) bool { return isConsequence(err) }

// Parts returns the number of transfers that u waits for.
func Parts(u *Unfinished) int { return len(u.parts) }

// Contradict sends a query (see calls.Query) of n calls to a rank of c. Each call differs from the
// first collective of c. The message has another type signature than queries have. Contradict
// blocks until the rank has received it.
func Contradict(c *Comm, rank, n int) error {
	k := calls.Call{What: coll.KindBcast}
	q := binary.LittleEndian.AppendUint64(nil, c.s.id)
	for range n {
		for _, w := range calls.NewRecord(1, k.Fingerprint(), &k) {
			q = binary.LittleEndian.AppendUint64(q, w)
		}
	}
	r := c.s.job.final.p2p.Isend(q, engine.Env{Peer: c.s.group.ranks[rank], Sig: 7, Mode: engine.Synchronous})
	_, err := r.Wait(c.ctx)
	return err
}

// QueryCalls exports calls.QueryCalls for tests.
const QueryCalls = calls.QueryCalls

// InFinalize reports whether the rank that c belongs to has called Finalize.
func InFinalize(c *Comm) bool { return c.s.job.ending.Load() }

// Queued returns the number of collectives of c that wait for the slot on this rank.
func Queued(c *Comm) int { return int(c.s.queued.Load()) }

// Pending returns the names of the calls whose operations are pending in the rank's checker of
// buffers.
func Pending(c *Comm) []string { return c.s.check.Pending() }

// MinSweep exports bufcheck.MinSweep for tests.
const MinSweep = bufcheck.MinSweep

// Refused returns the number of refused requests that the program has not waited for, and how many
// of them refusals.few holds.
func Refused(c *Comm) (n, kept int) {
	n, few := c.s.job.refusals.unreported()
	return n, len(few)
}

// PoolSize exports arena.PoolSize for tests.
const PoolSize = arena.PoolSize

// Idle returns the number of arenas in this rank's pool.
func Idle(c *Comm) int { return c.s.job.arenas.Idle() }

// LoseInFinalize blocks until this rank is in Finalize, and then makes its engine regard the rank
// world of the world as failed.
func LoseInFinalize(c *Comm, world int) {
	for !c.s.job.agreements.Leaving() {
		runtime.Gosched()
	}
	c.s.job.eng.MarkFailed("the test says so", world)
}

// LoseArenas releases the arenas in this rank's pool.
func LoseArenas(c *Comm) { c.s.job.arenas.Lose(c.s.coll) }

// Reported passes a rank a report of the launcher that ranks of the job with an id have failed.
func Reported(c *Comm, job string, ranks []int, reason string) {
	c.s.job.home.reported(job, ranks, reason)
}

// Inspect returns a channel on which a goroutine sends the state that this rank would report to
// gorun now.
func Inspect(c *Comm) <-chan *wire.RankState {
	var in inspect.Inspector
	in.Attach(c.s.job.inspected())
	answer := make(chan *wire.RankState, 1)
	go func() { // ends when it has sent the state; the channel has room for it
		_, _, body, _, _, err := wire.ParseInspect(in.Answer(1, 0))
		var s wire.RankState
		if err == nil {
			err = json.Unmarshal(body, &s)
		}
		if err != nil {
			panic(err)
		}
		answer <- &s
	}()
	return answer
}

// Leftover exports state.leftover, a check of Finalize and Free, for tests.
func Leftover(c *Comm) error { return c.s.leftover() }

// SendDecision acts as the coordinator for the first vote that arrives: it sends a decision to the
// sender of that vote only. The decision contains what the vote contains, and that this process has
// failed.
func SendDecision(c *Comm) error {
	for {
		m, st, err := c.s.job.agreeSpace.Attend(c.ctx, c.s.job.eng.ChangeCount(), false)
		if err != nil {
			return err
		}
		if m.IsZero() {
			continue
		}
		buf := make([]byte, st.Bytes)
		if _, err := m.Recv(context.Background(), buf); err != nil {
			return err
		}
		buf[0] = 2 // see agree/message.go: a decision
		buf[36+c.s.rank/8] |= 1 << (c.s.rank % 8)
		c.s.job.agreeSpace.Isend(buf, engine.Env{Peer: st.Source}).Abandon()
		return nil
	}
}

// LookForStalls does the work of the stall detector until stop is closed, without pauses.
func LookForStalls(c *Comm, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
			c.s.job.queryStalled()
			runtime.Gosched()
		}
	}
}

// DialShared does the first step of Dial on a rank that is not the root: it gets the address at which
// all ranks meet.
func DialShared(c *Comm, root int) error {
	_, err := c.share("Dial", root, nil)
	return err
}

// DialRoots does the first step of Dial on the root: it meets the other root, and leaves.
func DialRoots(c *Comm, addr string) error {
	ctx := c.Context()
	w, err := bootstrap.Join(ctx, addr, 1, c.s.job.meeting(timeLimit))
	if err != nil {
		return err
	}
	own := side{Ranks: 1}
	if _, err := swap(ctx, w, "accept", "dial", own); err != nil {
		return err
	}
	if _, err := swap(ctx, w, "accept2", "dial2", own); err != nil {
		return err
	}
	return w.KVS.Finalize()
}

// SetMemory makes memory return n until the test ends.
func SetMemory(t testing.TB, n int) {
	before := memory
	memory = func() int { return n }
	t.Cleanup(func() { memory = before })
}
