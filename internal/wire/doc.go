// Package wire encodes and parses the headers and lines that processes exchange: one file per
// format, with its encoder, its parser and the fuzz target of the parser. No parser panics,
// whatever bytes it gets.
package wire
