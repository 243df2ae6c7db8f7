package hosts

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// environment returns functions that replace os.Getenv and os.ReadFile. text lists the variables,
// NAME=VALUE, and the files, /FILE=TEXT, that exist for these functions, separated by "|".
func environment(text string) (getenv func(string) string, readFile func(string) ([]byte, error)) {
	vars := make(map[string]string)
	for kv := range strings.SplitSeq(text, "|") {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	return func(name string) string { return vars[name] }, func(name string) ([]byte, error) {
		if text, ok := vars[name]; ok && strings.HasPrefix(name, "/") {
			return []byte(text), nil
		}
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
}

func TestFromEnvironment(t *testing.T) {
	ab := []Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 1}}
	nodes := func(slots ...int) (list []Host) {
		for i, s := range slots {
			list = append(list, Host{Name: "n" + string(rune('1'+i)), Slots: s})
		}
		return list
	}
	for _, test := range []struct {
		env  string
		want *Allocation
	}{
		{"", nil},
		{"SLURM_JOB_NODELIST=a|PBS_JOBID=3|LSB_JOBID=4|JOB_ID=5", nil},

		{"SLURM_JOB_ID=7|SLURM_JOB_NODELIST=n[1-4]|SLURM_TASKS_PER_NODE=2(x3),1", &Allocation{Slurm, "7", nodes(2, 2, 2, 1), 0}},
		{"SLURM_JOBID=7|SLURM_NODELIST=n1,n2|SLURM_TASKS_PER_NODE=3(x2)|SLURM_CPUS_PER_TASK=4", &Allocation{Slurm, "7", nodes(3, 3), 4}},
		{"SLURM_JOB_ID=7|SLURM_JOB_NODELIST=n[1-3]|SLURM_JOB_CPUS_PER_NODE=8(x2),2|SLURM_CPUS_PER_TASK=4", &Allocation{Slurm, "7", nodes(2, 2, 1), 4}},
		{"SLURM_JOB_ID=7|SLURM_JOB_NODELIST=n[1-2]|SLURM_JOB_CPUS_PER_NODE=8,2", &Allocation{Slurm, "7", nodes(8, 2), 0}},
		{"SLURM_JOB_ID=7|SLURM_JOB_NODELIST=n[1-2]", &Allocation{Slurm, "7", nodes(0, 0), 0}},
		// gorun runs in a job step: in the first case in a step on one of the job's hosts, in the
		// second case in a step on all of them.
		{"SLURM_JOB_ID=7|SLURM_STEP_ID=0|SLURM_JOB_NODELIST=n[1-3]|SLURM_TASKS_PER_NODE=1|SLURM_JOB_CPUS_PER_NODE=2,1(x2)", &Allocation{Slurm, "7", nodes(2, 1, 1), 0}},
		{"SLURM_JOB_ID=7|SLURM_STEP_ID=0|SLURM_JOB_NODELIST=n[1-2]|SLURM_TASKS_PER_NODE=3,1|SLURM_JOB_CPUS_PER_NODE=9(x2)", &Allocation{Slurm, "7", nodes(3, 1), 0}},

		{"PBS_NODEFILE=/f|PBS_JOBID=7.srv|/f=a\na\nb\n", &Allocation{PBS, "7.srv", ab, 0}},
		{"PBS_NODEFILE=/f|/f=a\nb\n", &Allocation{PBS, "", []Host{{Name: "a", Slots: 1}, {Name: "b", Slots: 1}}, 0}},
		{"LSB_JOBID=7|LSB_MCPU_HOSTS=a 2 b 1 ", &Allocation{LSF, "7", ab, 0}},
		{"LSB_JOBID=7|LSB_HOSTS=a b a", &Allocation{LSF, "7", ab, 0}},
		{"LSB_JOBID=7|LSB_DJOB_HOSTFILE=/f|/f=a\nb\na\n", &Allocation{LSF, "7", ab, 0}},
		{"JOB_ID=7|PE_HOSTFILE=/f|/f=a 1 q@a UNDEFINED\nb 1 q@b UNDEFINED\na 1 r@a UNDEFINED\n\n", &Allocation{SGE, "7", ab, 0}},
	} {
		got, err := FromEnvironment(environment(test.env))
		require.NoError(t, err, test.env)
		require.Equal(t, test.want, got, test.env)
	}
}

