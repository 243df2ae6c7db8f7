package mpi

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Topologies
//
// A topology is a communicator whose ranks have neighbours: a grid (Cart) or a graph. The neighbour
// collectives use only its Neighborhood. If the program permits it, the new communicator numbers
// its ranks in another order, so that more neighbours are on the same host; see reorder.go.

// Neighborhood is the neighbours of a rank in a topology: the ranks from which it receives, and
// those to which it sends, one for each edge. A rank may occur several times, and ProcNull stands
// for no neighbour.
//
// If there are several edges between two ranks, their messages match in the order of the receiver's
// sources. sendOrder has the indices of dests in the order in which this rank sends, which agrees
// with the order of each receiver's sources. places has an element for each source, which identifies
// the edge at that source. While a rank does not know them yet, places is nil.
type Neighborhood struct {
	c              *Comm
	sources, dests []int
	in, out        []int // weights of the edges; nil: a grid has none
	sendOrder      []int
	places         []coll.EdgePlace
}

// Comm returns the communicator of the topology, or nil if x is nil.
func (x *Neighborhood) Comm() *Comm {
	if x == nil {
		return nil
	}
	return x.c
}

// Neighbors returns copies of the lists of neighbours.
func (x *Neighborhood) Neighbors() (sources, dests []int) {
	if x == nil {
		return nil, nil
	}
	return slices.Clone(x.sources), slices.Clone(x.dests)
}

// Weights returns copies of the weights of the edges.
func (x *Neighborhood) Weights() (in, out []int) {
	if x == nil {
		return nil, nil
	}
	return slices.Clone(x.in), slices.Clone(x.out)
}

// Cart is the type behind comm.Cart: a grid of ranks, in row-major order.
type Cart struct {
	Neighborhood
	dims     []int
	periodic []bool
}

// Cart implements comm.Comm.Cart, which documents the call. Cart returns nil on ranks that are not
// in the grid.
func (c *Comm) Cart(dims []int, periodic []bool, reorder bool) (*Cart, error) {
	s, err := c.live()
	if err == nil {
		err = s.checkIntra()
	}
	if err != nil {
		return nil, c.fail("Cart", noRank, noRank, err)
	}
	if periodic == nil {
		periodic = make([]bool, len(dims))
	}
	n, err := gridSize(dims, len(s.ranks))
	if err == nil && len(periodic) != len(dims) {
		err = fmt.Errorf("%w: %d dimensions, and %d values that say whether they are periodic", ErrArg, len(dims), len(periodic))
	}
	if err != nil {
		err = c.fail("Cart", noRank, noRank, err)
		s.revoke(err)
		return nil, err
	}
	color, key := Undefined, s.rank
	if s.rank < n {
		color = hashOfGrid(dims, periodic)
	}
	if reorder && s.rank < n {
		key = gridOrder(s.hosts(n), dims, periodic)[s.rank]
	}
	own, err := c.split("Cart", calls.Call{What: calls.KindSplit}, color, key)
	if err != nil || own == nil {
		return nil, err
	}
	if own.Size() != n {
		err := own.fail("Cart", noRank, noRank, fmt.Errorf("%w: %d of %d ranks pass the same dimensions", ErrMismatch, own.Size(), n))
		own.s.revoke(err)
		s.revoke(err)
		return nil, err
	}
	return newCart(own, slices.Clone(dims), slices.Clone(periodic)), nil
}

// hosts returns the host of each of the first n ranks.
func (s *state) hosts(n int) []int {
	hosts := make([]int, n)
	for r := range hosts {
		hosts[r] = s.job.world.HostOf[s.ranks[r]]
	}
	return hosts
}

// gridSize returns the number of ranks of a grid, which is at most size.
func gridSize(dims []int, size int) (int, error) {
	n := 1
	for _, d := range dims {
		if d < 1 {
			return 0, fmt.Errorf("%w: a dimension of %d ranks", ErrArg, d)
		}
		if d > size/n {
			return 0, fmt.Errorf("%w: a grid of %v in a communicator of %d ranks", ErrArg, dims, size)
		}
		n *= d
	}
	return n, nil
}

