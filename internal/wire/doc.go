// Package wire holds the headers and lines that go between processes: one file
// per header, with its encoder, its parser and the fuzz target of the parser.
// No parser panics, whatever bytes it gets.
package wire
