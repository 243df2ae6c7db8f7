//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// setting is a parameter of weft or an environment variable, with the values from which draw chooses.
// "" means that the setting is left out, so it has its default. A value that is listed twice is drawn
// more often.
type setting struct {
	key    string
	values []string
}

// tunables are parameters of weft.
var tunables = []setting{
	{"transport.use", []string{"", "", "tcp", "shm", "shm,tcp", "tcp,shm"}},
	{"transport.shm.single_copy", []string{"", "auto", "off", "off"}},
	{"engine.poll", []string{"", "", "0s", "1us", "100us", "2ms"}},
	{"engine.spin", []string{"", "", "always", "never"}},
	{"engine.yield", []string{"", "", "0s", "5us", "1ms"}},
	{"engine.eager_limit", []string{"", "", "", "1", "100", "4k", "64k", "1m"}},
	{"engine.unexpected_limit", []string{"", "", "", "64k", "1m"}},
	{"engine.async_progress", []string{"", "", "", "false"}},
	{"coll.shared_memory", []string{"", "", "", "0", "4k", "64k", "3m"}},
}

// environment are environment variables of the Go runtime.
var environment = []setting{
	{"GOGC", []string{"", "", "1", "off"}},
	{"GOMAXPROCS", []string{"", "", "1", "2", "5"}},
	{"GODEBUG", []string{"", "", "", "gcstoptheworld=1", "asyncpreemptoff=1"}},
}

var family = regexp.MustCompile(`(?m)^(\w+) +auto (.*)$`)

// algorithms parses the output of gorun -info. It returns a setting for each collective. The values
// of a setting are the algorithms that a job can force, and "".
func algorithms(info string) (s []setting, err error) {
	for _, m := range family.FindAllStringSubmatch(info, -1) {
		s = append(s, setting{"coll." + m[1] + ".algorithm", append([]string{""}, strings.Fields(m[2])...)})
	}
	if len(s) == 0 {
		return nil, errors.New("gorun -info lists no algorithms of collectives")
	}
	return s, nil
}

// job is a random job: the command of gorun, and the rank to kill.
type job struct {
	ranks   int
	flags   []string // flags of gorun
	args    []string // arguments of the ranks' program
	program string   // path of the ranks' program
	gorun   string   // path of gorun
	kill    *kill    // nil: the job ends by itself
}

// kill says which rank to kill, and when. The job may end in another way instead: abort, terminate.
type kill struct {
	rank      int
	after     time.Duration // time after all ranks are ready
	spawned   bool          // kill a process that a rank has started, instead of a rank
	survive   bool          // the other ranks go on after the kill, and report the first error of a call
	recover   bool          // with survive: they then go on without the killed rank
	abort     int           // if not 0, the rank calls Abort with this exit code
	terminate bool          // gorun gets SIGTERM, which ends the contexts of all ranks
}

// event describes for messages how the job ends.
func (k *kill) event() string {
	switch {
	case k.terminate:
		return "gorun is terminated"
	case k.abort != 0:
		return fmt.Sprintf("rank %d calls Abort", k.rank)
	case k.spawned:
		return "a spawned process is killed"
	}
	return fmt.Sprintf("rank %d is killed", k.rank)
}

func (j job) command() []string {
	return append(append([]string{"-np", fmt.Sprint(j.ranks)}, j.flags...), append([]string{j.program}, j.args...)...)
}

func (j job) String() string {
	s := j.gorun + " " + strings.Join(j.command(), " ")
	if j.kill != nil {
		s += fmt.Sprintf("  # %s after %v", j.kill.event(), j.kill.after)
	}
	return s
}

