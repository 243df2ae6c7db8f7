package launcher

import (
	"io"

	"github.com/weft-hpc/weft/launcher/job"
)

// WriteInfo prints what gorun -info shows: transports, algorithms, everything
// that can be set, and the providers of libfabric.
func WriteInfo(w io.Writer, j *job.Job) error {
	if err := job.WriteInfo(w, j); err != nil {
		return err
	}
	return writeProviders(w)
}
