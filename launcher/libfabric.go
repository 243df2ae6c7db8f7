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

// Names that messages and builds need for the transport libfabric: the file name of the library, the
// build tag, and the packages of Linux distributions.
const (
	libfabricSoname = "libfabric.so.1"
	libfabricTag    = "libfabric"

	installHeaders = "install libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL)"
	installLibrary = "install libfabric1 (Debian, Ubuntu) or libfabric (Fedora, RHEL)"
)

// wantsLibfabric reports whether a job with the parameters s may use the transport libfabric.
func wantsLibfabric(s *params.Set) bool {
	return slices.Contains(s.List("transport.use"), "libfabric")
}

// namesInterface reports whether the user names an interface for tcp or, if the job may use it, for
// libfabric. Ranks then choose their addresses themselves.
func namesInterface(s *params.Set) bool {
	return s.String("transport.tcp.interface") != "" || wantsLibfabric(s) && len(s.List("transport.libfabric.interface")) > 0
}

// tcpInterface returns the interface, address or subnet that the user names for tcp, and on which
// ranks must listen. It returns "" if the user names none, if the job does not use tcp, or if no
// rank listens. shared means that all ranks are on one host and share memory. Such ranks do not
// need to listen. Then tcpInterface returns only an interface that a flag of gorun names, because a
// name in a job file or in the environment may be meant for other jobs.
func tcpInterface(s *params.Set, shared bool) string {
	v := s.Get("transport.tcp.interface")
	if !slices.Contains(s.List("transport.use"), "tcp") || shared && v.Source != params.FromFlag {
		return ""
	}
	return v.Text
}

// findHeaders returns nil if pkg-config finds the headers of libfabric, and otherwise an error that
// says what to install.
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

// buildTags returns the flags of go build that add the transport libfabric to a program. It returns
// no flags if the user has set build tags by GOFLAGS. If this machine cannot build with libfabric,
// for lack of its headers or of cgo, buildTags returns no flags, or an error if the job may use the
// transport.
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

// lacksLibrary reports whether a rank failed because the dynamic loader found no libfabric. exe is
// the path of the rank's program, code its exit code, and stderr the last lines that it wrote to
// stderr. The program must be linked with libfabric, and one of the lines must be the loader's
// message about the library. The messages of the loaders of glibc and musl have only a few words in
// common.
func lacksLibrary(exe string, code int, stderr []string) bool {
	loader := func(line string) bool {
		return strings.Contains(line, "shared librar") && strings.Contains(line, libfabricSoname)
	}
	return code == proto.ExitNotFound && slices.ContainsFunc(stderr, loader) && slices.Contains(importedLibraries(exe), libfabricSoname)
}
