package mpi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Connections between jobs (MPI 4.1 §11.9)
//
// The ranks of two communicators that connect become the ranks of a further job, with an engine and
// transports of its own, which the process has in addition to its own job:
//
//	job A                                                      job B
//	Listen: the root opens a port ─── address of the port ───► the program passes it to Dial
//	Accept: the root ◄── the roots exchange the numbers of ranks, and the address of a second port ──► Dial
//	        all ranks ──────────────► meet at the second port ◄────────────── all ranks
//	                                  wireup, engine, agreement on the identities of all
//	        intercommunicator                                  intercommunicator
//
// When the program has freed all communicators of a connection, the connection ends in the
// background. Finalize ends the remaining connections.

// parentPort is the key under which a process that Spawn has started finds the address of its
// parent's port.
const parentPort = "weft-parent"

// connectedID is the id of the intercommunicator of a new connection. sessionBit and partitionsBit
// are not set in it, and newID does not return it, because no job has 2^28 ranks.
const connectedID = 1<<60 - 1

// Port is the type behind comm.Port.
type Port struct {
	c    *Comm
	root int
	addr string
	port *bootstrap.Port // nil, except on the root
	file string          // the file by which the port is published; "": it is not
}

// shared is the result of a function that one rank runs for all ranks of a communicator.
type shared struct {
	Text  string `json:",omitempty"` // the result
	Error string `json:",omitempty"` // not empty: the function has failed
	Spawn bool   `json:",omitempty"` // it has failed with ErrSpawn, otherwise with ErrPort
	Gone  bool   `json:",omitempty"` // it has failed with a bootstrap.GoneError
}

// sharing are the calls that use share, with their kinds.
var sharing = map[string]coll.Kind{"Listen": calls.KindListen, "Accept": calls.KindAccept, "Dial": calls.KindDial, "Spawn": calls.KindSpawn}

// share runs f on the rank root, and returns its result on all ranks. share is collective, and part
// of the call with this name. If f returns an error, share returns an error on all ranks, and the
// communicator stays usable. The context of f ends if that of c ends, or if the communicator can no
// longer be used.
func (c *Comm) share(name string, root int, f func(ctx context.Context) (string, error)) (string, error) {
	l, err := c.begin(name)
	if err != nil {
		return "", err
	}
	if err = l.s.checkIntra(); err == nil {
		err = l.checkRoot(root)
	}
	if err != nil {
		return "", l.end(err)
	}
	l.sign(sharing[name], root, 0)
	l.recordCall() // this rank may wait long for the root
	var failed error
	var text []byte
	size := l.Scratch(8)
	if l.Rank() == root {
		var r shared
		ctx, stop := l.s.whileUsable(c.Context())
		r.Text, failed = f(ctx)
		cause := context.Cause(ctx)
		stop()
		if failed != nil && cause != nil && c.Context().Err() == nil {
			return "", l.end(cause) // c can no longer be used
		}
		if failed != nil {
			if !errors.Is(failed, ErrSpawn) && !errors.Is(failed, ErrPort) {
				failed = portError(failed)
			}
			r = shared{Error: failed.Error(), Spawn: errors.Is(failed, ErrSpawn), Gone: bootstrap.IsGone(failed)}
		}
		text, _ = json.Marshal(r) // texts have always a JSON form
		putUint64(size, uint64(len(text)))
	}
	l.what, l.root, l.recv = coll.KindBcast, root, size
	if err = l.perform(); err == nil {
		n := getUint64(size)
		if n > maxShared {
			return "", l.end(fmt.Errorf("%w: rank %d sent a result of %d bytes", ErrMismatch, root, n))
		}
		if text == nil {
			text = make([]byte, n)
		}
		l.recv = text
		err = l.perform()
	}
	if err = l.end(err); err != nil {
		return "", err
	}
	if failed != nil {
		return "", c.fail(name, noRank, noRank, failed)
	}
	var r shared
	if err := json.Unmarshal(text, &r); err != nil {
		return "", c.fail(name, noRank, noRank, err)
	}
	if r.Error != "" {
		kind := ErrPort
		if r.Spawn {
			kind = ErrSpawn
		}
		cause := errors.New(r.Error)
		if r.Gone {
			cause = bootstrap.Gone(r.Error)
		}
		return "", c.fail(name, noRank, noRank, fmt.Errorf("%w: on rank %d: %w", kind, root, cause))
	}
	return r.Text, nil
}

