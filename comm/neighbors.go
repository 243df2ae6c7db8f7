package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// NeighborAllgather sends the slice send to each neighbour, and receives a block from each
// neighbour (MPI_Neighbor_allgather, MPI 4.1 §8.6). It is collective over the ranks of the
// topology. A rank waits for its neighbours. It waits for another rank only in the first call, or if
// that rank is several calls behind.
//
//	send: n elements    recv: sources × n elements, in the order of the sources
//
// Errors: ErrCount if a length does not fit; ErrType; ErrBuffer if the slices overlap; as for all
// collectives, see [Comm.Barrier].
func NeighborAllgather[T any](n Neighborhood, send, recv []T) error {
	return neighborsOf(n).NeighborAllgather(elem.View(send), elem.View(recv))
}

// IneighborAllgather is [NeighborAllgather], except that it does not block
// (MPI_Ineighbor_allgather). The slices belong to the request until the request is complete.
func IneighborAllgather[T any](n Neighborhood, send, recv []T) Request {
	return Request(neighborsOf(n).IneighborAllgather(elem.View(send), elem.View(recv)))
}

// NeighborAllgatherInit makes a persistent [NeighborAllgather] (MPI_Neighbor_allgather_init).
func NeighborAllgatherInit[T any](n Neighborhood, send, recv []T) (*Persistent, error) {
	return persistent(neighborsOf(n).NeighborAllgatherInit(elem.View(send), elem.View(recv)))
}

// NeighborAllgatherv is [NeighborAllgather] for blocks of different lengths
// (MPI_Neighbor_allgatherv): the counts[i] elements from the i-th source are stored from
// recv[displs[i]] on. If displs is nil, the blocks follow each other.
func NeighborAllgatherv[T any](n Neighborhood, send, recv []T, counts, displs []int) error {
	return neighborsOf(n).NeighborAllgatherv(elem.View(send), elem.View(recv), counts, displs)
}

// IneighborAllgatherv is [NeighborAllgatherv], except that it does not block
// (MPI_Ineighbor_allgatherv). The slices belong to the request until the request is complete;
// counts and displs do not.
func IneighborAllgatherv[T any](n Neighborhood, send, recv []T, counts, displs []int) Request {
	return Request(neighborsOf(n).IneighborAllgatherv(elem.View(send), elem.View(recv), counts, displs))
}

// NeighborAllgathervInit makes a persistent [NeighborAllgatherv] (MPI_Neighbor_allgatherv_init). It
// copies counts and displs.
func NeighborAllgathervInit[T any](n Neighborhood, send, recv []T, counts, displs []int) (*Persistent, error) {
	return persistent(neighborsOf(n).NeighborAllgathervInit(elem.View(send), elem.View(recv), counts, displs))
}

// NeighborAllgatherView is [NeighborAllgather] for views: it sends the view send to each of the
// dests, and receives recv[i] from the i-th of the sources. MPI has no such call; it is an
// MPI_Neighbor_allgatherv in which the blocks of recv may lie anywhere, such as the columns of a
// matrix. Some ranks may call NeighborAllgather or NeighborAllgatherv instead. The views may belong
// to one slice. A view of recv must have no element in common with another view;
// NeighborAllgatherView does not check that. It does not allocate in steady state.
//
// Errors: ErrCount if recv does not have a view for each source, or a source sends another number
// of elements than its view has; ErrType and ErrLayout for a view; as for all collectives, see
// [Comm.Barrier].
func NeighborAllgatherView[T any](n Neighborhood, send View[T], recv []View[T]) error {
	return neighborsOf(n).NeighborAllgatherView(send.buffer(), buffers(recv))
}

// IneighborAllgatherView is [NeighborAllgatherView], except that it does not block. The views and
// the slice recv belong to the request until the request is complete.
func IneighborAllgatherView[T any](n Neighborhood, send View[T], recv []View[T]) Request {
	return Request(neighborsOf(n).IneighborAllgatherView(send.buffer(), buffers(recv)))
}

