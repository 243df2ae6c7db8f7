//go:build !amd64 || purego

package kernel

// variants returns the variants that can run here: only the Go loops.
func variants() []variant { return []variant{{name: "go"}} }
