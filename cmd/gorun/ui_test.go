package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLivePage: -ui must serve a page of the running job, also while many requests come, with and without
// the token, and while clients connect and send nothing, or read nothing. gorun's memory must stay
// bounded, and the job must go on. A page that listens gets the end of the job.
func TestLivePage(t *testing.T) {
	j, m := startWithPage(t, 3, "barrier")
	site, err := url.Parse(m[1])
	require.NoError(t, err)

	page, err := http.Get(m[1] + m[2])
	require.NoError(t, err)
	text, err := io.ReadAll(page.Body)
	require.NoError(t, page.Body.Close())
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, page.StatusCode)
	require.Contains(t, string(text), "<h1 id=\"name\">hang</h1>")
	require.Len(t, page.Cookies(), 1)
	request := func(path string, ctx context.Context) *http.Request {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, m[1]+path, nil)
		require.NoError(t, err)
		q.AddCookie(page.Cookies()[0])
		return q
	}

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	events, err := http.DefaultClient.Do(request("/events", ctx))
	require.NoError(t, err)
	defer func() { _ = events.Body.Close() }()
	stream := bufio.NewReader(events.Body)
	until := func(pattern string) {
		t.Helper()
		for want := regexp.MustCompile(pattern); ; {
			line, err := stream.ReadString('\n')
			require.NoError(t, err, pattern)
			if want.MatchString(line) {
				return
			}
		}
	}
	until(`^data: .*\{"from":"2","err":false,"text":"up"\}`)
	until(`^data: .*"rows":\[\[1,"in Barrier 2 of world",100,0,0,0\],\[1,"in Barrier 2 of world",100,0,0,0\],\[1,"waits for a message of rank 0 in world",100,`)

	before := memoryOf(t, j.cmd.Process.Pid)
	var clients []net.Conn // of these one half sends nothing, and the other half reads nothing
	for i := range 40 {
		c, err := net.Dial("tcp", site.Host)
		require.NoError(t, err)
		clients = append(clients, c)
		if i%2 == 0 {
			_, _ = fmt.Fprintf(c, "GET %s/events HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", site.Path, site.Host, page.Cookies()[0])
		}
	}
	var asking sync.WaitGroup
	for i := range 8 {
		asking.Go(func() { // ends after its requests
			for k := range 1250 {
				path := []string{"/", "/?token=A", m[2], "/ui.js", "/nothing"}[k%5]
				q := request(path, ctx)
				if i%2 == 0 {
					q.Header.Del("Cookie")
				}
				r, err := http.DefaultClient.Do(q)
				if err != nil {
					continue // there are too many connections
				}
				text, _ := io.ReadAll(r.Body)
				_ = r.Body.Close()
				if r.StatusCode == http.StatusForbidden && string(text) != "forbidden\n" {
					t.Errorf("%s: %s", path, text)
				}
			}
		})
	}
	asking.Wait()
	for _, c := range clients {
		_ = c.Close()
	}
	require.Less(t, memoryOf(t, j.cmd.Process.Pid), before+64<<20)

	// The job is in a deadlock, and the page says so by itself.
	until(`"stall":\[\{"text":"rank 2 has not entered Barrier 2 of world; the others wait there","age":"for [^"]+s"\},\{"text":"deadlock: rank 0 waits for 2, 2 for 0"\}`)
	code, _, stderr := gorun(t, "-stop", strconv.Itoa(j.cmd.Process.Pid))
	require.Zero(t, code, stderr)
	until(`^data: \{"text":"The job has failed after [^"]*with exit code 143: ended by signal 15 \(SIGTERM\)","failed":true\}`)
	code, _ = j.end(t)
	require.Equal(t, 143, code)
	_, err = net.Dial("tcp", site.Host)
	require.Error(t, err)
}

// startWithPage starts a job of testdata/hang with a live page. at has the address of the page in two parts, the
// folder and the rest, from at[1] on.
func startWithPage(t *testing.T, np int, program string) (j *running, at []string) {
	t.Helper()
	errs, w, err := os.Pipe()
	require.NoError(t, err)
	j = startTo(t, np, w, "-ui", ":0", build(t), program)
	require.NoError(t, w.Close())
	line, err := bufio.NewReader(errs).ReadString('\n')
	require.NoError(t, err)
	at = regexp.MustCompile(`^gorun: live page at (http://127\.0\.0\.1:\d+/[A-Z2-7]{12})(/\?token=[A-Z2-7]{26})\n$`).FindStringSubmatch(line)
	require.NotNil(t, at, line)
	return j, at
}

// memoryOf returns the resident memory of a process in bytes.
func memoryOf(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(status), "VmRSS:")
	require.True(t, ok)
	var kib int
	_, err = fmt.Sscan(rest, &kib)
	require.NoError(t, err)
	return kib << 10
}
