package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"
)

// Traces and profiles that a browser asks for. Making one takes longer than a browser waits for a download to begin,
// so there are two requests:
//
//	POST /capture?kind=KIND    ──► Source.Capture ──► what there is, in JSON
//	GET  /captured/NUMBER      ──► the file
//
// The page keeps the last one only.

// captureKinds has the kinds of traces and profiles that the page offers, and how long each records. A kind with the
// time 0 counts since the start of the ranks, or shows one moment.
var captureKinds = map[string]time.Duration{"trace": captureTime, "cpu": captureTime, "heap": 0, "goroutine": 0}

// capture makes a trace or a profile.
func (p *Page) capture(w http.ResponseWriter, r *http.Request) {
	kind := r.URL.Query().Get("kind")
	d, ok := captureKinds[kind]
	if !ok {
		http.Error(w, "no such kind", http.StatusBadRequest)
		return
	}
	if !p.capturing.TryLock() {
		http.Error(w, "another one is being made", http.StatusConflict)
		return
	}
	defer p.capturing.Unlock()
	// The server's time limit is for answers that need no rank.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	// The end of the request does not end the capture: the hosts record for the whole time.
	c, err := p.source.Capture(p.stopped, kind, d)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.writeTime))
	if err != nil {
		text := err.Error()
		if p.stopped.Err() != nil {
			text = "the job has ended"
		}
		http.Error(w, text, http.StatusServiceUnavailable)
		return
	}
	p.mu.Lock()
	p.keep(&c)
	p.captures++
	number := p.captures
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct { // an error is one of the connection
		Name  string   `json:"name"`
		URL   string   `json:"url"`
		Lines []string `json:"lines"` // what it lacks
	}{c.Name, fmt.Sprintf("captured/%d", number), c.Lines})
}

// keep replaces the trace or profile that the page keeps. The caller holds mu.
func (p *Page) keep(c *Captured) {
	if p.captured != nil {
		_ = p.captured.File.Close() // a request that reads it fails
	}
	if p.captured = c; p.closed && c != nil {
		_ = c.File.Close()
	}
}

// sendCaptured sends the file of the last trace or profile.
func (p *Page) sendCaptured(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	c := p.captured
	if strconv.Itoa(p.captures) != r.PathValue("number") {
		c = nil
	}
	p.mu.Unlock()
	if c == nil {
		http.NotFound(w, r)
		return
	}
	st, err := c.File.Stat()
	if err != nil { // a newer one has replaced it
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(st.Size(), 10))
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": c.Name}))
	_, _ = io.Copy(patientWriter{p, w}, io.NewSectionReader(c.File, 0, st.Size())) // an error is one of the connection
}

// patientWriter writes an answer of any size: the browser has writeTime for each write.
type patientWriter struct {
	p *Page
	w http.ResponseWriter
}

// Write implements io.Writer.
func (pw patientWriter) Write(b []byte) (int, error) {
	_ = http.NewResponseController(pw.w).SetWriteDeadline(time.Now().Add(pw.p.writeTime))
	return pw.w.Write(b)
}