// NeighborAllgatherViewInit makes a persistent [NeighborAllgatherView]. It copies the slice recv.
func NeighborAllgatherViewInit[T any](n Neighborhood, send View[T], recv []View[T]) (*Persistent, error) {
	return persistent(neighborsOf(n).NeighborAllgatherViewInit(send.buffer(), buffers(recv)))
}

// NeighborAlltoall sends a separate block to each neighbour, and receives a block from each
// neighbour (MPI_Neighbor_alltoall, MPI 4.1 §8.6). It is collective over the ranks of the topology;
// [NeighborAllgather] says which other ranks a rank waits for. It does not allocate in steady state.
//
//	send: dests × n elements    recv: sources × n elements; n is the same for all neighbours of a rank
//
// Errors: those of [NeighborAllgather].
func NeighborAlltoall[T any](n Neighborhood, send, recv []T) error {
	return neighborsOf(n).NeighborAlltoall(elem.View(send), elem.View(recv))
}

// IneighborAlltoall is [NeighborAlltoall], except that it does not block (MPI_Ineighbor_alltoall).
// The slices belong to the request until the request is complete.
func IneighborAlltoall[T any](n Neighborhood, send, recv []T) Request {
	return Request(neighborsOf(n).IneighborAlltoall(elem.View(send), elem.View(recv)))
}

// NeighborAlltoallInit makes a persistent [NeighborAlltoall] (MPI_Neighbor_alltoall_init).
func NeighborAlltoallInit[T any](n Neighborhood, send, recv []T) (*Persistent, error) {
	return persistent(neighborsOf(n).NeighborAlltoallInit(elem.View(send), elem.View(recv)))
}

// NeighborAlltoallv is [NeighborAlltoall] for blocks of different lengths (MPI_Neighbor_alltoallv):
// sendcounts[i] elements from send[senddispls[i]] on go to the i-th of the dests, and recvcounts[i]
// elements from the i-th of the sources to recv[recvdispls[i]]. If displacements are nil, the
// blocks follow each other.
func NeighborAlltoallv[T any](n Neighborhood, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) error {
	return neighborsOf(n).NeighborAlltoallv(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls)
}

// IneighborAlltoallv is [NeighborAlltoallv], except that it does not block
// (MPI_Ineighbor_alltoallv). The slices belong to the request until the request is complete; counts
// and displacements do not.
func IneighborAlltoallv[T any](n Neighborhood, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) Request {
	return Request(neighborsOf(n).IneighborAlltoallv(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls))
}

// NeighborAlltoallvInit makes a persistent [NeighborAlltoallv] (MPI_Neighbor_alltoallv_init). It
// copies the counts and displacements.
func NeighborAlltoallvInit[T any](n Neighborhood, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) (*Persistent, error) {
	return persistent(neighborsOf(n).NeighborAlltoallvInit(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls))
}

// NeighborAlltoallView is [NeighborAlltoall] for views: it sends send[i] to the i-th of the dests,
// and receives recv[i] from the i-th of the sources (MPI_Neighbor_alltoallw). So a program
// exchanges the halos of an array without copying them. The views may belong to one slice. A view
// of recv must have no element in common with another view; NeighborAlltoallView does not check
// that. It does not allocate in steady state.
func NeighborAlltoallView[T any](n Neighborhood, send, recv []View[T]) error {
	return neighborsOf(n).NeighborAlltoallView(buffers(send), buffers(recv))
}

// IneighborAlltoallView is [NeighborAlltoallView], except that it does not block
// (MPI_Ineighbor_alltoallw). The views and the slices of views belong to the request until the
// request is complete.
func IneighborAlltoallView[T any](n Neighborhood, send, recv []View[T]) Request {
	return Request(neighborsOf(n).IneighborAlltoallView(buffers(send), buffers(recv)))
}

// NeighborAlltoallViewInit makes a persistent [NeighborAlltoallView] (MPI_Neighbor_alltoallw_init).
// It copies the slices of views.
func NeighborAlltoallViewInit[T any](n Neighborhood, send, recv []View[T]) (*Persistent, error) {
	return persistent(neighborsOf(n).NeighborAlltoallViewInit(buffers(send), buffers(recv)))
}
