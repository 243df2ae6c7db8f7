package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// FuzzQuestion sends arbitrary bytes over Unix sockets: as a question to the answer method of a
// session, and as the answer to a question of gorun -stacks. Neither may panic, and what gorun
// -stacks prints must have no control characters.
func FuzzQuestion(f *testing.F) {
	own, err := json.Marshal(jobQuestion{Job: strconv.Itoa(os.Getpid())})
	require.NoError(f, err)
	for _, s := range []string{string(own), `{"job":"id","dir":"/tmp"}`, `{"job":7}`, "null", "{", strings.Repeat("[", 1000), `{"lines":["a\u001b[0m","\n"]}`, `{"other":true}`} {
		f.Add([]byte(s + "\n"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir, err := os.MkdirTemp("", "") //nolint:usetesting // t.TempDir is too long for the name of a socket
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		l, err := net.Listen("unix", filepath.Join(dir, "s"))
		require.NoError(t, err)
		defer l.Close()

		c, err := net.Dial("unix", l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		in, err := l.Accept()
		require.NoError(t, err)
		sent := make(chan struct{})
		go func() { // ends when answer has read b or the connection is closed; the test waits for sent
			defer close(sent)
			_, _ = c.Write(b)
			_ = c.(*net.UnixConn).CloseWrite()
		}()
		(&session{}).answer(t.Context(), in)
		_ = in.Close()
		<-sent
		var a jobAnswer
		if err := json.NewDecoder(c).Decode(&a); err == nil {
			require.True(t, a.Other || len(a.Lines) == 1)
		}

		done := make(chan struct{})
		go func() { // ends when it has read the question and written b; the test waits for done
			defer close(done)
			in, err := l.Accept()
			if err != nil {
				return
			}
			defer in.Close()
			_, _ = in.Read(make([]byte, questionLimit))
			_, _ = in.Write(b)
		}()
		a, err = ask(context.Background(), l.Addr().String(), jobQuestion{Job: "id"}, func(net.Conn, jobAnswer) {})
		<-done
		if err == nil {
			var out bytes.Buffer
			require.NoError(t, printAnswer(&out, a.Lines))
			require.Equal(t, len(a.Lines), strings.Count(out.String(), "\n"))
			require.NotContains(t, out.String(), "\x1b")
		}
	})
}

// FuzzInspected makes a summary from arbitrary answers of a host about its ranks. The method
// summary must not panic, and must return at least one line.
func FuzzInspected(f *testing.F) {
	for _, groups := range [][]proto.Group{
		{waiting(0, 2, barrier(2)), waiting(1, 1, recvFrom(0, 99)), waiting(2, 2, barrier(2))},
		{waiting(0, 0, recvFrom(-1, -1)), waiting(1, 0, recvFrom(0, 1), barrier(7)), {Ranks: []int{2}, Process: "app runs", NoAnswer: true}},
		{waiting(0, 0, recvFrom(1<<40, 1)), {Ranks: []int{1, 2}}},
	} {
		b, err := json.Marshal(groups)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var groups []proto.Group
		if json.Unmarshal(b, &groups) != nil {
			return
		}
		const size = 4
		seen := make(map[int]bool)
		for _, g := range groups { // skip answers that the tree of agents does not pass on to gorun
			if len(g.Ranks) == 0 {
				return
			}
			for _, r := range g.Ranks {
				if r < 0 || r >= size || seen[r] {
					return
				}
				seen[r] = true
			}
		}
		require.NotEmpty(t, inspectionOf(size, groups...))
	})
}
