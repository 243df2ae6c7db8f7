package live

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/record"
)

func snapshot(at time.Duration, calls uint64) *Snapshot {
	begun := time.Unix(1000, 0)
	return &Snapshot{
		Job: "42", Name: `a "b"`, Phase: "running", Begun: begun, At: begun.Add(at), Hosts: []string{"h0", "h1"}, Silent: []string{"h1"},
		Ranks: []Rank{
			{Name: "0", Host: "h0", State: "running", Figures: &record.Figures{
				Rank: 0, Elapsed: at, Messages: 10 * calls, Bytes: 1000 * calls, Inside: &record.Inside{Op: "Barrier", Comm: "world", Seq: 7},
				Ops: []record.OpFigures{
					{Name: "Barrier", Calls: calls, Time: time.Duration(calls) * time.Millisecond},
					{Name: "Ibarrier", Calls: 99 * calls, Time: time.Hour, Background: true},
				},
			}},
			{Name: "1", Host: "h0", State: "ended", Figures: &record.Figures{Rank: 1, Elapsed: time.Second, Finalized: true}},
			{Name: "2", Host: "h1", State: "running"},
			{Name: "1.0", Host: "h1", State: "failed"},
		},
	}
}

func TestRows(t *testing.T) {
	before, now := snapshot(time.Second, 100), snapshot(3*time.Second, 300)
	now.Ranks[0].Figures.Inside.Seq++
	rows := Rows(before, now)
	require.InDelta(t, 0.1, rows[0].InCalls, 1e-9)
	rows[0].InCalls = 0
	require.Equal(t, Row{&now.Ranks[0], 100, 1000, 100000, 0}, rows[0])
	for _, r := range rows[1:] {
		require.Zero(t, r.Calls+r.Messages+r.Bytes+r.InCalls)
	}
	now.Ranks[0].Figures.Inside.Seq-- // the rank was in one call all the time
	require.InDelta(t, 1, Rows(before, now)[0].InCalls, 1e-9)
	now.Ranks[0].Figures.Inside, before.Ranks[0].Figures.Inside = nil, nil
	require.InDelta(t, 0.1, Rows(before, now)[0].InCalls, 1e-9)
	before.Ranks[0].Figures.Waiting = &record.Waiting{Since: 7, Kind: record.WaitRecv, Peer: 2}
	now.Ranks[0].Figures.Waiting = &record.Waiting{Since: 7, Kind: record.WaitRecv, Peer: 2}
	require.InDelta(t, 1, Rows(before, now)[0].InCalls, 1e-9)
	require.Equal(t, "waits for a message of rank 2", now.Ranks[0].Doing())
	now.Ranks[0].Figures.Waiting.Since++ // another wait
	require.InDelta(t, 0.1, Rows(before, now)[0].InCalls, 1e-9)
	before.Job = "41" // the job was started again
	require.Zero(t, Rows(before, now)[0].Calls)
	require.Zero(t, Rows(nil, now)[0].Calls)
	require.Zero(t, Rows(now, now)[0].Calls)
}

func TestTop(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteTop(&b, snapshot(time.Second, 100), snapshot(3*time.Second, 300), 0))
	require.Equal(t, `job 42  a "b"  running  ranks 4  hosts 2  3s
no answer from h1
RANK  HOST  IN WEFT  CALLS/s  MESSAGES/s  MB/s  DOES
0     h0    100 %    100      1000        0.1   in Barrier 7 of world
1     h0    0 %      0        0           0.0   ended
2     h1    0 %      0        0           0.0   not in weft
1.0   h1    0 %      0        0           0.0   failed
`, b.String())
	b.Reset()
	require.NoError(t, WriteTop(&b, nil, snapshot(time.Second, 1), 6))
	require.Equal(t, 6, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), "… and 2 more ranks")
}

// TestMetrics checks the form that OpenMetrics 1.0 wants: each sample follows the metadata of its family,
// samples of counters end in _total, labels are escaped, and the text ends with # EOF.
func TestMetrics(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, WriteMetrics(&b, snapshot(3*time.Second, 300)))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	require.Equal(t, "# EOF", lines[len(lines)-1])
	family, kind := "", ""
	seen := make(map[string]bool)
	sample := regexp.MustCompile(`^([a-z_]+)(\{([a-z]+="([^"\\\n]|\\.)*"(,|\}))+)? [0-9.e+]+$`)
	for _, l := range lines[:len(lines)-1] {
		if f := strings.Fields(l); f[0] == "#" {
			if f[1] == "TYPE" {
				family, kind = f[2], f[3]
				require.False(t, seen[family], l)
				seen[family] = true
			}
			require.Equal(t, family, f[2])
			continue
		}
		m := sample.FindStringSubmatch(l)
		require.NotNil(t, m, l)
		require.Equal(t, family+map[string]string{"counter": "_total", "info": "_info", "gauge": ""}[kind], m[1])
	}
	for _, want := range []string{
		`weft_job_info{job="42",name="a \"b\""} 1`, "weft_ranks 4", "weft_ranks_running 2",
		`weft_calls_total{rank="0",host="h0",call="Ibarrier"} 29700`, `weft_call_seconds_total{rank="0",host="h0",call="Barrier"} 0.3`,
		`weft_in_collective{rank="0",host="h0"} 1`, `weft_sent_bytes_total{rank="0",host="h0"} 300000`,
	} {
		require.Contains(t, lines, want)
	}
}
