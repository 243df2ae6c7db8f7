package mapby

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Rule{
		"slot": {Unit: Slot}, "node": {Unit: Node}, "core": {Unit: Core}, "numa": {Unit: NUMA},
		"ppr:1:node": {Node, 1}, "ppr:65536:core": {Core, 65536}, "ppr:12:numa": {NUMA, 12},
	} {
		got, err := Parse(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for text, want := range map[string]string{
		"":                             "expected " + Expected + `, found ""`,
		"Node":                         "expected " + Expected + `, found "Node"`,
		"ppr":                          "expected " + Expected + `, found "ppr"`,
		"ppr:2":                        "expected " + Expected + `, found "ppr:2"`,
		"ppr:2:slot":                   "expected " + Expected + `, found "ppr:2:slot"`,
		"ppr:2:node:x":                 "expected " + Expected + `, found "ppr:2:node:x"`,
		"ppr::node":                    `expected from 1 to 65536 ranks per node, found "ppr::node"`,
		"ppr:0:core":                   `expected from 1 to 65536 ranks per core, found "ppr:0:core"`,
		"ppr:-1:core":                  `expected from 1 to 65536 ranks per core, found "ppr:-1:core"`,
		"ppr:+1:core":                  `expected from 1 to 65536 ranks per core, found "ppr:+1:core"`,
		"ppr:65537:numa":               `expected from 1 to 65536 ranks per numa, found "ppr:65537:numa"`,
		"ppr:9999999999999999999:numa": `expected from 1 to 65536 ranks per numa, found "ppr:9999999999999999999:numa"`,
		strings.Repeat("\n", 1000):     "expected " + Expected + `, found "` + strings.Repeat(`\n`, 60) + `"…`,
	} {
		_, err := Parse(text)
		require.EqualError(t, err, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"slot", "ppr:2:node", "ppr:x:core", "ppr::", "ppr:02:numa"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rule, err := Parse(text)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		again, err := Parse(rule.String())
		require.NoError(t, err)
		require.Equal(t, rule, again)
	})
}
