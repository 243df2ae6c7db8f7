// Package wire encodes and parses the headers and lines that weft's processes send to each other,
// and some records in memory that they share. Fuzz tests give arbitrary bytes to the parsers.
package wire
