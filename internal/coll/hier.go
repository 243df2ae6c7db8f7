package coll

// Two levels
//
// Idea: where some ranks share memory and others do not, the ranks of each host
// work together in shared memory, and one rank of each, its speaker, does the
// call with the other hosts' by messages. So each host sends and receives
// everything once.
//
//	host 0   0 1 2 3          within the hosts
//	         │
//	         0 ─── 4          speakers, by messages
//	               │
//	host 1         4 5 6 7    within the hosts
//
// Where a call has a root it speaks for its host; otherwise the lowest rank
// does.
//
// Cost: that of the algorithms within a host and, for as many ranks as there
// are hosts, between them.
// Source: Karonis et al., IPDPS 2000; Graham et al., EuroMPI 2011.
// Restrictions: the ranks of each host follow each other, or operands commute
// and nothing is in the order of ranks. A rank alone on its host takes part.

// speakers is the link of the ranks that speak for their hosts: its ranks are
// the hosts.
type speakers struct {
	Link
	reps []int // by host: the rank that speaks for it
	host int   // this rank's
}

var _ Link = (*speakers)(nil)

func (s *speakers) Rank() int { return s.host }
func (s *speakers) Size() int { return len(s.reps) }

func (s *speakers) Send(buf []byte, dest int) error   { return s.Link.Send(buf, s.reps[dest]) }
func (s *speakers) Recv(buf []byte, source int) error { return s.Link.Recv(buf, s.reps[source]) }

func (s *speakers) Sendrecv(send []byte, dest int, recv []byte, source int) error {
	return s.Link.Sendrecv(send, s.reps[dest], recv, s.reps[source])
}

func (s *speakers) Isend(buf []byte, dest int) Ticket   { return s.Link.Isend(buf, s.reps[dest]) }
func (s *speakers) Irecv(buf []byte, source int) Ticket { return s.Link.Irecv(buf, s.reps[source]) }

// among readies the link of the speakers, where root, if it is a rank, is one.
// It answers nil on ranks that do not speak, and the speaker's rank within
// this rank's host.
func (h *Host) among(l Link, root int) (s *speakers, speaker int) {
	copy(h.reps, h.leaders)
	host := h.of[l.Rank()]
	if root >= 0 {
		h.reps[h.of[root]] = root
		if h.of[root] == host {
			speaker = h.local(root)
		}
	}
	if h.Rank != speaker {
		return nil, speaker
	}
	h.speakers = speakers{l, h.reps, host}
	return &h.speakers, speaker
}

// local is the rank within its host of a rank of the communicator.
func (h *Host) local(rank int) int {
	n := 0
	for r := range rank {
		if h.of[r] == h.of[rank] {
			n++
		}
	}
	return n
}

// init fills the tables where they would otherwise depend on themselves: these
// algorithms choose others for the speakers.
func init() {
	barriers[barrierByHosts].run = barrierHier
	bcasts[bcastByHosts].run = bcastHier
	reduces[reduceByHosts].run = reduceHier
	allreduces[allreduceByHosts].run = allreduceHier
	gathers[gatherByHosts].run = gatherHier
	scatters[scatterByHosts].run = scatterHier
	allgathers[allgatherByHosts].run = allgatherHier
}

// barrierHier is over for a rank when its speaker says, in the same call, that
// all hosts are there.
func barrierHier(l Link, cfg *Config) error {
	h := enter(l)
	s, speaker := h.among(l, nobody)
	if err := h.arrive(); err != nil {
		return err
	}
	if s == nil {
		if err := h.meet(speaker); err != nil {
			return err
		}
		if err := h.await(speaker, &h.peers[speaker].put.word, h.step(1)); err != nil {
			return err
		}
	} else {
		if err := h.meetAll(); err != nil {
			return err
		}
		if err := Barrier(s, cfg); err != nil {
			return err
		}
		h.say(&h.own().put.word, h.step(1))
	}
	h.known = h.call
	return nil
}

