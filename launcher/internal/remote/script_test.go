//go:build linux

package remote

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// candidate puts a program on the host at the path where p.ssh looks for gorun: this program, or a
// script that prints this program's hash and makes the file mark when it runs.
func (p *fakeHost) candidate(t *testing.T, itself bool) (path, mark string) {
	t.Helper()
	exe, err := Self()
	require.NoError(t, err)
	dir := filepath.Join(p.dir, "found")
	require.NoError(t, os.Mkdir(dir, 0o755))
	path, mark = filepath.Join(dir, "gorun"), filepath.Join(p.dir, "mark")
	if itself {
		text, err := os.ReadFile(binary(t))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, text, 0o755))
	} else {
		text := fmt.Sprintf("#!/bin/sh\necho ran >>%s\necho %s\n", mark, exe.Hash)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
	}
	exe.Path = path
	p.ssh.Executable = exe
	return path, mark
}

// TestUntrusted checks that a program at gorun's path does not run, not even to print its hash, if it
// is another program or another user can change it. A copy is made instead.
func TestUntrusted(t *testing.T) {
	for name, c := range map[string]struct {
		itself bool // false: a script that claims to be this program
		spoil  func(path string) error
		root   bool // spoil calls chown(2), which only root may
	}{
		"a lie":              {spoil: func(string) error { return nil }},
		"of another":         {spoil: func(path string) error { return os.Chown(path, 12345, 12345) }, root: true},
		"itself, of another": {itself: true, spoil: func(path string) error { return os.Chown(path, 12345, 12345) }, root: true},
		"another's folder":   {itself: true, spoil: func(path string) error { return os.Chown(filepath.Dir(path), 12345, 12345) }, root: true},
		"a file for all":     {itself: true, spoil: func(path string) error { return os.Chmod(path, 0o757) }},
		"a folder for all":   {itself: true, spoil: func(path string) error { return os.Chmod(filepath.Dir(path), 0o757) }},
		"like /tmp":          {itself: true, spoil: func(path string) error { return os.Chmod(filepath.Dir(path), 0o777|os.ModeSticky) }},
		"a group's folder": {itself: true, root: true, spoil: func(path string) error {
			if err := os.Chown(filepath.Dir(path), 0, 12345); err != nil {
				return err
			}
			return os.Chmod(filepath.Dir(path), 0o775)
		}},
		"a folder further up": {itself: true, spoil: func(path string) error {
			return os.Chmod(filepath.Dir(filepath.Dir(path)), 0o777)
		}},
		"in a directory that a list lets another write": {itself: true, spoil: func(path string) error {
			// acl(5) in the kernel's format: the version; then tag, rights and id of each entry.
			const nobody = "\xfe\xff\x00\x00"
			acl := "\x02\x00\x00\x00"
			for _, e := range []string{"\x01\x00\x07\x00", "\x02\x00\x07\x00" + nobody, "\x04\x00\x05\x00", "\x10\x00\x07\x00", "\x20\x00\x05\x00"} {
				acl += (e + "\xff\xff\xff\xff")[:8]
			}
			return unix.Setxattr(filepath.Dir(path), "system.posix_acl_access", []byte(acl), 0)
		}},
		"a link to such": {itself: true, spoil: func(path string) error {
			open := filepath.Join(filepath.Dir(filepath.Dir(path)), "open")
			if err := os.Mkdir(open, 0o777); err != nil {
				return err
			}
			if err := os.Chmod(open, 0o777); err != nil {
				return err
			}
			if err := os.Rename(path, filepath.Join(open, "gorun")); err != nil {
				return err
			}
			return os.Symlink(filepath.Join(open, "gorun"), path)
		}},
		"a fifo": {spoil: func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return exec.Command("mkfifo", "-m", "755", path).Run()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Getuid() != 0 {
				t.Skip("only root can give a file away")
			}
			p := fakeSSH(t, "sh", "")
			path, mark := p.candidate(t, c.itself)
			err := c.spoil(path)
			if errors.Is(err, unix.ENOTSUP) {
				t.Skip("this file system has no access control lists")
			}
			require.NoError(t, err)
			conn := open(t, &p.ssh, node)
			require.Equal(t, "hello", echo(t, conn, "hello"))
			require.NoFileExists(t, mark)
			require.FileExists(t, p.cached(t))
		})
	}
}

// TestTrusted checks that a copy of this program is used at the path where the script looks for it
// if no other user can change it.
func TestTrusted(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"as it is":       func(string) error { return nil },
		"not readable":   func(path string) error { return os.Chmod(path, 0o711) },
		"below a sticky": func(path string) error { return os.Chmod(filepath.Dir(filepath.Dir(path)), 0o777|os.ModeSticky) },
		"a link": func(path string) error {
			if err := os.Rename(path, path+"-1"); err != nil {
				return err
			}
			return os.Symlink("gorun-1", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := fakeSSH(t, "sh", "")
			path, _ := p.candidate(t, true)
			require.NoError(t, change(path))
			conn := open(t, &p.ssh, node)
			require.Equal(t, "hello", echo(t, conn, "hello"))
			require.NoFileExists(t, p.cached(t))
		})
	}
}

// onlyTools returns a fake ssh to a host that has few programs, and those whose names are in more.
func onlyTools(t *testing.T, more string) *fakeHost {
	t.Helper()
	p := fakeSSH(t, "sh", `PATH=$HOME/tools; export PATH`)
	require.NoError(t, os.Mkdir(p.home("tools"), 0o755))
	for _, name := range strings.Fields("sh id ls readlink mkdir rm mv head wc chmod uname " + more) {
		at, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		require.NoError(t, os.Symlink(at, p.home("tools", name)))
	}
	return p
}

// TestHashTools checks a host with one of the programs that compute hashes, and a host without any.
// On the latter the script runs the found program to ask for its hash, if no other user can change
// it.
func TestHashTools(t *testing.T) {
	for _, tool := range []string{"sha256sum", "openssl", "shasum perl", ""} {
		t.Run(tool, func(t *testing.T) {
			p := onlyTools(t, tool)
			p.candidate(t, true)
			conn := open(t, &p.ssh, node)
			require.Equal(t, "hello", echo(t, conn, "hello"))
			require.NoFileExists(t, p.cached(t))
		})
		t.Run(tool+", a lie", func(t *testing.T) {
			p := onlyTools(t, tool)
			path, mark := p.candidate(t, false)
			if tool == "" {
				if os.Getuid() != 0 {
					t.Skip("only root can give a file away")
				}
				require.NoError(t, os.Chown(path, 12345, 12345))
			}
			conn := open(t, &p.ssh, node)
			require.Equal(t, "hello", echo(t, conn, "hello"))
			require.NoFileExists(t, mark)
		})
	}
}

// TestUntrustedCache checks that gorun is not copied to a directory that other users can change.
func TestUntrustedCache(t *testing.T) {
	p := fakeSSH(t, "sh", "")
	p.elsewhere(t)
	dir := filepath.Dir(p.cached(t))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.Contains(t, refuse(t, &p.ssh, node), dir+": users other than ")
	require.Empty(t, names(t, dir))
	require.NoError(t, os.Chmod(dir, 0o700))
	conn := open(t, &p.ssh, node)
	require.Equal(t, "hello", echo(t, conn, "hello"))
	require.NoError(t, conn.Close())
}
