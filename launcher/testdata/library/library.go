// Package library is not a main package, so that a test can check what gorun prints then.
package library

// X makes the package have code.
var X = 1
