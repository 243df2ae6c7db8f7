// Package libfabrictest lets tests and bench/stress use testprov, the libfabric provider of
// transport/libfabric/testprov. No other package imports it.
package libfabrictest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/transport"
)

const (
	// Name is the name of the provider in libfabric.
	Name = "testprov"
	// ScriptVariable is the environment variable that has the script of the provider. See
	// transport/libfabric/testprov/script.h.
	ScriptVariable = "FI_TESTPROV_SCRIPT"
	pathVariable   = "FI_PROVIDER_PATH"
)

// Load builds the provider with make and the C compiler, unless it is built, and sets
// FI_PROVIDER_PATH, so that libfabric finds it in this process and in its children. libfabric reads
// the variable once, when the process first calls it, so Load must be called before that: from an
// init function or TestMain. Each version of libfabric has a provider of its own.
var Load = sync.OnceValue(func() error {
	root, err := moduleRoot()
	if err != nil {
		return fmt.Errorf("build %s: %w", Name, err)
	}
	version, err := exec.Command("pkg-config", "--modversion", "libfabric").Output()
	if err != nil {
		return fmt.Errorf("build %s: version of libfabric: %w", Name, err)
	}
	file := filepath.Join(root, "bin", Name, strings.TrimSpace(string(version)), "lib"+Name+"-fi.so")
	cmd := exec.Command("make", "-s", "-C", filepath.Join(root, "transport", "libfabric", Name), "OUT="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", Name, err, out)
	}
	if err := os.Setenv(pathVariable, filepath.Dir(file)); err != nil {
		return fmt.Errorf("load %s: %w", Name, err)
	}
	return nil
})

// MustLoad is Load, and panics if Load fails.
func MustLoad() {
	if err := Load(); err != nil {
		panic(err)
	}
}

// moduleRoot returns the folder of go.mod, above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}

// scripted is a provider whose Open sets the script first.
type scripted struct {
	transport.Provider
	script string
}

// WithScript returns p with an Open that sets the script of testprov in the environment of this
// process. The provider reads the script when a domain is opened. So tests that use different
// scripts must not open domains at the same time.
func WithScript(p transport.Provider, script string) transport.Provider {
	return scripted{p, script}
}

var scriptMu sync.Mutex // guards the script in the environment

// setScript does not set a script again, because other domains may be reading it.
func setScript(script string) error {
	scriptMu.Lock()
	defer scriptMu.Unlock()
	if os.Getenv(ScriptVariable) == script {
		return nil
	}
	return os.Setenv(ScriptVariable, script)
}

// Open opens a domain of testprov with the script.
func (p scripted) Open(cfg transport.Config) (transport.Domain, error) {
	if err := setScript(p.script); err != nil {
		return nil, fmt.Errorf("set the script: %w", err)
	}
	return p.Provider.Open(cfg)
}
