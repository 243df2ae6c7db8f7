package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	anchor  = regexp.MustCompile(`<a id="([^"]+)">`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	goFile  = regexp.MustCompile("`([\\w/]+\\.go)`")
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks checks the links of every page that do not leave this repository. Each must lead to a file or
// folder, and, if it names an anchor, to an anchor of that page.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, name, _ := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s: %s", page, m[1])
			if name != "" {
				require.Contains(t, anchors(t, target), name, "%s: %s", page, m[1])
			}
		}
	}
}

// pages returns the paths of the README and of all pages in this folder and its subfolders.
func pages(t *testing.T) []string {
	all := []string{"../README.md"}
	for _, pattern := range []string{"*.md", "*/*.md"} {
		more, err := filepath.Glob(pattern)
		require.NoError(t, err)
		all = append(all, more...)
	}
	return all
}

// anchors returns the anchors of a page: those that GitHub makes for its headings, and those that the page
// itself sets.
func anchors(t *testing.T, page string) (names []string) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
		name := noSlug.ReplaceAllString(strings.ToLower(h[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	for _, a := range anchor.FindAllStringSubmatch(string(text), -1) {
		names = append(names, a[1])
	}
	return names
}

// TestFilesAreThere checks that every Go file that a page names is in the repository or is a program of the
// page.
func TestFilesAreThere(t *testing.T) {
	names := map[string]bool{} // the Go files of the repository: paths from the top folder, and base names
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			names[strings.TrimPrefix(path, "../")] = true
			names[filepath.Base(path)] = true
		}
		return err
	})
	require.NoError(t, err)
	for _, page := range pages(t) {
		if filepath.Base(page) == "0022-communicators-below-comm.md" {
			continue // this page is a plan, so it also names files that have not been moved yet
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		program := regexp.MustCompile(`(?m)^// (\S+\.go)$`) // the first line of a program of the page, which names its file
		for _, m := range program.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		for _, m := range goFile.FindAllStringSubmatch(string(text), -1) {
			require.True(t, names[m[1]], "%s: %s", page, m[1])
		}
	}
}
