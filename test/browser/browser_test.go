// Package browser tests the live page of gorun in headless Chromium. It is a module of its own, because
// it needs a library that drives the browser.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	pngs "image/png"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testprog"
)

// pictures is the directory for pictures of the page; empty: a temporary one. This makes the picture of
// docs/sight.md, and others:
//
//	UI_PICTURES=$PWD/bin go -C test/browser test -count=1 -run LivePage . && mv bin/ui.png docs/
var pictures = os.Getenv("UI_PICTURES")

// built is the directory with gorun and the test's job.
var built string

func TestMain(m *testing.M) {
	os.Exit(testprog.Main(m.Run, "weft-browser-", &built, []string{"../..", "./cmd/gorun"}, []string{".", "./job"}))
}

// job is a gorun with a live page.
type job struct {
	cmd  *exec.Cmd
	dir  string // the job's argument
	page string // address of the page, with the token
	done chan struct{}
	text strings.Builder // gorun's stderr; may be read after done is closed
}

var pageLine = regexp.MustCompile(`^gorun: live page at (http://127\.0\.0\.1:\d+/[A-Z2-7]{12}/\?token=[A-Z2-7]{26})$`)

// start starts a job of 8 ranks on two hosts, which both are this one, and waits until gorun has printed
// the address of its page. Each rank writes its number and greeting to stderr.
func start(t *testing.T, name, greeting string) *job {
	t.Helper()
	ssh, err := filepath.Abs("ssh.sh")
	require.NoError(t, err)
	j := &job{dir: t.TempDir(), done: make(chan struct{})}
	j.cmd = exec.Command(filepath.Join(built, "gorun"), "-host", "node1:4,node2:4", "-launcher", "ssh", "-ssh", ssh, "-ui", ":0", "-name", name, filepath.Join(built, "job"), j.dir, greeting)
	errs, err := j.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, j.cmd.Start())
	page := make(chan string, 1)
	go func() { // ends with gorun, which Cleanup ends
		defer close(j.done)
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			j.text.WriteString(lines.Text() + "\n")
			if m := pageLine.FindStringSubmatch(lines.Text()); m != nil {
				page <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		_ = j.cmd.Process.Signal(syscall.SIGTERM)
		<-j.done
		_ = j.cmd.Wait()
	})
	select {
	case j.page = <-page:
	case <-j.done:
		t.Fatal(j.text.String())
	}
	return j
}

// order makes a file in the job's directory, which the job understands as an order.
func (j *job) order(t *testing.T, name string) {
	require.NoError(t, os.WriteFile(filepath.Join(j.dir, name), nil, 0o600))
}

// browser is a page of headless Chromium. It notes what a page must not do.
type browser struct {
	ctx    context.Context
	mu     sync.Mutex
	hosts  map[string]bool // hosts to which it has sent requests
	faults []string        // errors on the console, violations of the policy, exceptions
}

// open starts Chromium.
func open(t *testing.T) *browser {
	t.Helper()
	options := chromedp.DefaultExecAllocatorOptions[:]
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{ctx: ctx, hosts: make(map[string]bool)}
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(e.Request.URL); err == nil {
				b.hosts[u.Host] = true
			}
		case *runtime.EventExceptionThrown:
			b.faults = append(b.faults, e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			b.faults = append(b.faults, fmt.Sprintf("console: %s", e.Type))
		case *log.EventEntryAdded:
			b.faults = append(b.faults, e.Entry.Text+" "+e.Entry.URL)
		}
	}))
	b.do(t, chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		if err == nil {
			_, err = cdp.Call(ctx, target, log.Enable, cdp.Empty{})
		}
		return err
	}))
	return b
}

func (b *browser) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	require.NoError(t, chromedp.Do(b.ctx, steps...))
}

// eval returns the value of an expression in JavaScript.
func eval[T any](t *testing.T, b *browser, expression string) T {
	t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(t, err, expression)
	return v
}

// until waits until an expression in JavaScript is true.
func (b *browser) until(t *testing.T, expression string) {
	t.Helper()
	for begun := time.Now(); !eval[bool](t, b, "Boolean("+expression+")"); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatalf("%s; the page shows:\n%s", expression, eval[string](t, b, "document.body.innerText"))
		}
	}
}

// size sets the width of the page in pixels.
func size(width int64) chromedp.Action[chromedp.Void] {
	if width < 500 {
		return chromedp.EmulateViewport(width, 800, chromedp.EmulateMobile)
	}
	return chromedp.EmulateViewport(width, 860)
}

