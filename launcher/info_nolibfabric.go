//go:build !libfabric

package launcher

import (
	"context"
	"fmt"
	"io"
	"os/exec"

	"github.com/weft-hpc/weft/internal/params"
)

func writeUse(w io.Writer, _ *params.Set) error { return writeProviders(w) }

// writeProviders prints how to build a gorun that can ask libfabric's providers, or what to install
// for that.
func writeProviders(w io.Writer) error {
	what := "gorun is built without libfabric; "
	if err := findHeaders(context.Background()); err != nil {
		what += err.Error()
	} else if _, err := exec.LookPath("go"); err != nil {
		what += "build it with Go and -tags libfabric to list the providers"
	} else {
		what += "to list the providers: go build -tags libfabric ./cmd/gorun"
	}
	_, err := fmt.Fprintf(w, "\nLIBFABRIC\n%s\n", what)
	return err
}
