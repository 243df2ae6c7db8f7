package coll

// Collectives between two groups (MPI 4.1 §6.2.3)
//
// In a collective of an intercommunicator, each group gets what the other group sends. Here both
// groups are ranks of one link, the union, in which the first group's ranks come first. Each
// function is built from the collectives of one group: these run on a part of the union, which is
// one of the groups, or one of them and the root.
//
//	Bcast     root ──────────► group B                     a Bcast of root and B
//	Gather    root ◄────────── group B                     a Gatherv of root and B; Scatter likewise
//	Reduce    root ◄── leader of B ◄══ group B             a Reduce of B, and one message
//	Allreduce group A ◄══ leader ◄────► leader ══► group B a Reduce, two messages, and a Bcast
//	Allgather leader of A ◄── group B, then a Bcast of A, and the same for B
//
// The leader of a group is its first rank.

// Groups says which ranks of the union are the caller's group, and which are the other group.
type Groups struct{ Local, Remote Span }

// Span is the ranks First to First+N-1.
type Span struct{ First, N int }

// Has reports whether the span contains a rank.
func (s Span) Has(rank int) bool { return rank >= s.First && rank < s.First+s.N }

// Roots of a collective between two groups, for the ranks of the root's group. The values are those
// of package comm.
const (
	RootSelf = -3 // the caller is the root
	RootNone = -2 // another rank of the caller's group is the root; the caller takes no part
)

// Between is a link of the union with its groups. Its methods are the collectives between the two
// groups. Root is RootSelf or RootNone in the root's group, and in the other group the rank of the
// root in its group. Unless a method says otherwise, lengths, counts and errors are those of the
// function of the same name.
type Between struct {
	Link
	Groups
	part part
}

// part is the link of some ranks of a link: first, if it is not negative, and the ranks of span.
type part struct {
	Link
	first int
	span  Span
	self  int // rank of the caller in the part
}

func (p *part) Rank() int { return p.self }

func (p *part) Size() int {
	if p.first >= 0 {
		return p.span.N + 1
	}
	return p.span.N
}

func (p *part) at(rank int) int {
	if p.first < 0 {
		return p.span.First + rank
	}
	if rank == 0 {
		return p.first
	}
	return p.span.First + rank - 1
}

func (p *part) Send(buf []byte, dest int) error   { return p.Link.Send(buf, p.at(dest)) }
func (p *part) Recv(buf []byte, source int) error { return p.Link.Recv(buf, p.at(source)) }
func (p *part) Sendrecv(send []byte, dest int, recv []byte, source int) error {
	return p.Link.Sendrecv(send, p.at(dest), recv, p.at(source))
}
func (p *part) Isend(buf []byte, dest int) Ticket   { return p.Link.Isend(buf, p.at(dest)) }
func (p *part) Irecv(buf []byte, source int) Ticket { return p.Link.Irecv(buf, p.at(source)) }

// group returns the link of the caller's group.
func (b *Between) group() *part {
	b.part = part{b.Link, -1, b.Local, b.Rank() - b.Local.First}
	return &b.part
}

// rooted returns the link of the root, which has rank 0 in it, and of the group that is not the
// root's. It returns nil if the caller is not among them.
func (b *Between) rooted(root int) *part {
	switch root {
	case RootNone:
		return nil
	case RootSelf:
		b.part = part{b.Link, b.Rank(), b.Remote, 0}
	default:
		b.part = part{b.Link, b.Remote.First + root, b.Local, 1 + b.Rank() - b.Local.First}
	}
	return &b.part
}

// leads reports whether the caller is the leader of its group.
func (b *Between) leads() bool { return b.Rank() == b.Local.First }

// Bcast copies the root's buf to the buf of every rank of the other group.
func (b *Between) Bcast(cfg *Config, buf []byte, root int) error {
	l := b.rooted(root)
	if l == nil {
		return nil
	}
	return Bcast(l, cfg, buf, 0)
}

// Gatherv writes the send blocks of the other group to the root's recv. counts and displs have one
// entry for each rank of the other group.
func (b *Between) Gatherv(cfg *Config, send, recv []byte, counts, displs []int, root int) error {
	l := b.rooted(root)
	if l == nil {
		return nil
	}
	if root != RootSelf {
		return Gatherv(l, cfg, send, nil, nil, nil, 0)
	}
	c, d := b.afterRoot(counts, displs)
	return Gatherv(l, cfg, nil, recv, c, d, 0)
}

// Scatterv copies block i of the root's send to rank i of the other group. counts and displs have
// one entry for each rank of that group.
func (b *Between) Scatterv(cfg *Config, send []byte, counts, displs []int, recv []byte, root int) error {
	l := b.rooted(root)
	if l == nil {
		return nil
	}
	if root != RootSelf {
		return Scatterv(l, cfg, nil, nil, nil, recv, 0)
	}
	c, d := b.afterRoot(counts, displs)
	return Scatterv(l, cfg, send, c, d, nil, 0)
}

