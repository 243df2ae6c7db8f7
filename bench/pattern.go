package main

import "fmt"

// tag is the tag of most messages of the benchmarks.
const tag = 1

// fill writes test data of a rank to buf. The data depend on the rank and on the offset, so that
// compare detects data of another rank or from another offset.
func fill(buf []byte, rank int) {
	for i := range buf {
		buf[i] = pattern(i, rank)
	}
}

func pattern(i, rank int) byte { return byte(i*7+i>>8+rank*31) + 1 }

// compare returns nil if buf holds what fill writes for the rank. Otherwise it returns an error that
// describes the first wrong byte.
func compare(buf []byte, rank int) error {
	for i, got := range buf {
		if want := pattern(i, rank); got != want {
			return fmt.Errorf("byte %d of %d from rank %d is %d, not %d", i, len(buf), rank, got, want)
		}
	}
	return nil
}

// element is the element type of reductions, as in OSU's benchmarks. The values are small integers, so
// that sums are exact.
type element = float32

const elementBytes = 4

func value(i, rank int) element { return element(i%61 + rank + 1) }

func fillValues(buf []element, rank int) {
	for i := range buf {
		buf[i] = value(i, rank)
	}
}

// compareSum returns nil if buf holds the sum over all ranks of what fillValues writes. Otherwise it
// returns an error that describes the first wrong element.
func compareSum(buf []element, ranks int) error {
	for i, got := range buf {
		want := element(0)
		for r := range ranks {
			want += value(i, r)
		}
		if got != want {
			return fmt.Errorf("element %d of %d is %v, not %v", i, len(buf), got, want)
		}
	}
	return nil
}
