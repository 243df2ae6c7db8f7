package launcher

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Names of the libfabric transport's library, build tag and packages.
const (
	libfabricSoname = "libfabric.so.1"
	libfabricTag    = "libfabric"

	installHeaders = "install libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL)"
	installLibrary = "install libfabric1 (Debian, Ubuntu) or libfabric (Fedora, RHEL)"
)

// wantsLibfabric reports whether a job may use the transport libfabric.
func wantsLibfabric(s *params.Set) bool {
	return slices.Contains(s.List("transport.use"), "libfabric")
}

// namesInterface reports whether the user names an interface that ranks listen on.
func namesInterface(s *params.Set) bool {
	return s.String("transport.tcp.interface") != "" || wantsLibfabric(s) && s.String("transport.libfabric.interface") != ""
}

// tcpInterface returns the interface, address or subnet that the user names for tcp. It returns ""
// if no rank listens. If the ranks share memory, no rank listens unless a flag names the interface:
// a name from a job file or the environment may be meant for other jobs.
func tcpInterface(s *params.Set, shared bool) string {
	v := s.Get("transport.tcp.interface")
	if !slices.Contains(s.List("transport.use"), "tcp") || shared && v.Source != params.FromFlag {
		return ""
	}
	return v.Text
}

// findHeaders returns an error that says what is missing for a build with the transport libfabric.
func findHeaders(ctx context.Context) error {
	err := exec.CommandContext(ctx, "pkg-config", "--exists", "libfabric").Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("there is no pkg-config to find libfabric with; install pkg-config, and " +
			strings.TrimPrefix(installHeaders, "install "))
	case err != nil:
		return errors.New("pkg-config does not find libfabric; " + installHeaders)
	}
	return nil
}

// buildTags returns the flags of go build that add the transport libfabric. It returns none if the
// user has set tags, or if the program cannot be built with libfabric; the latter is an error if
// the job may use the transport.
func (p *programs) buildTags(ctx context.Context) ([]string, error) {
	err := findHeaders(ctx)
	if err == nil {
		var out []byte
		if out, err = p.goCommand(ctx, "env", "GOFLAGS", "CGO_ENABLED").Output(); err == nil {
			flags, cgo, _ := strings.Cut(string(out), "\n")
			switch {
			case strings.Contains(flags, "-tags"):
				return nil, nil
			case strings.TrimSpace(cgo) == "1":
				return []string{"-tags", libfabricTag}, nil
			}
			err = errors.New("cgo is off: CGO_ENABLED is 0, or there is no C compiler")
		}
	}
	if p.libfabric && ctx.Err() == nil {
		return nil, errors.New("transport libfabric: " + err.Error())
	}
	return nil, nil
}

// lacksLibrary reports whether a program failed because the dynamic loader found no libfabric: the
// program is linked with libfabric, and its last lines are the loader's and name the library. The
// loaders of glibc and musl write different lines.
func lacksLibrary(exe string, code int, stderr []string) bool {
	loader := func(line string) bool {
		return strings.Contains(line, "shared librar") && strings.Contains(line, libfabricSoname)
	}
	return code == proto.ExitNotFound && slices.ContainsFunc(stderr, loader) && slices.Contains(importedLibraries(exe), libfabricSoname)
}
