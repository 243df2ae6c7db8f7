package place

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

func TestCPUList(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 8, 10, 11}, ParseCPUs("0-2,8,10-11"))
	require.Equal(t, "0-2,8,10-11", FormatCPUs([]int{0, 1, 2, 8, 10, 11}))
	require.Empty(t, FormatCPUs(nil))
	require.Len(t, ParseCPUs("0-65535"), 1<<16)
	for _, text := range []string{"", "a", "3-1", "-1", "1-", "+1", "0-99999999999", "65536", "0,,1", "1,0", "0-3,3", "0-3:2", " 1", "1\n"} {
		require.Nil(t, ParseCPUs(text), text)
	}
}

func FuzzParseCPUs(f *testing.F) {
	for _, text := range []string{"0", "0-2,8,10-11", "0-65535", "3-1", "0,0", "1-2-3", ","} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := ParseCPUs(text)
		require.LessOrEqual(t, len(list), MaxCPUs)
		require.True(t, slices.IsSorted(list))
		if list != nil {
			require.Equal(t, list, ParseCPUs(FormatCPUs(list)))
		}
	})
}

func TestTopologyJSON(t *testing.T) {
	for _, topo := range []Topology{
		{}, twoCores.read(t), twoSockets.read(t), fourNodes.read(t), holes.read(t), {CPUs: []int{3}, Quota: 2},
		{CPUs: upTo(4), NUMA: [][]int{{0, 1}, {3}}},
	} {
		text, err := json.Marshal(topo)
		require.NoError(t, err)
		var got Topology
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, topo, got, "%s", text)
	}
	large, err := json.Marshal(shape{packages: 2, cores: 128, threads: 2, nodes: 8}.read(t))
	require.NoError(t, err)
	require.Less(t, len(large), 1400)

	var got Topology
	require.NoError(t, json.Unmarshal([]byte(`{"cpus":"0-3","cores":"3;1;0;2","numa":"1,3;0,2","packages":"0-3","x":[]}`), &got))
	require.Equal(t, "0;2;1;3", formatUnits(got.Cores))
	require.Equal(t, "0,2;1,3", formatUnits(got.NUMA))

	const four = `{"cpus":"0-3",`
	for text, want := range map[string]string{
		`{"cpus":"x"}`:                                   `topology: expected a list of hardware threads, found "x"`,
		`{"cpus":"0-1","quota":-1}`:                      `topology: expected a quota of 0 or more, found -1`,
		`{"cpus":"0-1","cores":"0;2"}`:                   `topology: cores: expected different hardware threads of the host, found 2`,
		`{"cpus":"2","cores":"0"}`:                       `topology: cores: expected different hardware threads of the host, found 0`,
		four + `"numa":"0-1;1"}`:                         `topology: numa: expected different hardware threads of the host, found 1`,
		four + `"packages":"0;;"}`:                       `topology: packages: expected lists of hardware threads, of 4 at most, found "0;;"`,
		`{"cpus":"0-1","numa":"0-1;1"}`:                  `topology: numa: expected lists of hardware threads, of 2 at most, found "0-1;1"`,
		`{"cores":"0"}`:                                  `topology: cores: expected lists of hardware threads, of 0 at most, found "0"`,
		four + `"cores":"0;1;2"}`:                        `topology: cores: expected all 4 hardware threads, found 3`,
		four + `"packages":"0-2"}`:                       `topology: packages: expected all 4 hardware threads, found 3`,
		four + `"cores":"0-3","numa":"0"}`:               `topology: expected nodes and packages of whole cores, found a core with hardware threads 0 and 1 in different ones`,
		four + `"cores":"0-1;2-3","packages":"0,2;1,3"}`: `topology: expected nodes and packages of whole cores, found a core with hardware threads 0 and 1 in different ones`,
		`{"cpus":0}`:                                     `topology: json: `,
		`{"cpus":"` + strings.Repeat(`\n`, 1000) + `"}`:  `topology: expected a list of hardware threads, found "\n\n`,
	} {
		topo := Topology{Quota: 1}
		err := json.Unmarshal([]byte(text), &topo)
		require.ErrorContains(t, err, want)
		require.Less(t, len(err.Error()), 250)
		require.Equal(t, Topology{Quota: 1}, topo)
	}
}

// TestCheck calls Check for invalid topologies that UnmarshalJSON cannot make, because they have no
// JSON form.
func TestCheck(t *testing.T) {
	for want, topo := range map[string]Topology{
		"topology: expected hardware threads from 0 to 65535 that ascend, found 1":     {CPUs: []int{2, 1}},
		"topology: expected hardware threads from 0 to 65535 that ascend, found -1":    {CPUs: []int{-1}},
		"topology: expected hardware threads from 0 to 65535 that ascend, found 65536": {CPUs: []int{0, 65536}},
		"topology: cores: expected hardware threads in each, found none in one":        {CPUs: upTo(2), Cores: [][]int{{0, 1}, {}}},
		"topology: numa: expected hardware threads that ascend, found 0":               {CPUs: upTo(2), NUMA: [][]int{{1, 0}}},
		"topology: numa: expected hardware threads that ascend, found -1":              {CPUs: upTo(2), NUMA: [][]int{{-1, 0}}},
	} {
		require.EqualError(t, topo.Check(), want)
	}
}

// FuzzTopology decodes an arbitrary topology, as from another host. Either UnmarshalJSON must
// return an error, or the topology must be valid, and results of Map for a host with this topology
// must have the properties that check tests.
func FuzzTopology(f *testing.F) {
	for _, topo := range []Topology{{}, Here(), twoSockets.read(f), holes.read(f)} {
		text, err := json.Marshal(topo)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"cpus":"0-3","cores":"0;1;0","quota":-1}`))
	f.Add([]byte(`{"cpus":"0-3","cores":"0-1;2-3","numa":"0,2;1,3"}`))
	f.Add([]byte(`{"cpus":"0-3","numa":"0-1","quota":9}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var topo Topology
		if err := json.Unmarshal(text, &topo); err != nil {
			return
		}
		require.NoError(t, topo.Check())
		again, err := json.Marshal(topo)
		require.NoError(t, err)
		var second Topology
		require.NoError(t, json.Unmarshal(again, &second))
		require.Equal(t, topo, second)
		machines := []Machine{{Name: "a", Topology: topo}}
		for _, by := range []string{"slot", "core", "numa", "ppr:2:core", "ppr:1:numa"} {
			for _, bind := range []job.Bind{job.BindCore, job.BindNUMA} {
				p := Policy{MapBy: by, Bind: bind}
				if res, err := Map(machines, []int{3}, p); err == nil {
					check(t, machines, []int{3}, p, res)
				}
			}
		}
		require.Positive(t, topo.MaxProcs(nil, 3))
	})
}
