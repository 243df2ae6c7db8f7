package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
)

// Executable is the program that gorun runs as agent on other hosts.
type Executable struct {
	Path string // absolute path
	Hash string // SHA-256, in hexadecimal digits
	Size int64

	file string // path from which the program's bytes can be read, even if the file at Path has changed
}

var self = sync.OnceValues(func() (Executable, error) {
	path, err := os.Executable()
	if err != nil {
		return Executable{}, err
	}
	file, err := sys.Executable()
	if err != nil {
		return Executable{}, err
	}
	exe, err := newExecutable(file)
	exe.Path = path
	return exe, err
})

// Self returns the executable of this process. The first call computes its hash.
func Self() (Executable, error) { return self() }

func newExecutable(file string) (Executable, error) {
	f, err := os.Open(file)
	if err != nil {
		return Executable{}, err
	}
	defer f.Close() //nolint:errcheck // only read
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return Executable{}, fmt.Errorf("%s: %w", file, err)
	}
	return Executable{Path: file, Hash: hex.EncodeToString(sum.Sum(nil)), Size: n, file: file}, nil
}

// PrintHash prints the hash of this program. The command "gorun -agent -hash" calls it. By this
// command a gorun on another host finds out whether the gorun on this host is the same program.
func PrintHash(w io.Writer) error {
	exe, err := Self()
	if err == nil {
		_, err = fmt.Fprintln(w, exe.Hash)
	}
	return err
}

// machines maps an architecture, as Go names it, to the names that uname -m prints for it.
var machines = map[string][]string{
	"amd64":   {"x86_64", "amd64"},
	"arm64":   {"aarch64", "arm64"},
	"ppc64le": {"ppc64le"},
	"riscv64": {"riscv64"},
	"s390x":   {"s390x"},
	"loong64": {"loongarch64"},
}

// fitsMachine reports whether this gorun can run on a host where "uname -s -m" prints system.
func fitsMachine(system string) bool {
	words := strings.Fields(system)
	names := machines[runtime.GOARCH]
	return len(words) == 2 && words[0] == "Linux" && (names == nil || slices.Contains(names, words[1]))
}

// thisMachine returns what "uname -s -m" prints on this architecture.
func thisMachine() string {
	name := runtime.GOARCH
	if names := machines[name]; names != nil {
		name = names[0]
	}
	return "Linux " + name
}

const (
	cachePrefix = "gorun-"            // prefix of a copy's name; the hash follows
	partPrefix  = ".gorun-"           // prefix of an unfinished copy's name
	cacheAge    = 30 * 24 * time.Hour // age at which an unused copy is removed
	partAge     = 24 * time.Hour      // age at which an unfinished copy is removed
)

// pruneOwnCache removes old copies of gorun from this host, if this program is a copy itself. An
// agent calls it after its greeting.
func pruneOwnCache() {
	if exe, err := Self(); err == nil {
		pruneCache(exe.Path, time.Now())
	}
}

// pruneCache removes from the directory of path the copies that were not used for cacheAge, and the
// unfinished copies that are older than partAge, except those that run on this host. path is the
// program of this agent. If it is not a copy itself, pruneCache does nothing. Otherwise pruneCache
// records the use of this copy in its modification time, if that is older than partAge.
func pruneCache(path string, now time.Time) {
	dir, base := filepath.Split(path)
	if !isCopy(base) {
		return
	}
	if fi, err := os.Stat(path); err == nil && now.Sub(fi.ModTime()) > partAge {
		_ = os.Chtimes(path, now, now)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		limit := cacheAge
		switch name := e.Name(); {
		case name == base:
			continue
		case strings.HasPrefix(name, partPrefix):
			limit = partAge
		case !isCopy(name):
			continue
		}
		fi, err := e.Info()
		if err == nil && fi.Mode().IsRegular() && now.Sub(fi.ModTime()) > limit && !runs(fi) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

func isCopy(name string) bool {
	hash, ok := strings.CutPrefix(name, cachePrefix)
	return ok && isHash(hash)
}

// runs reports whether a process of this host runs the file. It may miss processes of other users.
// If fi does not identify the file, runs returns true.
func runs(fi os.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	return slices.ContainsFunc(links, func(link string) bool {
		var p syscall.Stat_t
		return syscall.Stat(link, &p) == nil && p.Dev == st.Dev && p.Ino == st.Ino
	})
}
