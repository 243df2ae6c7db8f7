package launcher

import (
	"context"
	"debug/elf"
	"errors"
	"os/exec"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// The library of the libfabric transport, and the packages that bring it.
const (
	libfabricSoname = "libfabric.so.1"
	libfabricTag    = "libfabric"

	installHeaders = "install libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL)"
	installLibrary = "install libfabric1 (Debian, Ubuntu) or libfabric (Fedora, RHEL)"
)

// wantsLibfabric says whether a job may use the libfabric transport.
func wantsLibfabric(s *params.Set) bool {
	return slices.Contains(s.List("transport.use"), "libfabric")
}

// namesInterface says whether the ranks are told where to listen.
func namesInterface(s *params.Set) bool {
	return s.String("transport.tcp.interface") != "" || wantsLibfabric(s) && s.String("transport.libfabric.interface") != ""
}

// tcpInterface returns what the user names for tcp to listen on. It returns "" if the user
// names nothing or no rank listens. If the ranks share memory, no rank listens: then a
// name from a job file or the environment may be meant for other machines, and only a
// flag's name counts.
func tcpInterface(s *params.Set, shared bool) string {
	v := s.Get("transport.tcp.interface")
	if !slices.Contains(s.List("transport.use"), "tcp") || shared && v.Source != params.FromFlag {
		return ""
	}
	return v.Text
}

// findHeaders says what is missing to build with the libfabric transport; nil:
// nothing.
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

// buildTags adds the libfabric transport where a program can be built with it,
// unless the user has chosen tags. A job that wants the transport is an error
// where it cannot.
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

// lacksLibrary says whether a program failed because the dynamic loader found
// no libfabric: it is linked with it, and its last words are the loader's,
// which name it (those of glibc and of musl differ).
func lacksLibrary(exe string, code int, words []string) bool {
	loader := func(w string) bool {
		return strings.Contains(w, "shared librar") && strings.Contains(w, libfabricSoname)
	}
	if code != proto.ExitNotFound || !slices.ContainsFunc(words, loader) {
		return false
	}
	f, err := elf.Open(exe)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	libs, err := f.ImportedLibraries()
	return err == nil && slices.Contains(libs, libfabricSoname)
}
