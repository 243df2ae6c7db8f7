package launcher

import (
	"fmt"
	"io"
	"strings"

	"github.com/weft-hpc/weft/launcher/job"
)

// WriteInfo prints the output of gorun -info: transports, algorithms, all settings and tunables,
// and the providers of libfabric. If there are words, it prints only the entries that have one of
// the words in their names, and returns a [job.UsageError] if there are none.
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
