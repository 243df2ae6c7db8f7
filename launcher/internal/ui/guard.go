package ui

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"
)

//go:embed page
var files embed.FS

var index = template.Must(template.ParseFS(files, "page/index.html"))

// policy is the Content-Security-Policy of all answers: the page loads nothing from elsewhere, runs no
// script that is part of a text, and is not shown inside of another page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// router returns the handler of requests that have the token. It knows the paths in the folder of the page.
func (p *Page) router(name string) *http.ServeMux {
	var page bytes.Buffer
	if err := index.Execute(&page, name); err != nil {
		panic(err) // the template needs nothing but a name
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page.Bytes()) // an error is one of the connection
	})
	for _, file := range []string{"ui.css", "ui.js", "table.js", "draw.js", "icon.svg"} {
		mux.HandleFunc("GET /"+file, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, files, "page/"+file)
		})
	}
	mux.HandleFunc("GET /events", p.events)
	mux.HandleFunc("POST /inspect", func(w http.ResponseWriter, r *http.Request) {
		// The server's time limit is for answers that need no rank. An inspection has limits of its own.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		p.inspect(r.Context())
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /capture", p.capture)
	mux.HandleFunc("GET /captured/{number}", p.sendCaptured)
	return mux
}

// ServeHTTP answers a request if it has the token. Other requests get 403, regardless of what they ask
// for. The token comes in the query of the first request, and then in a cookie, so that it does not stay
// in the browser's address bar. There is no redirection to a page without the query: a browser that
// follows a link of another site would send no cookie with the redirected request.
//
// Browsers send the cookies of a host to all its ports, where other users of the host may have servers.
// So the cookie is for a folder whose random name only the page's user knows.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	allowed := false
	if q := r.URL.Query(); q.Has("token") {
		allowed = r.URL.Path == p.folder && p.isToken(q.Get("token"))
	} else if c, err := r.Cookie(cookieName); err == nil {
		allowed = strings.HasPrefix(r.URL.Path, p.folder) && p.isToken(c.Value)
	}
	if !allowed || !p.mayCall(r.Host) || http.NewCrossOriginProtection().Check(r) != nil {
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	}
	if r.URL.Path == p.folder {
		http.SetCookie(w, &http.Cookie{Name: cookieName, Value: p.token, Path: p.folder, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	}
	p.routes.ServeHTTP(w, r)
}

// cookieName is the name of the cookie with the token.
const cookieName = "gorun"

// isToken compares a text with the token, in a time that does not depend on either.
func (p *Page) isToken(text string) bool {
	got, want := sha256.Sum256([]byte(text)), sha256.Sum256([]byte(p.token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// mayCall reports whether the Host of a request is an address, localhost, or a name of this host. Other
// names may be those of a site that has made the browser resolve its name to this host.
func (p *Page) mayCall(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return strings.EqualFold(name, "localhost") || slices.ContainsFunc(p.hosts, func(h string) bool { return strings.EqualFold(h, name) })
}
