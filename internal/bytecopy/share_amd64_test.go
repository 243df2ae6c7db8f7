//go:build !race

package bytecopy

import "testing"

// TestString does with the string instruction, whatever the processor, what
// TestAgainstCopy does with the better way.
func TestString(t *testing.T) {
	was := hasString
	defer func() { hasString = was }()
	hasString = true
	TestAgainstCopy(t)
	TestOverlap(t)
}
