// Package library is no program.
package library

// X is something.
var X = 1
