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

// TestTableOfMPI checks that package comm declares every name of weft in the table of docs/mpi.md.
func TestTableOfMPI(t *testing.T) {
	names := exported(t)
	text, err := os.ReadFile("mpi.md")
	require.NoError(t, err)
	receivers := map[string]string{"comm": "", "c": "Comm.", "w": "Win.", "r": "Request.", "g": "Group.", "v": "View.", "l": "Layout.", "p": "Persistent.", "q": "PartSend.", "a": "PartRecv.", "t": "Cart.", "h": "Graph."}
	span := regexp.MustCompile("`(comm|c|w|r|g|v|l|p|q|a|t|h)\\.([A-Z]\\w*)`")
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

// exported returns the names of the functions, types and values that package comm declares.
// The name of a method is "Type.Method".
func exported(t *testing.T) map[string]bool {
	files, err := os.ReadDir("../comm")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join("../comm", f.Name()), nil, parser.SkipObjectResolution)
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
