package hosts

import (
	"bytes"
	"fmt"
	"strings"
)

// The resource managers whose allocations FromEnvironment can read.
const (
	Slurm = "slurm"
	PBS   = "pbs" // also Torque
	LSF   = "lsf"
	SGE   = "sge" // Grid Engine
)

// Allocation describes the hosts that a resource manager has allocated to the batch job or session
// in which gorun runs.
type Allocation struct {
	Manager string // Slurm, PBS, LSF or SGE
	JobID   string // the id of the job in the resource manager; empty: not known
	// Hosts has the hosts in the order of the resource manager, each with the slots that the job
	// may use there. Slots is 0 if that is not known.
	Hosts       []Host
	CPUsPerTask int // number of CPUs for each task; 0: not known, or the manager is not Slurm
}

// Manager returns the resource manager in whose allocation this process runs, as its environment
// variables show; empty: there is none. If there are variables of several managers, it returns the
// first of these: Slurm, PBS, LSF, SGE. getenv is os.Getenv, or replaces it in tests.
func Manager(getenv func(string) string) string {
	for _, m := range []struct {
		name string
		vars []string
	}{
		{Slurm, slurmJobID},
		{PBS, []string{"PBS_NODEFILE"}},
		{LSF, []string{"LSB_MCPU_HOSTS", "LSB_HOSTS", "LSB_DJOB_HOSTFILE"}},
		{SGE, []string{"PE_HOSTFILE"}},
	} {
		if name, _ := first(getenv, m.vars...); name != "" {
			return m.name
		}
	}
	return ""
}

// FromEnvironment reads the allocation in which this process runs from environment variables, and
// from the files that they name. It returns nil, and no error, if there is no allocation. getenv
// and readFile are os.Getenv and os.ReadFile, or replace them in tests. An error names the variable
// from which it comes.
func FromEnvironment(getenv func(string) string, readFile func(string) ([]byte, error)) (*Allocation, error) {
	a := &Allocation{Manager: Manager(getenv)}
	var err error
	switch a.Manager {
	case Slurm:
		err = a.slurm(getenv)
	case PBS:
		a.JobID = getenv("PBS_JOBID")
		err = a.linePerSlot("PBS_NODEFILE", getenv, readFile)
	case LSF:
		err = a.lsf(getenv, readFile)
	case SGE:
		a.JobID = getenv("JOB_ID")
		err = a.sge(getenv, readFile)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return a, nil
}

// first returns the first of names for which the environment has a variable that is not blank, and
// the value of this variable without blanks around it. It returns empty strings if there is no such
// variable.
func first(getenv func(string) string, names ...string) (name, value string) {
	for _, n := range names {
		if v := strings.TrimSpace(getenv(n)); v != "" {
			return n, v
		}
	}
	return "", ""
}

// linePerSlot sets a.Hosts from a file that has one line for each slot, with the name of the slot's
// host. name is the name of the variable whose value is the name of the file.
func (a *Allocation) linePerSlot(name string, getenv func(string) string, readFile func(string) ([]byte, error)) error {
	file := getenv(name)
	text, err := readFile(file)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", name, file, cause(err))
	}
	if a.Hosts, err = ReadFile(file, bytes.NewReader(text)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for i := range a.Hosts {
		a.Hosts[i].Slots = max(a.Hosts[i].Slots, 1)
	}
	return nil
}

// lsf sets a.JobID and a.Hosts from the variables of LSF.
func (a *Allocation) lsf(getenv func(string) string, readFile func(string) ([]byte, error)) error {
	a.JobID = getenv("LSB_JOBID")
	name, value := first(getenv, "LSB_MCPU_HOSTS", "LSB_HOSTS")
	if name == "" {
		return a.linePerSlot("LSB_DJOB_HOSTFILE", getenv, readFile)
	}
	var s Set
	words := strings.Fields(value)
	for i := 0; i < len(words); i++ {
		h := Host{Name: words[i], Slots: 1}
		// LSB_MCPU_HOSTS has a value such as "a 4 b 4", with slots. LSB_HOSTS has a value such as
		// "a a b".
		if name == "LSB_MCPU_HOSTS" {
			count := ""
			if i++; i < len(words) {
				count = words[i]
			}
			var ok bool
			if h.Slots, ok = parseCount(count, Limit); !ok {
				return fmt.Errorf("%s: expected the slots of %s, from 1 to %d, found %s", name, quote(h.Name), Limit, quote(count))
			}
		}
		err := checkName(h.Name)
		if err == nil {
			err = s.Add(h)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	a.Hosts = s.Hosts()
	return nil
}

// sge sets a.Hosts from the file of Grid Engine. Each of its lines has a host, the number of its
// slots, a queue and processors. sge does not use the last two.
func (a *Allocation) sge(getenv func(string) string, readFile func(string) ([]byte, error)) error {
	const name = "PE_HOSTFILE"
	file := getenv(name)
	text, err := readFile(file)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", name, file, cause(err))
	}
	var s Set
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var ok bool
		h := Host{Name: words[0]}
		if len(words) > 1 {
			h.Slots, ok = parseCount(words[1], Limit)
		}
		if err = checkName(h.Name); err == nil && !ok {
			err = fmt.Errorf("expected HOST SLOTS QUEUE PROCESSORS, found %s", quote(strings.TrimSpace(line)))
		}
		if err == nil {
			err = s.Add(h)
		}
		if err != nil {
			return fmt.Errorf("%s: %s:%d: %w", name, file, number, err)
		}
	}
	if a.Hosts = s.Hosts(); a.Hosts == nil {
		return fmt.Errorf("%s: %s:%d: the file names no host", name, file, max(number, 1))
	}
	return nil
}
