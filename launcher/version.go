package launcher

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

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

// version returns the version of the main module of this program; in gorun that module is weft. If
// the version is not known, it returns the commit from which the program was built, else "(devel)"
// or "unknown".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value
		}
	}
	if v == "" {
		return "unknown"
	}
	return v
}
