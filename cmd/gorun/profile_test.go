//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// profiled builds testdata/profile, and returns the path of the executable.
func profiled(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "profile")
	out, err := exec.Command("go", "build", "-o", program, "./testdata/profile").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// profilesIn returns the profiles in a directory, by kind. There must be no other files.
func profilesIn(t *testing.T, dir string) map[string]*profile.Profile {
	t.Helper()
	all := make(map[string]*profile.Profile)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		m := regexp.MustCompile(`^weft-[0-9a-f]{16}\.(\w+)\.pprof$`).FindStringSubmatch(e.Name())
		require.NotNil(t, m, e.Name())
		f, err := os.Open(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		all[m[1]], err = profile.Parse(f)
		require.NoError(t, err, e.Name())
		require.NoError(t, f.Close())
		require.NoError(t, all[m[1]].CheckValid())
	}
	return all
}

// ranksIn returns the sum of the last value of the samples that have a function in their stacks, by the
// name of the rank. function is the end of its name.
func ranksIn(p *profile.Profile, function string) map[string]int64 {
	sums := make(map[string]int64)
	for _, s := range p.Sample {
		name := strings.Join(s.Label["rank"], "")
		for _, n := range s.NumLabel["rank"] {
			name += fmt.Sprint(n)
		}
		for _, l := range s.Location {
			if slices.ContainsFunc(l.Line, func(at profile.Line) bool { return strings.HasSuffix(at.Function.Name, function) }) {
				sums[name] += s.Value[len(s.Value)-1]
				break
			}
		}
	}
	return sums
}

func names(m map[string]int64) []string { return slices.Sorted(maps.Keys(m)) }

// TestProfile makes profiles of all kinds of three ranks. Each must have the function that it is about, for
// each rank, with the labels of the rank and its host. go tool pprof must open the file.
func TestProfile(t *testing.T) {
	program, dir := profiled(t), filepath.Join(t.TempDir(), "new", "dir")
	code, _, errs := gorun(t, "-n", "3", "-profile", "cpu,heap,allocs,block,mutex,goroutine", "-profile-dir", dir, program, "work")
	require.Zero(t, code, errs)
	require.Equal(t, 6, strings.Count(errs, " profile of 3 ranks: "+dir+"/weft-"), errs)
	require.NotContains(t, errs, "no profile")
	all := profilesIn(t, dir)
	require.Len(t, all, 6)
	for kind, function := range map[string]string{"cpu": "main.burnIt", "heap": "main.keepIt", "allocs": "main.keepIt", "block": "main.awaitIt", "goroutine": "main.main"} {
		require.Equal(t, []string{"0", "1", "2"}, names(ranksIn(all[kind], function)), kind)
		for _, s := range all[kind].Sample {
			require.Len(t, s.Label["host"], 1)
			require.Empty(t, s.Label["app"])
		}
	}
	for rank, n := range ranksIn(all["cpu"], "main.burnIt") {
		require.Greater(t, n, int64(50_000_000), "rank %s", rank) // of the 200 ms of burnTime
	}
	for rank, n := range ranksIn(all["heap"], "main.keepIt") {
		require.GreaterOrEqual(t, n, int64(32<<20), "rank %s", rank)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.cpu.pprof"))
	require.NoError(t, err)
	out, err := exec.Command("go", "tool", "pprof", "-tags", files[0]).CombinedOutput()
	require.NoError(t, err, string(out))
	for rank := range 3 {
		require.Regexp(t, fmt.Sprintf(`(?s)rank: Total .*: %d\n`, rank), string(out))
	}
	out, err = exec.Command("go", "tool", "pprof", "-tagfocus=rank=2", "-top", files[0]).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "main.burnIt")
}

// TestProfileOfAbsentRanks runs jobs in which a rank has no profile. gorun must name it and the reason, keep
// the exit code that the job has without -profile, and have the profiles of the other ranks as far as they
// called Finalize.
func TestProfileOfAbsentRanks(t *testing.T) {
	program := profiled(t)
	for mode, test := range map[string]struct {
		args  []string // of gorun, before the program
		code  int
		says  []string // regular expressions for lines of gorun
		ranks []string // that have a CPU profile
	}{
		"kill 1":    {[]string{"-on-failure", "notify"}, 0, []string{`no profile of rank 1: it was killed by signal 9 \(SIGKILL\)`}, []string{"0", "2"}},
		"kill 2":    {nil, 137, []string{`no profile of rank 2: it was killed by signal 9 \(SIGKILL\)`, `rank 2 was killed by`}, nil},
		"own 1":     {nil, 0, []string{`no cpu profile of rank 1: its program makes a CPU profile itself: `}, []string{"0", "2"}},
		"session":   {nil, 0, nil, []string{"0", "1", "2"}},
		"leave 2":   {[]string{"-on-failure", "notify"}, 0, []string{`no profile of rank 2: it ended without Finalize`}, []string{"0", "1"}},
		"garbage 0": {nil, 0, []string{`no profile of rank 0: what it has written is not a profile`}, []string{"1", "2"}},
	} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			args := append(test.args, "-n", "3", "-timeout", "1m", "-profile", "cpu,heap", "-profile-dir", dir, program)
			code, _, errs := gorun(t, append(args, strings.Fields(mode)...)...)
			require.Equal(t, test.code, code, errs)
			for _, s := range test.says {
				require.Regexp(t, `(?m)^gorun: `+s, errs)
			}
			if test.says == nil {
				require.NotContains(t, errs, "no profile")
			}
			all := profilesIn(t, dir)
			if p := all["cpu"]; test.ranks != nil {
				require.NotNil(t, p, errs)
				require.Equal(t, test.ranks, names(ranksIn(p, "main.burnIt")), errs)
				if mode == "session" {
					require.Equal(t, test.ranks, names(ranksIn(p, "main.burnAgain")))
				}
			}
		})
	}
}

