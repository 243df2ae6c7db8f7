package bootstrap

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFrames(t *testing.T) {
	frame := newFrame(frameFence, appendPair(appendPair(nil, "a", "1"), "b", ""))
	kind, body, err := readFrame(bytes.NewReader(frame), maxPuts)
	require.NoError(t, err)
	require.Equal(t, frameFence, kind)
	got := map[string]string{}
	require.NoError(t, eachPair(body, func(k, v string) { got[k] = v }))
	require.Equal(t, map[string]string{"a": "1", "b": ""}, got)

	big := bytes.Repeat([]byte{1}, 100_000)
	_, body, err = readFrame(bytes.NewReader(newFrame(framePairs, big)), len(big))
	require.NoError(t, err)
	require.Equal(t, big, body)
	_, _, err = readFrame(bytes.NewReader(newFrame(framePairs, big)), len(big)-1)
	require.ErrorIs(t, err, errFrame)

	for n := range frame {
		_, _, err := readFrame(bytes.NewReader(frame[:n]), maxPuts)
		require.Error(t, err, n)
	}
	for _, bad := range [][]byte{{0, 0, 0, 0, frameBye}, {1, 0, 0, 0, 0}, {1, 0, 0, 0, frameEnd}, {255, 255, 255, 255, frameBye}} {
		_, _, err := readFrame(bytes.NewReader(bad), maxPuts)
		require.ErrorIs(t, err, errFrame, bad)
	}
	for _, bad := range []string{"\x01", "\x01\x00", "\x01\x00a", "\x01\x00a\x05\x00b", "\x00\x00\x00\x00", "\x01\x00 \x00\x00", "\x01\x00a\x01\x00\n"} {
		require.ErrorIs(t, eachPair([]byte(bad), func(string, string) {}), errFrame, "%q", bad)
	}
	code, text, err := parseAbort(abortBody(7, "two\nlines\x1b"+strings.Repeat("x", 2*maxText)))
	require.NoError(t, err)
	require.Equal(t, 7, code)
	require.True(t, strings.HasPrefix(text, "two lines xxx"))
	_, _, err = parseAbort(nil)
	require.Error(t, err)
}

func FuzzFrames(f *testing.F) {
	f.Add(newFrame(frameFence, appendPair(nil, "key", "value")))
	f.Add(newFrame(frameBye))
	f.Add(newFrame(frameAbort, abortBody(3, "why")))
	f.Add([]byte{255, 255, 255, 127, framePairs, 1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			kind, body, err := readFrame(r, 1<<20)
			if err != nil {
				return
			}
			again := newFrame(kind, body)
			end := len(data) - r.Len()
			require.Equal(t, data[end-len(again):end], again)
			var pairs []byte
			if eachPair(body, func(k, v string) { pairs = appendPair(pairs, k, v) }) == nil {
				require.Equal(t, string(body), string(pairs))
			}
			if _, text, err := parseAbort(body); err == nil {
				require.NotContains(t, text, "\n")
			}
		}
	})
}

func FuzzNotice(f *testing.F) {
	good, _ := json.Marshal(testNotice())
	f.Add(good)
	f.Add([]byte(`{"version":1,"size":2,"port":1,"seconds":1,"addrs":["::1"],"secret":""}`))
	f.Add([]byte(`{"version":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := parseNotice(data)
		if err != nil {
			require.ErrorIs(t, err, errNotice)
			return
		}
		text, err := json.Marshal(n)
		require.NoError(t, err)
		again, err := parseNotice(text)
		require.NoError(t, err)
		require.Equal(t, n, again)
		(&rendezvous{place: &place{}}).dialOrder(n)
	})
}

// FuzzPortAddr passes any text for the address of a port. What the parser accepts must be the same
// port when it is written again.
func FuzzPortAddr(f *testing.F) {
	p := &Port{n: *testNotice()}
	p.n.Job = portJob
	f.Add(p.Addr())
	f.Add((&Port{n: *testNotice()}).Addr()) // the notice of a job is not that of a port
	f.Add(p.Addr()[:60])
	f.Add("weft:")
	f.Add("tcp://10.0.0.1:80")
	f.Fuzz(func(t *testing.T, addr string) {
		n, err := parseAddr(addr)
		size, serr := PortSize(addr)
		require.Equal(t, err, serr)
		if err != nil {
			require.ErrorIs(t, err, errAddress)
			return
		}
		require.Equal(t, n.Size, size)
		again, err := parseAddr((&Port{n: *n}).Addr())
		require.NoError(t, err)
		require.Equal(t, n, again)
	})
}

func testNotice() *notice {
	s := NewSecret()
	return &notice{Version: noticeVersion, Job: "slurm-1.0-x", Size: 2, Host: "h/1", Addrs: []string{"10.0.0.1", "fd00::1"}, Port: 4000, Secret: s[:], Seconds: 61}
}

// FuzzAuthenticate sends arbitrary bytes instead of a hello and a proof, and checks that authenticate
// returns an error.
func FuzzAuthenticate(f *testing.F) {
	f.Add([]byte("weft-tc\x01" + strings.Repeat("\x01", 40) + strings.Repeat("x", 32)))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	secret := NewSecret()
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := net.Pipe()
		h := &hub{session: (&rendezvous{place: &place{job: "j", size: 8}}).session(secret[:])}
		done := make(chan error, 1)
		go func() { // ends when the pipe is closed
			_, err := h.authenticate(a)
			_ = a.Close()
			done <- err
		}()
		go func() { _, _ = io.Copy(io.Discard, b) }() // ends when the pipe is closed
		_, _ = b.Write(data)
		_ = b.Close()
		require.Error(t, <-done)
	})
}
