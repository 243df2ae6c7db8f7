package mpi

import (
	"fmt"
	"math"
	"slices"
)

// Dims implements comm.Dims, which documents the call.
func Dims(ranks int, dims ...int) ([]int, error) {
	bad := func(format string, args ...any) ([]int, error) {
		return nil, &Error{Op: "Dims", Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: "+format, append([]any{ErrArg}, args...)...)}
	}
	if ranks < 1 || ranks > math.MaxInt32 {
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
	factors := factorize(left, free, left, divisors(left))
	out := make([]int, len(dims))
	for i, n := range dims {
		if out[i] = n; n == 0 {
			out[i], factors = factors[0], factors[1:]
		}
	}
	return out, nil
}

// divisors returns the divisors of n in ascending order.
func divisors(n int) []int {
	var low, high []int
	for d := 1; d*d <= n; d++ {
		if n%d == 0 {
			low = append(low, d)
			if d*d < n {
				high = append(high, n/d)
			}
		}
	}
	slices.Reverse(high)
	return append(low, high...)
}

// factorize returns k factors of n in descending order, each at most most: those whose first factor
// is least, among them those whose second factor is least, and so on. It returns nil if there are
// none. among holds all divisors of n in ascending order, and may hold other numbers.
func factorize(n, k, most int, among []int) []int {
	if k == 0 {
		if n == 1 {
			return []int{}
		}
		return nil
	}
	for _, first := range among {
		if first > min(n, most) {
			break
		}
		if n%first != 0 {
			continue
		}
		// The factors after the first are at most first.
		if rest := factorize(n/first, k-1, first, among); rest != nil {
			return append([]int{first}, rest...)
		}
	}
	return nil
}
