// Package wire encodes and parses the headers and lines that weft's processes send to each other.
// Each format has a file with its encoder and its parser; the test file beside it has the fuzz
// target of the parser. No parser panics, whatever bytes it gets.
package wire
