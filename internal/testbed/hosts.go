//go:build linux

package testbed

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// hostsFile is the file in which programs outside of the hosts look up names.
const hostsFile = "/etc/hosts"

// addHosts appends lines to a file like /etc/hosts. Each gets a comment with the mark, by which
// removeHosts finds the line. addHosts changes the file in place and does not rename another file to
// it, because the file may be a mount. It locks the file against other processes with this package.
func addHosts(file, mark string, lines []string) error {
	return editHosts(file, func(text string) string {
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		for _, line := range lines {
			text += line + " # " + mark + "\n"
		}
		return text
	})
}

// removeHosts removes the lines that addHosts has added with a mark.
func removeHosts(file, mark string) error {
	return editHosts(file, func(text string) string {
		var kept strings.Builder
		for line := range strings.Lines(text) {
			if !strings.HasSuffix(strings.TrimRight(line, "\n"), " # "+mark) {
				kept.WriteString(line)
			}
		}
		return kept.String()
	})
}

func editHosts(file string, edit func(string) string) error {
	lock, err := lockFile(file)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // only read
	old, err := io.ReadAll(lock)
	if err != nil {
		return err
	}
	text := edit(string(old))
	if text == string(old) {
		return nil
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	// Write before Truncate, so that a process that reads meanwhile finds all lines that stay.
	_, err = f.WriteAt([]byte(text), 0)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", file, err)
	}
	return nil
}
