//go:build !race

package bytecopy

import "testing"

// TestString runs TestAgainstCopy and TestOverlap with the string instruction on every processor.
func TestString(t *testing.T) {
	was := hasString
	defer func() { hasString = was }()
	hasString = true
	TestAgainstCopy(t)
	TestOverlap(t)
}