// TestProfileOfPrograms: with several programs, and with spawned ranks, samples must have a label with the
// program. Programs that are not weft's must be named.
func TestProfileOfPrograms(t *testing.T) {
	program, dir := profiled(t), t.TempDir()
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.Link(program, other))
	code, _, errs := gorun(t, "-n", "1", "-profile", "cpu,cpu", "-profile-dir", dir, program, "work", ":", "-n", "2", other, "work")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "gorun: cpu profile of 3 ranks: ")
	seen := make(map[string]bool)
	for _, s := range profilesIn(t, dir)["cpu"].Sample {
		seen[fmt.Sprint(s.NumLabel["rank"], s.Label["app"])] = true
	}
	require.Equal(t, map[string]bool{"[0] [profile]": true, "[1] [other]": true, "[2] [other]": true}, seen)
	dir = t.TempDir()
	code, _, errs = gorun(t, "-n", "1", "-profile", "cpu", "-profile-dir", dir, program, "spawn")
	require.Zero(t, code, errs)
	require.NotContains(t, errs, "no profile")
	require.Equal(t, []string{"1.0", "1.1"}, names(ranksIn(profilesIn(t, dir)["cpu"], "main.burnIt")))
	dir = t.TempDir()
	code, _, errs = gorun(t, "-n", "2", "-profile", "cpu", "-profile-dir", dir, "true")
	require.Zero(t, code, errs)
	require.Equal(t, 1, strings.Count(errs, "no profile of ranks 0-1: true is not a weft program"), errs)
	require.Empty(t, profilesIn(t, dir))
}

// TestProfileDir: if the directory cannot be written, gorun must start no rank. Unknown kinds are an error of
// usage.
func TestProfileDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	started := filepath.Join(t.TempDir(), "started")
	code, _, errs := gorun(t, "-profile", "cpu", "-profile-dir", file, "touch", started)
	require.Equal(t, 1, code)
	require.Regexp(t, `^gorun: -profile-dir \(job.profile_dir\): .*: not a directory\n$`, errs)
	require.NoFileExists(t, started)
	code, _, errs = gorun(t, "-profile", "cpu,gpu", "true")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "-profile: expected a list of names out of cpu, heap, allocs, block, mutex, goroutine")
}

// TestProfileOfAnEndedJob: SIGTERM to gorun ends the ranks before Finalize. The job must end as without
// -profile, and leave no file.
func TestProfileOfAnEndedJob(t *testing.T) {
	program, dir := profiled(t), t.TempDir()
	j := start(t, 2, "-profile", "cpu", "-profile-dir", dir, program, "wait")
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGTERM))
	code, errs := j.end(t)
	require.Equal(t, 128+int(syscall.SIGTERM), code, errs)
	require.Contains(t, errs, "gorun: no profile of ranks 0-1: gorun ended it\n")
	require.Empty(t, profilesIn(t, dir))
}

// TestCapture takes profiles of a job that runs, by its page. A rank that is stopped has none, and the answer says
// so.
func TestCapture(t *testing.T) {
	j, at := startWithPage(t, 2, "pingpong")
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	answer := func(a *http.Response, err error) (int, string) {
		require.NoError(t, err)
		text, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		return a.StatusCode, string(text)
	}
	code, _ := answer(browser.Get(at[1] + at[2]))
	require.Equal(t, http.StatusOK, code)
	// take takes a profile and returns it. lines say which ranks have none.
	take := func(kind string, lines ...string) *profile.Profile {
		code, text := answer(browser.Post(at[1]+"/capture?kind="+kind, "", nil))
		// gorun may learn later than this test that the ranks run.
		for begun := time.Now(); code == http.StatusServiceUnavailable; code, text = answer(browser.Post(at[1]+"/capture?kind="+kind, "", nil)) {
			require.Less(t, time.Since(begun), time.Minute, text)
		}
		require.Equal(t, http.StatusOK, code, text)
		var made struct {
			Name, URL string
			Lines     []string
		}
		require.NoError(t, json.Unmarshal([]byte(text), &made))
		require.Equal(t, lines, made.Lines)
		require.Regexp(t, `^weft-[0-9a-f]{16}\.`+kind+`\.pprof$`, made.Name)
		code, text = answer(browser.Get(at[1] + "/" + made.URL))
		require.Equal(t, http.StatusOK, code)
		p, err := profile.ParseData([]byte(text))
		require.NoError(t, err)
		return p
	}
	both := []string{"0", "1"}
	require.Equal(t, both, names(ranksIn(take("goroutine"), "main.main")))
	require.Equal(t, both, names(ranksIn(take("cpu"), "main.main")))
	take("heap")
	var rank1 int
	for _, pid := range childrenOf(t, j.cmd.Process.Pid) {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		require.NoError(t, err)
		if strings.Contains("\x00"+string(env), "\x00PMI_RANK=1\x00") {
			rank1 = pid
		}
	}
	require.NoError(t, syscall.Kill(rank1, syscall.SIGSTOP))
	require.Equal(t, both[:1], names(ranksIn(take("goroutine", "no profile of rank 1: it has ended, or has not answered in time"), "main.main")))
	require.NoError(t, syscall.Kill(rank1, syscall.SIGCONT))
	require.Equal(t, both, names(ranksIn(take("goroutine"), "main.main")))
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGTERM))
	code, _ = j.end(t)
	require.Equal(t, 143, code)
}

// childrenOf returns the children of the main thread of a process, and those of its other threads.
func childrenOf(t *testing.T, pid int) (list []int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, f := range threads {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, word := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(word)
			require.NoError(t, err)
			list = append(list, n)
		}
	}
	return list
}
