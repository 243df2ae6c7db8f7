// Package docs tests the pages of this folder.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTableOfMPI checks that packages comm and pio declare every name of weft in the table of docs/mpi.md.
func TestTableOfMPI(t *testing.T) {
	names := exported(t, "../comm")
	for name := range exported(t, "../comm/pio") {
		names["pio."+name] = true
	}
	text, err := os.ReadFile("mpi.md")
	require.NoError(t, err)
	receivers := map[string]string{
		"comm": "", "c": "Comm.", "w": "Win.", "b": "Place.", "r": "Request.", "g": "Group.", "v": "View.", "l": "Layout.",
		"p": "Persistent.", "q": "PartSend.", "a": "PartRecv.", "t": "Cart.", "h": "Graph.", "k": "Key.", "o": "Port.", "s": "Session.",
		"pio": "pio.", "f": "pio.File.", "x": "pio.View.",
	}
	span := regexp.MustCompile("`(comm|pio|f|x|c|w|b|r|g|v|l|p|q|a|t|h|k|o|s)\\.([A-Z]\\w*)`")
	n := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		for _, m := range span.FindAllStringSubmatch(cells[max(0, len(cells)-2)], -1) { // weft's names are in the last column
			n++
			require.Contains(t, names, receivers[m[1]]+m[2], line)
		}
	}
	require.Greater(t, n, 100)
}

// TestEveryCallOfMPI checks that each function of MPI-4.1 is in the first column of a table of
// docs/mpi.md whose last column is not empty, and that a "none" there has a reason. The first
// column must have no function that does not exist.
func TestEveryCallOfMPI(t *testing.T) {
	list, err := os.ReadFile("testdata/mpi-4.1.txt")
	require.NoError(t, err)
	functions := map[string]bool{} // false: docs/mpi.md does not have it
	for line := range strings.Lines(string(list)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			functions[line] = false
		}
	}
	require.Greater(t, len(functions), 500)
	text, err := os.ReadFile("mpi.md")
	require.NoError(t, err)
	span := regexp.MustCompile("`(MPI|)_([^`]*)`")
	constant := regexp.MustCompile("^MPI_[A-Z0-9_]+$")
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 {
			continue
		}
		weft := strings.TrimSpace(cells[len(cells)-2])
		before := "" // the name before, to which a span such as `_get_name` refers
		for _, m := range span.FindAllStringSubmatch(cells[1], -1) {
			names := named(functions, m[1]+"_"+m[2], before)
			if m[1] == "MPI" {
				before = m[1] + "_" + m[2]
			}
			if len(names) == 0 && constant.MatchString(before) {
				continue
			}
			require.NotEmpty(t, names, "%s of %s", m[0], line)
			require.NotEmpty(t, weft, line)
			require.False(t, strings.HasPrefix(weft, "none") && len(weft) < len("none: a reason"), line)
			for _, name := range names {
				functions[name] = true
			}
		}
	}
	for name, has := range functions {
		require.True(t, has, "%s has no row", name)
	}
}

// named returns the functions that a span of the first column of docs/mpi.md stands for: the function
// with this name, those that match a name with "…", or, for a span that begins with "_", the longest
// function that begins as the name before and ends so.
func named(functions map[string]bool, name, before string) (list []string) {
	switch {
	case strings.HasPrefix(name, "_"):
		for begin := before; len(list) == 0 && strings.Contains(begin, "_"); begin = begin[:strings.LastIndexByte(begin, '_')] {
			list = named(functions, begin+name, "")
		}
	case strings.Contains(name, "…"):
		pattern := regexp.MustCompile("^" + strings.ReplaceAll(name, "…", ".*") + "$")
		for f := range functions {
			if pattern.MatchString(f) {
				list = append(list, f)
			}
		}
	default:
		if _, ok := functions[name]; ok {
			list = []string{name}
		}
	}
	return list
}

// exported returns the names of the functions, types and values that the package in a folder declares.
// The name of a method is "Type.Method".
func exported(t *testing.T, folder string) map[string]bool {
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(folder, f.Name()), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range tree.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = typeOf(d.Recv.List[0].Type) + "." + name
				}
				names[name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, id := range s.Names {
							names[id.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}

// typeOf returns the name of a receiver's type.
func typeOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeOf(e.X)
	case *ast.IndexExpr:
		return typeOf(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
