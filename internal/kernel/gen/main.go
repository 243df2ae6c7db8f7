// Command gen generates the assembly of internal/kernel, its Go declarations, and the table of the
// functions by operation and type:
//
//	go -C gen run . ..
//
// table.go lists the kernels. rules.go, rules_float.go and rules_truth.go generate the instructions
// that combine a register with memory. code.go generates the rest of a function. The command is a
// module of its own, so that the library does not depend on avo.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
	"path/filepath"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen directory")
		os.Exit(2)
	}
	for _, s := range []*set{&avx2, &avx512} {
		if err := s.write(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "gen:", err)
			os.Exit(1)
		}
	}
}

// write generates the assembly file and the Go file of an instruction set.
func (s *set) write(dir string) error {
	c := build.NewContext()
	c.ConstraintExpr("!purego")
	for _, k := range kernels {
		s.function(c, k)
	}
	file, err := c.Result()
	if err != nil {
		return err
	}
	if err := pass.Compile.Execute(file); err != nil {
		return err
	}
	cfg := printer.Config{Argv: []string{"go", "generate"}, Pkg: "kernel"}
	text, err := printer.NewGoAsm(cfg).Print(file)
	if err != nil {
		return err
	}
	stubs, err := printer.NewStubs(cfg).Print(file)
	if err != nil {
		return err
	}
	stubs, err = format.Source(append(stubs, s.table()...))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, s.name+"_amd64.s"), text, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, s.name+"_amd64.go"), stubs, 0o644)
}

// table returns the Go source of the table of functions by operation and type.
func (s *set) table() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\nvar %s = vectors{\nwidth: %d,\nkernels: [ops][types]vector{\n", s.name, s.width)
	for i, k := range kernels {
		if i == 0 || kernels[i-1].op != k.op {
			fmt.Fprintf(&b, "%s: {\n", k.op)
		}
		for _, t := range k.lane.types {
			fmt.Fprintf(&b, "%s: %s,\n", t, s.symbol(k))
		}
		if i == len(kernels)-1 || kernels[i+1].op != k.op {
			fmt.Fprintln(&b, "},")
		}
	}
	fmt.Fprintln(&b, "},\n}")
	return b.Bytes()
}

// symbol returns the name of the function of a kernel, for example avx2SumF64.
func (s *set) symbol(k kernel) string { return s.name + k.op + k.lane.name }
