package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks: every link of a page to this repository leads to a file or folder, and to a
// heading if it names one.
func TestLinks(t *testing.T) {
	pages := []string{"../README.md"}
	for _, pattern := range []string{"*.md", "*/*.md"} {
		more, err := filepath.Glob(pattern)
		require.NoError(t, err)
		pages = append(pages, more...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s: %s", page, m[1])
			if anchor != "" {
				require.Contains(t, anchors(t, target), anchor, "%s: %s", page, m[1])
			}
		}
	}
}

// anchors returns the names by which links find the headings of a page.
func anchors(t *testing.T, page string) (names []string) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
		name := noSlug.ReplaceAllString(strings.ToLower(h[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}
