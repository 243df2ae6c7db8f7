package params

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBool checks that a variable of a Bool parameter may be 1, 0, true, false or empty, and
// nothing else.
func TestBool(t *testing.T) {
	for text, want := range map[string]bool{"1": true, "true": true, "0": false, "false": false, "": false} {
		s, err := FromEnviron([]string{"WEFT_CHECK=" + text})
		require.NoError(t, err, text)
		require.Equal(t, want, s.Bool("check"), text)
	}
	for _, text := range []string{"yes", "TRUE", "2", " 1"} {
		_, err := FromEnviron([]string{"WEFT_CHECK=" + text})
		require.ErrorContains(t, err, "WEFT_CHECK: check:", text)
	}
}
