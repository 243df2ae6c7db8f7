package bootstrap

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseMapping(t *testing.T) {
	for _, c := range []struct {
		text string
		size int
		want []int
	}{
		{"(vector,(0,1,4))", 4, []int{0, 0, 0, 0}},
		{"(vector,(0,2,2))", 4, []int{0, 0, 1, 1}},
		{"(vector,(0,2,1))", 5, []int{0, 1, 0, 1, 0}},
		{"(vector,(0,1,2),(1,1,1))", 3, []int{0, 0, 1}},
		{"(vector,(5,1,1),(2,1,1))", 2, []int{0, 1}},
		{`"(vector,(0,1,3))"`, 2, []int{0, 0}},
	} {
		got, err := parseMapping(c.text, c.size)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got, c.text)
	}
	for _, text := range []string{
		"", "(vector", "(vector,", "(vector,)", "(vector,(0,1,4)", "(vector,(0,0,4))", "(vector,(0,1))",
		"(vector,(0,1,x))", "(vector,(-1,1,1))", "(matrix,(0,1,1))", "(vector,0,1,1)", "(vector,(0,1,99999999999999))",
	} {
		_, err := parseMapping(text, 4)
		require.Error(t, err, text)
	}
}

func TestRunsOfNodes(t *testing.T) {
	for _, size := range []int{1, 2, 1000} {
		nodes := make([]int, size)
		for r := range nodes {
			nodes[r] = r % 300
		}
		chunks := encodeRuns(Runs(nodes))
		var text string
		for i, c := range chunks {
			require.LessOrEqual(t, len(c), MaxValue)
			require.Equal(t, i < len(chunks)-1, strings.HasSuffix(c, "+"))
			text += strings.TrimSuffix(c, "+")
		}
		got, err := decodeRuns(text, size)
		require.NoError(t, err)
		require.Equal(t, nodes, got)
	}
	for _, text := range []string{"", "0*1", "0*1,", "0*3,", "2*2,", "-1*2,", "0*2,0*1,", "x*2,", "0*-1,0*3,"} {
		_, err := decodeRuns(text, 2)
		require.Error(t, err, text)
	}
}

func FuzzNodes(f *testing.F) {
	f.Add("(vector,(0,2,4),(2,1,3))", 16)
	f.Add("0*8,1*8,", 16)
	f.Add("(vector,(0,16777216,16777216))", 3)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size %= 1 << 12
		if nodes, err := parseMapping(text, size); err == nil {
			require.Len(t, nodes, size)
		}
		if nodes, err := decodeRuns(text, max(size, 1)); err == nil {
			require.Len(t, nodes, max(size, 1))
		}
	})
}