// hashOfGrid returns a hash of the arguments, by which the ranks compare them. The hash is not
// negative.
func hashOfGrid(dims []int, periodic []bool) int {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, dims, periodic) // never fails
	return int(h.Sum64() & math.MaxInt)
}

func newCart(c *Comm, dims []int, periodic []bool) *Cart {
	t := &Cart{Neighborhood{c: c}, dims, periodic}
	n := 2 * len(dims)
	for d := range dims {
		below, above := t.Shift(d, 1)
		t.dests = append(t.dests, below, above)
		// The first source of a receiver is the rank below it. For that rank, the receiver is the
		// neighbour above. So each rank sends to the neighbour above first.
		t.sendOrder = append(t.sendOrder, 2*d+1, 2*d)
		t.places = append(t.places, coll.EdgePlace{Index: 2*d + 1, Of: n}, coll.EdgePlace{Index: 2 * d, Of: n})
	}
	t.sources = t.dests
	return t
}

// Dims returns copies of the number of ranks in each dimension, and of whether each dimension is
// periodic.
func (t *Cart) Dims() (dims []int, periodic []bool) {
	if t == nil {
		return nil, nil
	}
	return slices.Clone(t.dims), slices.Clone(t.periodic)
}

// Coords returns the coordinates of a rank, or nil if the grid does not have the rank.
func (t *Cart) Coords(rank int) []int {
	if t == nil || rank < 0 || rank >= t.c.Size() {
		return nil
	}
	coords := make([]int, len(t.dims))
	for d := len(t.dims) - 1; d >= 0; d-- {
		coords[d] = rank % t.dims[d]
		rank /= t.dims[d]
	}
	return coords
}

// RankAt returns the rank with these coordinates, or ProcNull if there is none. In a periodic
// dimension, a coordinate outside the grid wraps around.
func (t *Cart) RankAt(coords []int) int {
	if t == nil || len(coords) != len(t.dims) {
		return ProcNull
	}
	rank := 0
	for d, x := range coords {
		if t.periodic[d] {
			if x %= t.dims[d]; x < 0 {
				x += t.dims[d]
			}
		}
		if x < 0 || x >= t.dims[d] {
			return ProcNull
		}
		rank = rank*t.dims[d] + x
	}
	return rank
}

// Shift returns the ranks at the distances -by and by from this rank in a dimension.
func (t *Cart) Shift(dim, by int) (source, dest int) {
	if t == nil || dim < 0 || dim >= len(t.dims) {
		return ProcNull, ProcNull
	}
	size := t.dims[dim]
	if t.periodic[dim] {
		by %= size
	} else if by >= size || by <= -size {
		return ProcNull, ProcNull
	}
	at := t.Coords(t.c.Rank())
	own := at[dim]
	reach := func(x int) int {
		at[dim] = x
		return t.RankAt(at)
	}
	return reach(own - by), reach(own + by)
}

// Sub implements comm.Cart.Sub, which documents the call.
func (t *Cart) Sub(keep []bool) (*Cart, error) {
	if t == nil {
		return nil, (*Comm)(nil).fail("Sub", noRank, noRank, (*Comm)(nil).whyClosed())
	}
	if len(keep) != len(t.dims) {
		err := t.c.fail("Sub", noRank, noRank, fmt.Errorf("%w: %d values for %d dimensions", ErrArg, len(keep), len(t.dims)))
		if s, live := t.c.live(); live == nil {
			s.revoke(err)
		}
		return nil, err
	}
	key, n := 0, 1
	var dims, fixed []int // fixed: the coordinates in the dimensions that are not kept
	var periodic []bool
	for d, x := range t.Coords(t.c.Rank()) {
		if keep[d] {
			dims, periodic = append(dims, t.dims[d]), append(periodic, t.periodic[d])
			key, n = key*t.dims[d]+x, n*t.dims[d]
		} else {
			fixed = append(fixed, x)
		}
	}
	// Ranks that pass another keep have another colour, with high probability.
	own, err := t.c.split("Sub", calls.Call{What: calls.KindSplit}, hashOfGrid(fixed, keep), key)
	if err != nil {
		return nil, err
	}
	if own.Size() != n {
		err := own.revoked("Sub", fmt.Errorf("%w: %d of %d ranks pass the same dimensions to keep", ErrMismatch, own.Size(), n))
		t.c.s.revoke(err)
		return nil, err
	}
	return newCart(own, dims, periodic), nil
}