// afterRoot returns counts and displs with an empty block for rank 0, in scratch memory.
func (b *Between) afterRoot(counts, displs []int) (c, d []int) {
	n := len(counts) + 1
	words := scratchInts(b.Link, 2*n)
	c, d = words[:n], words[n:]
	c[0], d[0] = 0, 0
	copy(c[1:], counts)
	copy(d[1:], displs)
	return c, d
}

// Reduce combines the operands of the other group, and writes the result to the root's recv.
func (b *Between) Reduce(cfg *Config, send, recv []byte, op Op, root int) error {
	switch root {
	case RootNone:
		return nil
	case RootSelf:
		return b.Recv(recv, b.Remote.First)
	}
	var result []byte
	if b.leads() {
		result = b.Scratch(len(send))
	}
	if err := Reduce(b.group(), cfg, send, result, op, 0); err != nil || !b.leads() {
		return err
	}
	return b.Send(result, b.Remote.First+root)
}

// Allreduce combines the operands of each group, and writes the result to the recv of every rank of
// the other group.
func (b *Between) Allreduce(cfg *Config, send, recv []byte, op Op) error {
	if err := b.swapResults(cfg, send, recv, op); err != nil {
		return err
	}
	return Bcast(b.group(), cfg, recv, 0)
}

// swapResults combines the operands of each group, and writes the result to the recv of the other
// group's leader.
func (b *Between) swapResults(cfg *Config, send, recv []byte, op Op) error {
	var result []byte
	if b.leads() {
		result = b.Scratch(len(send))
	}
	if err := Reduce(b.group(), cfg, send, result, op, 0); err != nil || !b.leads() {
		return err
	}
	return b.Sendrecv(result, b.Remote.First, recv, b.Remote.First)
}

// ReduceScatter combines the operands of each group, and scatters the result over the other group.
// counts and displs are those of the blocks of the caller's group. The sum of the counts is
// len(send) in both groups.
func (b *Between) ReduceScatter(cfg *Config, send, recv []byte, counts, displs []int, op Op) error {
	var all []byte
	if b.leads() {
		all = b.Scratch(len(send))
	}
	if err := b.swapResults(cfg, send, all, op); err != nil {
		return err
	}
	if !b.leads() {
		return Scatterv(b.group(), cfg, nil, nil, nil, recv, 0)
	}
	return Scatterv(b.group(), cfg, all, counts, displs, recv, 0)
}

// Allgatherv writes the send blocks of each group to the recv of every rank of the other group.
// counts and displs have one entry for each rank of the other group.
func (b *Between) Allgatherv(cfg *Config, send, recv []byte, counts, displs []int) error {
	// The blocks follow each other in memory, so that one Bcast sends them all.
	total := 0
	packed := scratchInts(b.Link, len(counts))
	dense := true
	for i, n := range counts {
		packed[i] = total
		dense = dense && displs[i] == total
		total += n
	}
	all := recv
	if !dense {
		all = b.Scratch(total)
	}
	all = all[:total]
	// First the leader of the group whose ranks come first receives, then the other leader.
	for _, first := range [2]bool{true, false} {
		var err error
		switch {
		case first != (b.Local.First == 0):
			err = b.Gatherv(cfg, send, nil, nil, nil, 0)
		case b.leads():
			err = b.Gatherv(cfg, nil, all, counts, packed, RootSelf)
		}
		if err != nil {
			return err
		}
	}
	if err := Bcast(b.group(), cfg, all, 0); err != nil || dense {
		return err
	}
	for i, n := range counts {
		copy(recv[displs[i]:][:n], all[packed[i]:][:n])
	}
	return nil
}

// Alltoallv sends block i of send to rank i of the other group, and receives block i of recv from
// it. The counts and displacements have one entry for each rank of the other group.
//
// In step i, rank r sends to rank r+i and receives from rank r-i, modulo the size of the larger
// group; it leaves out ranks that the other group does not have.
//
//	cost: P·α + n·β for P ranks in the larger group, n bytes in all blocks of a rank
func (b *Between) Alltoallv(send []byte, sendCounts, sendDispls []int, recv []byte, recvCounts, recvDispls []int) error {
	me, steps := b.Rank()-b.Local.First, max(b.Local.N, b.Remote.N)
	for i := range steps {
		to, from := (me+i)%steps, (me-i+steps)%steps
		var out, in []byte
		dest, source := -1, -1
		if to < b.Remote.N {
			out, dest = send[sendDispls[to]:][:sendCounts[to]], b.Remote.First+to
		}
		if from < b.Remote.N {
			in, source = recv[recvDispls[from]:][:recvCounts[from]], b.Remote.First+from
		}
		if err := exchange(b, out, dest, in, source); err != nil {
			return err
		}
	}
	return nil
}