// picture makes a picture of the page: on a small screen, of the whole page.
func (b *browser) picture(t *testing.T, name string, width int, scheme string) {
	t.Helper()
	dir := t.TempDir()
	if pictures != "" {
		dir = pictures
	}
	b.do(t, size(int64(width)), chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		return err
	}))
	require.Equal(t, scheme == "dark", eval[bool](t, b, "matchMedia('(prefers-color-scheme: dark)').matches"))
	require.LessOrEqual(t, eval[int](t, b, "document.documentElement.scrollWidth"), width, "the page is wider than the screen")
	shot := chromedp.CaptureScreenshot()
	if width < 500 {
		shot = chromedp.FullScreenshot(100)
	}
	png, err := chromedp.Run(b.ctx, shot)
	require.NoError(t, err)
	img, err := pngs.Decode(bytes.NewReader(png))
	require.NoError(t, err)
	var small bytes.Buffer
	require.NoError(t, (&pngs.Encoder{CompressionLevel: pngs.BestCompression}).Encode(&small, img))
	if name == "ui" {
		require.Less(t, small.Len(), 150<<10, "docs/ui.png is small")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".png"), small.Bytes(), 0o600))
}

const (
	stallText = "document.getElementById('stall-list').innerText"
	cell      = "document.querySelectorAll('#ranks tbody tr')[%d].cells[%d].innerText"
)

// TestLivePage follows a job from its start over a stall to its end, as a user does.
func TestLivePage(t *testing.T) {
	j, b := start(t, "halo", "is ready"), open(t)
	b.do(t, size(1100), chromedp.Navigate(j.page))
	b.until(t, "document.querySelectorAll('#ranks tbody tr').length === 8 && document.getElementById('calls').value !== '0'")
	b.until(t, "!document.getElementById('matrix-part').hidden && document.getElementById('matrix-text').innerText.includes('rank 7 to rank 0')")
	require.Equal(t, j.page[:strings.Index(j.page, "?")], eval[string](t, b, "location.href"), "the token is in the address bar")
	require.Equal(t, "halo", eval[string](t, b, "document.getElementById('name').innerText"))
	require.Contains(t, eval[string](t, b, "document.getElementById('summary').innerText"), "8 ranks on 2 hosts")
	require.Equal(t, "4", eval[string](t, b, "document.querySelectorAll('#hosts li')[1].querySelectorAll('.cell').length.toString()"))
	b.do(t, chromedp.Reload()) // the cookie has the token
	b.until(t, "document.querySelectorAll('#ranks tbody tr').length === 8")

	b.until(t, `[...document.querySelectorAll('#output .err')].some((l) => l.innerText.replace(/\s+/g, ' ') === '7 rank 7 is ready')`)
	b.until(t, `parseInt(document.getElementById('summary').innerText.split(' · ')[2]) >= 8`) // so that the curves show something

	// The keyboard sorts.
	b.do(t, chromedp.Focus(chromedp.CSS("th.c-rank button")), chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "descending", eval[string](t, b, "document.querySelector('th.c-rank').getAttribute('aria-sort')"))
	require.Equal(t, "7", eval[string](t, b, fmt.Sprintf(cell, 0, 0)))
	require.NotEqual(t, "none", eval[string](t, b, "getComputedStyle(document.activeElement).outlineStyle"))
	b.do(t, chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "0", eval[string](t, b, fmt.Sprintf(cell, 0, 0)))

	// A stall, by itself.
	j.order(t, "stall")
	b.until(t, stallText+`.match(/^ranks 2, 7 have not entered Barrier \d+ of world; the others wait there for \d+s/)`)
	require.Regexp(t, `^in Barrier \d+ of world$`, eval[string](t, b, fmt.Sprintf(cell, 1, 2)))
	require.Equal(t, "running", eval[string](t, b, fmt.Sprintf(cell, 2, 2)))
	b.do(t, chromedp.Focus(chromedp.CSS("#inspect")), chromedp.KeyEvent(kb.Enter))
	b.until(t, `document.getElementById('report').innerText.includes('6 ranks (0-1, 3-6): comm.Barrier(world) at main.go:')`)
	b.until(t, "!document.getElementById('inspect').disabled")

	// A trace and a profile, of a job that stands still.
	eval[any](t, b, `window.saved = []; addEventListener("click", (e) => { if (e.target.download) { e.preventDefault(); window.saved.push(e.target); } }); 0`)
	for i, kind := range []struct{ button, name string }{{"trace", "pftrace"}, {"goroutine", "goroutine.pprof"}} {
		b.do(t, chromedp.Focus(chromedp.CSS(`#captures button[value="`+kind.button+`"]`)), chromedp.KeyEvent(kb.Enter))
		b.until(t, fmt.Sprintf("window.saved.length === %d", i+1))
		require.Regexp(t, `^weft-[0-9a-f]{16}\.`+kind.name+`$`, eval[string](t, b, "document.getElementById('captured').innerText"))
		eval[any](t, b, fmt.Sprintf("window.size = 0; fetch(window.saved[%d].href).then((a) => a.arrayBuffer()).then((b) => { window.size = b.byteLength; }); 0", i))
		b.until(t, "window.size > 500")
	}
	b.until(t, "!document.querySelector('#captures button').disabled")

	// While nothing changes, the table does not change.
	eval[any](t, b, `window.changes = 0; window.states = 0;
		new MutationObserver((list) => { window.changes += list.length; }).observe(document.getElementById('ranks'), { subtree: true, childList: true, characterData: true, attributes: true });
		new MutationObserver(() => { window.states++; }).observe(document.getElementById('summary'), { childList: true });`)
	b.until(t, "window.states >= 3")
	require.Zero(t, eval[int](t, b, "window.changes"))

	for _, p := range []struct {
		name, scheme string
		width        int
	}{{"ui-dark", "dark", 1100}, {"ui-phone", "light", 360}, {"ui-phone-dark", "dark", 360}, {"ui", "light", 1100}} {
		b.picture(t, p.name, p.width, p.scheme)
	}

	require.NoError(t, os.Remove(filepath.Join(j.dir, "stall")))
	b.until(t, "document.getElementById('stall').hidden")

	// The end of the job stays on the page.
	j.order(t, "end")
	<-j.done
	b.until(t, "document.getElementById('end').innerText.startsWith('The job has ended well after ')")
	require.Equal(t, "ended", eval[string](t, b, "document.getElementById('phase').innerText"))
	require.Equal(t, "ended", eval[string](t, b, fmt.Sprintf(cell, 7, 2)))
	b.check(t, j)
}

