package launcher

import (
	_ "embed" // for number
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/weft-hpc/weft/launcher/internal/remote"
)

// WriteVersion prints the output of gorun -version: the version, the Go version and platform of the
// build, and the SHA-256 of the executable. WriteVersion returns the error of w, or an error if it
// cannot read the executable.
func WriteVersion(w io.Writer) error {
	self, err := remote.Self()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "gorun %s %s %s/%s sha256:%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, self.Hash)
	return err
}

// number is the version of the next release, or of this one.
//
//go:embed VERSION
var number string

// released is "yes" in a gorun of a release. make dist sets it with -ldflags -X.
var released string

// version returns the version of weft: 0.1.0 of a release, else 0.1.0-dev with the commit from which
// gorun was built, if that is known.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(strings.TrimSpace(number), released == "yes", info)
}

// versionOf returns the version of weft. info may be nil.
func versionOf(number string, released bool, info *debug.BuildInfo) string {
	if info == nil {
		info = &debug.BuildInfo{}
	}
	if info.Main.Version == "v"+number { // go install …/cmd/gorun@v0.1.0
		released = true
	}
	if released {
		return number
	}
	v := number + "-dev"
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v += "+" + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			v += ".modified"
		}
	}
	return v
}
