package hosts

import (
	"fmt"
	"strings"
)

// slurmJobID lists the variables that have the id of the job in Slurm: first that of current
// versions, then that of old ones.
var slurmJobID = []string{"SLURM_JOB_ID", "SLURM_JOBID"}

// slurm sets the fields of a from the variables of Slurm.
func (a *Allocation) slurm(getenv func(string) string) error {
	var idVar string
	idVar, a.JobID = first(getenv, slurmJobID...)
	listVar, list := first(getenv, "SLURM_JOB_NODELIST", "SLURM_NODELIST")
	if listVar == "" {
		return fmt.Errorf("SLURM_JOB_NODELIST: expected the hosts of job %s, which %s names, found nothing", quote(a.JobID), idVar)
	}
	names, err := Expand(list)
	if err != nil {
		return fmt.Errorf("%s: %w", listVar, err)
	}
	if text := getenv("SLURM_CPUS_PER_TASK"); text != "" {
		var ok bool
		if a.CPUsPerTask, ok = parseCount(text, Limit); !ok {
			return fmt.Errorf("SLURM_CPUS_PER_TASK: expected an integer from 1 to %d, found %s", Limit, quote(text))
		}
	}
	slots, err := a.slurmSlots(getenv, len(names))
	if err != nil {
		return err
	}
	var s Set
	for i, n := range names {
		if err := s.Add(Host{Name: n, Slots: slots[i]}); err != nil {
			return fmt.Errorf("%s: %w", listVar, err)
		}
	}
	a.Hosts = s.Hosts()
	return nil
}

// slurmSlots returns the slots of each of n hosts. That is the number of tasks that Slurm would
// start on the host. If that is not known, it is the number of the job's CPUs on the host divided
// by a.CPUsPerTask, but at least 1. If the CPUs are not known either, the slots are 0.
func (a *Allocation) slurmSlots(getenv func(string) string, n int) ([]int, error) {
	const tasksVar, cpusVar = "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"
	if text := getenv(tasksVar); text != "" {
		slots, err := parseCounts(text)
		// In a job step, the variable has the tasks of the step, and a step may use fewer hosts
		// than the job.
		if err == nil && len(slots) != n && getenv("SLURM_STEP_ID") == "" {
			err = wrongCount(n, len(slots), text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tasksVar, err)
		}
		if len(slots) == n {
			return slots, nil
		}
	}
	text := getenv(cpusVar)
	if text == "" {
		return make([]int, n), nil
	}
	slots, err := parseCounts(text)
	if err == nil && len(slots) != n {
		err = wrongCount(n, len(slots), text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cpusVar, err)
	}
	for i := range slots {
		slots[i] = max(1, slots[i]/max(1, a.CPUsPerTask))
	}
	return slots, nil
}

func wrongCount(want, found int, text string) error {
	return fmt.Errorf("expected a number for each of %d hosts, found %d in %s", want, found, quote(text))
}

// parseCounts parses a list with a number for each host, as Slurm writes it: "2(x3),1" stands for
// 2, 2, 2 and 1. It returns an error if the list is for more than Limit hosts.
func parseCounts(text string) ([]int, error) {
	var counts []int
	for part := range strings.SplitSeq(text, ",") {
		value, repeat, repeated := strings.Cut(strings.TrimSpace(part), "(x")
		times, ok := 1, true
		if repeated {
			if repeat, ok = strings.CutSuffix(repeat, ")"); ok {
				times, ok = parseCount(repeat, Limit)
			}
		}
		count, isCount := parseCount(value, Limit)
		if !ok || !isCount {
			return nil, fmt.Errorf("expected numbers such as 2(x3),1, found %s", quote(part))
		}
		if len(counts)+times > Limit {
			return nil, fmt.Errorf("expected the numbers of at most %d hosts, found more in %s", Limit, quote(text))
		}
		for range times {
			counts = append(counts, count)
		}
	}
	return counts, nil
}
