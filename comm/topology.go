package comm

import "github.com/weft-hpc/weft/internal/mpi"

// Dims divides a number of ranks among the dimensions of a grid (MPI_Dims_create, MPI 4.1 §8.5.2).
// dims has one element per dimension: the number of ranks in this dimension, or 0 if Dims is to
// choose the number. Dims returns a copy of dims with each 0 replaced, so that the product of all
// numbers is ranks. The numbers that Dims chooses are in descending order. The largest of them is
// as small as possible, then the second largest, and so on: Dims(12, 0, 0) returns 4 and 3. Dims is
// local.
//
// Errors: ErrArg if ranks is less than 1 or more than math.MaxInt32, if a number is negative, or if
// the numbers in dims do not divide ranks.
func Dims(ranks int, dims ...int) ([]int, error) { return mpi.Dims(ranks, dims...) }

// Neighborhood is a topology: a [Cart] or a [Graph]. It is an argument of the neighbour
// collectives, such as [NeighborAlltoall].
type Neighborhood interface {
	// Neighbors returns the neighbours of this rank, in the order of the blocks: in a neighbour
	// collective this rank receives from the ranks sources, and sends to the ranks dests. A rank
	// may occur several times. ProcNull stands for no neighbour: a block for it is not sent, and a
	// block from it does not change.
	Neighbors() (sources, dests []int)

	neighborhood() *mpi.Neighborhood
}

// TopoOption is an option of the functions that make a topology.
type TopoOption func(*topoOptions)

type topoOptions struct {
	reorder bool
	in, out []int
}

// Reorder permits the topology to number its ranks in another order than the communicator from
// which the program makes it, so that more neighbours are on the same host. The program must then
// use the ranks of the topology.
func Reorder() TopoOption { return func(o *topoOptions) { o.reorder = true } }

// Weights gives the edges of [Comm.Graph] weights, for example the number of bytes that they carry:
// in[i] is the weight of the edge from sources[i], and out[i] that of the edge to dests[i].
// [Reorder] uses the weights in out. Without Weights all edges have the weight 1.
func Weights(in, out []int) TopoOption { return func(o *topoOptions) { o.in, o.out = in, out } }

