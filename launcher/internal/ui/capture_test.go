package ui

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCapture: a browser gets what gorun has made, until there is a newer one.
func TestCapture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(running(4, time.Hour), "a.out")
		cookie := withCookie(p)
		w := ask(p, "POST", inFolder(p)+"capture?kind=trace", cookie)
		require.Equal(t, http.StatusOK, w.Code)
		require.JSONEq(t, `{"name": "weft.trace", "url": "captured/1", "lines": ["no trace of rank 3"]}`, w.Body.String())
		w = ask(p, "GET", inFolder(p)+"captured/1", cookie)
		require.Equal(t, "trace", w.Body.String())
		require.Equal(t, "5", w.Header().Get("Content-Length"))
		require.Equal(t, "attachment; filename=weft.trace", w.Header().Get("Content-Disposition"))
		file := p.captured.File

		begun := time.Now()
		require.Equal(t, http.StatusOK, ask(p, "POST", inFolder(p)+"capture?kind=heap", cookie).Code)
		require.Zero(t, time.Since(begun))
		require.Equal(t, http.StatusNotFound, ask(p, "GET", inFolder(p)+"captured/1", cookie).Code)
		require.Equal(t, "heap", ask(p, "GET", inFolder(p)+"captured/2", cookie).Body.String())
		_, err := file.Stat()
		require.ErrorIs(t, err, os.ErrClosed)
		file = p.captured.File
		p.End(nil, "", false)
		require.Equal(t, "heap", ask(p, "GET", inFolder(p)+"captured/2", cookie).Body.String())
		p.Close()
		_, err = file.Stat()
		require.ErrorIs(t, err, os.ErrClosed)
		require.Equal(t, http.StatusNotFound, ask(p, "GET", inFolder(p)+"captured/2", cookie).Code)
	})
}

// TestCaptureRefuses: requests that cannot be met get the reason.
func TestCaptureRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(running(4, time.Hour), "a.out")
		cookie := withCookie(p)
		text := func(code int, method, what string) string {
			w := ask(p, method, inFolder(p)+what, cookie)
			require.Equal(t, code, w.Code)
			return strings.TrimSpace(w.Body.String())
		}
		require.Equal(t, "no such kind", text(http.StatusBadRequest, "POST", "capture?kind=all"))
		text(http.StatusMethodNotAllowed, "GET", "capture?kind=heap")
		text(http.StatusNotFound, "GET", "captured/0")
		text(http.StatusNotFound, "GET", "captured/1")
		done := make(chan string)
		go func() { done <- text(http.StatusServiceUnavailable, "POST", "capture?kind=cpu") }()
		synctest.Wait()
		require.Equal(t, "another one is being made", text(http.StatusConflict, "POST", "capture?kind=heap"))
		p.End(nil, "", false)
		require.Equal(t, "the job has ended", <-done)
		p.Close()
	})
	p := page(t)
	w := ask(p, "POST", inFolder(p)+"capture?kind=heap", withCookie(p))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "no rank runs\n", w.Body.String())
}
