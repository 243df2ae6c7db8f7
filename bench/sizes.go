package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// parseSizes parses a list of sizes and ranges of sizes, such as "0,8,1k..1m". A range stands for its
// first size and all doublings of it up to its last size. An empty list means one size, 0.
func parseSizes(list string) ([]int, error) {
	if list == "" {
		return []int{0}, nil
	}
	var sizes []int
	for item := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(item, "..")
		first, err := parseSize(from)
		if err != nil {
			return nil, err
		}
		last := first
		if ranged {
			if last, err = parseSize(to); err != nil {
				return nil, err
			}
			if first < 1 || last < first {
				return nil, fmt.Errorf("expected a range that ascends from 1 or more, found %q", item)
			}
		}
		for n := first; ; n *= 2 {
			sizes = append(sizes, n)
			if n > last/2 || n == 0 {
				break
			}
		}
	}
	return sizes, nil
}

// parseSize parses a size such as 8, 64k or 1m. The units k, m and g are powers of 1024.
func parseSize(text string) (int, error) {
	number, unit := strings.TrimSpace(text), 1
	if number != "" {
		switch number[len(number)-1] {
		case 'k', 'K':
			unit = 1 << 10
		case 'm', 'M':
			unit = 1 << 20
		case 'g', 'G':
			unit = 1 << 30
		}
	}
	if unit > 1 {
		number = number[:len(number)-1]
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || n > math.MaxInt/uint64(unit) {
		return 0, fmt.Errorf("expected bytes such as 8, 64k or 1m, found %q", text)
	}
	return int(n) * unit, nil
}
