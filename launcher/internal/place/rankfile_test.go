package place

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

func readText(t testing.TB, text string) *Rankfile {
	t.Helper()
	f, err := ReadRankfile("f", strings.NewReader(text))
	require.NoError(t, err, text)
	return f
}

// threeHosts returns three hosts: two with two packages each, and one whose hardware is not known.
// The cores of the first have the threads 0 and 8, 1 and 9, up to 7 and 15; those of the second
// have 0 and 64, 1 and 65, 4 and 68, 5 and 69.
func threeHosts(t testing.TB) []Machine {
	return []Machine{
		{Name: "node1", Topology: twoSockets.read(t)}, {Name: "node2.cluster", Topology: holes.read(t)}, {Name: "node3", Slots: 2, MaxSlots: 2},
	}
}

func TestRankfile(t *testing.T) {
	machines := threeHosts(t)
	for _, c := range []struct{ text, hosts, cpus string }{
		{"rank 0=node1", "a", "-"},
		{"rank 0=node1 slot=*", "a", "-"},
		{"rank 0=node1 slot=2", "a", "2,10"},
		{"rank 0=node1 slot=0-3", "a", "0-3,8-11"},
		{"rank 0=node1 slots=0,2-3,7", "a", "0,2-3,7-8,10-11,15"},
		{"rank 0=node1 slot=3,1,1-2", "a", "1-3,9-11"},
		{"rank 0=node1 slot=0:1-2", "a", "1-2,9-10"},
		{"rank 0=node1 slot=1:0,3", "a", "4,7,12,15"},
		{"rank 0=node1 slot=1:*", "a", "4-7,12-15"},
		{"rank 0=node1 slot=0-1:0", "a", "0,4,8,12"},
		{"rank 0=node1 slot=0:0;1:3", "a", "0,7-8,15"},
		{"rank 0=node1 slot=s1:c0-1", "a", "4-5,12-13"},
		{"rank 0=node1 slot=S0", "a", "0-3,8-11"},
		{"rank 0=node1 slot=c5", "a", "5,13"},
		{"rank 0=node2 slot=1:1", "b", "5,69"},
		{"rank 0=me@NODE2.Cluster slot=0", "b", "0,64"},
		{"rank 0=+n2", "c", "-"},
		{"rank 0=+N1 slot=3", "b", "5,69"},
		{"rank 2=+n0 slot=0\nrank 0=+n1\n\n # a comment\nrank 1 = node1  slot = 1 // another\r\n", "baa", "-|1,9|0,8"},
		{"\ufeffrank 0=node1#\nrank 01=node3\nrank\t2=node3", "acc", "-|-|-"},
		{"rank 0=node1 slot=0\nrank 1=node1 slot=0\nrank 9=none", "aa", "0,8|0,8"},
	} {
		f := readText(t, c.text)
		np := len(c.hosts)
		// The rankfile overrides the other three fields.
		p := Policy{Rankfile: f, MapBy: "node", RankBy: "node", Bind: job.BindCore}
		r, err := Map(machines, []int{np}, p)
		require.NoError(t, err, c.text)
		require.Equal(t, c.hosts, letters(r), c.text)
		require.Equal(t, c.cpus, bindings(r), c.text)
		check(t, machines, []int{np}, p, r)
	}
	require.Equal(t, 3, readText(t, "rank 0=a\nrank 7=b\nrank 2=a").NP())

	machines[0].Slots = 1
	f := readText(t, "rank 0=node1\nrank 1=node1\nrank 2=node3")
	r, err := Map(machines, []int{1, 2}, Policy{Rankfile: f})
	require.NoError(t, err)
	require.Equal(t, "a ac", letters(r))
	require.Equal(t, "2 ranks share the 1 slot of node1", r.Warning)
	_, err = Map(machines, []int{1, 2}, Policy{Rankfile: f, Strict: true})
	require.EqualError(t, err, "2 ranks do not fit into the 1 slot of node1")
}

