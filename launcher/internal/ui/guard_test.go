package ui

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/live"
)

// page returns the page of a job without ranks.
func page(t *testing.T, hosts ...string) *Page {
	p := New(&fake{snapshot: func(bool) *live.Snapshot { return &live.Snapshot{} }}, `<b>&"`, hosts...)
	t.Cleanup(func() { p.End(nil, "", false) })
	return p
}

// ask sends a request to a page. set changes the request.
func ask(p *Page, method, url string, set func(r *http.Request)) *httptest.ResponseRecorder {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // so that also a stream of events ends
	r := httptest.NewRequestWithContext(ctx, method, url, nil)
	if set != nil {
		set(r)
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

// withCookie adds the cookie of a page, as a browser does that has opened it.
func withCookie(p *Page) func(r *http.Request) {
	return func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookieName, Value: p.token}) }
}

// inFolder is the URL of the folder of a page.
func inFolder(p *Page) string { return "http://127.0.0.1:80" + p.folder }

// TestForbidden: a request without the token, from another site, or with the name of another site must get
// 403 and nothing else.
func TestForbidden(t *testing.T) {
	p := page(t, "node1", "")
	cookie := withCookie(p)
	const host = "http://127.0.0.1:80"
	at := inFolder(p)
	for name, test := range map[string]struct {
		method, url string
		set         func(r *http.Request)
	}{
		"no token":               {"GET", at, nil},
		"empty token":            {"GET", at + "?token=", nil},
		"wrong token":            {"GET", at + "?token=" + strings.Repeat("A", 26), nil},
		"part of the token":      {"GET", at + "?token=" + p.token[:25], nil},
		"longer token":           {"GET", at + "?token=" + p.token + "A", nil},
		"token of another page":  {"GET", host + page(t).Path(), nil},
		"wrong token and cookie": {"GET", at + "?token=A", cookie},
		"token for a file":       {"GET", at + "ui.js?token=" + p.token, nil},
		"token for the events":   {"GET", at + "events?token=" + p.token, nil},
		"wrong cookie":           {"GET", at, func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookieName, Value: "A"}) }},
		"folder of another page": {"GET", inFolder(page(t)), cookie},
		"no folder":              {"GET", host + "/", cookie},
		"part of the folder":     {"GET", strings.TrimSuffix(at, "/"), cookie},
		"token without folder":   {"GET", host + "/?token=" + p.token, nil},
		"file without token":     {"GET", at + "ui.js", nil},
		"no such file":           {"GET", at + "nothing", nil},
		"other method":           {"DELETE", at + "events", nil},
		"name of another site":   {"GET", "http://example.org:80" + p.Path(), nil},
		"cookie, another site":   {"GET", at + "events", func(r *http.Request) { cookie(r); r.Host = "example.org:80" }},
		"no host":                {"GET", host + p.Path(), func(r *http.Request) { r.Host = "" }},
		"post of another site": {"POST", at + "inspect", func(r *http.Request) {
			cookie(r)
			r.Header.Set("Origin", "http://example.org")
		}},
		"post of a site on another port": {"POST", at + "inspect", func(r *http.Request) {
			cookie(r)
			r.Header.Set("Sec-Fetch-Site", "same-site")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(p, test.method, test.url, test.set)
			require.Equal(t, http.StatusForbidden, w.Code)
			require.Equal(t, "forbidden\n", w.Body.String())
			require.Empty(t, w.Result().Cookies())
			require.Equal(t, policy, w.Header().Get("Content-Security-Policy"))
		})
	}
}

// TestAllowed: the first request has the token in its query, and the others have the cookie.
func TestAllowed(t *testing.T) {
	p := page(t, "node1")
	for _, host := range []string{"127.0.0.1:80", "[::1]:80", "[::1]", "192.0.2.1:80", "localhost:80", "NODE1:80"} {
		w := ask(p, "GET", "http://"+host+p.Path(), nil)
		require.Equal(t, http.StatusOK, w.Code, host)
		cookies := w.Result().Cookies()
		require.Len(t, cookies, 1)
		require.Equal(t, http.SameSiteStrictMode, cookies[0].SameSite)
		require.True(t, cookies[0].HttpOnly)
		require.Equal(t, p.token, cookies[0].Value)
		require.Equal(t, p.folder, cookies[0].Path) // browsers send it to no other server of this host
		for header, want := range map[string]string{
			"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
			"Content-Type": "text/html; charset=utf-8",
		} {
			require.Equal(t, want, w.Header().Get(header))
		}
		require.Contains(t, w.Body.String(), "<title>&lt;b&gt;&amp;&#34; – gorun</title>")
		for file, kind := range map[string]string{"": "text/html", "ui.js": "text/javascript", "table.js": "text/javascript", "draw.js": "text/javascript", "ui.css": "text/css", "icon.svg": "image/svg+xml"} {
			w := ask(p, "GET", "http://"+host+p.folder+file, func(r *http.Request) { r.AddCookie(cookies[0]) })
			require.Equal(t, http.StatusOK, w.Code, file)
			require.Contains(t, w.Header().Get("Content-Type"), kind)
			require.Equal(t, policy, w.Header().Get("Content-Security-Policy"))
		}
	}
	cookie := withCookie(p)
	require.Equal(t, http.StatusNotFound, ask(p, "GET", inFolder(p)+"page/ui.js", cookie).Code)
	require.Equal(t, http.StatusMethodNotAllowed, ask(p, "POST", inFolder(p), cookie).Code)
	require.Equal(t, http.StatusMethodNotAllowed, ask(p, "GET", inFolder(p)+"inspect", cookie).Code)
	w := ask(p, "POST", inFolder(p)+"inspect", func(r *http.Request) {
		cookie(r)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	})
	require.Equal(t, http.StatusNoContent, w.Code)
}

// TestFilesKeepThePolicy: the policy of the page forbids scripts and styles inside of HTML, and other
// hosts. Text must never be set as HTML.
func TestFilesKeepThePolicy(t *testing.T) {
	entries, err := files.ReadDir("page")
	require.NoError(t, err)
	require.Len(t, entries, 6)
	for _, e := range entries {
		data, err := files.ReadFile("page/" + e.Name())
		require.NoError(t, err)
		text := strings.ReplaceAll(string(data), `xmlns="http://www.w3.org/2000/svg"`, "")
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", "<style", " onclick=", "http://", "https://", "//cdn"} {
			require.NotContains(t, text, bad, e.Name())
		}
	}
}