// draw returns a random job, which depends only on seed, kills and the fields of r. If kills is
// set, a rank of the job is to be killed.
func (r *runner) draw(seed uint64, kills bool) job {
	rng := rand.New(rand.NewPCG(seed, 0))
	j := job{ranks: 1 + rng.IntN(8), program: r.program("rank"), gorun: r.program("gorun")}
	if rng.IntN(4) == 0 { // two ranks more often, because many test machines have two cores
		j.ranks = 2
	}
	set := func(flag string, settings []setting, often int) {
		for _, s := range settings {
			if v := s.values[rng.IntN(len(s.values))]; v != "" && rng.IntN(often) == 0 {
				j.flags = append(j.flags, flag, s.key+"="+v)
			}
		}
	}
	if rng.IntN(4) > 0 { // one job of four keeps the defaults of these settings
		set("-p", tunables, 1)
		set("-x", environment, 1)
	}
	if rng.IntN(2) == 0 {
		set("-p", r.algorithms, 1+rng.IntN(3))
	}
	if rng.IntN(8) == 0 {
		j.flags = append(j.flags, "-bind-to", "core")
	}
	// Connections that a kill interrupts while they are made must fail in time, too.
	j.flags = append(j.flags, "-p", "bootstrap.dir="+r.published())
	if r.transports != "" { // after the other flags, because the last -p of a parameter counts
		j.flags = append(j.flags, "-p", "transport.use="+r.transports)
	}
	if r.scripts != nil { // FI_PROVIDER_PATH is in the environment
		script := r.scripts[rng.IntN(len(r.scripts))]
		j.flags = append(j.flags, "-p", "transport.use=libfabric", "-p", "transport.libfabric.provider="+libfabrictest.Name,
			"-x", libfabrictest.ScriptVariable+"="+script)
		if strings.Contains(script, "nics=") {
			j.flags = append(j.flags, "-p", "transport.libfabric.nics=8", "-p", "transport.libfabric.stripe_min=1k")
		}
	}
	j.args = []string{"-seed", fmt.Sprint(seed), "-ops", fmt.Sprint(r.ops)}
	crowds := func() {
		if r.crowds {
			j.args = append(j.args, "-crowds")
		}
	}
	if r.only != "" {
		j.args = append(j.args, "-only", r.only)
	}
	if !kills {
		crowds()
		if rng.IntN(6) == 0 {
			j.args = append(j.args, "-sessions")
		}
		return j
	}
	j.ranks = max(j.ranks, 2)
	k := kill{rank: rng.IntN(j.ranks), after: time.Duration(rng.IntN(300)) * time.Millisecond, survive: rng.IntN(2) == 0}
	if rng.IntN(3) == 0 { // kill the rank soon, while the job starts
		k.after /= 20
	}
	j.args = append(j.args, "-ops", "0", "-bytes", "2097152")
	crowds()
	if k.survive {
		j.args = append(j.args, "-survive")
		// The survivors ignore SIGTERM, and need time to end by themselves before gorun kills them.
		// A process that waits for processes of a Spawn that were killed before they could connect
		// gets an error after bootstrap.timeout.
		j.flags = append(j.flags, "-grace", "20s", "-p", "bootstrap.timeout=5s")
		if r.scripts != nil || strings.Contains(r.transports, "libfabric") {
			// Ranks try for this time to reach a rank that was killed before it had an endpoint.
			j.flags = append(j.flags, "-p", "transport.tcp.connect_timeout=2s")
		}
	}
	if k.recover = k.survive && rng.IntN(2) == 0; k.recover {
		// The ranks learn from gorun, too, that a rank has failed, and gorun does not end the job.
		j.args = append(j.args, "-recover")
		j.flags = append(j.flags, "-on-failure", "notify")
	} else if k.spawned = rng.IntN(4) == 0; k.spawned {
		j.args = append(j.args, "-only", "spawn", "-endless") // the ranks need the processes at the time of the kill
	} else if !k.survive {
		switch rng.IntN(3) {
		case 0:
			k.abort = 1 + rng.IntN(255)
			j.args = append(j.args, "-abort", fmt.Sprint(k.abort))
		case 1:
			k.terminate = true
			j.args = append(j.args, "-context")
			j.flags = append(j.flags, "-grace", "1m") // so that a rank that does not end shows
		}
	}
	j.kill = &k
	return j
}
