package launcher

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/job"
)

// DryRun prints to stdout what Run would do with a job: its programs and settings, and which rank
// would run on which host and cores, as gorun -dry-run does. It starts no rank and connects with no
// host. It writes warnings and errors to stderr, and returns gorun's exit code. If a program of the
// job does not exist or cannot be executed, DryRun prints the job, and then returns the exit code
// that the job would have.
func DryRun(stdout, stderr io.Writer, j *job.Job) int {
	for _, w := range j.Warnings {
		_, _ = fmt.Fprintf(stderr, "gorun: warning: %s\n", w)
	}
	err := writeDryRun(stdout, j)
	if err == nil {
		err = job.DescribeSettings(stdout, j)
	}
	for _, app := range j.Apps {
		if err == nil {
			_, _, err = find(context.Background(), j, app)
		}
	}
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "gorun: %v\n", err)
	return codeOf(err)
}

// writeDryRun prints the programs, the hosts, and the ranks of each host. It connects with no host,
// so it knows the cores only of this host. For another host without a given number of slots, it
// assumes one slot, and prints a note about that.
func writeDryRun(w io.Writer, j *job.Job) error {
	r := newRun(&session{job: j, host: hostname()}, "")
	if err := r.chooseHosts(); err != nil {
		return err
	}
	if len(r.hosts) == 0 {
		if err := job.Describe(w, j); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, "\nThe hosts are those whose agents connect to", j.Listen)
		return err
	}
	if r.usesThisHost() {
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
	var notes []string
	if r.fillsHosts() {
		filled := *j
		filled.Apps = slices.Clone(j.Apps)
		filled.Apps[0].NP = len(placed.Ranks)
		j = &filled
	}
	if note := r.fillNote(placed); note != "" {
		notes = append(notes, note)
	}
	if placed.Warning != "" {
		notes = append(notes, "warning: "+placed.Warning)
	}
	if unknown != nil {
		notes = append(notes, fmt.Sprintf("note: gorun does not know the cores of %s before it connects, and assumes one slot for each here",
			strings.Join(firstFew(unknown), ", ")))
	}
	if err := job.Describe(w, j); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\nlauncher: %s\n", r.kind); err != nil {
		return err
	}
	if err := place.Render(w, machines, placed); err != nil {
		return err
	}
	for _, n := range notes {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	return nil
}
