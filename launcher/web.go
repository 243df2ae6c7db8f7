package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/live"
	"golang.org/x/sync/semaphore"
)

// The bounds of gorun's web servers, so that no number of requests slows the job down.
const (
	webRequests  = 16               // most requests that are answered at the same time
	webHeadTime  = 5 * time.Second  // time limit for reading the head of a request
	webWriteTime = 10 * time.Second // time limit for writing an answer
	webConns     = 64               // most connections
	webEndTime   = time.Second      // how long requests that are under way delay the end of the server
)

// serveWeb starts a server on addr, HOST:PORT, where an empty host is the loopback interface. It
// returns the address on which the server listens. stop ends the server: it waits
// until the requests that are under way have their answers, for webEndTime at most.
func serveWeb(addr string, handler http.Handler, timeout time.Duration) (listens string, stop func(), err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", nil, err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return "", nil, err
	}
	bounded := &boundedListener{Listener: l, room: semaphore.NewWeighted(webConns)}
	server := &http.Server{Handler: bound(handler), ReadHeaderTimeout: webHeadTime, WriteTimeout: timeout, IdleTimeout: webHeadTime, MaxHeaderBytes: 16 << 10}
	done := make(chan struct{})
	go func() { // ends when stop closes the server, which stop waits for
		defer close(done)
		_ = server.Serve(bounded) // returns when the server is closed
	}()
	return l.Addr().String(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), webEndTime)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-done
	}, nil
}

// bound answers requests beyond webRequests with 503. It limits the time for reading the body of a request,
// which no handler needs.
func bound(h http.Handler) http.Handler {
	running := semaphore.NewWeighted(webRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(webHeadTime)) // cannot fail over TCP
		}
		if !running.TryAcquire(1) {
			http.Error(w, "too many requests", http.StatusServiceUnavailable)
			return
		}
		defer running.Release(1)
		h.ServeHTTP(w, r)
	})
}

// boundedListener closes connections beyond webConns.
type boundedListener struct {
	net.Listener
	room *semaphore.Weighted
}

// Accept waits for a connection for which there is room. It closes others.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil, err
			}
			time.Sleep(20 * time.Millisecond) // for example too many open files
			continue
		}
		if l.room.TryAcquire(1) {
			return &boundedConn{Conn: c, room: l.room}, nil
		}
		_ = c.Close()
	}
}

// boundedConn gives its place in the listener back when it is closed.
type boundedConn struct {
	net.Conn
	room   *semaphore.Weighted
	closed atomic.Bool // Close was called
}

// Close closes the connection.
func (c *boundedConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.room.Release(1)
	}
	return c.Conn.Close()
}

// serveMetrics starts the server of -metrics, if the user wants it. stop ends it.
func (s *session) serveMetrics() (stop func(), err error) {
	if s.job.Metrics == "" {
		return func() {}, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, q *http.Request) {
		ctx, cancel := context.WithTimeout(q.Context(), webWriteTime-time.Second) // so that there is time to write
		defer cancel()
		snapshot := s.askSnapshot(ctx, false)
		if snapshot == nil {
			http.Error(w, "no rank runs", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		_ = live.WriteMetrics(w, snapshot) // an error is one of the connection
	})
	at, stop, err := serveWeb(s.job.Metrics, mux, webWriteTime)
	if err != nil {
		return nil, fmt.Errorf("-metrics %s: %w", s.job.Metrics, err)
	}
	s.printLine("metrics at http://" + at + "/metrics")
	return stop, nil
}