// whileUsable returns a context that ends if ctx ends, if the communicator is revoked, if one of
// its processes fails or is in Finalize, or if the job ends. stop ends it, too.
func (s *state) whileUsable(ctx context.Context) (usable context.Context, stop func()) {
	usable, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { // makes this rank notice failures; ends when the context or the engine has ended; stop waits for it
		for seen := s.job.eng.ChangeCount(); s.p2p.AwaitChange(usable, seen) == nil; {
			seen = s.job.eng.ChangeCount()
		}
	})
	watching.Go(func() { // ends when the context has ended; stop waits for it
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-usable.Done():
				return
			case <-tick.C:
			}
			err := s.coll.Usable()
			for r, gone := range s.job.eng.Absent(s.ranks) {
				if gone && err == nil {
					err = fmt.Errorf("%w: %s", ErrProcFailed, s.rankName(r))
				}
			}
			if err != nil {
				cancel(err)
			}
		}
	})
	return usable, func() {
		cancel(nil)
		watching.Wait()
	}
}

// maxShared is the maximum length of a result of share, in bytes.
const maxShared = 1 << 20

// Listen implements comm.Comm.Listen, which documents the call.
func (c *Comm) Listen(root int) (*Port, error) {
	p := &Port{c: c, root: root}
	addr, err := c.share("Listen", root, func(context.Context) (addr string, err error) {
		if p.port, err = bootstrap.OpenPort(2); err != nil {
			return "", err
		}
		return p.port.Addr(), nil
	})
	if err != nil {
		if p.port != nil {
			_ = p.port.Close()
		}
		return nil, err
	}
	p.addr = addr
	return p, nil
}

// Addr implements comm.Port.Addr, which documents the call.
func (p *Port) Addr() string {
	if p == nil {
		return ""
	}
	return p.addr
}

// Close implements comm.Port.Close, which documents the call.
func (p *Port) Close() error {
	if p == nil || p.port == nil {
		return nil
	}
	err := p.unpublish()
	return errors.Join(err, p.port.Close())
}

// Accept implements comm.Port.Accept, which documents the call.
func (p *Port) Accept(c *Comm) (*Comm, error) {
	const name = "Accept"
	if p == nil {
		return nil, c.revoked(name, fmt.Errorf("%w: the port is nil", ErrPort))
	}
	return c.accept(name, p, noLimit)
}

// side is the message from the root of one side of a connection to the other root.
type side struct {
	Ranks int    // number of ranks of its communicator
	Root  int    // rank of the root
	Port  string `json:",omitempty"` // address of the second port; only from the root that accepts
}

// connectPlan is the message from the root of a side to the ranks of its side.
type connectPlan struct {
	Port   string // the second port
	Accept side   // the side that has the first port
	Dial   side
}

// accept is the side of a connection that has the port. limit bounds the wait for the other side;
// noLimit: only the context of c bounds it.
func (c *Comm) accept(name string, p *Port, limit limit) (*Comm, error) {
	var second *bootstrap.Port
	var w *bootstrap.World // the roots' meeting; it ends after that of all ranks, which cannot succeed without both roots
	text, err := c.share(name, p.root, func(ctx context.Context) (string, error) {
		if p.port == nil {
			return "", fmt.Errorf("%w: rank %d has not opened it", ErrPort, p.root)
		}
		var err error
		if w, err = p.port.Meet(ctx, c.s.job.meeting(limit)); err != nil {
			return "", err
		}
		own := side{Ranks: c.Size(), Root: p.root}
		theirs, err := swap(ctx, w, "dial", "accept", own)
		if err != nil {
			return "", err
		}
		if second, err = bootstrap.OpenPort(own.Ranks + theirs.Ranks); err != nil {
			return "", err
		}
		own.Port = second.Addr()
		if _, err := swap(ctx, w, "dial2", "accept2", own); err != nil {
			return "", err
		}
		return encode(connectPlan{Port: own.Port, Accept: own, Dial: theirs})
	})
	if w != nil {
		defer w.KVS.Finalize() //nolint:errcheck // all ranks have met, or will never do
	}
	if second != nil {
		defer second.Close() //nolint:errcheck // all ranks have met there
	}
	if err != nil {
		return nil, err
	}
	return c.connect(name, text, true, second, w)
}

