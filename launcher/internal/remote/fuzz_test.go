//go:build linux

package remote

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// FuzzOpening checks that the first lines of a stream are parsed without a panic, and with the same
// result whether the stream comes in one read or byte by byte.
func FuzzOpening(f *testing.F) {
	var b strings.Builder
	g := Greeting{Hash: strings.Repeat("0a", 32), Hostname: "node", PID: 7, Name: "n"}
	if err := g.Greet(&b); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		b.String(), "Welcome" + b.String() + "rest", "weft-agent 3 send Linux x86_64 /a b\n", "weft-agent 3 fail a\r\n",
		"weft-agent 9 up {}\n", "weft-agent 3 up {}\nweft-agent 3 up null\n", "weft-agent\n\x00\n", strings.Repeat("x", maxNoise+1),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		read := func(r io.Reader) (lines []string, rest []byte, err error) {
			o := opening{r: bufio.NewReader(r)}
			for {
				verb, text, err := o.next()
				if err != nil {
					require.Equal(t, o.noise, oneLine(o.noise))
					require.LessOrEqual(t, o.read, maxNoise+(4<<10))
					return lines, nil, err
				}
				lines = append(lines, verb, text)
				if verb != verbUp {
					continue
				}
				if g, err := parseGreeting(text); err == nil {
					var b strings.Builder
					require.NoError(t, g.Greet(&b))
					again := opening{r: bufio.NewReader(strings.NewReader(b.String()))}
					_, text, err := again.next()
					require.NoError(t, err)
					h, err := parseGreeting(text)
					require.NoError(t, err)
					require.Equal(t, g, h)
				}
				rest, err = io.ReadAll(o.r)
				return lines, rest, err
			}
		}
		lines, rest, err := read(strings.NewReader(string(in)))
		lines1, rest1, err1 := read(iotest.OneByteReader(strings.NewReader(string(in))))
		require.Equal(t, lines, lines1)
		require.Equal(t, rest, rest1)
		require.Equal(t, err == nil, err1 == nil)
		if err != nil {
			require.False(t, errors.Is(err, os.ErrInvalid))
		}
	})
}

func FuzzTail(f *testing.F) {
	f.Add([]byte("ssh: connect\r\nConnection closed"), 3)
	f.Add([]byte("panic: x\n\ngoroutine 1"), 1)
	// The two lines together are longer than lineLimit.
	f.Add([]byte("ssh: "+strings.Repeat("a", 400)+"\nConnection closed"), 60)
	f.Add([]byte("ssh: a\n"+strings.Repeat("b", 2000)), 60)
	f.Fuzz(func(t *testing.T, in []byte, size int) {
		var whole, parts tail
		_, _ = whole.Write(in)
		for size = max(1, size%64); len(in) > 0; in = in[min(size, len(in)):] {
			_, _ = parts.Write(in[:min(size, len(in))])
		}
		require.Equal(t, whole.reason(), parts.reason())
		require.Equal(t, whole.reason(), oneLine(whole.reason()))
		require.LessOrEqual(t, len(whole.lines), tailLines)
	})
}