func TestReadRankfileErrors(t *testing.T) {
	const form = `expected "rank N=HOST slot=LIST", found `
	slot := func(list string) string {
		return `f:1: slot: expected cores as "0-3,8", "PACKAGE:0-3" or "*", found "` + list + `"`
	}
	for text, want := range map[string]string{
		"":                            "f:1: no rank has a place in the file",
		"# none\n\n//\n":              "f:3: no rank has a place in the file",
		"rank 0=a\nrank 1":            `f:2: ` + form + `"rank 1"`,
		"node1":                       `f:1: ` + form + `"node1"`,
		"0=node1":                     `f:1: ` + form + `"0=node1"`,
		"rank =a":                     `f:1: ` + form + `"rank =a"`,
		"rank 0=":                     `f:1: ` + form + `"rank 0="`,
		"rank 0=me@":                  `f:1: ` + form + `"rank 0=me@"`,
		"rank 0=slot=1":               `f:1: ` + form + `"rank 0=slot=1"`,
		"rank 0=a slot":               `f:1: ` + form + `"rank 0=a slot"`,
		"rank 0=a core=1":             `f:1: ` + form + `"rank 0=a core=1"`,
		"rank -1=a":                   `f:1: expected a rank from 0 to 65535, found "-1"`,
		"rank x=a":                    `f:1: expected a rank from 0 to 65535, found "x"`,
		"rank 65536=a":                `f:1: expected a rank from 0 to 65535, found "65536"`,
		"rank 1=a\n\nrank 1=b":        `f:3: rank 1 has a place already, in line 1`,
		"rank 0=+1":                   `f:1: expected a host or +n0, +n1, …, found "+1"`,
		"rank 0=+n":                   `f:1: expected a host or +n0, +n1, …, found "+n"`,
		"rank 0=+nn1":                 `f:1: expected a host or +n0, +n1, …, found "+nn1"`,
		"rank 0=+n65536":              `f:1: expected a host or +n0, +n1, …, found "+n65536"`,
		"rank 0=a slot=":              slot(""),
		"rank 0=a slot=0 1":           slot("0 1"),
		"rank 0=a slot=3-1":           slot("3-1"),
		"rank 0=a slot=0,":            slot("0,"),
		"rank 0=a slot=0;":            slot("0;"),
		"rank 0=a slot=0,*":           slot("0,*"),
		"rank 0=a slot=:1":            slot(":1"),
		"rank 0=a slot=1:":            slot("1:"),
		"rank 0=a slot=1:2:3":         slot("1:2:3"),
		"rank 0=a slot=s":             slot("s"),
		"rank 0=a slot=-1":            slot("-1"),
		"rank 0=a slot=65536":         slot("65536"),
		"rank 0=a slot=9999999999999": slot("9999999999999"),
		"rank 0=a slot=\x00":          slot(`\x00`),
		"rank 0=a\nr " + strings.Repeat("\x1b", 1000):     `f:2: ` + form + `"r ` + strings.Repeat(`\x1b`, 58) + `"…`,
		"rank 0=a\nrank 1=b" + strings.Repeat(" ", 1<<16): `f:2: expected a line of at most 64 KiB, found more`,
	} {
		f, err := ReadRankfile("f", strings.NewReader(text))
		require.EqualError(t, err, want)
		require.Nil(t, f)
	}

	_, err := ReadRankfile("f", io.MultiReader(strings.NewReader("rank 0=a\n"), iotest.ErrReader(io.ErrNoProgress)))
	require.ErrorIs(t, err, io.ErrNoProgress)
	require.EqualError(t, err, "f: "+io.ErrNoProgress.Error())

	dir := t.TempDir()
	file, err := os.Open(dir)
	require.NoError(t, err)
	defer file.Close()
	_, err = ReadRankfile(dir, file)
	var pe *fs.PathError
	require.False(t, errors.As(err, &pe), "the error names the file once")
	require.ErrorContains(t, err, filepath.Base(dir)+": is a directory")

	long := strings.Repeat("#"+strings.Repeat("x", 1022)+"\n", maxFile/1024+1)
	_, err = ReadRankfile("f", strings.NewReader("rank 0=a\n"+long))
	require.EqualError(t, err, "f: expected a rankfile of at most 16 MiB, found more")
}

