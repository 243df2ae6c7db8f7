package job

import (
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
)

func TestDescribe(t *testing.T) {
	file := writeFile(t, "[job]\ntimeout = \"1m\"\n[env]\nG = \"a b\"\nA = \"0\"\n[[app]]\nprogram = \"./x\"\nargs = [\"it's\", \"\"]\nnp = 2\nenv = {A = \"1\"}\n[[app]]\nprogram = \"y\"\nnp = 1\nwdir = \"/\"")
	j, _, err := Parse([]string{"-config", file, "-dry-run", "-bind-to", "core"}, []string{"WEFT_JOB_STDIN=none"})
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, Describe(&b, j))
	require.NoError(t, DescribeSettings(&b, j))
	require.True(t, strings.HasPrefix(b.String(), `RANKS  APP  PROGRAM  ARGS          NP  WDIR  ENV          BINDING
0-1    0    ./x      'it'\''s' ''  2   .     A=1 'G=a b'  core
2      1    y        -             1   /     A=0 'G=a b'  core

SETTING `), b.String())
	for _, want := range [][]string{
		{"job.np", "3", "job", "file"}, {"job.timeout", "1m0s", "job", "file"}, {"job.bind", "core", "flag"},
		{"job.stdin", "none", "environment"},
	} {
		require.Contains(t, fields(b.String()), strings.Join(want, " "))
	}
	require.NotContains(t, b.String(), "job.output")
	require.NotContains(t, b.String(), "engine.async_progress")
}

func TestDescribeHosts(t *testing.T) {
	file := writeFile(t, "[[host]]\nname = \"node[1-2]\"\nslots = 4\nmax_slots = 8\nuser = \"u\"\nport = 22\n[[host]]\nname = \"c\"\naddress = \"10.0.0.3\"\n[[app]]\nprogram = \"x\"\n")
	for _, test := range []struct{ args, want string }{
		{"-config " + file, `
HOST   SLOTS  MAX  USER  PORT  ADDRESS   SOURCE
node1  4      8    u     22    -         job file
node2  4      8    u     22    -         job file
c      -      -    -     -     10.0.0.3  job file

All settings`},
		{"-host a -ppn 2 -map-by ppr:2:node x", `
HOST  SLOTS  MAX  USER  PORT  ADDRESS  SOURCE
a     2      -    -     -     -        flag

SETTING `},
	} {
		j := parse(t, nil, strings.Split(test.args, " ")...)
		var b strings.Builder
		require.NoError(t, Describe(&b, j))
		require.NoError(t, DescribeSettings(&b, j))
		require.Contains(t, b.String(), test.want)
	}
	j := parse(t, nil, "-map-by", "ppr:2:node", "-slurm-args", "-p 'a b'", "x")
	var b strings.Builder
	require.NoError(t, Describe(&b, j))
	require.NoError(t, DescribeSettings(&b, j))
	require.Contains(t, fields(b.String()), "job.map_by ppr:2:node flag")
	require.Contains(t, fields(b.String()), "launcher.slurm_args -p 'a b' flag")
	require.NotContains(t, b.String(), "HOST ")
}

// fields returns the lines of a text, with each run of spaces replaced by one space.
func fields(text string) []string {
	var lines []string
	for l := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	return lines
}

func TestWriteInfo(t *testing.T) {
	j, _, err := Parse([]string{"-info", "-p", "engine.eager_limit=1k"}, nil)
	require.NoError(t, err)
	var b strings.Builder
	found, err := WriteInfo(&b, j, nil)
	require.NoError(t, err)
	require.True(t, found)
	lines := fields(b.String())
	for _, want := range []string{
		"tcp processes of one host or several, over sockets", "shm processes of one host, through shared memory", "allreduce auto ring rd",
		"engine.eager_limit = 1k bytes (flag; default 0)", "WEFT_ENGINE_EAGER_LIMIT", "sent at once",
		"engine.depth = 16 messages (default)", "WEFT_ENGINE_DEPTH", "how many",
	} {
		require.Contains(t, lines, want)
	}
	text := strings.Join(strings.Fields(b.String()), " ") // in one line, because WriteInfo wraps long texts
	for _, p := range params.Table {
		require.Contains(t, text, p.Env())
		require.Contains(t, text, p.Help)
	}
	for _, s := range settings {
		require.Contains(t, text, s.Env())
		require.Contains(t, text, s.Help)
	}
}