// check fails if the page has asked another host for something, or the browser has found a fault.
func (b *browser) check(t *testing.T, j *job) {
	t.Helper()
	u, err := url.Parse(j.page)
	require.NoError(t, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Equal(t, map[string]bool{u.Host: true}, b.hosts)
	require.Empty(t, b.faults)
}

// TestFailedJob: the page must say how a job has failed. A page with a wrong token shows nothing.
func TestFailedJob(t *testing.T) {
	j, stranger, b := start(t, "<i>halo</i>", "<img src=x onerror=alert(1)>"), open(t), open(t)
	stranger.do(t, chromedp.Navigate(j.page[:len(j.page)-1]+"_"))
	require.Equal(t, "forbidden", strings.TrimSpace(eval[string](t, stranger, "document.body.innerText")))
	stranger.mu.Lock()
	require.Contains(t, strings.Join(stranger.faults, "\n"), "403") // so the test notices faults
	stranger.mu.Unlock()
	b.do(t, chromedp.Navigate(j.page))
	b.until(t, "document.querySelectorAll('#ranks tbody tr').length === 8 && document.getElementById('calls').value !== '0'")

	// Text of the user and of ranks stays text.
	b.until(t, `[...document.querySelectorAll('#output .err')].some((l) => l.innerText.replace(/\s+/g, ' ') === '7 rank 7 <img src=x onerror=alert(1)>')`)
	require.Equal(t, "<i>halo</i>", eval[string](t, b, "document.getElementById('name').innerText"))
	require.Zero(t, eval[int](t, b, "document.querySelectorAll('img, i:not(.cell)').length"))
	j.order(t, "fail")
	<-j.done
	b.until(t, `document.getElementById('end').innerText.match(/^The job has failed after .* with exit code 7: rank 3 exited with code 7: \S+job, pid \d+ on node1/)`)
	require.Equal(t, "failed", eval[string](t, b, "document.getElementById('phase').innerText"))
	require.Contains(t, eval[string](t, b, "document.getElementById('hosts').innerText"), "failed")
	b.check(t, j)
}
