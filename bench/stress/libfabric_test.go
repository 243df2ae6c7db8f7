//go:build libfabric && linux

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStressManners runs jobs over libfabric, with testprov in the manner of several providers, and with
// faults that the transport hides.
func TestStressManners(t *testing.T) {
	var out bytes.Buffer
	const manners = "plain;verbs,nics=2;efa;cxi,nics=3;psm;late=300;enorx=6;eagain=30;efa,reorder=3"
	args := []string{"-jobs", "12", "-kills", "8", "-seed", "1", "-first", "-timeout", "7m", "-testprov", manners}
	require.Zero(t, run(&out, &out, args), &out)
}
