package comm

import (
	"cmp"
	"iter"
	"slices"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Part holds the elements of one slice that a rank has sent to this one in a [SparseAlltoall].
type Part[T any] struct {
	Rank int
	Data []T
}

// SparseAlltoall sends elements to some ranks and receives from the ranks that send to this one.
// This rank need not know these ranks before. send yields the ranks and the elements for them, of
// any lengths; maps.All of a map, or slices.All of a slice with an element for each rank, gives
// such a sequence. send may yield a rank several times, or not at all. The result has the parts in
// the order of the ranks that have sent them; the parts of one rank are in the order in which that
// rank has sent them.
//
//	got, err := comm.SparseAlltoall(c, maps.All(map[int][]float64{2: xs, 5: ys}))
//
// SparseAlltoall is collective and blocks. The slices of send belong to the call until it returns,
// and the caller owns the result. MPI has no such call. Errors: ErrRank for a rank that c does not
// have; ErrType; as for all collectives, see [Comm.Barrier].
//
// Cost: with k parts on each rank, k messages and a barrier. [Alltoallv] takes as many messages as
// there are ranks, and both sides must know the counts. The algorithm is NBX of Hoefler, Siebert
// and Lumsdaine (PPoPP 2010).
func SparseAlltoall[T any](c *Comm, send iter.Seq2[int, []T]) ([]Part[T], error) {
	var parts []Part[T]
	err := SparseAlltoallFunc(c, send, func(source int, data []T) error {
		parts = append(parts, Part[T]{source, data})
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(parts, func(a, b Part[T]) int { return cmp.Compare(a.Rank, b.Rank) })
	return parts, nil
}

// SparseAlltoallFunc is [SparseAlltoall], except that it calls f with each part as it arrives, on
// the caller's goroutine. f owns data, and must not call a collective on c. If f returns an error,
// the call completes the exchange without further calls of f, so that no other rank waits, and
// returns that error. If f panics, the call revokes c, and the panic continues.
func SparseAlltoallFunc[T any](c *Comm, send iter.Seq2[int, []T], f func(source int, data []T) error) error {
	var part []T
	var ferr error
	err := c.in().SparseAlltoall(elem.Of[T](), func(yield func(int, elem.Buffer) bool) {
		if send == nil {
			return
		}
		for dest, data := range send {
			if !yield(dest, elem.View(data)) {
				return
			}
		}
	}, mpi.SparseSink{
		Room: func(n int) []byte {
			part = make([]T, n)
			return elem.View(part).Bytes()
		},
		Full: func(source int) {
			if ferr == nil {
				ferr = f(source, part)
			}
		},
	})
	if err != nil {
		return err
	}
	return ferr
}
