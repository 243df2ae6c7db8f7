//go:build linux

package docs

import (
	"context"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testprog"
)

// bin is a temporary folder with a gorun that was built from this checkout.
var bin string

func TestMain(m *testing.M) {
	os.Exit(testprog.Main(m.Run, "weft-docs-", &bin, []string{"..", "./cmd/gorun"}))
}

// TestPages tests the tutorial, the pages of the guide and that on what gorun shows. For each page it makes a Go module of the page's
// programs, runs the page's commands in order, and compares what they print with what the page shows. The
// language of a code block says what the block is:
//
//   - go: a whole file. The first line is a comment with the file's name.
//   - sh: a line that begins with "$ " is a command. The lines after it are the command's output: stdout
//     and stderr together. The order of the lines does not matter, because ranks run at the same time.
//     "…" stands for any text. A command must exit with 0.
//   - text: not tested.
func TestPages(t *testing.T) {
	guide, err := filepath.Glob("guide/*.md")
	require.NoError(t, err)
	require.Greater(t, len(guide), 10)
	for _, page := range append(guide, "tutorial.md", "sight.md") {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			limit := 40
			if page == "tutorial.md" {
				limit = 60
			}
			testPage(t, page, limit)
		})
	}
}

// testPage tests one page. No program of the page may have more than limit lines.
func testPage(t *testing.T, page string, limit int) {
	dir := newModule(t, strings.TrimSuffix(filepath.Base(page), ".md"))
	commands := 0
	programs := map[string]bool{} // by folder of a program: whether a command has run the program
	for _, b := range blocks(t, page) {
		switch b.language {
		case "go":
			programs[writeProgram(t, dir, b, limit)] = false
		case "sh":
			if page != "tutorial.md" { // the tutorial's own commands do that
				execute(t, dir, "go mod tidy")
			}
			for _, c := range b.commands(t) {
				t.Log(c.line)
				compare(t, c, execute(t, dir, c.line))
				for p := range programs {
					programs[p] = programs[p] || strings.Contains(c.line, "./"+p)
				}
				commands++
			}
		case "text":
		default:
			require.Fail(t, "a block without a language", "%s:%d", page, b.at)
		}
	}
	for p, ran := range programs {
		require.True(t, ran, "no command of %s runs ./%s", page, p)
	}
	if page != "guide/README.md" {
		require.NotZero(t, commands)
		require.NotEmpty(t, programs)
	}
}

// TestReadme runs the program of the README in a module of its own.
func TestReadme(t *testing.T) {
	dir := newModule(t, "hello")
	for _, b := range blocks(t, "../README.md") {
		if b.language == "go" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(strings.Join(b.lines, "\n")), 0o600))
		}
	}
	var want []string
	for rank := range 4 {
		want = append(want, fmt.Sprintf("rank %d of 4 sum 6", rank))
	}
	execute(t, dir, "go mod tidy")
	line := "gorun -np 4 ."
	compare(t, command{where: "README.md", line: line, want: want}, execute(t, dir, line))
}

// newModule makes a Go module with a name in a temporary folder, as the tutorial shows, and returns the
// folder. The module takes weft from this checkout.
func newModule(t *testing.T, name string) (dir string) {
	dir = t.TempDir()
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	execute(t, dir, "go mod init "+name)
	execute(t, dir, "go mod edit -replace github.com/weft-hpc/weft="+top)
	// Without the sums, go mod tidy would ask the checksum database for them.
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	return dir
}

// block is a fenced code block of a page.
type block struct {
	page     string
	at       int // number of the page's line that opens the block
	language string
	lines    []string
}

// blocks returns the fenced code blocks of a page.
func blocks(t *testing.T, page string) []block {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	var all []block
	var open *block
	for i, line := range strings.Split(string(text), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && open == nil:
			open = &block{page: page, at: i + 1, language: fence}
		case isFence:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, line)
		}
	}
	require.Nil(t, open, "%s: a block has no end", page)
	return all
}

// writeProgram writes a block of Go to the file that the block's first line names, below dir, and returns
// the folder of the file. The block must not have more than limit lines.
func writeProgram(t *testing.T, dir string, b block, limit int) (folder string) {
	name, ok := strings.CutPrefix(b.lines[0], "// ")
	require.True(t, ok && strings.HasSuffix(name, ".go") && filepath.IsLocal(name),
		"%s:%d: the first line of the program does not name its file", b.page, b.at)
	require.LessOrEqual(t, len(b.lines), limit, "%s:%d: the program has too many lines", b.page, b.at)
	text := []byte(strings.Join(b.lines, "\n") + "\n")
	formatted, err := format.Source(text)
	require.NoError(t, err, "%s:%d", b.page, b.at)
	require.Equal(t, string(formatted), string(text), "%s:%d: gofmt", b.page, b.at)
	file := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return filepath.Dir(name)
}

// command is a command of a page.
type command struct {
	where string   // page and number of the line
	line  string   // the command for the shell
	want  []string // lines of output that the page shows
}

// commands returns the commands of a block of sh.
func (b block) commands(t *testing.T) (all []command) {
	for i, line := range b.lines {
		where := fmt.Sprintf("%s:%d", b.page, b.at+1+i)
		if c, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, command{where: where, line: c})
			continue
		}
		require.NotEmpty(t, all, "%s: output without a command", where)
		last := &all[len(all)-1]
		last.want = append(last.want, line)
	}
	return all
}

// execute runs a command in a folder and returns the lines of its stdout and stderr.
func execute(t *testing.T, dir, line string) []string {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WEFT_") })
	cmd.Env = append(cmd.Env,
		"PATH="+bin+":"+os.Getenv("PATH"),
		"GOFLAGS=-tags=", // without the build tag libfabric, because programs with libfabric take longer to link
		"GOWORK=off", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", line, out)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// fewCores matches gorun's warning that this machine has fewer cores than the job has ranks.
var fewCores = regexp.MustCompile(`^gorun: warning: \d+ ranks on .*cores?\b`)

// compare checks that the lines got, which a command has printed, are the lines that the page
// shows, in any order. It ignores empty lines and the warning that fewCores matches.
func compare(t *testing.T, c command, got []string) {
	left := slices.DeleteFunc(slices.Clone(got), func(line string) bool {
		return line == "" || fewCores.MatchString(line)
	})
	for _, want := range c.want {
		if want == "" {
			continue
		}
		pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*") + "$")
		i := slices.IndexFunc(left, pattern.MatchString)
		require.GreaterOrEqual(t, i, 0, "%s: %s\nthe page says\n%s\nand the command does not print this:\n%s",
			c.where, c.line, want, strings.Join(got, "\n"))
		left = slices.Delete(left, i, i+1)
	}
	require.Empty(t, left, "%s: %s\nthe command prints lines that the page does not show", c.where, c.line)
}