func topology(opts []TopoOption) (o topoOptions) {
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// Cart is a grid of ranks: a communicator with a Cartesian topology (MPI 4.1 §8.5). [Comm.Cart]
// makes it. The ranks are in row-major order: the last coordinate varies fastest.
//
// A rank has two neighbours in each dimension: first the rank with the next lower coordinate, then
// the rank with the next higher coordinate (MPI 4.1 §8.6). At the border of a dimension that is not
// periodic, the missing neighbour is ProcNull.
type Cart struct {
	*Comm
	in *mpi.Cart
}

// Cart makes a grid of the first ranks of c: dims[d] ranks in dimension d (MPI_Cart_create). It is
// collective over c. If periodic[d] is true, the last rank of dimension d is a neighbour of the
// first one. If periodic is nil, no dimension is periodic. On ranks of c that are not in the grid,
// Cart returns nil. [Dims] chooses dims.
//
// Errors: ErrArg if the grid has more ranks than c, a dimension is less than 1, or periodic has
// another length than dims; ErrMismatch if the ranks pass different dimensions; as for all
// collectives, see [Comm.Barrier].
func (c *Comm) Cart(dims []int, periodic []bool, opts ...TopoOption) (*Cart, error) {
	return cart(c.in().Cart(dims, periodic, topology(opts).reorder))
}

func cart(in *mpi.Cart, err error) (*Cart, error) {
	if in == nil {
		return nil, err
	}
	return &Cart{(*Comm)(in.Comm()), in}, err
}

// Dims returns the number of ranks in each dimension, and for each whether it is periodic
// (MPI_Cart_get).
func (t *Cart) Dims() (dims []int, periodic []bool) { return t.grid().Dims() }

// Coords returns the coordinates of a rank (MPI_Cart_coords), or nil if the grid does not have the
// rank.
func (t *Cart) Coords(rank int) []int { return t.grid().Coords(rank) }

// RankAt returns the rank with these coordinates, one for each dimension (MPI_Cart_rank). In a
// periodic dimension, a coordinate outside the grid wraps around. If there is no such rank, RankAt
// returns ProcNull.
func (t *Cart) RankAt(coords ...int) int { return t.grid().RankAt(coords) }

// Shift returns the ranks at the distance by from this rank in dimension dim: source in the
// direction of lower coordinates, and dest in the direction of higher coordinates (MPI_Cart_shift).
// If there is no such rank, Shift returns ProcNull in its place. So [Sendrecv] to dest and from
// source shifts data by that distance.
func (t *Cart) Shift(dim, by int) (source, dest int) { return t.grid().Shift(dim, by) }

// Sub divides the grid into grids of the dimensions d for which keep[d] is true (MPI_Cart_sub).
// Ranks with the same coordinates in the other dimensions are in the same new grid. Sub is
// collective. Errors: ErrArg if keep does not have a value for each dimension; as for all
// collectives, see [Comm.Barrier].
func (t *Cart) Sub(keep ...bool) (*Cart, error) { return cart(t.grid().Sub(keep)) }

// Neighbors implements [Neighborhood].
func (t *Cart) Neighbors() (sources, dests []int) { return t.neighborhood().Neighbors() }

// grid returns the grid for a call of package mpi, or nil for a nil Cart.
func (t *Cart) grid() *mpi.Cart {
	if t == nil {
		return nil
	}
	return t.in
}

func (t *Cart) neighborhood() *mpi.Neighborhood {
	if t == nil {
		return nil
	}
	return &t.in.Neighborhood
}

// Graph is a communicator whose ranks are the vertices of a directed graph (MPI 4.1 §8.5).
// [Comm.Graph] and [Comm.GraphOf] make it.
type Graph struct {
	*Comm
	in *mpi.Neighborhood
}

// Edge is an edge of a graph, from a rank that sends to a rank that receives. Weight is, for
// example, the number of bytes that the edge carries. It must not be negative.
type Edge mpi.Edge

// Graph makes a graph in which this rank receives from the ranks sources and sends to the ranks
// dests (MPI_Dist_graph_create_adjacent). Graph is collective. A rank may occur several times: each
// occurrence is a separate edge. With [Reorder], the process with rank i of the graph has the edges
// that rank i of c has passed.
//
// Errors: ErrRank; ErrCount if the number of weights differs from the number of edges; ErrArg for a
// negative weight; ErrMismatch if two ranks do not agree on the edges between them; as for all
// collectives, see [Comm.Barrier].
func (c *Comm) Graph(sources, dests []int, opts ...TopoOption) (*Graph, error) {
	o := topology(opts)
	return graph(c.in().Graph(sources, dests, o.in, o.out, o.reorder))
}

// GraphOf makes a graph of the edges that all ranks together pass (MPI_Dist_graph_create). A rank
// may pass any edges, also edges between other ranks. GraphOf is collective. The neighbours of a
// rank are in the order of the ranks that have passed the edges, and then in the order of their
// lists.
//
// Errors: ErrRank; ErrArg for a negative weight; as for all collectives, see [Comm.Barrier].
func (c *Comm) GraphOf(edges []Edge, opts ...TopoOption) (*Graph, error) {
	return graph(c.in().GraphOf(cast[mpi.Edge](edges), topology(opts).reorder))
}

func graph(in *mpi.Neighborhood, err error) (*Graph, error) {
	if in == nil {
		return nil, err
	}
	return &Graph{(*Comm)(in.Comm()), in}, err
}

// Neighbors implements [Neighborhood] (MPI_Dist_graph_neighbors).
func (g *Graph) Neighbors() (sources, dests []int) { return g.neighborhood().Neighbors() }

// Weights returns copies of the weights of the edges to this rank (in) and from it (out), in the order
// of [Graph.Neighbors] (MPI_Dist_graph_neighbors). In a graph of [Comm.Graph] without the option
// [Weights] all of them are 1; in a graph of [Comm.GraphOf] they are those of the edges that the
// ranks have passed. Weights is local.
func (g *Graph) Weights() (in, out []int) { return g.neighborhood().Weights() }

func (g *Graph) neighborhood() *mpi.Neighborhood {
	if g == nil {
		return nil
	}
	return g.in
}

// neighborsOf returns the topology for a call of package mpi, or nil if n is nil.
func neighborsOf(n Neighborhood) *mpi.Neighborhood {
	if n == nil {
		return nil
	}
	return n.neighborhood()
}
