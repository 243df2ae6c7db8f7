package launcher

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/ui"
	"github.com/weft-hpc/weft/launcher/job"
)

func testTap(keep bool) *tap {
	return newTap(&session{job: &job.Job{TagOutput: keep}, tail: new(tail)})
}

// TestLastLine: a last line without a newline must not be lost.
func TestLastLine(t *testing.T) {
	p := testTap(false)
	p.take(proto.Output{Stream: proto.Merged, Data: []byte("[3] up\n[3] bad node")})
	p.end()
	lines, _ := p.tail.since(0)
	require.Equal(t, []ui.Line{{From: "3", Text: "up"}, {From: "3", Text: "bad node"}}, lines)
}

// TestTap: the tap must remove the tags, regardless of where the output is cut, and must know which rank
// has written which line. Output of different hosts, groups and streams may be cut within lines.
func TestTap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		keep := r.IntN(2) == 0
		p := testTap(keep)
		sources := []proto.Output{{Index: 0, Stream: proto.Merged}, {Index: 0, Stream: proto.Merged, Stderr: true}, {Index: 1, Stream: proto.Merged}, {Index: 1, Group: 2, Stream: proto.Merged}, {Index: 1, Group: 2, Stream: 3, Stderr: true}}
		queue := make([][][]byte, len(sources)) // the pieces that are still to come
		want := make([]string, len(sources))
		lines := make([][]ui.Line, len(sources))
		for i, s := range sources {
			var all []byte
			for range 1 + r.IntN(5) {
				text := strings.Repeat([]string{"[7] ", " ", "x", "[", "] "}[r.IntN(5)], r.IntN(4))
				rank, tag := fmt.Sprint(i), ""
				stderr := s.Stderr
				switch {
				case s.Stream != proto.Merged:
					rank = "2.3"
				case stderr:
					tag = fmt.Sprintf("[%s]<stderr> ", rank)
				default:
					tag = fmt.Sprintf("[%s@node-%d] ", rank, i)
				}
				all = append(all, tag+text+"\n"...)
				if keep {
					want[i] += tag
				}
				want[i] += text + "\n"
				lines[i] = append(lines[i], ui.Line{From: rank, Err: stderr, Text: text})
			}
			for len(all) > 0 {
				n := 1 + r.IntN(len(all))
				if i := bytes.IndexByte(all, '\n') + 1; n > i || r.IntN(2) == 0 { // the hosts cut within a line only behind its tag
					n = i
				} else {
					n = min(max(n, bytes.IndexByte(all, ']')+20), i)
				}
				queue[i] = append(queue[i], all[:n])
				all = all[n:]
			}
		}
		got := make([]string, len(sources))
		for left := len(sources); left > 0; {
			i := r.IntN(len(sources))
			if len(queue[i]) == 0 {
				continue
			}
			o := sources[i]
			o.Data = bytes.Clone(queue[i][0])
			got[i] += string(p.take(o).Data)
			require.Equal(t, queue[i][0], o.Data)
			if queue[i] = queue[i][1:]; len(queue[i]) == 0 {
				left--
			}
		}
		require.Equal(t, want, got)
		require.Empty(t, p.open)
		found, _ := p.tail.since(0)
		var all []ui.Line
		for _, l := range lines {
			all = append(all, l...)
		}
		require.ElementsMatch(t, all, found)
	}
}

// TestTapOfOtherBytes: an agent may send anything. The tap passes on what has no tag.
func TestTapOfOtherBytes(t *testing.T) {
	p := testTap(false)
	for in, out := range map[string]string{
		"no tag\n": "no tag\n", "[3\n": "[3\n", "\n": "\n", "[3]\n": "[3]\n", "[3] ": "[3] ", "": "", "[] x\n": "x\n", "[9] a\n\n[9] \n": "a\n\n\n", "[9]<stderr> a": "a", "\xff\x00\n": "\xff\x00\n",
	} {
		o := p.take(proto.Output{Index: len(in), Group: len(out), Stream: proto.Merged, Data: []byte(in)})
		require.Equal(t, out, string(o.Data), "%q", in)
	}
}

// TestTail: the tail keeps the last lines only, and cuts long ones, also if their end never comes.
func TestTail(t *testing.T) {
	p := testTap(false)
	for i := range 10 * tailLines {
		p.take(proto.Output{Stream: 1, Data: fmt.Appendf(nil, "line %d\n", i)})
		require.LessOrEqual(t, len(p.tail.lines), 2*tailLines)
	}
	lines, next := p.tail.since(0)
	require.Equal(t, 10*tailLines, next)
	require.Len(t, lines, tailLines)
	require.Equal(t, fmt.Sprintf("line %d", 9*tailLines), lines[0].Text)
	lines, _ = p.tail.since(next - 2)
	require.Equal(t, "line 1999", lines[1].Text)
	lines, _ = p.tail.since(next)
	require.Empty(t, lines)

	for range 100 {
		p.take(proto.Output{Stream: 1, Data: bytes.Repeat([]byte("x"), 1<<16)})
	}
	require.Len(t, p.open[outputSource{stream: 1}].text, tailLineBytes)
	p.take(proto.Output{Stream: 1, Data: []byte("\n")})
	lines, _ = p.tail.since(next)
	require.Len(t, lines[0].Text, tailLineBytes)

	for in, want := range map[string]string{
		"\x1b[1;31mred\x1b[0m": "red", "10 %\r20 %\r\n": "20 %", "\tx  ": "\tx  ", "\xff\x00\x07": "???", "é": "é", "\r\n": "",
	} {
		require.Equal(t, want, plainText([]byte(in)), "%q", in)
	}
	p.tee = true
	o := proto.Output{Stream: 1, Data: []byte("[1] x\n")}
	require.Equal(t, o, p.take(o)) // the same line comes again, for the terminal
	o.Stream = proto.Merged
	require.Equal(t, "x\n", string(p.take(o).Data))
	lines, last := p.tail.since(next + 1)
	require.Equal(t, []ui.Line{{From: "1", Text: "x"}}, lines)
	p.tail.addOwn("gorun: a\ngorun:   b\n")
	lines, _ = p.tail.since(last)
	require.Equal(t, []ui.Line{{From: "gorun", Text: "a"}, {From: "gorun", Text: "  b"}}, lines)
}
