// Package stack finds the calls of weft on the stacks of a program's goroutines.
package stack

import (
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
)

// Goroutine is one goroutine in the output of runtime.Stack.
type Goroutine struct {
	ID     int
	State  string  // such as "running" or "chan receive"
	frames []Frame // the functions on the stack, the innermost first
	Text   string  // the part of the output about this goroutine
}

// Frame is a function on a stack.
type Frame struct {
	function string // name of the function with the path of its package, without arguments
	where    string // the line that the function is at, such as "main.go:18"
}

// Parse parses the output of runtime.Stack for all goroutines. The text of the last goroutine may
// be incomplete.
func Parse(text string) []Goroutine {
	var list []Goroutine
	for block := range strings.SplitSeq(text, "\n\n") {
		g := Goroutine{Text: block}
		head, rest, _ := strings.Cut(strings.TrimLeft(block, "\n"), "\n")
		head, ok := strings.CutPrefix(head, "goroutine ")
		number, _, _ := strings.Cut(head, " ")
		id, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		g.ID = id
		_, state, _ := strings.Cut(head, "[")
		state, _, _ = strings.Cut(state, "]")
		// The rest is, for example, the time for which the goroutine has been in this state.
		g.State, _, _ = strings.Cut(state, ",")
		function := ""
		for line := range strings.Lines(rest) {
			line = strings.TrimSuffix(line, "\n")
			at, isFile := strings.CutPrefix(line, "\t")
			switch {
			case strings.HasPrefix(line, "created by "):
				function = ""
			case !isFile:
				function = line[:max(0, strings.LastIndexByte(line, '('))]
			case function != "":
				at, _, _ = strings.Cut(at, " +0x")
				g.frames = append(g.frames, Frame{function, at[strings.LastIndexByte(at, '/')+1:]})
				function = ""
			}
		}
		list = append(list, g)
	}
	return list
}

// The path of the module, with a final slash, and of package comm, with a final dot.
var (
	module     = strings.TrimSuffix(reflect.TypeFor[Goroutine]().PkgPath(), "internal/mpi/stack")
	ownPackage = module + "comm."
)

// ours reports whether a function belongs to weft: to package comm, or to a package in internal/ or
// transport/. Functions of external test packages (with _test in their names) count as functions of
// the program.
func (f Frame) ours() bool {
	path, ok := strings.CutPrefix(f.function, module)
	if !ok {
		return false
	}
	path, _, _ = strings.Cut(path, ".")
	return path == "comm" || !strings.HasSuffix(path, "_test") &&
		(strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "transport/"))
}

// start reports whether the function is one that calls the program: comm.Main, comm.MainContext, or a
// function of commtest. A search for functions of the program ends at such a frame: those that have called it
// do not count.
func (f Frame) start() bool {
	name, ok := strings.CutPrefix(f.function, ownPackage)
	name, _, _ = strings.Cut(name, ".")
	return ok && (name == "Main" || name == "MainContext") || strings.HasPrefix(f.function, module+"comm/commtest.")
}

// standard reports whether the function belongs to Go's standard library: the first
// element of its package path has no dot, and its package is not main.
func (f Frame) standard() bool {
	path := f.function
	if i := strings.LastIndexByte(path, '/'); i < 0 {
		return !strings.HasPrefix(path, "main.")
	}
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// Call returns the call of package comm that the goroutine is in, and the line of the function that
// makes the call. If one call of package comm calls another one, name is that of the outer one.
// name is empty if the goroutine is in no call. where is empty if no function has called package
// comm, as on a goroutine of weft.
func (g *Goroutine) Call() (name, where string) {
	for i := 0; i < len(g.frames); i++ {
		f := g.frames[i]
		if f.start() {
			return name, where
		}
		if own, ok := strings.CutPrefix(f.function, ownPackage); ok {
			name = callTitle(own)
			for i++; i < len(g.frames) && g.frames[i].ours(); i++ {
				if own, ok := strings.CutPrefix(g.frames[i].function, ownPackage); ok && !g.frames[i].start() {
					name = callTitle(own)
				}
			}
			if i < len(g.frames) {
				where = g.frames[i].where
			}
			return name, where
		}
	}
	return "", ""
}

// ProgramLine returns the line of the program that called package comm, such as
// "main.go:18". It is empty if no function of the program is on the stack.
func ProgramLine() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		at, more := frames.Next()
		f := Frame{function: at.Function}
		switch {
		case f.start() || !more:
			return ""
		case !f.ours() && !f.standard():
			return filepath.Base(at.File) + ":" + strconv.Itoa(at.Line)
		}
	}
}

// callTitle returns "Recv" for "Recv[...]", "Dup" for "(*Comm).Dup" and "Win.Fence" for
// "(*Win).Fence[...]".
func callTitle(function string) string {
	function = strings.ReplaceAll(function, "[...]", "")
	function = strings.NewReplacer("(*", "", ")", "").Replace(function)
	return strings.TrimPrefix(function, "Comm.")
}

// Collective returns the name of the collective whose algorithm the goroutine runs, such
// as "Allreduce". The name is empty if the goroutine runs no collective.
func (g *Goroutine) Collective() (name string) {
	for _, f := range g.frames {
		if own, ok := strings.CutPrefix(f.function, module+"internal/coll."); ok {
			name = strings.TrimPrefix(strings.TrimPrefix(callTitle(own), "Host."), "Between.")
		}
	}
	return name
}

// Program returns the innermost function of the program on the stack. ok is false if there is none,
// or if the function is in a call of weft.
func (g *Goroutine) Program() (f Frame, ok bool) {
	for _, f := range g.frames {
		if f.ours() {
			break
		}
		if !f.standard() {
			return f, true
		}
	}
	return Frame{}, false
}

// Own reports whether the goroutine is one of weft, or of package os/signal or runtime/pprof: the innermost
// of its functions that are not in the standard library is weft's, or one of its functions is in one of
// these packages.
func (g *Goroutine) Own() bool {
	for _, f := range g.frames {
		if f.ours() || strings.HasPrefix(f.function, "os/signal.") || strings.HasPrefix(f.function, "runtime/pprof.") {
			return true
		}
		if !f.standard() {
			return false
		}
	}
	return false
}

// Ability says whether a goroutine can continue without an action of another goroutine.
type Ability int

// The abilities, in their order.
const (
	Waits  Ability = iota // the goroutine continues only if another goroutine acts
	MayRun                // a timer, a signal, or an event outside of the process may let the goroutine continue
	Runs                  // the goroutine runs, or is ready to run
)

// Ability returns whether the goroutine can continue, judged by its state alone. The result for a
// goroutine that receives from a channel is MayRun, because it may wait for a timer or a signal.
func (g *Goroutine) Ability() Ability {
	switch s := g.State; {
	case s == "running", s == "runnable", s == "preempted", strings.HasPrefix(s, "GC "):
		return Runs
	case s == "chan send", s == "semacquire", s == "select (no cases)", s == "coroutine", strings.HasSuffix(s, "(nil chan)"), strings.HasPrefix(s, "sync."):
		return Waits
	}
	return MayRun
}

// Place returns the function f of the goroutine, its line and the goroutine's state as text, such
// as "main.work at main.go:7 (sleep)".
func (g *Goroutine) Place(f Frame) string {
	function := f.function[strings.LastIndexByte(f.function, '/')+1:]
	return function + " at " + f.where + " (" + g.State + ")"
}
