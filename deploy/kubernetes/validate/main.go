// Command validate checks manifests of weft jobs as a cluster would, without
// one, and that the parts of a job agree with each other:
//
//	go -C deploy/kubernetes/validate run .             the manifests beside it
//	go -C deploy/kubernetes/validate run . FILE...     others
//
// It is a module of its own: nothing else of weft needs the API of Kubernetes.
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

// run checks the files, or those beside the module, and returns the exit code:
// 1 where one of them is wrong, 2 where it could not look.
func run(stdout, stderr io.Writer, files []string) int {
	if len(files) == 0 {
		var err error
		if files, err = filepath.Glob("../*.yaml"); err != nil || len(files) == 0 {
			fmt.Fprintln(stderr, "validate: no ../*.yaml here; name the files, or use go -C deploy/kubernetes/validate run .")
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
			fmt.Fprintf(stdout, "%s: as it should be\n", file)
		}
	}
	return code
}
