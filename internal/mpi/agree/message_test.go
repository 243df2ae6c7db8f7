package agree

import (
	"slices"
	"testing"
)

// FuzzMessage parses arbitrary bytes. If parse accepts them, append must encode the parsed message
// as the same bytes.
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
