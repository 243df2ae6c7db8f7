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

// Executable is a program that is to run as agent on other hosts.
type Executable struct {
	Path string // absolute
	Hash string // SHA-256, in hexadecimal digits
	Size int64

	file string // where its bytes can be read, also when Path is something else by now
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

// Self is the program that runs. It is hashed once.
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

// PrintHash is how gorun, run as "gorun -agent -hash", shows that it is the one that
// is looked for.
func PrintHash(w io.Writer) error {
	exe, err := Self()
	if err == nil {
		_, err = fmt.Fprintln(w, exe.Hash)
	}
	return err
}

// machines are the names that uname -m has for an architecture.
var machines = map[string][]string{
	"amd64":   {"x86_64", "amd64"},
	"arm64":   {"aarch64", "arm64"},
	"ppc64le": {"ppc64le"},
	"riscv64": {"riscv64"},
	"s390x":   {"s390x"},
	"loong64": {"loongarch64"},
}

// fitsMachine says whether gorun can run where "uname -s -m" says system.
func fitsMachine(system string) bool {
	words := strings.Fields(system)
	names := machines[runtime.GOARCH]
	return len(words) == 2 && words[0] == "Linux" && (names == nil || slices.Contains(names, words[1]))
}

// thisMachine is what the same command says here.
func thisMachine() string {
	name := runtime.GOARCH
	if names := machines[name]; names != nil {
		name = names[0]
	}
	return "Linux " + name
}

const (
	cachePrefix = "gorun-"  // and the hash
	partPrefix  = ".gorun-" // of a copy that is being made
	cacheAge    = 30 * 24 * time.Hour
	partAge     = 24 * time.Hour
)

// tidy is for an agent that has greeted: it looks after what gorun leaves on hosts.
func tidy() {
	if exe, err := Self(); err == nil {
		pruneCache(exe.Path, time.Now())
	}
}

// pruneCache removes from a directory of copies those that nobody has used for long,
// but for those that run on this host. It is called by an agent that is one of the
// copies, which notes its own use.
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

// runs says whether a process of this host, as far as this user may know, has the
// file as its program.
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