// Dial implements comm.Comm.Dial, which documents the call.
func (c *Comm) Dial(root int, addr string) (*Comm, error) {
	const name = "Dial"
	var w *bootstrap.World
	text, err := c.share(name, root, func(ctx context.Context) (string, error) {
		var err error
		if w, err = bootstrap.Join(ctx, addr, 1, c.s.job.meeting(timeLimit)); err != nil {
			return "", err
		}
		own := side{Ranks: c.Size(), Root: root}
		theirs, err := swap(ctx, w, "accept", "dial", own)
		if err == nil {
			theirs, err = swap(ctx, w, "accept2", "dial2", own)
		}
		if err != nil {
			return "", err
		}
		return encode(connectPlan{Port: theirs.Port, Accept: theirs, Dial: own})
	})
	if w != nil {
		defer w.KVS.Finalize() //nolint:errcheck // as in accept
	}
	if err != nil {
		return nil, err
	}
	return c.connect(name, text, false, nil, nil)
}

// swap sends the side own to the other root under the key put, and returns the side that the other
// root has sent under the key get.
func swap(ctx context.Context, w *bootstrap.World, get, put string, own side) (theirs side, err error) {
	text, err := encode(own)
	if err == nil {
		err = w.KVS.Put(put, text)
	}
	if err == nil {
		err = w.KVS.Fence(ctx)
	}
	if err == nil {
		text, err = w.KVS.Get(get)
	}
	if err != nil {
		return side{}, err
	}
	return parseSide(text)
}

// parseSide returns the side that a text describes, which comes from another job.
func parseSide(text string) (side, error) {
	var s side
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return side{}, fmt.Errorf("%w: the other side: %w", ErrPort, err)
	}
	if err := s.check(); err != nil {
		return side{}, err
	}
	return s, nil
}

func (s side) check() error {
	if s.Ranks < 1 || s.Ranks > maxSide || uint(s.Root) >= uint(s.Ranks) {
		return fmt.Errorf("%w: a side has the root %d of %d ranks", ErrPort, s.Root, s.Ranks)
	}
	return nil
}

// parsePlan returns the plan that a text describes. Its port is one at which all ranks of the two
// sides can meet.
func parsePlan(text string) (connectPlan, error) {
	var x connectPlan
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		return connectPlan{}, fmt.Errorf("%w: %w", ErrPort, err)
	}
	size, err := bootstrap.PortSize(x.Port)
	if err == nil {
		err = x.Accept.check()
	}
	if err == nil {
		err = x.Dial.check()
	}
	if err != nil {
		return connectPlan{}, err
	}
	if size != x.Accept.Ranks+x.Dial.Ranks {
		return connectPlan{}, fmt.Errorf("%w: a port for %d processes, and sides of %d and %d ranks", ErrPort, size, x.Accept.Ranks, x.Dial.Ranks)
	}
	return x, nil
}

// maxSide is the maximum number of ranks of a side of a connection.
const maxSide = 1 << 20

