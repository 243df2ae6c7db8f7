// Package arena makes the shared memory that the collectives of a communicator use, and keeps it
// for later communicators of the same processes.
package arena

import (
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// Arena is the shared memory through which the ranks of a host exchange data in the collectives of
// a communicator, as one of these ranks sees it. Each rank allocates one part, which the other
// ranks of its host map.
//
// The first collective that may use an arena makes it. Each rank allocates its part and sends to
// all ranks the key of this part and the set of ranks that it shares memory with. Then each rank
// maps the parts of the other ranks of its host, and tells all ranks whether it could. So all ranks
// have the same information, and either all of them have an arena or none has.
//
// When all ranks have freed the communicator, each puts the arena into its [Pool]. On a
// communicator that was revoked or that has lost a rank, no rank knows whether another rank still
// reads the arena, so the arena stays until Finalize.
type Arena struct {
	id      uint64     // of the communicator that made it; unique in the job
	ranks   []int      // world ranks of that communicator
	Host    *coll.Host // runs the algorithms of package coll in this memory
	Members []int      // by rank within the host: rank in the communicator
	views   [][]byte   // the parts of other ranks of the host, which this rank has mapped
	// own is the region of this rank's part. It is nil if the part is not in shared memory, or if
	// this rank has no part.
	own transport.MemoryRegion
	// UpTo holds, by kind of call, the largest count in bytes for which the call runs wholly in
	// shared memory; -1: none. See coll.SharedUpTo.
	UpTo [coll.KindExscan + 1]int
}

// None stands for the arena of a communicator that never has one.
var None = new(Arena)

// Comm is a communicator that needs an arena.
type Comm struct {
	ID      uint64          // unique in the job
	Ranks   []int           // world ranks
	Context *engine.Context // carries the messages of its collectives
	Config  *coll.Config    // tunables of collectives; the same on all ranks
}

// info is what each rank sends to all ranks about its part of an arena. Numbers of ranks are those
// of the communicator.
type info struct {
	Lowest int64  // the lowest rank of those that the sender shares memory with, and of the sender itself
	Ranks  int64  // number of these ranks
	Has    int64  // 1: the sender has allocated its part; 0: it could not
	Key    uint64 // key by which the other ranks map the sender's part
}

// Make returns an arena for the communicator c: one of the pool, or a new one. It returns None if
// no two ranks share memory, if the ranks do not agree on which of them do, or if any rank cannot
// allocate its part or map another one. All ranks of the communicator call Make in the same
// collective, and l sends that collective's messages. Make blocks until the other ranks have called
// it.
func (p *Pool) Make(l coll.Link, c Comm) (*Arena, error) {
	if a, err := p.adopt(l, &c); a != nil || err != nil {
		return a, err
	}
	rank := l.Rank()
	a := &Arena{id: c.ID, ranks: c.Ranks}
	for r := range l.Size() {
		if r == rank || c.Context.SharesMemory(r) {
			a.Members = append(a.Members, r)
		}
	}
	total := c.Config.SharedBytes
	own := info{Lowest: int64(a.Members[0]), Ranks: int64(len(a.Members))}
	var mem []byte
	if n := coll.ArenaBytes(total, len(a.Members)); len(a.Members) == 1 {
		mem, own.Has = elem.AlignedBytes(n), 1
	} else if m, mr, err := c.Context.AllocShared(n); err == nil {
		mem, a.own = m, mr
		own.Has, own.Key = 1, mr.Key()
	}
	infos := make([]info, l.Size())
	infos[rank] = own
	if err := exchange(l, elem.Bytes(infos[rank:rank+1]), elem.Bytes(infos)); err != nil {
		return nil, err
	}
	lowest, ok := groupByHost(infos)
	if !ok {
		a.release(c.Context)
		return None, nil
	}
	shape := coll.NewShape(lowest)
	err := a.connect(&c, rank, shape, infos, mem)
	good := make([]byte, l.Size())
	if err == nil {
		good[rank] = 1
	}
	if err := exchange(l, good[rank:rank+1], good); err != nil {
		return nil, err
	}
	for _, g := range good {
		if g == 0 {
			a.release(c.Context)
			return None, nil
		}
	}
	for k := range a.UpTo {
		a.UpTo[k] = coll.SharedUpTo(c.Config, a.Host, coll.Kind(k))
	}
	return a, nil
}

// exchange is an allgather by messages: it sends own to all ranks, and stores what each rank sends
// in all, by rank.
func exchange(l coll.Link, own, all []byte) error { return coll.Allgather(l, nil, own, all) }

// groupByHost returns for each rank the lowest rank that it shares memory with. ok is true if the
// ranks agree on which ranks share memory, all ranks have their part of the arena, and at least
// two ranks share memory.
func groupByHost(infos []info) (lowest []int, ok bool) {
	lowest = make([]int, len(infos))
	ranks := make([]int64, len(infos)) // number of ranks of each host, by the lowest rank of the host
	for r, c := range infos {
		if c.Has == 0 || c.Lowest < 0 || c.Lowest > int64(r) {
			return nil, false
		}
		lowest[r] = int(c.Lowest)
		ranks[c.Lowest]++
	}
	for r, c := range infos {
		if c.Ranks != ranks[lowest[r]] || lowest[lowest[r]] != lowest[r] {
			return nil, false
		}
		ok = ok || c.Ranks > 1
	}
	return lowest, ok
}

// connect maps the parts of the other ranks of this host and sets a.Host. rank is this rank, and
// mem is its own part.
func (a *Arena) connect(c *Comm, rank int, shape coll.Shape, infos []info, mem []byte) error {
	arenas := make([][]byte, len(a.Members))
	for i, r := range a.Members {
		arenas[i] = mem
		if r == rank {
			continue
		}
		view, err := c.Context.MapShared(r, infos[r].Key)
		if err != nil {
			return err
		}
		a.views = append(a.views, view)
		arenas[i] = view
	}
	var err error
	a.Host, err = coll.NewHost(shape, rank, arenas, c.Config.SharedBytes)
	return err
}

// release unmaps the parts of other ranks and frees this rank's part. ctx may be a context of any
// communicator. The caller makes sure that no rank uses the arena any more.
func (a *Arena) release(ctx *engine.Context) {
	// If one of these calls fails, memory stays allocated, and there is nothing else to do.
	for _, v := range a.views {
		_ = ctx.UnmapShared(v)
	}
	if a.own != nil {
		_ = ctx.FreeShared(a.own)
	}
}
