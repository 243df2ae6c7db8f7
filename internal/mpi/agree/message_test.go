package agree

import (
	"slices"
	"testing"
)

// FuzzMessage checks that parse and append are inverse: a message that parse accepts is written as it
// was read.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{})
	f.Add(append([]byte{1, 1, 0, 0}, make([]byte, 34)...))
	f.Add(append([]byte{2, 4, 0, 0}, make([]byte, 32)...))
	f.Add(append([]byte{3, 1, 0, 0}, make([]byte, 32)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		if m.parse(b) != nil {
			return
		}
		if again := m.append(nil); !slices.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
