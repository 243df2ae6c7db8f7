package place

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFoldNames(t *testing.T) {
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("%c", 'a'+i))
	}
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, ""},
		{[]string{"a"}, "a"},
		{[]string{"a", "b"}, "a,b"},
		{[]string{"node1", "node2", "node3", "node7", "gpu1"}, "node[1-3,7],gpu1"},
		{[]string{"node08", "node09", "node10"}, "node[08-10]"},
		{[]string{"node8", "node9", "node10"}, "node[8-10]"},
		{[]string{"node9", "node010"}, "node9,node010"},
		{[]string{"node2", "node1"}, "node2,node1"},
		{[]string{"node1", "node1"}, "node1,node1"},
		{[]string{"r1n1-ib", "r1n2-ib", "r2n1-ib"}, "r1n[1-2]-ib,r2n1-ib"},
		{[]string{"n1.a", "n2.a", "n3.b"}, "n[1-2].a,n3.b"},
		{[]string{"10.0.0.1", "10.0.0.2", "10.0.1.1"}, "10.0.0.[1-2],10.0.1.1"},
		{[]string{"fe80::1", "fe80::2"}, "fe80::1,fe80::2"},
		{[]string{"n99999999999999999999", "n99999999999999999998"}, "n99999999999999999999,n99999999999999999998"},
		{[]string{"", "1", "2"}, ",[1-2]"},
		{many, "a,b,c,d,e,f,…,t"},
	} {
		require.Equal(t, c.want, foldNames(c.names))
	}
	var names []string
	for i := range 10000 {
		names = append(names, fmt.Sprintf("node%05d", i))
	}
	require.Equal(t, "node[00000-09999]", foldNames(names))
}

// FuzzFoldNames: unless foldNames leaves out names, its result must contain all names in their
// order.
func FuzzFoldNames(f *testing.F) {
	f.Add("node1 node2 node3 gpu1")
	f.Add("n08 n09 n10 n9 n1n1 n1n2")
	f.Add("1 2 3 12 13 a1b2 a1b3")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(text, "[],…") {
			return
		}
		names := strings.Fields(text)
		folded := foldNames(names)
		if strings.Contains(folded, "…") {
			return
		}
		var got []string
		for folded != "" {
			end := strings.IndexByte(folded+",", ',')
			if open := strings.IndexByte(folded, '['); open >= 0 && open < end {
				end = open + strings.IndexByte(folded[open:], ']')
				end += strings.IndexByte(folded[end:]+",", ',')
			}
			got = append(got, unfold(t, folded[:end])...)
			folded = folded[min(end+1, len(folded)):]
		}
		require.Equal(t, strings.Join(names, " "), strings.Join(got, " "))
	})
}

// unfold is the reverse of foldFrom: it returns the names in a text such as "node[01-03,07]-ib".
func unfold(t *testing.T, text string) (names []string) {
	prefix, rest, ok := strings.Cut(text, "[")
	if !ok {
		return []string{text}
	}
	list, suffix, _ := strings.Cut(rest, "]")
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isSpan := strings.Cut(part, "-")
		if !isSpan {
			hi = lo
		}
		a, okA := number(lo, maxNumber)
		b, okB := number(hi, maxNumber)
		require.True(t, okA && okB, text)
		for n := a; n <= b; n++ {
			names = append(names, fmt.Sprintf("%s%0*d%s", prefix, len(lo), n, suffix))
		}
	}
	return names
}

func TestFinder(t *testing.T) {
	var machines []Machine
	for _, name := range []string{"node1", "Node2.cluster", "a.x", "a.y", "a.z", "b.x", "B.X", "10.0.0.1", "::1", "node1.far"} {
		machines = append(machines, Machine{Name: name})
	}
	find := finder(machines)
	for name, want := range map[string]int{
		"node1": 0, "NODE1": 0, "node1.cluster": 0, "node1.far": 9, "node2": 1, "node2.Cluster": 1, "a.y": 3,
		"b": 5, "b.x": 5, "10.0.0.1": 7, "::1": 8,
	} {
		i, problem := find(name)
		require.Empty(t, problem)
		require.Equal(t, want, i, name)
	}
	const hosts = "node1,Node2.cluster,a.x,a.y,a.z,b.x,…,node1.far"
	for name, want := range map[string]string{
		"a":            `"a" is the first part of the names of several of the job's hosts`,
		"node3":        `"node3" is not one of the job's hosts, ` + hosts,
		"node2.other":  `"node2.other" is not one of the job's hosts, ` + hosts,
		"10":           `"10" is not one of the job's hosts, ` + hosts,
		"10.0.0.1.far": `"10.0.0.1.far" is not one of the job's hosts, ` + hosts,
	} {
		_, problem := find(name)
		require.Equal(t, want, problem)
	}
}
