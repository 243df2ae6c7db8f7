//go:build linux

// Package line is what the program of ranks and those who read its output agree on.
package line

// Length is how many x end a rank's i-th line of "lines".
func Length(i int) int { return i * 7919 % 200 }
