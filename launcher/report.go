package launcher

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// schemaVersion is the version of the report's format, which docs/report.schema.json describes. A
// new version is needed when a key is removed or changes its meaning, but not when a key is added.
const schemaVersion = 1

// report is the contents of the file that -report writes. docs/report.schema.json is its JSON
// Schema.
type report struct {
	Schema   int            `json:"schema_version"`
	Gorun    string         `json:"gorun_version"`
	Job      string         `json:"job"`               // job.Job.Name
	ExitCode int            `json:"exit_code"`         // exit code of gorun
	Begun    time.Time      `json:"begun"`             // when Run was called
	Ended    time.Time      `json:"ended"`             // when the report was written
	Host     string         `json:"host"`              // name of gorun's host
	Apps     []reportApp    `json:"apps"`              // the programs, in the order of job.Job.Apps
	Failure  *reportFailure `json:"failure,omitempty"` // absent: the job ended well
	Runs     []reportRun    `json:"runs"`              // one for each start of the job, in their order
}

// reportApp is one program of the job.
type reportApp struct {
	Program string   `json:"program"` // as the user wrote it
	Args    []string `json:"args,omitempty"`
	// Path is the path of the executable on gorun's host. It is absent if gorun did not find or
	// build the program.
	Path string `json:"path,omitempty"`
}

// reportRun is one start of the job.
type reportRun struct {
	Epoch   int            `json:"epoch"`
	JobID   string         `json:"job_id"`
	Begun   time.Time      `json:"begun"`
	Ended   time.Time      `json:"ended"`
	Hosts   []reportHost   `json:"hosts"`
	Ranks   []reportRank   `json:"ranks"`            // of all groups
	Groups  []reportGroup  `json:"groups,omitempty"` // the groups that ranks have spawned, in the order of their numbers
	Failure *reportFailure `json:"failure,omitempty"`
}

// reportGroup is a group of ranks that a rank has spawned.
type reportGroup struct {
	Group int       `json:"group"`
	JobID string    `json:"job_id"`
	By    reportRef `json:"spawned_by"`
	// Started is when the ranks were started, by the clock of gorun's host. It is absent if they were
	// not started, because the request has failed.
	Started *time.Time  `json:"started,omitempty"`
	Apps    []reportApp `json:"apps"`
}

// reportRef names a rank.
type reportRef struct {
	Group int `json:"group,omitempty"`
	Rank  int `json:"rank"`
}

type reportHost struct {
	Name string `json:"name"`
	// Hostname is the host's own name for itself. It is absent if the host's agent has not
	// answered.
	Hostname string `json:"hostname,omitempty"`
	// AgentPID is the pid of the agent or, on gorun's host, of gorun. It is absent if the agent has
	// not answered.
	AgentPID int `json:"agent_pid,omitempty"`
	// Address is the address on which the host's ranks listen. It is absent if gorun has not chosen
	// one.
	Address string `json:"address,omitempty"`
	// Slots is the number of slots that the user or the allocation gives. It is absent if the slots
	// follow from the host's cores.
	Slots int    `json:"slots,omitempty"`
	Ranks int    `json:"ranks"`           // number of ranks that are placed on the host
	State string `json:"state"`           // up, failed, lost, or unknown: the host has not answered
	Cause string `json:"cause,omitempty"` // why the state is failed or lost
}

type reportRank struct {
	Group int    `json:"group,omitempty"` // absent: the rank was not spawned
	Rank  int    `json:"rank"`            // in its group
	App   int    `json:"app"`             // index in the apps of the job, or of the group
	Host  string `json:"host"`
	CPUs  []int  `json:"cpus,omitempty"`
	PID   int    `json:"pid,omitempty"`
	// Started is when the rank was started, by the clock of its host. It is absent if the rank was
	// not started.
	Started *time.Time `json:"started,omitempty"`
	// Ended is when the rank ended, by the clock of its host. It is absent if the rank has not
	// ended, or if that is not known.
	Ended *time.Time `json:"ended,omitempty"`
	// State is "not started", "running", "exited", "killed" (by a signal), "stuck" (the process
	// still exists after SIGKILL) or "lost" (with its host).
	State    string `json:"state"`
	ExitCode *int   `json:"exit_code,omitempty"` // present if State is exited
	Signal   string `json:"signal,omitempty"`    // such as SIGKILL; present if State is killed
	Failed   bool   `json:"failed,omitempty"`    // the rank failed, and the job continued without it

	// The resources that the rank has used, together with its child processes for which it has
	// waited. Absent: not known.
	UserCPU   *float64 `json:"user_cpu_seconds,omitempty"`
	SystemCPU *float64 `json:"system_cpu_seconds,omitempty"`
	MaxRSS    int64    `json:"max_rss_bytes,omitempty"`

	// Comm is absent if the rank has not called Finalize, or is not a weft program.
	Comm *reportComm `json:"comm,omitempty"`
}

// reportComm is what a rank has reported in Finalize about its messages.
type reportComm struct {
	MessagesSent     int64 `json:"messages_sent"`
	MessagesReceived int64 `json:"messages_received"`
	BytesSent        int64 `json:"bytes_sent"`
	BytesReceived    int64 `json:"bytes_received"`
	// Wait is the time for which the rank has waited for other ranks in blocking calls.
	Wait float64 `json:"wait_seconds"`
}

// reportFailure is a Failure as the report has it.
type reportFailure struct {
	Rank     *int     `json:"rank,omitempty"`  // absent: not the failure of one rank
	Group    int      `json:"group,omitempty"` // group of the rank; absent: the rank was not spawned
	Host     string   `json:"host,omitempty"`
	Reason   string   `json:"reason"`           // the result of Failure.Error
	ExitCode int      `json:"exit_code"`        // exit code of gorun
	Stderr   []string `json:"stderr,omitempty"` // Failure.Stderr
}

