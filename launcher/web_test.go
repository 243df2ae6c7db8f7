//go:build linux

package launcher

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// TestSlowAnswer: a handler that takes longer than the time limit for the head of a request must not
// see the end of its request.
func TestSlowAnswer(t *testing.T) {
	at, stop, err := serveWeb(":0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			http.Error(w, "the request has ended", http.StatusInternalServerError)
		case <-time.After(webHeadTime + time.Second):
			_, _ = io.WriteString(w, "done")
		}
	}), time.Minute)
	require.NoError(t, err)
	defer stop()
	answer, err := http.Get("http://" + at)
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, "done", string(text))
}

// TestStopWaits: an answer that is under way when the server ends must come to its end. One that takes
// too long must not keep the server from its end.
func TestStopWaits(t *testing.T) {
	at, stop, err := serveWeb(":0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/stuck" {
			<-r.Context().Done()
			return
		}
		for { // until the server has begun to end
			c, err := net.Dial("tcp", r.Host)
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}), time.Minute)
	require.NoError(t, err)
	answer, err := http.Get("http://" + at)
	require.NoError(t, err)
	stuck, err := http.Get("http://" + at + "/stuck")
	require.NoError(t, err)
	stop()
	_, err = io.ReadAll(answer.Body)
	require.NoError(t, err)
	_, err = io.ReadAll(stuck.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, errors.Join(answer.Body.Close(), stuck.Body.Close()))
}

// TestUnsentBody: a client that never sends the body of its request must not keep its connection.
func TestUnsentBody(t *testing.T) {
	at, stop, err := serveWeb(":0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "forbidden", http.StatusForbidden)
	}), time.Minute)
	require.NoError(t, err)
	defer stop()
	c, err := net.Dial("tcp", at)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	answer, err := io.ReadAll(c) // until the server closes the connection
	require.NoError(t, err)
	require.Contains(t, string(answer), "403 Forbidden")
}

// TestBoundedConn: a connection that two goroutines close at the same time gives its place back once.
func TestBoundedConn(t *testing.T) {
	room := semaphore.NewWeighted(1)
	for range 1000 {
		require.True(t, room.TryAcquire(1))
		a, b := net.Pipe()
		c := &boundedConn{Conn: a, room: room}
		var closing errgroup.Group
		closing.Go(c.Close)
		closing.Go(c.Close)
		require.NoError(t, closing.Wait())
		require.NoError(t, b.Close())
	}
}
