//go:build !race

package kernel

// annotate does nothing in a build without -race. With -race it reports the accesses of assembly; see
// annotate_race_unsafe.go.
func annotate(_, _, _ []byte) {}
