package coll

// Barrier by flags.
//
// Idea: up to Config.SharedRanks ranks, every rank stores its arrival and reads the arrivals of
// all others. That moves one cache line per pair of ranks, and the ranks may run in any order.
// More ranks use dissemination, which moves fewer lines: in round k a rank publishes its progress
// to the rank 2^k above it and waits for the rank 2^k below it, modulo P.
//
// If ranks share a core, all of them must run once per round, so the single round is better up to
// many ranks.
//
// Cost: one round of P-1 reads; with dissemination ⌈log₂ P⌉ rounds of about two reads.
// Source: Mellor-Crummey and Scott, ACM TOCS 9(1), 1991; MPI-4.1 section 6.3.
// Restrictions: all ranks share memory.
func barrierShared(l Link, cfg *Config) error { return enter(l).Barrier(cfg) }

// Barrier blocks until all ranks of the host have called it. The caller has called [Host.Enter].
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) Barrier(cfg *Config) error {
	if err := h.arrive(); err != nil {
		return err
	}
	if h.Size <= cfg.SharedRanks {
		return h.awaitAllArrivals()
	}
	for s, d := 1, 1; d < h.Size; s, d = s+1, 2*d {
		below := mod(h.Rank-d, h.Size)
		h.publish(&h.own().written.word, h.step(s))
		if err := h.awaitArrival(below); err != nil {
			return err
		}
		if err := h.await(below, &h.peers[below].written.word, h.step(s)); err != nil {
			return err
		}
	}
	h.arrivedAll = h.call
	return nil
}
