package launcher

import (
	"fmt"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// spawnInfo has the values of the info keys of a command of a Spawn. For a key that is not given, it
// has "" or nil.
type spawnInfo struct {
	dir    string // wdir
	search string // path: directories in which to look for the program before PATH
	soft   string // soft: fewer processes may start
	mapBy  string // map_by
	rankBy string // rank_by
	bind   string // bind_to
	env    []string

	hosts     []hosts.Host // host, hosts and hostfile
	hostFiles []string     // the values of hostfile, which readHostFiles reads
	added     []hosts.Host // add-host and add-hostfile
	addFiles  []string     // the values of add-hostfile
}

// parseSpawnInfo returns the values of info keys. In keys "-" and "_" are the same. Keys that gorun
// does not know have no effect, as MPI demands. But keys of MPI and of Open MPI that say where
// processes run are errors if gorun does not do what they say.
func parseSpawnInfo(info []wire.PMIField) (s spawnInfo, err error) {
	for _, f := range info {
		switch strings.ReplaceAll(f.Key, "-", "_") {
		case bootstrap.InfoDir:
			s.dir = f.Value
		case "path":
			s.search = f.Value
		case bootstrap.InfoSoft:
			s.soft = f.Value
		case "map_by":
			s.mapBy = f.Value
		case "rank_by":
			s.rankBy = f.Value
		case "bind_to":
			s.bind = f.Value
		case "host", "hosts":
			list, err := hosts.ParseList(f.Value)
			if err != nil {
				return s, fmt.Errorf("host: %w", err)
			}
			s.hosts = append(s.hosts, list...)
		case "hostfile":
			s.hostFiles = append(s.hostFiles, f.Value)
		case "add_host":
			list, err := hosts.ParseList(f.Value)
			if err != nil {
				return s, fmt.Errorf("add-host: %w", err)
			}
			s.added = append(s.added, list...)
		case "add_hostfile":
			s.addFiles = append(s.addFiles, f.Value)
		case "arch":
			// All hosts of a job run the same gorun, so they have one architecture.
			if !slices.Contains(archNames[runtime.GOARCH], f.Value) && f.Value != runtime.GOARCH {
				return s, fmt.Errorf("arch: the hosts of the job are of architecture %s, not %s", runtime.GOARCH, f.Value)
			}
		case "file":
			return s, fmt.Errorf("file: gorun reads no info keys from a file, not from %s", f.Value)
		case bootstrap.InfoEnv:
			kv, err := url.QueryUnescape(f.Value)
			if name, _, ok := strings.Cut(kv, "="); err != nil || !ok || name == "" {
				return s, fmt.Errorf("expected a variable NAME=VALUE, found %q", f.Value)
			}
			s.env = append(s.env, kv)
		}
	}
	return s, nil
}

// archNames has the names of architectures in the output of uname -m, by their names in Go.
var archNames = map[string][]string{"amd64": {"x86_64"}, "arm64": {"aarch64"}, "386": {"i386", "i686"}}

// readHostFiles adds the hosts of the files of hostfile and add-hostfile to those that other keys name.
func (s *spawnInfo) readHostFiles() error {
	for _, x := range []struct {
		files []string
		list  *[]hosts.Host
	}{{s.hostFiles, &s.hosts}, {s.addFiles, &s.added}} {
		for _, name := range x.files {
			list, err := readHostFile(name)
			if err != nil {
				return err
			}
			*x.list = append(*x.list, list...)
		}
		*x.list = hosts.Merge(*x.list)
	}
	return nil
}

// readHostFile reads a hostfile on this host.
func readHostFile(name string) ([]hosts.Host, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	return hosts.ReadFile(name, file)
}
