package coll

// Short calls in two halves
//
// A short call has one round: each rank publishes its part together with its arrival, waits for the
// arrivals of the other ranks, and reads what they have published. Publish does the first half, and
// Finish does the second. Between the two halves, the other ranks need nothing from this rank. So a
// persistent collective can start without a wait, and needs no goroutine that continues it.

// ShortCall describes a collective for Publish, Ready and Finish: its kind, and the arguments of
// the method of Host for this kind. Of an exchange between neighbours only Neighbors is set.
type ShortCall struct {
	What       Kind
	Send, Recv []byte // Bcast uses Recv only
	Op         Op
	Root       int
	Config     *Config
	Neighbors  *NeighborCall
}

// isShort reports whether the call has one round.
func (h *Host) isShort(c *ShortCall) bool {
	switch c.What {
	case KindBarrier:
		return h.Size <= c.Config.SharedRanks
	case KindBcast:
		return len(c.Recv) <= h.splitDataBuffers(manySegments, 1)
	case KindAllreduce:
		return h.isShortAllreduce(c.Config, len(c.Send), c.Op)
	case KindAllgather:
		return len(c.Recv)/h.Size <= h.dataBufferBytes/2
	default:
		return false
	}
}

// Publish starts a short call, as Enter and the method of Host do, and does its first half. If the
// call is not short or would have to wait, Publish does nothing and returns false, and the caller
// calls Enter and the method instead. If Publish returns true, the caller then calls
// [Host.TakePendingWake].
//
// Hot path: no allocation, no wait.
func (h *Host) Publish(l HostLink, c *ShortCall) (bool, error) {
	if n := c.Neighbors; n != nil {
		if n.Messages || !h.startsAtOnce(n) {
			return false, nil
		}
		return true, h.StartNeighbors(l, n)
	}
	if !h.isShort(c) || !h.othersHaveArrived() {
		return false, nil
	}
	h.Enter(l, l.Sig())
	switch {
	case c.What == KindBarrier, c.What == KindBcast && h.Rank != c.Root:
		return true, h.arrive()
	case c.What == KindBcast:
		return true, h.publishData(c.Recv)
	case c.What == KindAllgather:
		b := blocks{equal: len(c.Recv) / h.Size}
		own := b.of(c.Recv, h.Rank)
		move(own, ownBlock(c.Send, c.Recv, b, h.Rank))
		return true, h.publishData(own)
	default:
		return true, h.publishData(c.Send)
	}
}

// Ready reports whether Finish can complete the call without a wait.
func (h *Host) Ready(c *ShortCall) bool {
	if c.Neighbors != nil {
		return h.haveSourcesArrived(c.Neighbors)
	}
	if c.What == KindBcast {
		return h.Rank == c.Root || h.hasArrived(c.Root, h.call)
	}
	for i := 1; i < h.Size; i++ {
		if !h.hasArrived(h.after(i), h.call) {
			return false
		}
	}
	return true
}

// Finish does the second half of a call that Publish has started.
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) Finish(c *ShortCall) error {
	if c.Neighbors != nil {
		return h.FinishNeighbors(c.Neighbors)
	}
	switch c.What {
	case KindBcast:
		return h.finishBcast(c.Recv, c.Root)
	case KindAllreduce:
		return h.finishAllreduce(c.Send, c.Recv, c.Op)
	case KindAllgather:
		return h.finishAllgather(c.Recv, blocks{equal: len(c.Recv) / h.Size})
	default:
		return h.awaitAllArrivals()
	}
}

// othersHaveArrived reports whether this rank knows, without a wait, that all ranks have arrived at
// the last call and have made the same calls.
func (h *Host) othersHaveArrived() bool {
	if h.arrivedAll == h.call {
		return true
	}
	own := h.own().lines[h.call%ringLines].word.Load()
	for i := 1; i < h.Size; i++ {
		if r := h.after(i); !h.hasArrived(r, h.call) || h.peers[r].lines[h.call%ringLines].word.Load() != own {
			return false
		}
	}
	h.arrivedAll = h.call
	return true
}

// hasArrived reports whether a rank has arrived at the call with this number, or at a later call.
func (h *Host) hasArrived(rank int, call uint64) bool {
	return int64(h.peers[rank].lines[call%ringLines].word.Load()-call<<16) >= 0
}
