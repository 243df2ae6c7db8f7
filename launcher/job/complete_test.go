package job

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestComplete compares the answer for the words of a command line. "|" separates candidates.
func TestComplete(t *testing.T) {
	useProjectTable(t)
	for line, want := range map[string]string{
		"-dry":                          "none|-dry-run",
		"--dry":                         "none|-dry-run",
		"-np 2 -host":                   "none|-host|-hostfile",
		"-np ":                          "none",
		"-np=":                          "none",
		"-nonsense":                     "none",
		"-bind-to ":                     "none|none|core|numa",
		"-bind-to=co":                   "none|-bind-to=core",
		"-transport shm,t":              "none|shm,tcp",
		"-launcher sl":                  "none|slurm",
		"-p engine.eager_l":             "none|engine.eager_limit=",
		"-p coll.bcast.algorithm=binom": "none|coll.bcast.algorithm=binomial",
		"-p transport.use=inproc,sh":    "none|transport.use=inproc,shm",
		"-p nonsense=":                  "none",
		"-config ":                      "files",
		"-config=jo":                    "files",
		"-output ":                      "dirs",
		"-strict ":                      "files", // a program
		"-strict -np 4 ./a":             "files",
		"./a.out -bind-to ":             "files", // an argument of the program
		"./a.out : -bind-to n":          "none|none|numa",
		"-help pl":                      "none|placement",
		"-completion ":                  "none|bash|zsh|fish",
	} {
		kind, list := complete(strings.Split(line, " "))
		got := kind
		for _, c := range list {
			got += "|" + c.word
		}
		require.Equal(t, want, got, line)
	}
	kind, list := complete(nil)
	require.Equal(t, completeNone, kind)
	require.Empty(t, list)

	var b strings.Builder
	require.NoError(t, WriteCandidates(&b, []string{"-stric"}))
	require.Equal(t, "none\n-strict\tmake more ranks than slots an error instead of a warning\n", b.String())
}

// TestMan: the manual page must have an entry for each flag and tunable, and no line that roff takes
// for a request by accident.
func TestMan(t *testing.T) {
	useProjectTable(t)
	var b strings.Builder
	require.NoError(t, WriteMan(&b))
	page := b.String()
	for _, o := range options {
		require.Contains(t, page, `\fB\-`+roff(o.names[0])+`\fR`)
	}
	known := map[string]bool{".TH": true, ".SH": true, ".SS": true, ".TP": true, ".PP": true, ".EX": true, ".EE": true, ".B": true, ".I": true, ".RI": true, ".RB": true, ".IR": true}
	for l := range strings.Lines(page) {
		request, _, _ := strings.Cut(strings.TrimSpace(l), " ")
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			require.True(t, known[request], l)
		}
		require.NotContains(t, l, "…")
	}
	require.Equal(t, `\&.x\e \-\-`, roff(`.x\ --`))
}