func bcastHier(l Link, cfg *Config, buf []byte, root int) error {
	h := enter(l)
	s, speaker := h.among(l, root)
	if s != nil {
		if err := Bcast(s, cfg, buf, h.of[root]); err != nil {
			return err
		}
	}
	return h.Bcast(buf, speaker)
}

func reduceHier(l Link, cfg *Config, send, recv []byte, op Op, root int) error {
	h := enter(l)
	s, speaker := h.among(l, root)
	if s == nil {
		return h.Reduce(cfg, send, nil, op, speaker)
	}
	if l.Rank() != root {
		recv = l.Scratch(len(send))
	}
	if err := h.Reduce(cfg, send, recv, op, speaker); err != nil {
		return err
	}
	return Reduce(s, cfg, recv, recv, op, h.of[root])
}

func allreduceHier(l Link, cfg *Config, send, recv []byte, op Op) error {
	h := enter(l)
	s, speaker := h.among(l, nobody)
	if err := h.Reduce(cfg, send, recv, op, speaker); err != nil {
		return err
	}
	if s != nil {
		if err := Allreduce(s, cfg, recv, recv, op); err != nil {
			return err
		}
	}
	h.next()
	return h.Bcast(recv, speaker)
}

// ofHost is where the equal blocks of a host's ranks, which follow each other,
// begin, and how long they are together; of is that host's number.
func (h *Host) ofHost(b blocks, of int) (at, n int) {
	end := len(h.of)
	if of+1 < len(h.leaders) {
		end = h.leaders[of+1]
	}
	return b.off(h.leaders[of]), b.off(end) - b.off(h.leaders[of])
}

// byHost is b with a block per host, in scratch memory.
func (h *Host) byHost(l Link, b blocks) blocks {
	all := blocks{counts: scratchInts(l, h.Hosts()), displs: scratchInts(l, h.Hosts())}
	for i := range all.counts {
		all.displs[i], all.counts[i] = h.ofHost(b, i)
	}
	return all
}

func allgatherHier(l Link, cfg *Config, _, recv []byte, b blocks) error {
	h := enter(l)
	s, speaker := h.among(l, nobody)
	at, n := h.ofHost(b, h.of[l.Rank()])
	mine := recv[at : at+n]
	if err := h.gather(b.of(recv, l.Rank()), mine, b, speaker); err != nil {
		return err
	}
	if s != nil {
		all := h.byHost(l, b)
		if err := Allgatherv(s, cfg, mine, recv, all.counts, all.displs); err != nil {
			return err
		}
	}
	h.next()
	return h.Bcast(recv, speaker)
}

func gatherHier(l Link, cfg *Config, send, recv []byte, b blocks, root int) error {
	h := enter(l)
	s, speaker := h.among(l, root)
	if s == nil {
		return h.gather(send, nil, b, speaker)
	}
	at, n := h.ofHost(b, h.of[l.Rank()])
	if l.Rank() != root {
		mine := l.Scratch(n)
		if err := h.gather(send, mine, b, speaker); err != nil {
			return err
		}
		return Gatherv(s, cfg, mine, nil, nil, nil, h.of[root])
	}
	mine, all := recv[at:at+n], h.byHost(l, b)
	if err := h.gather(send, mine, b, speaker); err != nil {
		return err
	}
	return Gatherv(s, cfg, mine, recv, all.counts, all.displs, h.of[root])
}

func scatterHier(l Link, cfg *Config, send, recv []byte, b blocks, root int) error {
	h := enter(l)
	s, speaker := h.among(l, root)
	if s == nil {
		return h.scatter(nil, recv, b, speaker)
	}
	at, n := h.ofHost(b, h.of[l.Rank()])
	if l.Rank() != root {
		mine := l.Scratch(n)
		if err := Scatterv(s, cfg, nil, nil, nil, mine, h.of[root]); err != nil {
			return err
		}
		return h.scatter(mine, recv, b, speaker)
	}
	mine, all := send[at:at+n], h.byHost(l, b)
	if err := Scatterv(s, cfg, send, all.counts, all.displs, mine, h.of[root]); err != nil {
		return err
	}
	return h.scatter(mine, recv, b, speaker)
}
