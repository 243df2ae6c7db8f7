// Package schema tests that the traces of gorun are what the published schema of Perfetto describes. It
// is a module of its own, because it needs a compiler for this schema.
package schema

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/weft-hpc/weft/launcher/internal/trace"
)

// TestRandomRanks converts the events of 64 ranks that send each other random messages from several
// goroutines, and checks the trace.
func TestRandomRanks(t *testing.T) {
	for seed := range uint64(3) {
		j := randomJob(64, 4000, 100, seed)
		p := parse(t, j.trace(t, trace.Perfetto))
		p.check(t)
		require.Len(t, p.processes, 64)
		for i, name := range p.processes {
			require.Equal(t, fmt.Sprintf("rank %d (node%d)", i-1, (i-1)/16), name)
		}
		require.Len(t, p.flows, len(j.messages))
		for _, m := range j.messages {
			require.Equal(t, 1, p.calls[callKey(m.from, "Send", "tag", m.tag)], "send of message %d", m.tag)
			require.Equal(t, 1, p.calls[callKey(m.to, "Recv", "tag", m.tag)], "receive of message %d", m.tag)
		}
		for rank := range 64 {
			for n := range 100 {
				require.Equal(t, 1, p.calls[callKey(rank, "Allreduce", "number", n+1)])
			}
		}
		require.Greater(t, p.tracks, 2*64, "no rank has calls of several goroutines at the same time")
		require.Equal(t, len(j.messages)*2, p.inCalls, "each message is within its call")
	}
}

// TestGolden compares a small trace with testdata/golden.txt. UPDATE=1 writes the file.
func TestGolden(t *testing.T) {
	text := parse(t, randomJob(2, 3, 1, 7).trace(t, trace.Perfetto)).text()
	name := filepath.Join("testdata", "golden.txt")
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o666))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

// TestHeat runs examples/heat2d with gorun -trace, and checks the trace.
func TestHeat(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "-C", "../../../..", "build", "-o", dir, "./cmd/gorun", "./examples/heat2d")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	file := filepath.Join(dir, "trace")
	// Without shared memory, neighbours exchange messages.
	run := exec.CommandContext(t.Context(), filepath.Join(dir, "gorun"), "-n", "4", "-transport", "tcp", "-trace", file, filepath.Join(dir, "heat2d"))
	out, err = run.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "gorun: trace of 4 ranks: "+file+"\n")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	p := parse(t, text)
	p.check(t)
	require.Len(t, p.processes, 4)
	require.Greater(t, len(p.flows), 800, "100 steps, in which 4 ranks send to 2 neighbours")
	names := make(map[string]int)
	for call, n := range p.calls {
		_, rest, _ := strings.Cut(call, " ")
		name, _, _ := strings.Cut(rest, " ")
		names[name] += n
	}
	require.Equal(t, 400, names["NeighborAlltoallView"], names)
	require.Equal(t, 4, names["Cart"], names)
	require.Equal(t, 4, names["Finalize"], names)
}

