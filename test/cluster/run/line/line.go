//go:build linux

// Package line defines the lines that the program test/cluster/run/rank writes with the argument "lines",
// and that tests check.
package line

// Length returns the number of letters x at the end of the i-th line of a rank.
func Length(i int) int { return i * 7919 % 200 }
