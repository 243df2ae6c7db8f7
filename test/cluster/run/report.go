//go:build linux

package run

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"
)

// Report is the report of a job, as gorun writes it. [Command.Start] makes gorun write it.
// docs/report.schema.json describes the fields.
type Report struct {
	Schema   int            `json:"schema_version"`
	Gorun    string         `json:"gorun_version"`
	Job      string         `json:"job"`
	ExitCode int            `json:"exit_code"`
	Begun    time.Time      `json:"begun"`
	Ended    time.Time      `json:"ended"`
	Host     string         `json:"host"`
	Apps     []ReportApp    `json:"apps"`
	Failure  *ReportFailure `json:"failure"`
	Runs     []ReportRun    `json:"runs"`
}

// ReportApp is one program of the job.
type ReportApp struct {
	Program string   `json:"program"`
	Args    []string `json:"args"`
	Path    string   `json:"path"`
}

// ReportRun is one run of the job. With -on-failure restart there may be several.
type ReportRun struct {
	Epoch   int            `json:"epoch"`
	JobID   string         `json:"job_id"`
	Begun   time.Time      `json:"begun"`
	Ended   time.Time      `json:"ended"`
	Hosts   []ReportHost   `json:"hosts"`
	Ranks   []ReportRank   `json:"ranks"`
	Groups  []ReportGroup  `json:"groups"`
	Failure *ReportFailure `json:"failure"`
}

// ReportGroup is a group of ranks that a rank has spawned.
type ReportGroup struct {
	Group   int         `json:"group"`
	JobID   string      `json:"job_id"`
	By      ReportRef   `json:"spawned_by"`
	Started *time.Time  `json:"started"`
	Apps    []ReportApp `json:"apps"`
}

// ReportRef names a rank.
type ReportRef struct {
	Group int `json:"group"`
	Rank  int `json:"rank"`
}

// ReportHost is one host of the job.
type ReportHost struct {
	Name     string `json:"name"`
	Hostname string `json:"hostname"`
	AgentPID int    `json:"agent_pid"`
	Address  string `json:"address"`
	Slots    int    `json:"slots"`
	Ranks    int    `json:"ranks"`
	State    string `json:"state"`
	Cause    string `json:"cause"`
}

// ReportRank is one rank in a run of the job.
type ReportRank struct {
	Group    int        `json:"group"`
	Rank     int        `json:"rank"`
	App      int        `json:"app"`
	Host     string     `json:"host"`
	CPUs     []int      `json:"cpus"`
	PID      int        `json:"pid"`
	Started  *time.Time `json:"started"`
	Ended    *time.Time `json:"ended"`
	State    string     `json:"state"`
	ExitCode *int       `json:"exit_code"`
	Signal   string     `json:"signal"`
	Failed   bool       `json:"failed"`

	UserCPU   *float64 `json:"user_cpu_seconds"`
	SystemCPU *float64 `json:"system_cpu_seconds"`
	MaxRSS    int64    `json:"max_rss_bytes"`

	Comm *ReportComm `json:"comm"`
}

// ReportComm has the statistics of a rank's communication.
type ReportComm struct {
	MessagesSent     int64   `json:"messages_sent"`
	MessagesReceived int64   `json:"messages_received"`
	BytesSent        int64   `json:"bytes_sent"`
	BytesReceived    int64   `json:"bytes_received"`
	Wait             float64 `json:"wait_seconds"`
}

// ReportFailure is the reason why the job, or one run of it, failed.
type ReportFailure struct {
	Group    int      `json:"group"`
	Rank     *int     `json:"rank"`
	Host     string   `json:"host"`
	Reason   string   `json:"reason"`
	ExitCode int      `json:"exit_code"`
	Stderr   []string `json:"stderr"`
}

// ReadReport reads the report in a file. If the file has a field that Report lacks, the test fails.
func ReadReport(t testing.TB, file string) *Report {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%s: %v\n%s", file, err, text)
	}
	return &r
}

// Host returns the host with this name.
func (r *ReportRun) Host(t testing.TB, name string) ReportHost {
	t.Helper()
	for _, h := range r.Hosts {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("report: no host %s among %v", name, r.Hosts)
	return ReportHost{}
}