// TestHelp: the help must have a line for every flag. The line of a flag with an argument must end
// with its default. There must be a flag for every setting.
func TestHelp(t *testing.T) {
	useProjectTable(t)
	var b strings.Builder
	require.NoError(t, WriteHelp(&b, ""))
	require.LessOrEqual(t, strings.Count(b.String(), "\n"), 40, "gorun -h fits a screen")
	for _, name := range append(topicNames(), allTopics) {
		require.Contains(t, strings.ReplaceAll(b.String(), ".\n", ","), name+",", "a topic is missing")
		require.Empty(t, checkTopic(name))
	}
	b.Reset()
	require.NoError(t, WriteHelp(&b, allTopics))
	keys := make(map[string]bool)
	lines := strings.Split(b.String(), "\n")
	for _, l := range lines {
		require.LessOrEqual(t, utf8.RuneCountInString(l), 100, l)
	}
	for _, o := range options {
		at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "  "+o.usage()+"  ") })
		require.GreaterOrEqual(t, at, 0, o.names)
		require.Equal(t, o.arg != "", strings.HasSuffix(lines[at], "]") && !strings.HasSuffix(lines[at], "[]"), lines[at])
		require.True(t, o.help != "" || o.setting != "" || o.tunable != "", o.names)
		keys[o.setting], keys[o.tunable] = true, true
		if o.setting != "" {
			_, ok := settingOf(o.setting)
			require.True(t, ok, o.setting)
		}
		if o.tunable != "" {
			_, ok := params.Lookup(o.tunable)
			require.True(t, ok, o.tunable)
		}
	}
	for _, s := range settings {
		require.True(t, keys[s.Key], "no flag for %s", s.Key)
		require.Empty(t, s.check(s.Default), "the default of %s", s.Key)
		_, ok := params.Lookup(s.Key)
		require.False(t, ok, "%s is in both tables", s.Key)
	}
	for _, p := range params.Table {
		require.Empty(t, mismatch(p, p.Default), "the default of %s", p.Key)
	}
	use, ok := params.Lookup(useKey)
	require.True(t, ok)
	for _, name := range use.Choices {
		require.NotEmpty(t, transportHelp[name], name)
	}
}

// TestPage: docs/gorun.md must name each flag and each key, and the job file in it must be valid.
func TestPage(t *testing.T) {
	useProjectTable(t)
	page, err := os.ReadFile("../../docs/gorun.md")
	require.NoError(t, err)
	rows := make(map[string]bool)
	flags, _, ok := strings.Cut(string(page), "### Coming from")
	require.True(t, ok)
	for l := range strings.Lines(flags) {
		if cells := strings.Split(l, " | "); strings.HasPrefix(l, "| `-") {
			rows[cells[0]] = true
		}
	}
	require.Len(t, rows, len(options))
	for _, o := range options {
		var found bool
		for r := range rows {
			found = found || strings.HasPrefix(r, "| `-"+o.names[0]+"`") || strings.HasPrefix(r, "| `-"+o.names[0]+" ")
		}
		require.True(t, found, "-%s is not on the page", o.names[0])
	}
	for _, s := range settings {
		require.Contains(t, string(page), "`"+s.Key+"`")
	}
	for _, text := range []string{"gorun -agent -connect HOST:7070 -secret-file", "| 113 |", "SLURM_TASKS_PER_NODE"} {
		require.Contains(t, string(page), text)
	}
	_, rest, _ := strings.Cut(string(page), "```toml\n")
	doc, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	f, err := decodeFile("docs/gorun.md", []byte(doc))
	require.NoError(t, err)
	for _, s := range settings {
		_, key, _ := strings.Cut(s.Key, ".")
		require.Contains(t, doc, key+" ", s.Key)
	}
	require.Len(t, f.apps, 1)
	for _, f := range foreign {
		for name := range strings.FieldsSeq(f.names) {
			require.Contains(t, string(page), "`-"+name+"`")
			require.False(t, slices.ContainsFunc(options, func(o option) bool { return slices.Contains(o.names, name) }), name)
		}
	}
}