func TestRankfileMapErrors(t *testing.T) {
	machines := threeHosts(t)
	for text, want := range map[string]string{
		"rank 0=node1":                                                       "f: rank 1 of the job's 2 has no place",
		"rank 1=node1\nrank 2=node1":                                         "f: rank 0 of the job's 2 has no place",
		"rank 0=node1\nrank 1=node4":                                         `f:2: rank 1: "node4" is not one of the job's hosts, node1,node2.cluster,node3`,
		"rank 0=+n3\nrank 1=node1":                                           "f:1: rank 0: +n3 is not one of the job's 3 hosts",
		"rank 1=node1\n\nrank 0=node1 slot=8":                                "f:3: rank 0: slot=8: node1 has 8 cores, 0 to 7",
		"rank 0=node1\nrank 1=node2 slot=3-4":                                "f:2: rank 1: slot=3-4: node2.cluster has 4 cores, 0 to 3",
		"rank 0=node1\nrank 1=node1 slot=2:0":                                "f:2: rank 1: slot=2:0: node1 has 2 packages, 0 to 1",
		"rank 0=node1\nrank 1=node1 slot=s1-2":                               "f:2: rank 1: slot=s1-2: node1 has 2 packages, 0 to 1",
		"rank 0=node1\nrank 1=node1 slot=1:4":                                "f:2: rank 1: slot=1:4: node1 has 4 cores, 0 to 3 in package 1",
		"rank 0=node1\nrank 1=node3 slot=0":                                  "f:2: rank 1: slot=0: node3 has unknown cores",
		"rank 0=node1\nrank 1=node1 slot=" + strings.Repeat("0,", 100) + "9": "f:2: rank 1: slot=" + strings.Repeat("0,", 30) + "…: node1 has 8 cores, 0 to 7",
	} {
		r, err := Map(machines, []int{2}, Policy{Rankfile: readText(t, text)})
		require.EqualError(t, err, want)
		require.Nil(t, r)
	}
	three := readText(t, "rank 0=node3\nrank 2=node3\nrank 1=node3")
	_, err := Map(machines, []int{3}, Policy{Rankfile: three})
	require.EqualError(t, err, "f:2: rank 2: node3 takes at most 2 ranks")

	bare := []Machine{{Name: "a", Topology: Topology{CPUs: upTo(2)}}, {Name: "b", Topology: Topology{CPUs: upTo(1), Cores: [][]int{{0}}}}}
	for text, want := range map[string]string{
		"rank 0=a slot=0":   "f:1: rank 0: slot=0: a has no cores",
		"rank 0=a slot=0:0": "f:1: rank 0: slot=0:0: a has no packages",
		"rank 0=b slot=1":   "f:1: rank 0: slot=1: b has 1 core, 0",
	} {
		_, err := Map(bare, []int{1}, Policy{Rankfile: readText(t, text)})
		require.EqualError(t, err, want)
	}
}

// TestRankfileLarge: ReadRankfile and Map must accept a rankfile with a line for each rank of the
// largest job.
func TestRankfileLarge(t *testing.T) {
	const hosts = 512
	var text strings.Builder
	machines := make([]Machine, hosts)
	topo := fourNodes.read(t)
	for h := range machines {
		machines[h] = Machine{Name: fmt.Sprintf("node%03d", h), Topology: topo}
	}
	for rank := range job.MaxRanks {
		fmt.Fprintf(&text, "rank %d=node%03d slot=%d\n", rank, rank%hosts, rank/hosts%16)
	}
	f := readText(t, text.String())
	require.Equal(t, job.MaxRanks, f.NP())
	r, err := Map(machines, []int{f.NP()}, Policy{Rankfile: f})
	require.NoError(t, err)
	last := r.Ranks[job.MaxRanks-1]
	require.Equal(t, Rank{Host: hosts - 1, Local: 127, CPUs: []int{15, 31}}, last)
	require.Equal(t, "65536 ranks on the 16384 cores of 512 hosts: they take turns", r.Warning)
}

// FuzzReadRankfile reads an arbitrary text as a rankfile. ReadRankfile must return an error that
// names the file, or a rankfile. For the rankfile, Map must return a valid result, or an error that
// names the file.
func FuzzReadRankfile(f *testing.F) {
	for _, text := range []string{
		"rank 0=node1 slot=0-3,8\nrank 1=node1 slot=1:0-1 # c\n", "rank 0=+n1 slot=0:0,2;1:*", "rank 0=+n1 slot=s0-1\r\nrank 1=me@node2 slot=*",
		"rank 0=node3 slot=0", "rank 0 = a slot = c1", "rank 0=node1\nrank 0=node1", "rank 65536=a", "slot=1", "rank 1=node3",
	} {
		f.Add(text)
	}
	machines := threeHosts(f)
	f.Fuzz(func(t *testing.T, text string) {
		file, err := ReadRankfile("f", strings.NewReader(text))
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "f:"), err)
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 500)
			return
		}
		np := []int{file.NP()}
		p := Policy{Rankfile: file}
		r, err := Map(machines, np, p)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "f:"), err)
			require.NotContains(t, err.Error(), "\n")
			return
		}
		check(t, machines, np, p, r)
	})
}
