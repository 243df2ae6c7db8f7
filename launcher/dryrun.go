package launcher

import (
	"fmt"
	"io"
	"strings"

	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/launcher/place"
)

// DryRun does what gorun -dry-run does, and returns its exit code.
func DryRun(stdout, stderr io.Writer, j *job.Job) int {
	err := writeDryRun(stdout, j)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "gorun: %v\n", err)
	return codeOf(err)
}

// writeDryRun prints what gorun -dry-run shows: the job as understood, where each
// value came from, and which rank would run where. Nothing is started, and no host
// is asked: the cores of this one alone are known.
func writeDryRun(w io.Writer, j *job.Job) error {
	if err := job.Describe(w, j); err != nil {
		return err
	}
	r := newRun(&session{job: j, host: hostname()}, "")
	if err := r.choose(); err != nil {
		return err
	}
	if len(r.hosts) == 0 {
		_, err := fmt.Fprintln(w, "\nThe hosts are those whose agents connect to", j.Listen)
		return err
	}
	if r.hasOwn() {
		r.hosts[0].agent.Topology = place.Here()
	}
	machines := r.machines()
	var unknown []string
	for i := range machines {
		if len(machines[i].Topology.CPUs) == 0 && machines[i].Slots == 0 {
			unknown = append(unknown, machines[i].Name)
		}
	}
	placed, err := r.place(machines)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\nby %s\n", r.kind); err != nil {
		return err
	}
	if err := place.Render(w, machines, placed); err != nil {
		return err
	}
	if placed.Warning != "" {
		if _, err := fmt.Fprintln(w, "warning:", placed.Warning); err != nil {
			return err
		}
	}
	if unknown != nil {
		_, err = fmt.Fprintf(w, "note: the cores of %s are not known before they are reached, and are taken for one slot each here\n",
			strings.Join(firstFew(unknown), ", "))
	}
	return err
}