// Edge is an edge of a graph: the rank that sends, the rank that receives, and the weight.
// comm.Edge has the same fields.
type Edge struct{ From, To, Weight int }

// Graph implements comm.Comm.Graph, which documents the call.
func (c *Comm) Graph(sources, dests []int, inWeights, outWeights []int, reorder bool) (*Neighborhood, error) {
	const name = "Graph"
	n, me := c.Size(), c.Rank()
	edges := make([]Edge, 0, len(dests))
	err := c.checkIntra()
	if err == nil {
		err = checkEdges(n, sources, inWeights)
	}
	if err == nil {
		err = checkEdges(n, dests, outWeights)
	}
	if err != nil {
		return nil, c.revoked(name, err)
	}
	for i, to := range dests {
		e := Edge{me, to, 1}
		if outWeights != nil {
			e.Weight = outWeights[i]
		}
		edges = append(edges, e)
	}
	// Each pair of ranks compares the numbers of edges between the two that each has passed.
	in, out, theirs := make([]int32, n), make([]int32, n), make([]int32, n)
	for _, r := range sources {
		in[r]++
	}
	for _, r := range dests {
		out[r]++
	}
	if err := c.Alltoall(elem.View(out), elem.View(theirs)); err != nil {
		return nil, RenamedTo(err, name)
	}
	for r := range theirs {
		if theirs[r] != in[r] {
			return nil, c.revoked(name, fmt.Errorf("%w: rank %d has %d edges to this rank, and this rank has %d from it", ErrMismatch, r, theirs[r], in[r]))
		}
	}
	if !reorder {
		s, id, err := c.agreeOnID(name, calls.KindGraph)
		if err != nil {
			return nil, err
		}
		own := &Comm{s: s.newLike(id), ctx: c.ctx}
		own.s.attach(s) // a rank that fails to make the graph revokes c, which then also revokes own
		x := newGraph(own, sourceLists(me, sources, inWeights), edges)
		err = x.exchangePlaces()
		own.s.detach()
		if err != nil {
			err = RenamedTo(err, name)
			own.s.revoke(err)
			own.s.abandon()
			s.revoke(err)
			return nil, err
		}
		return x, nil
	}
	// The process that gets rank i of the new communicator needs the neighbours that rank i of c
	// has passed, in their order.
	all, err := c.allEdges(name, edges)
	if err != nil {
		return nil, err
	}
	lists, err := c.allEdges(name, sourceLists(me, sources, inWeights))
	if err != nil {
		return nil, err
	}
	order := graphOrder(c.s.hosts(n), all)
	own, err := c.split(name, calls.Call{What: calls.KindGraph, Root: 1}, 0, order[me])
	if err != nil {
		return nil, err
	}
	var from, to []Edge
	for _, e := range lists {
		if e.To == order[me] {
			from = append(from, e)
		}
	}
	for _, e := range all {
		if e.From == order[me] {
			to = append(to, e)
		}
	}
	x := newGraph(own, from, to)
	x.places = placesAmong(all, x.sources, order[me])
	return x, nil
}

// exchangePlaces sets x.places. It is collective over the ranks of the topology. Each rank sends to
// its neighbours which of its edges is theirs.
func (x *Neighborhood) exchangePlaces() error {
	own, places := make([]coll.EdgePlace, len(x.dests)), make([]coll.EdgePlace, len(x.sources))
	for i := range own {
		own[i] = coll.EdgePlace{Index: i, Of: len(own)}
	}
	if err := x.NeighborAlltoall(elem.View(own), elem.View(places)); err != nil {
		return err
	}
	for i, p := range places {
		if p.Index < 0 || p.Index >= p.Of {
			return x.c.revoked("", fmt.Errorf("%w: rank %d says that its edge to this rank is edge %d of %d", ErrMismatch, x.sources[i], p.Index, p.Of))
		}
	}
	x.places = places
	return nil
}

