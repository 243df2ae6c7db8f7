package mpi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// rankCounts holds the numbers of ranks with which eachCount runs a test: powers of two and others.
var rankCounts = []int{1, 2, 3, 4, 5, 7, 8, 9}

// patience is the time after which a test fails if it waits for something that should happen.
const patience = 60 * time.Second

// ranks runs f on n ranks. If they have not ended after patience, the test fails.
func ranks(t *testing.T, n int, f func(c *comm.Comm) error, opts ...commtest.Option) {
	t.Helper()
	commtest.Run(t, n, f, append([]commtest.Option{commtest.WithTimeout(patience)}, opts...)...)
}

// eachCount runs f on each number of ranks in rankCounts, in a subtest of its own.
func eachCount(t *testing.T, f func(c *comm.Comm) error) {
	for _, n := range rankCounts {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) { ranks(t, n, f) })
	}
}

// withRace returns n, or fewer with the race detector, with which tests take about ten times as long.
func withRace(n, fewer int) int {
	if raceEnabled {
		return fewer
	}
	return n
}

// same returns an error if two slices differ. The error begins with what, and names the lengths or
// the first element that differs.
func same[T comparable](what string, got, want []T) error {
	if slices.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("%s: element %d of %d is %v, want %v", what, i, len(got), got[i], want[i])
		}
	}
	return nil
}

// first returns the first of errs that is not nil, or nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// wantErr returns nil if err wraps kind and the text of err contains part. Otherwise it returns an
// error, which begins with what.
func wantErr(what string, err, kind error, part string) error {
	switch {
	case !isErr(err, kind):
		return fmt.Errorf("%s: want an error that is %q, got: %s", what, kind.Error(), text(err))
	case !strings.Contains(err.Error(), part):
		return fmt.Errorf("%s: %q does not say %q", what, err.Error(), part)
	}
	return nil
}

func text(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// count returns the n consecutive numbers from from on.
func count(n, from int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = from + i
	}
	return s
}