func encode(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

// limit says how long a process waits for others at a port.
type limit int

const (
	noLimit   limit = iota // until the context of the communicator ends
	timeLimit              // in addition, for the time of the tunable bootstrap.timeout
)

func (j *job) meeting(l limit) bootstrap.Meeting {
	m := bootstrap.Meeting{Own: j.home.world, Exit: func(code int, line string) {
		(&Comm{s: j.home.first}).abort(code, "a connected job was aborted by "+strings.TrimRight(line, " :"), true)
	}}
	if l == timeLimit {
		m.Limit = j.world.Params.Duration("bootstrap.timeout")
	}
	return m
}

// connect makes the connection that text, a connectPlan, describes, and returns its
// intercommunicator. accepts says that this side is the one that accepts. second is the second port,
// on the rank that has opened it, and roots the meeting of the roots there.
//
// In the connection, the ranks of the side that accepts come first. The root of that side has rank
// 0, because it has opened the port, and the others follow in their order, modulo their number.
func (c *Comm) connect(name, text string, accepts bool, second *bootstrap.Port, roots *bootstrap.World) (*Comm, error) {
	x, err := parsePlan(text)
	if err != nil {
		return nil, c.fail(name, noRank, noRank, err)
	}
	accepting, dialing := make([]int, x.Accept.Ranks), make([]int, x.Dial.Ranks)
	for i := range accepting {
		accepting[i] = (i - x.Accept.Root + x.Accept.Ranks) % x.Accept.Ranks
	}
	for i := range dialing {
		dialing[i] = x.Accept.Ranks + i
	}
	local, remote := accepting, dialing
	if !accepts {
		local, remote = dialing, accepting
	}
	if len(local) != c.Size() {
		return nil, c.fail(name, noRank, noRank, fmt.Errorf("%w: a side of %d ranks in a communicator of %d", ErrMismatch, len(local), c.Size()))
	}
	n, err := c.join(x.Port, local[c.Rank()], second, roots)
	if err != nil {
		return nil, c.fail(name, noRank, noRank, fmt.Errorf("%w: %w", ErrPort, err))
	}
	own := interState(n.groupOf(local), n.groupOf(remote), accepts)
	return &Comm{s: n.addState(own, connectedID), ctx: c.ctx}, nil
}

// join meets the other ranks of a connection at a port, and returns the job of the connection. It
// fails if a process of c fails before that, because that process might not come.
func (c *Comm) join(addr string, rank int, port *bootstrap.Port, roots *bootstrap.World) (*job, error) {
	ctx, stop := c.s.whileUsable(c.Context())
	j, err := c.joinUntil(ctx, addr, rank, port, roots)
	if err != nil && ctx.Err() != nil && c.Context().Err() == nil {
		err = context.Cause(ctx) // says more than that the context has ended
	}
	stop()
	return j, err
}

func (c *Comm) joinUntil(ctx context.Context, addr string, rank int, port *bootstrap.Port, roots *bootstrap.World) (*job, error) {
	home := c.s.job.home
	var w *bootstrap.World
	var err error
	if m := home.meeting(timeLimit); port != nil {
		m.With = roots
		w, err = port.Meet(ctx, m)
	} else {
		w, err = bootstrap.Join(ctx, addr, rank, m)
	}
	if err != nil {
		return nil, err
	}
	ids, err := home.exchangeIdentities(ctx, w)
	if err != nil {
		_ = w.KVS.Finalize()
		return nil, err
	}
	world, err := start(ctx, &Setup{World: w, Exit: home.exit, Engine: home.onEngine, home: home, identities: ids})
	if err != nil {
		_ = w.KVS.Finalize()
		return nil, err
	}
	j := world.s.job
	home.connections.add(j)
	return j, nil
}

// exchangeIdentities returns the identities of the ranks of a connection, by rank.
func (j *job) exchangeIdentities(ctx context.Context, w *bootstrap.World) ([]identity, error) {
	key := func(rank int) string { return "weft-process-" + strconv.Itoa(rank) }
	own := j.procs.self
	if err := w.KVS.Put(key(w.Rank), own.text()); err != nil {
		return nil, err
	}
	if err := w.KVS.Fence(ctx); err != nil {
		return nil, err
	}
	ids, seen := make([]identity, w.Size), make(map[identity]bool, w.Size)
	for rank := range ids {
		text, err := w.KVS.Get(key(rank))
		if err != nil {
			return nil, err
		}
		if ids[rank], err = j.procs.parse(text); err != nil {
			return nil, fmt.Errorf("%w: rank %d of the connection: %w", ErrPort, rank, err)
		}
		if seen[ids[rank]] {
			return nil, fmt.Errorf("%w: both sides have process %s", ErrGroup, text)
		}
		seen[ids[rank]] = true
	}
	return ids, nil
}
