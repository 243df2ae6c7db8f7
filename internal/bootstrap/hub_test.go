package bootstrap

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recorder returns an exit function for a hub or a spoke. It sends its arguments to said.
func recorder() (exit func(int, string), said chan string) {
	said = make(chan string, 4)
	return func(code int, line string) { said <- fmt.Sprint(code, " ", line) }, said
}

// TestHub lets a rank that knows the secret send bye, an abort or wrong frames, and checks the
// error of rank 0's fences.
func TestHub(t *testing.T) {
	fence := newFrame(frameFence)
	for name, c := range map[string]struct {
		says  []byte // bytes after the rank's first fence
		size  int
		wants string // text of the error of rank 0's fence
		exit  string // arguments of exit; "": exit must not be called
	}{
		"bye":       {newFrame(frameBye), 2, "rank 1 has ended", ""},
		"no frame":  {[]byte{0, 0, 0, 0, 0}, 2, "has gone: not a frame of a rendezvous", ""},
		"too large": {newFrame(frameFence, make([]byte, maxPuts+1)), 2, "has gone: not a frame of a rendezvous", ""},
		"not his":   {newFrame(framePairs), 2, "has gone: not a frame of a rendezvous", ""},
		"no pairs":  {newFrame(frameFence, []byte{9}), 2, "has gone: not a frame of a rendezvous", ""},
		"no abort":  {newFrame(frameAbort), 2, "has gone: not a frame of a rendezvous", ""},
		"abort":     {newFrame(frameAbort, abortBody(7, "why")), 2, "the job was aborted by rank 1: why", "7 rank 1: why"},
		"end":       {fence[:3], 2, "has gone: unexpected EOF", ""},
		"twice":     {fence, 3, "rank 1 has entered a fence twice", ""}, // rank 2 does not connect
	} {
		t.Run(name, func(t *testing.T) {
			exit, said := recorder()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			secret := NewSecret()
			r := &rendezvous{place: &place{job: "j", size: c.size, rank: 1}}
			h := newHub(l.(*net.TCPListener), r.session(secret[:]), time.Minute, exit)
			conn, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = handshake(conn, r.session(secret[:]))
			require.NoError(t, err)
			_, err = conn.Write(bytes.Join([][]byte{fence, c.says}, nil))
			require.NoError(t, err)
			if name == "end" {
				require.NoError(t, conn.Close())
			}
			for range 2 { // the first fence may succeed
				if _, err = h.fence(t.Context(), nil); err != nil {
					break
				}
			}
			require.ErrorContains(t, err, c.wants)
			if c.exit != "" {
				require.Equal(t, c.exit, <-said)
			}
			require.NoError(t, h.close())
			require.Empty(t, said)
		})
	}
}

// TestSpoke lets rank 0 send frames, and checks the results of another rank's fences.
func TestSpoke(t *testing.T) {
	all := appendPair(nil, "k", "v")
	for name, c := range map[string]struct {
		says  []byte
		fails string // "first": the first fence fails; "": the second
		wants string
		exit  string
	}{
		"pairs":     {newFrame(framePairs, all), "", "has gone: unexpected EOF", ""},
		"two pairs": {bytes.Repeat(newFrame(framePairs, all), 2), "", "", ""},
		"a failure": {newFrame(frameFail, []byte("rank 3\nhas failed")), "first", "rank 3 has failed", ""},
		"rank gone": {newFrame(frameGone, []byte("rank 3\nhas gone")), "first", "rank 3 has gone", ""},
		"an abort":  {newFrame(frameAbort, abortBody(3, "rank 2: why")), "first", "the job was aborted by rank 2: why", "3 rank 2: why"},
		"too large": {newFrame(framePairs, make([]byte, 2*maxPuts+1)), "first", "not a frame", ""},
		"not his":   {newFrame(frameFence), "first", "not a frame", ""},
		"nothing":   {nil, "first", "rank 0, on pipe, has gone", ""},
	} {
		t.Run(name, func(t *testing.T) {
			exit, said := recorder()
			mine, his := net.Pipe()
			s := newSpoke(mine, 2, time.Minute, exit)
			done := make(chan struct{})
			go func() { // ends when the pipe is closed
				defer close(done)
				_, _, _ = readFrame(his, maxPuts)
				_, _ = his.Write(c.says)
				_ = his.Close()
			}()
			m := &hubKVS{rank: 1, transport: s}
			err := m.Fence(t.Context())
			if c.fails == "" {
				require.NoError(t, err)
				v, err := m.Get("k")
				require.NoError(t, err)
				require.Equal(t, "v", v)
				err = m.Fence(t.Context())
				if c.wants != "" {
					require.ErrorContains(t, err, c.wants)
				}
			} else {
				require.ErrorContains(t, err, c.wants)
				require.Equal(t, strings.Contains(err.Error(), "gone"), IsGone(err))
				require.ErrorContains(t, m.Fence(t.Context()), c.wants) // later fences fail, too
			}
			require.NoError(t, m.Finalize())
			<-done
			if c.exit != "" {
				require.Equal(t, c.exit, <-said)
			}
			require.Empty(t, said)
		})
	}
}
