//go:build linux

package run

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
)

// Profile returns the only profile of a kind in the directory of -profile-dir; nil: there is none.
func Profile(t testing.TB, dir, kind string) *profile.Profile {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "weft-*."+kind+".pprof"))
	if err != nil || len(files) > 1 {
		t.Fatalf("%v: %v", files, err)
	}
	if len(files) == 0 {
		return nil
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	p, err := profile.Parse(f)
	if err == nil {
		err = p.CheckValid()
	}
	if err != nil {
		t.Fatalf("%s: %v", files[0], err)
	}
	return p
}

// HostsIn returns, by rank, the hosts in the labels of the samples that have a function in their stacks.
func HostsIn(p *profile.Profile, function string) map[int64]string {
	hosts := make(map[int64]string)
	for _, s := range p.Sample {
		if slices.ContainsFunc(s.Location, func(l *profile.Location) bool {
			return slices.ContainsFunc(l.Line, func(at profile.Line) bool { return at.Function.Name == function })
		}) {
			for _, rank := range s.NumLabel["rank"] {
				hosts[rank] = strings.Join(s.Label["host"], ",")
			}
		}
	}
	return hosts
}
