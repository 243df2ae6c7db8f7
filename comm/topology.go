package comm

import "github.com/weft-hpc/weft/internal/mpi"

// Dims divides a number of ranks among the dimensions of a grid (MPI_Dims_create, MPI 4.1 §8.5.2).
// dims has one element per dimension: the number of ranks in this dimension, or 0 if Dims is to
// choose it. Dims returns a copy of dims without zeros, whose product is ranks. The numbers that it
// chooses descend, and the largest of them is as small as possible, then the second largest, and so
// on: Dims(12, 0, 0) returns 4 and 3. Dims is local.
//
// Errors: ErrArg if ranks is less than 1 or more than math.MaxInt32, if a number is negative, or if
// the numbers in dims do not divide ranks.
func Dims(ranks int, dims ...int) ([]int, error) { return mpi.Dims(ranks, dims...) }
