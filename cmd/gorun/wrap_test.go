package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWrap starts some ranks by a command, in whose arguments the rank is replaced.
func TestWrap(t *testing.T) {
	code, out, errs := gorun(t, "-np", "4", "-wrap", "1,3:env TOOL='of %r'", "sh", "-c", "echo ${TOOL-none}")
	require.Zero(t, code, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	require.Equal(t, []string{"none", "none", "of 1", "of 3"}, lines)

	code, _, errs = gorun(t, "-np", "2", "-wrap", "1:nosuchtool", "true")
	require.Equal(t, 127, code)
	require.Contains(t, errs, "gorun: -wrap (job.wrap): no such program: nosuchtool\n")
	code, _, errs = gorun(t, "-np", "2", "-wrap", "5:nosuchtool", "true") // there is no rank 5
	require.Zero(t, code, errs)
	code, _, errs = gorun(t, "-np", "2", "-wrap", "/", "true")
	require.Equal(t, 126, code)
	require.Contains(t, errs, "-wrap (job.wrap): ")
}

// TestWrapOfWeft: ranks of a weft program must find each other although a tool starts them.
func TestWrapOfWeft(t *testing.T) {
	code, out, errs := gorun(t, "-np", "3", "-wrap", "nice -n 1", "../../examples/allreduce", "-n", "100")
	require.Zero(t, code, errs)
	require.Contains(t, out, "correct")
}
