package mpi

import "fmt"

// Dims implements comm.Dims, which documents the call.
func Dims(ranks int, dims ...int) ([]int, error) {
	bad := func(format string, args ...any) ([]int, error) {
		return nil, &Error{Op: "Dims", Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: "+format, append([]any{ErrArg}, args...)...)}
	}
	if ranks < 1 {
		return bad("%d ranks", ranks)
	}
	left, free := ranks, 0
	for i, n := range dims {
		switch {
		case n < 0:
			return bad("%d ranks in dimension %d", n, i)
		case n == 0:
			free++
		case left%n != 0:
			return bad("%d ranks do not fill dimensions %v", ranks, dims)
		default:
			left /= n
		}
	}
	if free == 0 && left != 1 {
		return bad("%d ranks do not fill dimensions %v", ranks, dims)
	}
	factors := factorize(left, free, left)
	out := make([]int, len(dims))
	for i, n := range dims {
		if out[i] = n; n == 0 {
			out[i], factors = factors[0], factors[1:]
		}
	}
	return out, nil
}

// factorize returns k factors of n in descending order, each at most most: those whose first factor
// is least, among them those whose second factor is least, and so on. It returns nil if there are
// none.
func factorize(n, k, most int) []int {
	if k == 0 {
		if n == 1 {
			return []int{}
		}
		return nil
	}
	for first := 1; first <= min(n, most); first++ {
		if n%first != 0 {
			continue
		}
		// The factors after the first are at most first.
		if rest := factorize(n/first, k-1, first); rest != nil {
			return append([]int{first}, rest...)
		}
	}
	return nil
}