func TestFromEnvironmentErrors(t *testing.T) {
	const slurm = "SLURM_JOB_ID=7|SLURM_JOB_NODELIST=n[1-2]|"
	for _, test := range []struct{ env, want string }{
		{"SLURM_JOB_ID=7", `SLURM_JOB_NODELIST: expected the hosts of job "7", which SLURM_JOB_ID names, found nothing`},
		{"SLURM_JOB_ID=7|SLURM_JOB_NODELIST=n[1-", `SLURM_JOB_NODELIST: expected "]" after "[", found "n[1-"`},
		{"SLURM_JOB_ID=7|SLURM_NODELIST=a,", `SLURM_NODELIST: expected names of hosts separated by commas, found "a,"`},
		{slurm + "SLURM_TASKS_PER_NODE=2(x3)", `SLURM_TASKS_PER_NODE: expected a number for each of 2 hosts, found 3 in "2(x3)"`},
		{slurm + "SLURM_TASKS_PER_NODE=2", `SLURM_TASKS_PER_NODE: expected a number for each of 2 hosts, found 1 in "2"`},
		{slurm + "SLURM_TASKS_PER_NODE=2(x2", `SLURM_TASKS_PER_NODE: expected numbers such as 2(x3),1, found "2(x2"`},
		{slurm + "SLURM_TASKS_PER_NODE=0(x2)", `SLURM_TASKS_PER_NODE: expected numbers such as 2(x3),1, found "0(x2)"`},
		{slurm + "SLURM_TASKS_PER_NODE=1(x99999999)", `SLURM_TASKS_PER_NODE: expected numbers such as 2(x3),1, found "1(x99999999)"`},
		{slurm + "SLURM_TASKS_PER_NODE=1(x65536),1", `SLURM_TASKS_PER_NODE: expected the numbers of at most 65536 hosts, found more in "1(x65536),1"`},
		{slurm + "SLURM_STEP_ID=0|SLURM_TASKS_PER_NODE=x", `SLURM_TASKS_PER_NODE: expected numbers such as 2(x3),1, found "x"`},
		{slurm + "SLURM_JOB_CPUS_PER_NODE=2,", `SLURM_JOB_CPUS_PER_NODE: expected numbers such as 2(x3),1, found ""`},
		{slurm + "SLURM_JOB_CPUS_PER_NODE=2", `SLURM_JOB_CPUS_PER_NODE: expected a number for each of 2 hosts, found 1 in "2"`},
		{slurm + "SLURM_CPUS_PER_TASK=x", `SLURM_CPUS_PER_TASK: expected an integer from 1 to 65536, found "x"`},
		{"PBS_NODEFILE=/no", "PBS_NODEFILE: /no: file does not exist"},
		{"PBS_NODEFILE=/f|/f=\n", "PBS_NODEFILE: /f:1: the file names no host"},
		{"PBS_NODEFILE=/f|/f=a\n-b\n", `PBS_NODEFILE: /f:2: expected a host's name, found "-b"`},
		{"LSB_MCPU_HOSTS=a 2 b", `LSB_MCPU_HOSTS: expected the slots of "b", from 1 to 65536, found ""`},
		{"LSB_MCPU_HOSTS=a x", `LSB_MCPU_HOSTS: expected the slots of "a", from 1 to 65536, found "x"`},
		{"LSB_MCPU_HOSTS=-a 2", `LSB_MCPU_HOSTS: expected a host's name, found "-a"`},
		{"LSB_HOSTS=a /", `LSB_HOSTS: expected a host's name, found "/"`},
		{"LSB_DJOB_HOSTFILE=/no", "LSB_DJOB_HOSTFILE: /no: file does not exist"},
		{"PE_HOSTFILE=/no", "PE_HOSTFILE: /no: file does not exist"},
		{"PE_HOSTFILE=/f|/f=", "PE_HOSTFILE: /f:1: the file names no host"},
		{"PE_HOSTFILE=/f|/f=a\n", `PE_HOSTFILE: /f:1: expected HOST SLOTS QUEUE PROCESSORS, found "a"`},
		{"PE_HOSTFILE=/f|/f=a 2 q\nb x q\n", `PE_HOSTFILE: /f:2: expected HOST SLOTS QUEUE PROCESSORS, found "b x q"`},
		{"PE_HOSTFILE=/f|/f=^ 2 q\n", `PE_HOSTFILE: /f:1: expected a host's name, found "^"`},
	} {
		got, err := FromEnvironment(environment(test.env))
		require.EqualError(t, err, test.want)
		require.Nil(t, got)
	}
}

func TestManager(t *testing.T) {
	for env, want := range map[string]string{
		"": "", "SLURM_JOB_ID=1|PBS_NODEFILE=/f": Slurm, "PBS_NODEFILE=/f|PE_HOSTFILE=/g": PBS, "LSB_HOSTS=a": LSF, "PE_HOSTFILE=/f": SGE, "PBS_NODEFILE= ": "",
	} {
		getenv, _ := environment(env)
		require.Equal(t, want, Manager(getenv), env)
	}
}

func FuzzFromEnvironment(f *testing.F) {
	for _, env := range []string{
		"SLURM_JOB_ID=7|SLURM_JOB_NODELIST=n[1-4]|SLURM_TASKS_PER_NODE=2(x3),1", "SLURM_JOBID=7|SLURM_NODELIST=n[1-3]|SLURM_JOB_CPUS_PER_NODE=8(x2),2|SLURM_CPUS_PER_TASK=4",
		"SLURM_JOB_ID=7|SLURM_STEP_ID=0|SLURM_JOB_NODELIST=n[1-3]|SLURM_TASKS_PER_NODE=1", "PBS_NODEFILE=/f|PBS_JOBID=7.srv|/f=a\na\nb\n",
		"LSB_MCPU_HOSTS=a 2 b 1", "LSB_HOSTS=a b a", "LSB_DJOB_HOSTFILE=/f|/f=a", "PE_HOSTFILE=/f|/f=a 1 q@a UNDEFINED\n",
	} {
		f.Add(env)
	}
	f.Fuzz(func(t *testing.T, env string) {
		a, err := FromEnvironment(environment(env))
		switch {
		case err != nil && a != nil:
			t.Fatalf("%v, %v", err, a)
		case err == nil && a != nil:
			checkHosts(t, a.Hosts)
		}
	})
}
