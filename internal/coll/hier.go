package coll

// Hierarchical algorithms: within hosts and between them
//
// Idea: the ranks of each host do their part of the call in shared memory. One rank of each host,
// the leader, does the same call with the leaders of the other hosts by messages. So only one rank
// of each host uses the network.
//
//	host 0   0 1 2 3          within the hosts
//	         │
//	         0 ─── 4          leaders, by messages
//	               │
//	host 1         4 5 6 7    within the hosts
//
// If the call has a root, the root is the leader of its host. Other hosts, and all hosts in calls
// without a root, have their lowest rank as the leader.
//
// Cost: that of the algorithms within a host, plus that of the algorithms between as many ranks as
// there are hosts.
// Source: Karonis et al., IPDPS 2000; Graham et al., EuroMPI 2011.
// Restrictions: if the result depends on the order of ranks (blocks in rank order, or operations
// that do not commute), the ranks of each host are consecutive. A host may have a single rank.

// leaderLink is the Link of a leader to the leaders of the other hosts. Its ranks are the host
// numbers.
type leaderLink struct {
	Link
	leaders []int // by host number: the leader's rank in the communicator
	host    int   // the number of this rank's host
}

var _ Link = (*leaderLink)(nil)

func (s *leaderLink) Rank() int { return s.host }
func (s *leaderLink) Size() int { return len(s.leaders) }

func (s *leaderLink) Send(buf []byte, dest int) error   { return s.Link.Send(buf, s.leaders[dest]) }
func (s *leaderLink) Recv(buf []byte, source int) error { return s.Link.Recv(buf, s.leaders[source]) }

func (s *leaderLink) Sendrecv(send []byte, dest int, recv []byte, source int) error {
	return s.Link.Sendrecv(send, s.leaders[dest], recv, s.leaders[source])
}

func (s *leaderLink) Isend(buf []byte, dest int) Ticket { return s.Link.Isend(buf, s.leaders[dest]) }
func (s *leaderLink) Irecv(buf []byte, source int) Ticket {
	return s.Link.Irecv(buf, s.leaders[source])
}

// leaderLinkOf determines the leaders of a call. root is the root's rank in the communicator, or
// noRank. leaderLinkOf returns the link to the other leaders (nil if this rank is not a leader), and
// the leader of this rank's host, as a rank within the host.
func (h *Host) leaderLinkOf(l Link, root int) (s *leaderLink, leader int) {
	copy(h.leaders, h.lowest)
	host := h.of[l.Rank()]
	if root >= 0 {
		h.leaders[h.of[root]] = root
		if h.of[root] == host {
			leader = h.local(root)
		}
	}
	if h.Rank != leader {
		return nil, leader
	}
	h.leaderLink = leaderLink{l, h.leaders, host}
	return &h.leaderLink, leader
}

// local returns the rank within its host that the given rank of the communicator has.
func (h *Host) local(rank int) int {
	n := 0
	for r := range rank {
		if h.of[r] == h.of[rank] {
			n++
		}
	}
	return n
}

// init sets these entries of the tables here, because the compiler rejects a table whose
// initialization refers to itself: these functions use the tables for the calls of the leaders.
func init() {
	barriers[barrierByHosts].run = barrierHier
	bcasts[bcastByHosts].run = bcastHier
	reduces[reduceByHosts].run = reduceHier
	allreduces[allreduceByHosts].run = allreduceHier
	gathers[gatherByHosts].run = gatherHier
	scatters[scatterByHosts].run = scatterHier
	allgathers[allgatherByHosts].run = allgatherHier
}

// barrierHier blocks a leader until all ranks of its host and then all other leaders have arrived.
// Then the leader publishes step 1 in the word "written" of its arena. The other ranks of its host
// wait for that.
func barrierHier(l Link, cfg *Config) error {
	h := enter(l)
	s, leader := h.leaderLinkOf(l, noRank)
	if err := h.arrive(); err != nil {
		return err
	}
	if s == nil {
		if err := h.awaitArrival(leader); err != nil {
			return err
		}
		if err := h.await(leader, &h.peers[leader].written.word, h.step(1)); err != nil {
			return err
		}
	} else {
		if err := h.awaitAllArrivals(); err != nil {
			return err
		}
		if err := Barrier(s, cfg); err != nil {
			return err
		}
		h.publish(&h.own().written.word, h.step(1))
	}
	h.arrivedAll = h.call
	return nil
}