// placesAmong returns what exchangePlaces finds out, if this rank, which has the number me, knows the
// edges of all ranks.
func placesAmong(all []Edge, sources []int, me int) []coll.EdgePlace {
	degree := map[int]int{}
	indices := map[int][]int{} // by source: the indices of its edges to this rank
	for _, e := range all {
		if e.To == me {
			indices[e.From] = append(indices[e.From], degree[e.From])
		}
		degree[e.From]++
	}
	places := make([]coll.EdgePlace, len(sources))
	for i, r := range sources {
		places[i] = coll.EdgePlace{Index: indices[r][0], Of: degree[r]}
		indices[r] = indices[r][1:]
	}
	return places
}

// sourceLists returns the edges from sources to rank me, in their order. weights is nil if all are 1.
func sourceLists(me int, sources, weights []int) []Edge {
	edges := make([]Edge, len(sources))
	for i, r := range sources {
		edges[i] = Edge{r, me, 1}
		if weights != nil {
			edges[i].Weight = weights[i]
		}
	}
	return edges
}

func checkEdges(n int, peers, weights []int) error {
	if weights != nil && len(weights) != len(peers) {
		return fmt.Errorf("%w: %d weights for %d edges", ErrCount, len(weights), len(peers))
	}
	for i, r := range peers {
		if r < 0 || r >= n {
			return fmt.Errorf("%w: an edge to or from rank %d of %d", ErrRank, r, n)
		}
		if weights != nil && weights[i] < 0 {
			return fmt.Errorf("%w: an edge with the weight %d", ErrArg, weights[i])
		}
	}
	return nil
}

// revoked revokes the communicator, because a collective call with this name has failed on this
// rank with err. It returns the error of the call.
func (c *Comm) revoked(name string, err error) error {
	err = c.fail(name, noRank, noRank, err)
	if s, live := c.live(); live == nil {
		s.revoke(err)
	}
	return err
}

// GraphOf implements comm.Comm.GraphOf, which documents the call.
func (c *Comm) GraphOf(edges []Edge, reorder bool) (*Neighborhood, error) {
	const name = "GraphOf"
	n := c.Size()
	if err := c.checkIntra(); err != nil {
		return nil, c.fail(name, noRank, noRank, err)
	}
	for _, e := range edges {
		if err := checkEdges(n, []int{e.From, e.To}, []int{e.Weight, e.Weight}); err != nil {
			return nil, c.revoked(name, err)
		}
	}
	all, err := c.allEdges(name, edges)
	if err != nil {
		return nil, err
	}
	rank, call := c.Rank(), calls.Call{What: calls.KindGraphOf}
	if reorder {
		rank, call.Root = graphOrder(c.s.hosts(n), all)[rank], 1
	}
	own, err := c.split(name, call, 0, rank)
	if err != nil {
		return nil, err
	}
	var from, to []Edge
	for _, e := range all {
		if e.To == rank {
			from = append(from, e)
		}
		if e.From == rank {
			to = append(to, e)
		}
	}
	x := newGraph(own, from, to)
	x.places = placesAmong(all, x.sources, rank)
	return x, nil
}

// allEdges returns the edges of all ranks, in the order of the ranks.
func (c *Comm) allEdges(name string, edges []Edge) ([]Edge, error) {
	counts, mine := make([]int, c.Size()), []int{len(edges)}
	if err := c.Allgather(elem.View(mine), elem.View(counts)); err != nil {
		return nil, RenamedTo(err, name)
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	all := make([]Edge, total)
	if err := c.Allgatherv(elem.View(edges), elem.View(all), counts, nil); err != nil {
		return nil, RenamedTo(err, name)
	}
	return all, nil
}

// newGraph returns the neighbourhood of this rank in the graph c. from are the edges to this rank, and to
// those from it. places is not set.
func newGraph(c *Comm, from, to []Edge) *Neighborhood {
	x := &Neighborhood{c: c}
	for _, e := range from {
		x.sources, x.in = append(x.sources, e.From), append(x.in, e.Weight)
	}
	for i, e := range to {
		x.dests, x.out = append(x.dests, e.To), append(x.out, e.Weight)
		x.sendOrder = append(x.sendOrder, i)
	}
	return x
}
