package commtest

import (
	"fmt"
	"runtime"
	"strings"
)

// goroutineName returns the name of the calling goroutine in the output of runtime.Stack, such as
// "goroutine 12 ".
func goroutineName() string {
	var b [64]byte
	text := string(b[:runtime.Stack(b[:], false)])
	if i := strings.IndexByte(text, '['); i > 0 {
		return text[:i]
	}
	return text
}

// stacks returns the stacks of all ranks, and then those of all other goroutines.
func (j *job) stacks() string {
	all := strings.Split(allStacks(), "\n\n")
	used := make([]bool, len(all))
	var out strings.Builder
	for i := range j.ranks {
		r := &j.ranks[i]
		r.mu.Lock()
		name := r.goroutine
		r.mu.Unlock()
		found := false
		for k, g := range all {
			if name != "" && strings.HasPrefix(g, name) {
				fmt.Fprintf(&out, "\nrank %d: %s\n", i, g)
				used[k], found = true, true
			}
		}
		if !found {
			fmt.Fprintf(&out, "\nrank %d has ended\n", i)
		}
	}
	out.WriteString("\nother goroutines:\n")
	for k, g := range all {
		if !used[k] {
			out.WriteString("\n" + g + "\n")
		}
	}
	return out.String()
}

// allStacks returns the stacks of all goroutines.
func allStacks() string {
	for buf := make([]byte, 1<<20); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return string(buf[:n])
		}
	}
}
