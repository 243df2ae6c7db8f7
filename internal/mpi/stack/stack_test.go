package stack

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoroutinesOfWeft checks Program and Own for goroutines with given functions on their stacks:
// a goroutine counts as the program's, as weft's or os/signal's own, or as neither.
func TestGoroutinesOfWeft(t *testing.T) {
	const at = "(0x1)\n\t/some/where.go:7 +0x1\n"
	const weft = "github.com/weft-hpc/weft/"
	for name, test := range map[string]struct {
		functions    []string
		program, own bool
	}{
		"of the program":             {[]string{"time.Sleep", "main.work"}, true, false},
		"of the transport":           {[]string{"internal/poll.(*FD).Read", weft + "transport/tcp.(*conn).read", "golang.org/x/sync/errgroup.(*Group).Go.func1"}, false, true},
		"of the program, in a group": {[]string{"time.Sleep", "main.work", "golang.org/x/sync/errgroup.(*Group).Go.func1"}, true, false},
		"an operation":               {[]string{"time.Sleep", "main.add", weft + "internal/coll.Reduce", weft + "internal/mpi.(*link).run"}, true, false},
		"of the standard library":    {[]string{"internal/poll.(*FD).Read", "net/http.(*conn).serve"}, false, false},
		"for signals":                {[]string{"os/signal.signal_recv", "os/signal.loop"}, false, true},
		"CPU profile":                {[]string{"time.Sleep", "runtime/pprof.profileWriter"}, false, true},
	} {
		text := "goroutine 7 [sleep]:\n"
		for _, f := range test.functions {
			text += f + at
		}
		g := Parse(text)[0]
		_, program := g.Program()
		require.Equal(t, test.program, program, name)
		require.Equal(t, test.own, g.Own(), name)
	}
}

// FuzzStacks parses arbitrary texts as stacks of goroutines, because stacks contain names that the
// program has chosen. No method may panic or return a text longer than its input.
func FuzzStacks(f *testing.F) {
	buf := make([]byte, 64<<10)
	f.Add(string(buf[:runtime.Stack(buf, true)]))
	f.Add("goroutine 1 [chan receive, 2 minutes]:\ngithub.com/weft-hpc/weft/comm.Recv[...](0x1)\n\t/a/p2p.go:1 +0x1\nmain.main()\n\t/b/main.go:18 +0x2")
	f.Add("goroutine 7 [running]:\n(\n\t\ncreated by x\n\n\ngoroutine -1 [\n\t:")
	f.Fuzz(func(t *testing.T, text string) {
		for _, g := range Parse(text) {
			parts := []string{g.Collective()}
			name, where := g.Call()
			parts = append(parts, name, where)
			if f, ok := g.Program(); ok {
				parts = append(parts, g.Place(f))
			}
			_ = g.Ability()
			for _, part := range parts {
				if len(part) > len(text)+20 {
					t.Fatalf("%q from %q", part, text)
				}
			}
		}
	})
}
