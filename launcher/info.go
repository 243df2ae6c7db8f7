package launcher

import (
	"fmt"
	"io"
	"strings"

	"github.com/weft-hpc/weft/launcher/job"
)

// WriteInfo prints the output of gorun -info: transports, algorithms, the value of each setting and
// tunable in j, and the providers of libfabric. If words is not empty, WriteInfo prints only the
// entries whose names contain one of the words, and returns a *[job.UsageError] if there are none.
// Any other error is one of w or of libfabric.
func WriteInfo(w io.Writer, j *job.Job, words []string) error {
	found, err := job.WriteInfo(w, j, words)
	if err != nil {
		return err
	}
	if job.Selects(words, "libfabric providers") {
		return writeProviders(w)
	}
	if !found {
		return &job.UsageError{What: "-info", Problem: fmt.Sprintf("nothing has %q in its name; gorun -info alone lists all", strings.Join(words, " "))}
	}
	return nil
}
