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

// schemaVersion is the version of docs/report.schema.json. It grows if a key is removed or
// changes its meaning. A new key does not change it.
const schemaVersion = 1

// report is the contents of the file that -report writes. docs/report.schema.json is its JSON
// Schema.
type report struct {
	Schema   int            `json:"schema_version"`
	Gorun    string         `json:"gorun_version"`
	Job      string         `json:"job"`
	ExitCode int            `json:"exit_code"`
	Begun    time.Time      `json:"begun"`
	Ended    time.Time      `json:"ended"`
	Host     string         `json:"host"` // gorun's host
	Apps     []reportApp    `json:"apps"`
	Failure  *reportFailure `json:"failure,omitempty"`
	Runs     []reportRun    `json:"runs"` // one for each start of the job
}

type reportApp struct {
	Program string   `json:"program"`
	Args    []string `json:"args,omitempty"`
	Path    string   `json:"path,omitempty"` // of the executable; empty: gorun did not find the program
}

type reportRun struct {
	Epoch   int            `json:"epoch"`
	JobID   string         `json:"job_id"`
	Begun   time.Time      `json:"begun"`
	Ended   time.Time      `json:"ended"`
	Hosts   []reportHost   `json:"hosts"`
	Ranks   []reportRank   `json:"ranks"`
	Failure *reportFailure `json:"failure,omitempty"`
}

type reportHost struct {
	Name     string `json:"name"`
	Hostname string `json:"hostname,omitempty"` // as the host calls itself
	AgentPID int    `json:"agent_pid,omitempty"`
	Address  string `json:"address,omitempty"` // that its ranks listen on
	Slots    int    `json:"slots,omitempty"`   // as given; absent: the host's number of cores
	Ranks    int    `json:"ranks"`
	State    string `json:"state"` // up, failed, lost, unknown
	Cause    string `json:"cause,omitempty"`
}

type reportRank struct {
	Rank     int        `json:"rank"`
	App      int        `json:"app"`
	Host     string     `json:"host"`
	CPUs     []int      `json:"cpus,omitempty"`
	PID      int        `json:"pid,omitempty"`
	Started  *time.Time `json:"started,omitempty"` // by its host's clock
	Ended    *time.Time `json:"ended,omitempty"`   // by its host's clock
	State    string     `json:"state"`             // not started, running, exited, killed, stuck, lost
	ExitCode *int       `json:"exit_code,omitempty"`
	Signal   string     `json:"signal,omitempty"`
	Failed   bool       `json:"failed,omitempty"` // the other ranks continued without it

	// Resources used by the rank and the processes that it has waited for; absent: not known.
	UserCPU   *float64 `json:"user_cpu_seconds,omitempty"`
	SystemCPU *float64 `json:"system_cpu_seconds,omitempty"`
	MaxRSS    int64    `json:"max_rss_bytes,omitempty"`

	Comm *reportComm `json:"comm,omitempty"` // absent: the rank has not called Finalize, or is not a weft program
}

// reportComm is what a rank has reported in Finalize.
type reportComm struct {
	MessagesSent     int64   `json:"messages_sent"`
	MessagesReceived int64   `json:"messages_received"`
	BytesSent        int64   `json:"bytes_sent"`
	BytesReceived    int64   `json:"bytes_received"`
	Wait             float64 `json:"wait_seconds"`
}

type reportFailure struct {
	Rank     *int     `json:"rank,omitempty"` // absent: not the failure of a rank
	Host     string   `json:"host,omitempty"`
	Reason   string   `json:"reason"`
	ExitCode int      `json:"exit_code"`
	Stderr   []string `json:"stderr,omitempty"`
}

func reportOf(f *Failure, code int) *reportFailure {
	if f == nil {
		return nil
	}
	out := &reportFailure{Host: f.Host, Reason: f.Error(), ExitCode: code, Stderr: f.Stderr}
	if f.Rank >= 0 {
		out.Rank = &f.Rank
	}
	return out
}

// add adds a run that has ended.
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
			rh.Ranks, rh.Address = len(r.plans[i].Ranks), r.plans[i].Address
		}
		run.Hosts = append(run.Hosts, rh)
	}
	local := make([]int, len(r.hosts))
	for i := range r.ranks {
		rk := &r.ranks[i]
		rr := reportRank{Rank: i, App: rk.app, Host: r.hosts[rk.host].Name, PID: rk.pid, State: "not started", Failed: rk.failed}
		if rr.CPUs = r.plans[rk.host].Ranks[local[rk.host]].CPUs; rk.cpus != nil {
			rr.CPUs = rk.cpus
		}
		local[rk.host]++
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

// writeReport writes the report. The file is either complete or unchanged.
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

// replaceFile writes a new file beside name and renames it to name. The new file gets the
// permissions of the old one. If name exists and is not a regular file, such as /dev/stdout,
// replaceFile writes to it.
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

// signalOf returns the name of the signal that ended a rank.
func signalOf(e *proto.Exit) string {
	sig := syscall.Signal(e.Signal)
	return cmp.Or(unix.SignalName(sig), signalName(sig))
}