func bcastHier(l Link, cfg *Config, buf []byte, root int) error {
	h := enter(l)
	s, leader := h.leaderLinkOf(l, root)
	if s != nil {
		if err := Bcast(s, cfg, buf, h.of[root]); err != nil {
			return err
		}
	}
	return h.Bcast(buf, leader)
}

func reduceHier(l Link, cfg *Config, send, recv []byte, op Op, root int) error {
	h := enter(l)
	s, leader := h.leaderLinkOf(l, root)
	if s == nil {
		return h.Reduce(cfg, send, nil, op, leader)
	}
	if l.Rank() != root {
		recv = l.Scratch(len(send))
	}
	if err := h.Reduce(cfg, send, recv, op, leader); err != nil {
		return err
	}
	return Reduce(s, cfg, recv, recv, op, h.of[root])
}

func allreduceHier(l Link, cfg *Config, send, recv []byte, op Op) error {
	h := enter(l)
	s, leader := h.leaderLinkOf(l, noRank)
	if err := h.Reduce(cfg, send, recv, op, leader); err != nil {
		return err
	}
	if s != nil {
		if err := Allreduce(s, cfg, recv, recv, op); err != nil {
			return err
		}
	}
	h.next()
	return h.Bcast(recv, leader)
}

// ofHost returns the offset and the total length of the blocks of all ranks of one host; the
// argument of is the number of that host. The blocks of b have equal length, and the ranks of a
// host are consecutive.
func (h *Host) ofHost(b blocks, of int) (at, n int) {
	end := len(h.of)
	if of+1 < len(h.lowest) {
		end = h.lowest[of+1]
	}
	return b.off(h.lowest[of]), b.off(end) - b.off(h.lowest[of])
}

// byHost returns one block per host: block i consists of the blocks, in b, of all ranks of host i.
// counts and displs of the result are scratch memory.
func (h *Host) byHost(l Link, b blocks) blocks {
	all := blocks{counts: scratchInts(l, h.Hosts()), displs: scratchInts(l, h.Hosts())}
	for i := range all.counts {
		all.displs[i], all.counts[i] = h.ofHost(b, i)
	}
	return all
}

func allgatherHier(l Link, cfg *Config, _, recv []byte, b blocks) error {
	h := enter(l)
	s, leader := h.leaderLinkOf(l, noRank)
	at, n := h.ofHost(b, h.of[l.Rank()])
	mine := recv[at : at+n]
	if err := h.gather(b.of(recv, l.Rank()), mine, b, leader); err != nil {
		return err
	}
	if s != nil {
		all := h.byHost(l, b)
		if err := Allgatherv(s, cfg, mine, recv, all.counts, all.displs); err != nil {
			return err
		}
	}
	h.next()
	return h.Bcast(recv, leader)
}

func gatherHier(l Link, cfg *Config, send, recv []byte, b blocks, root int) error {
	h := enter(l)
	s, leader := h.leaderLinkOf(l, root)
	if s == nil {
		return h.gather(send, nil, b, leader)
	}
	at, n := h.ofHost(b, h.of[l.Rank()])
	if l.Rank() != root {
		mine := l.Scratch(n)
		if err := h.gather(send, mine, b, leader); err != nil {
			return err
		}
		return Gatherv(s, cfg, mine, nil, nil, nil, h.of[root])
	}
	mine, all := recv[at:at+n], h.byHost(l, b)
	if err := h.gather(send, mine, b, leader); err != nil {
		return err
	}
	return Gatherv(s, cfg, mine, recv, all.counts, all.displs, h.of[root])
}

func scatterHier(l Link, cfg *Config, send, recv []byte, b blocks, root int) error {
	h := enter(l)
	s, leader := h.leaderLinkOf(l, root)
	if s == nil {
		return h.scatter(nil, recv, b, leader)
	}
	at, n := h.ofHost(b, h.of[l.Rank()])
	if l.Rank() != root {
		mine := l.Scratch(n)
		if err := Scatterv(s, cfg, nil, nil, nil, mine, h.of[root]); err != nil {
			return err
		}
		return h.scatter(mine, recv, b, leader)
	}
	mine, all := send[at:at+n], h.byHost(l, b)
	if err := Scatterv(s, cfg, send, all.counts, all.displs, mine, h.of[root]); err != nil {
		return err
	}
	return h.scatter(mine, recv, b, leader)
}
