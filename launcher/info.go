package launcher

import (
	"fmt"
	"io"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/job"
)

// WriteInfo prints the output of gorun -info: transports, algorithms, the value of each setting and
// tunable in j, and the providers of libfabric. If words is not empty, WriteInfo prints only the
// entries whose names contain one of the words, and returns a *[job.UsageError] if there are none.
// If words is empty and the flag -provider is given, WriteInfo prints how ranks would use that
// provider, and nothing else. Any other error is one of w or of libfabric.
func WriteInfo(w io.Writer, j *job.Job, words []string) error {
	if len(words) == 0 && j.Params.Get(job.ProviderKey).Source == params.FromFlag {
		return writeUse(w, j.Params)
	}
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
