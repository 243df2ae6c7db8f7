package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStress is a short run of what make stress runs for longer. It ends before
// go test would end it, and clean up nothing.
func TestStress(t *testing.T) {
	for _, args := range [][]string{
		{"-jobs", "40", "-kills", "25", "-ops", "40", "-seed", "1", "-first", "-timeout", "7m"},
	} {
		var out bytes.Buffer
		require.Zero(t, run(&out, &out, args), &out)
	}
}

func TestBadUsage(t *testing.T) {
	for _, args := range [][]string{{"-jobs", "many"}, {"7"}} {
		var out bytes.Buffer
		require.Equal(t, 2, run(&out, &out, args))
	}
}