// TestCaptured takes a trace of a job that runs, as the live page does, and checks the trace. Its first and last
// messages may have one end only.
func TestCaptured(t *testing.T) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "-C", "../../../..", "build", "-o", dir, "./cmd/gorun", "./examples/heat2d")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	run := exec.Command(filepath.Join(dir, "gorun"), "-n", "4", "-transport", "tcp", "-ui", ":0", filepath.Join(dir, "heat2d"), "-nx", "1500", "-ny", "1500", "-steps", "1000000000")
	stderr, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	defer func() {
		require.NoError(t, run.Process.Signal(syscall.SIGTERM))
		_, _ = io.Copy(io.Discard, stderr)
		require.Error(t, run.Wait())
	}()
	line, err := bufio.NewReader(stderr).ReadString('\n')
	require.NoError(t, err)
	_, page, ok := strings.Cut(strings.TrimSpace(line), "gorun: live page at ")
	require.True(t, ok, line)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	body := func(a *http.Response, err error) []byte {
		require.NoError(t, err)
		text, err := io.ReadAll(a.Body)
		require.NoError(t, errors.Join(err, a.Body.Close()))
		require.Equal(t, http.StatusOK, a.StatusCode, string(text))
		return text
	}
	body(browser.Get(page))
	at, _, _ := strings.Cut(page, "?")
	// gorun refuses until the ranks run.
	var made struct {
		URL   string
		Lines []string
	}
	for begun := time.Now(); made.URL == "" || len(made.Lines) > 0; {
		require.Less(t, time.Since(begun), 2*time.Minute, made.Lines)
		a, err := browser.Post(at+"capture?kind=trace", "", nil)
		require.NoError(t, err)
		text, err := io.ReadAll(a.Body)
		require.NoError(t, errors.Join(err, a.Body.Close()))
		if a.StatusCode == http.StatusServiceUnavailable {
			require.Equal(t, "no rank runs\n", string(text))
			continue
		}
		require.NoError(t, json.Unmarshal(text, &made), string(text))
	}
	p := parse(t, body(browser.Get(at+made.URL)))
	p.checkTracks(t)
	require.Len(t, p.processes, 4)
	whole := 0
	for _, f := range p.flows {
		require.LessOrEqual(t, f.begins, 1)
		require.LessOrEqual(t, f.ends, 1)
		if f.begins == f.ends {
			require.Equal(t, f.what[0], f.what[1])
			whole++
		}
	}
	require.Greater(t, whole, 100)
	require.Less(t, len(p.flows)-whole, whole/2)
}

// compiled returns the type of traces in the schema.
func compiled(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	c := protocompile.Compiler{Resolver: &protocompile.SourceResolver{ImportPaths: []string{"testdata"}}}
	files, err := c.Compile(context.Background(), "perfetto.proto")
	require.NoError(t, err)
	m := files[0].Messages().ByName("Trace")
	require.NotNil(t, m)
	return m
}

// message is a message of the schema.
type message struct{ protoreflect.Message }

func (m message) field(name string) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(protoreflect.Name(name))
}
func (m message) has(name string) bool    { return m.Has(m.field(name)) }
func (m message) uint(name string) uint64 { return m.Get(m.field(name)).Uint() }
func (m message) int(name string) int64   { return m.Get(m.field(name)).Int() }
func (m message) string(name string) string {
	if m.field(name).Kind() == protoreflect.BytesKind {
		return string(m.Get(m.field(name)).Bytes())
	}
	return m.Get(m.field(name)).String()
}
func (m message) enum(name string) string {
	f := m.field(name)
	return string(f.Enum().Values().ByNumber(m.Get(f).Enum()).Name())
}
func (m message) message(name string) message { return message{m.Get(m.field(name)).Message()} }
func (m message) uints(name string) (list []uint64) {
	l := m.Get(m.field(name)).List()
	for i := range l.Len() {
		list = append(list, l.Get(i).Uint())
	}
	return list
}
func (m message) messages(name string) (list []message) {
	l := m.Get(m.field(name)).List()
	for i := range l.Len() {
		list = append(list, message{l.Get(i).Message()})
	}
	return list
}

// known checks that m has no field that the schema does not have.
func known(t *testing.T, m protoreflect.Message) {
	t.Helper()
	require.Empty(t, m.GetUnknown(), "unknown fields in %s", m.Descriptor().Name())
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				known(t, v.List().Get(i).Message())
			}
		default:
			known(t, v.Message())
		}
		return true
	})
}

// parse parses a trace.
func parse(t *testing.T, b []byte) *parsed {
	t.Helper()
	root := dynamicpb.NewMessage(compiled(t))
	require.NoError(t, proto.Unmarshal(b, root))
	known(t, root)
	return &parsed{
		packets: message{root}.messages("packet"), processes: make(map[int]string), flows: make(map[uint64]*flow), calls: make(map[string]int),
	}
}

func callKey(rank int, name, key string, number int) string {
	return fmt.Sprint(rank, " ", name, " ", key, " ", number)
}

// TestUnknownField checks that parse would notice a wrong number of a field.
func TestUnknownField(t *testing.T) {
	b := randomJob(2, 1, 0, 1).trace(t, trace.Perfetto)
	root := dynamicpb.NewMessage(compiled(t))
	require.NoError(t, proto.Unmarshal(append(bytes.Clone(b), 0x7a, 0), root)) // field 15, which does not exist
	require.NotEmpty(t, root.GetUnknown())
}
