//go:build !amd64 || purego

package kernel

// variants are those that can run here: the loops.
func variants() []variant { return []variant{{name: "go"}} }
