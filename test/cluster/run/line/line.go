//go:build linux

// Package line defines the lines that the program of ranks writes and tests check.
package line

// Length returns the number of x at the end of the i-th line of a rank, with argument "lines".
func Length(i int) int { return i * 7919 % 200 }
