//go:build linux

package cluster

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestStats: the statistics of four ranks on three hosts, of which each is below the one before or gorun is the
// parent of all, must have the calls of all ranks, and the messages between each pair of neighbours.
func TestStats(t *testing.T) {
	c := hosts(t)
	for _, radix := range []string{"1", "64"} {
		dir := t.TempDir()
		r := c.gorunOn("1:2,2:1,3:1", "-radix", radix, "-np", "4", "-stats", "-stats-dir", dir, run.Rank(), "work").Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Regexp(t, `(?m)^gorun: statistics of 4 ranks, .* from Init to Finalize$`, r.Stderr)
		require.Regexp(t, `(?m)^Isend +12 `, r.Stderr)
		text, err := os.ReadFile(filepath.Join(dir, "stats.json"))
		require.NoError(t, err)
		var s struct {
			Recorded int
			Matrix   []struct{ From, To, Messages, Bytes int }
		}
		require.NoError(t, json.Unmarshal(text, &s))
		require.Equal(t, 4, s.Recorded)
		next := make(map[int]bool)
		for _, m := range s.Matrix {
			if m.To == (m.From+1)%4 && m.Messages >= 3 && m.Bytes >= 8*101_001 {
				next[m.From] = true
			}
		}
		require.Len(t, next, 4, "%s", text)
	}
}

// TestLive asks a job on three hosts, whose rank 2 does not enter a Barrier, what its ranks do: by -top, by
// -metrics and by -stacks. Then it kills the agent of a host. The job goes on, and -top must show the ranks of
// that host as failed.
func TestLive(t *testing.T) {
	c := hosts(t)
	p := c.gorunOn("1:2,2:2,3:1", "-on-failure", "notify", "-np", "5", "-metrics", ":0", run.Rank(), "stay", "2").Start(t)
	p.AwaitStdout(4, `rank \d up on .*\n`)
	pid := strconv.Itoa(p.PID())
	ask := func(flag string) string {
		r := run.Command{Args: []string{flag, pid}}.Run(t)
		require.Zero(t, r.Code, r.Stderr)
		return r.Stdout
	}
	top := regexp.MustCompile(`(?m)^0 +` + c.name(1) + ` .* in Barrier 2 of world\n1 +` + c.name(1) + ` .* in Barrier 2 of world\n` +
		`2 +` + c.name(2) + ` .* running\n3 +` + c.name(2) + ` .* in Barrier 2 of world\n4 +` + c.name(3) + ` .* in Barrier 2 of world$`)
	require.Eventually(t, func() bool { return top.MatchString(ask("-top")) }, time.Minute, time.Millisecond)
	require.Contains(t, ask("-stacks"), "rank 2 last: Barrier 1 of world\n")

	url := regexp.MustCompile(`gorun: metrics at (http://127\.0\.0\.1:\d+/metrics)\n`).FindStringSubmatch(p.Stderr())
	require.NotNil(t, url, p.Stderr())
	answer, err := http.Get(url[1])
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Contains(t, string(text), `weft_in_collective{rank="4",host="`+c.name(3)+`"} 1`)
	require.Contains(t, string(text), `weft_in_collective{rank="2",host="`+c.name(2)+`"} 0`)

	kill(t, c.only(2, run.Watchdog), c.only(2, agent))
	lost := regexp.MustCompile(`(?m)^2 +` + c.name(2) + ` .* failed\n3 +` + c.name(2) + ` .* failed$`)
	require.Eventually(t, func() bool { return lost.MatchString(ask("-top")) }, time.Minute, time.Millisecond)
	require.Zero(t, run.Command{Args: []string{"-stop", pid}}.Run(t).Code)
	p.Wait()
}