// reportOf returns a failure as the report has it. code is gorun's exit code. If f is nil, reportOf
// returns nil.
func reportOf(f *Failure, code int) *reportFailure {
	if f == nil {
		return nil
	}
	out := &reportFailure{Host: f.Host, Reason: f.Error(), ExitCode: code, Stderr: f.Stderr}
	if f.Rank >= 0 {
		out.Rank, out.Group = &f.Rank, f.Group
	}
	return out
}

// add adds a run that has ended to the report. v is the run's outcome; nil: the run ended well.
func (p *report) add(r *run, v *outcome) {
	run := reportRun{Epoch: r.epoch, JobID: r.id, Begun: r.began, Ended: time.Now(), Hosts: []reportHost{}, Ranks: []reportRank{}}
	if v != nil {
		run.Failure = reportOf(&v.Failure, v.code)
	}
	for _, i := range r.hostOrder {
		h := &r.hosts[i]
		rh := reportHost{Name: h.Name, Hostname: h.agent.Hostname, AgentPID: h.agent.PID, Slots: h.Slots, State: h.state, Cause: h.cause}
		if h.state == "" {
			rh.State = "unknown"
		}
		if i < len(r.plans) {
			rh.Address = r.plans[i].Address
		}
		for _, g := range r.groups {
			if i < len(g.plans) {
				rh.Ranks += len(g.plans[i].Ranks)
			}
		}
		run.Hosts = append(run.Hosts, rh)
	}
	for _, g := range r.groups[1:] {
		by := r.groupOf(g.by)
		rg := reportGroup{Group: g.id, JobID: g.jobID, By: reportRef{by.id, by.rank(g.by)}}
		if !g.startDone.IsZero() {
			rg.Started = &g.startDone
		}
		for _, a := range g.apps {
			rg.Apps = append(rg.Apps, reportApp{Program: a.program, Args: a.args, Path: a.path})
		}
		run.Groups = append(run.Groups, rg)
	}
	planned := make(map[int][]int) // by number of a rank: the hardware threads of its plan
	for _, g := range r.groups {
		for _, p := range g.plans {
			for _, rk := range p.Ranks {
				planned[rk.Rank] = rk.CPUs
			}
		}
	}
	for i := range r.ranks {
		rk := &r.ranks[i]
		g := r.groupOf(i)
		rr := reportRank{Group: g.id, Rank: g.rank(i), App: rk.app, Host: r.hosts[rk.host].Name, PID: rk.pid, State: "not started", Failed: rk.failed}
		if rr.CPUs = planned[i]; rk.cpus != nil {
			rr.CPUs = rk.cpus
		}
		if rk.pid != 0 {
			rr.State, rr.Started = "running", &rk.started
		}
		switch {
		case rk.exit != nil:
			at := time.Unix(0, rk.exit.At)
			rr.State, rr.Ended = "exited", &at
			if u := rk.exit.Usage; u != nil {
				user, system := u.User.Seconds(), u.System.Seconds()
				rr.UserCPU, rr.SystemCPU, rr.MaxRSS = &user, &system, u.MaxRSS
			}
			if a := rk.exit.Account; a != nil {
				rr.Comm = &reportComm{a.MessagesSent, a.MessagesReceived, a.BytesSent, a.BytesReceived, a.Waited.Seconds()}
			}
			switch {
			case rk.exit.Stuck:
				rr.State, rr.Ended = "stuck", nil
			case rk.exit.Signal != 0:
				rr.State, rr.Signal = "killed", signalOf(rk.exit)
			default:
				rr.ExitCode = &rk.exit.Code
			}
		case r.hosts[rk.host].state == hostLost:
			rr.State = "lost"
		}
		run.Ranks = append(run.Ranks, rr)
	}
	p.Runs = append(p.Runs, run)
}

// writeReport writes the report, if the job wants one. After an error, the file is as it was
// before, unless it is not a regular file.
func (s *session) writeReport(res Result) error {
	if s.job.Report == "" {
		return nil
	}
	p := &s.report
	p.Schema, p.Gorun = schemaVersion, version()
	p.Job, p.ExitCode, p.Begun, p.Ended, p.Host = s.job.Name, res.ExitCode, s.begun, time.Now(), s.host
	p.Failure = reportOf(res.Failure, res.ExitCode)
	if p.Runs == nil {
		p.Runs = []reportRun{}
	}
	for i, a := range s.job.Apps {
		ra := reportApp{Program: a.Program, Args: slices.Clone(a.Args)}
		if i < len(s.programs) {
			ra.Path = s.programs[i].path
		}
		p.Apps = append(p.Apps, ra)
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(s.job.Report, append(text, '\n'))
}

// replaceFile replaces the contents of a file: it writes a new file in the same directory and
// renames it to name. If the file exists, the new one gets its permissions. If name is a symbolic
// link, replaceFile replaces the target of the link. If name exists and is not a regular file, such
// as /dev/stdout, replaceFile writes to it directly.
func replaceFile(name string, text []byte) error {
	st, err := os.Stat(name)
	if err == nil && !st.Mode().IsRegular() {
		return os.WriteFile(name, text, 0o666)
	}
	if err == nil {
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return err
		}
	}
	part := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+"-"+rand.Text())
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil && st != nil {
		err = f.Chmod(st.Mode().Perm())
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// signalOf returns the name of the signal that ended a rank, such as "SIGKILL", or a text with its
// number if it has no name.
func signalOf(e *proto.Exit) string {
	sig := syscall.Signal(e.Signal)
	return cmp.Or(unix.SignalName(sig), signalName(sig))
}
