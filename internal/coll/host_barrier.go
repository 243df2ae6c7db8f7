package coll

// Barrier by flags.
//
// Idea: every rank stores its arrival and looks at all others': one line to
// move per pair, and no order in which ranks must run. With many ranks that is
// more lines than the log₂ P rounds of a dissemination, in which a rank waits
// for the one 2^k below it and shows its own progress to the one above.
//
// On a core for several ranks each round has all of them run, so one it is up to
// many ranks.
//
// Cost: one line and P-1 looks; beyond SharedRanks log₂ P lines, one after the other.
// Source: Mellor-Crummey and Scott, ACM TOCS 9(1), 1991; MPI-4.1 section 6.3.
// Restrictions: all ranks share memory.
func barrierShared(l Link, cfg *Config) error { return enter(l).Barrier(cfg) }

// Barrier is the barrier within the host, after Enter.
//
// Hot path: no allocation, no lock and no system call where ranks are not late.
func (h *Host) Barrier(cfg *Config) error {
	if err := h.arrive(); err != nil {
		return err
	}
	if h.Size <= cfg.SharedRanks {
		return h.meetAll()
	}
	for s, d := 1, 1; d < h.Size; s, d = s+1, 2*d {
		below := mod(h.Rank-d, h.Size)
		h.say(&h.own().put.word, h.step(s))
		if err := h.meet(below); err != nil {
			return err
		}
		if err := h.await(below, &h.peers[below].put.word, h.step(s)); err != nil {
			return err
		}
	}
	h.known = h.call
	return nil
}
