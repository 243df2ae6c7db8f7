package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTop: gorun -top must show which ranks are in which collective, of a job whose ranks hang, and
// what ranks that communicate have done in the last second.
func TestTop(t *testing.T) {
	j := start(t, 3, build(t), "barrier")
	pid := strconv.Itoa(j.cmd.Process.Pid)
	require.Eventually(t, func() bool {
		code, out, errs := gorun(t, "-top", pid)
		require.Zero(t, code, errs)
		return regexp.MustCompile(`(?m)^0 .* in Barrier 2 of world\n1 .* in Barrier 2 of world\n2 .* 100 % .* waits for a message of rank 0 in world$`).MatchString(out)
	}, time.Minute, time.Millisecond)
	code, errs := j.stop(t)
	require.Equal(t, 143, code, errs)

	j = start(t, 2, build(t), "pingpong")
	code, out, errs := gorun(t, "-top", strconv.Itoa(j.cmd.Process.Pid))
	require.Zero(t, code, errs)
	require.Regexp(t, `(?m)^0 +\S+ +[1-9]\d* % +[1-9]\d* +[1-9]\d* `, out)
	code, errs = j.stop(t)
	require.Equal(t, 143, code, errs)

	code, _, errs = gorun(t, "-top", pid)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "gorun: -top: expected the id of a job")
}

// TestMetricsServer: -metrics must serve the figures of the running job on the loopback interface, also while
// many clients ask, and others connect and send nothing. The server ends with the job.
func TestMetricsServer(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := free.Addr().String()
	require.NoError(t, free.Close())
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	j := start(t, 3, "-metrics", ":"+port, build(t), "barrier")
	get := func() (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
		require.NoError(t, err)
		req.Close = true
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, ""
		}
		defer func() { _ = r.Body.Close() }()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return 0, ""
		}
		return r.StatusCode, string(text)
	}
	require.Eventually(t, func() bool {
		code, text := get()
		return code == http.StatusOK && strings.Count(text, `weft_calls_total{rank="`) >= 3 &&
			regexp.MustCompile(`weft_in_collective\{rank="1",host="[^"]+"\} 1\n`).MatchString(text) &&
			regexp.MustCompile(`weft_in_collective\{rank="2",host="[^"]+"\} 0\n`).MatchString(text) &&
			regexp.MustCompile(`weft_waiting\{rank="2",host="[^"]+"\} 1\n`).MatchString(text) && strings.HasSuffix(text, "# EOF\n")
	}, time.Minute, time.Millisecond)

	for range 200 { // more than the server accepts; it closes the others
		c, err := net.Dial("tcp", addr)
		if err == nil {
			defer func() { _ = c.Close() }()
		}
	}
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() { // ends after its requests
			for range 50 {
				get()
			}
		})
	}
	asking.Wait()
	require.Eventually(t, func() bool { // the server closes silent connections after a while
		code, _ := get()
		return code == http.StatusOK
	}, time.Minute, 100*time.Millisecond)
	code, errs := j.stop(t)
	require.Equal(t, 143, code, errs)
	require.Contains(t, errs, "gorun: metrics at http://"+addr+"/metrics\n")
	_, err = net.Dial("tcp", addr)
	require.Error(t, err)

	code, out, errs := gorun(t, "-np", "1", "-metrics", "192.0.2.1:1", build(t), "barrier")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "gorun: -metrics 192.0.2.1:1: ")
	require.Empty(t, out)
}

// stop ends a job by gorun -stop, and returns what end returns.
func (j *running) stop(t *testing.T) (int, string) {
	t.Helper()
	code, _, errs := gorun(t, "-stop", strconv.Itoa(j.cmd.Process.Pid))
	require.Zero(t, code, errs)
	return j.end(t)
}
