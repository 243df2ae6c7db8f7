// Command validate checks Kubernetes manifests of weft jobs as the API server of a cluster does, but needs
// no cluster. It also checks that the parts of a job fit together, for example that the agents connect to
// the launcher's address:
//
//	go -C deploy/kubernetes/validate run .             the manifests in deploy/kubernetes
//	go -C deploy/kubernetes/validate run . FILE...     these files
//
// It is a module of its own, because nothing else in weft needs the API of Kubernetes.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	os.Exit(run(os.Stdout, os.Stderr, os.Args[1:]))
}

// run checks the files, by default ../*.yaml, and returns the exit code: 1 if one of them is wrong,
// 2 if it finds no file, or if it cannot read a file or the schemas.
func run(stdout, stderr io.Writer, files []string) int {
	if len(files) == 0 {
		var err error
		if files, err = filepath.Glob("../*.yaml"); err != nil || len(files) == 0 {
			fmt.Fprintln(stderr, "validate: found no ../*.yaml; name the files, or use go -C deploy/kubernetes/validate run .")
			return 2
		}
	}
	schemas, err := loadSchemas()
	if err != nil {
		fmt.Fprintf(stderr, "validate: %v\n", err)
		return 2
	}
	code := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintf(stderr, "validate: %v\n", err)
			return 2
		}
		errs := checkManifest(schemas, text)
		for _, err := range errs {
			code = 1
			fmt.Fprintf(stderr, "%s: %v\n", file, err)
		}
		if len(errs) == 0 {
			fmt.Fprintf(stdout, "%s: valid\n", file)
		}
	}
	return code
}
