package stats

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"image/color"
	"image/png"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/record"
)

// figures are those of ranks 0 and 2 of a job of three ranks; rank 1 is no weft program.
func figures() []record.Figures {
	return []record.Figures{
		{
			Rank: 2, Elapsed: 2 * time.Second,
			Ops:      []record.OpFigures{{Name: "Barrier", Calls: 10, Time: time.Second}, {Name: "Iallreduce", Calls: 1, Bytes: 80, Time: 2 * time.Second, Background: true}},
			Messages: 3, Bytes: 3 << 20, Sizes: []uint64{1, 0, 2},
			Peers: []record.PeerFigures{{Rank: 0, Messages: 3, Bytes: 3 << 20}, {Rank: 99, Messages: 1, Bytes: 1}},
		},
		{
			Rank: 0, Elapsed: 2 * time.Second, Ops: []record.OpFigures{{Name: "Barrier", Calls: 10, Time: 500 * time.Millisecond}, {Name: "Send", Calls: 7, Bytes: 7, Time: time.Millisecond}},
			Messages: 7, Bytes: 7, Sizes: []uint64{0, 7}, Peers: []record.PeerFigures{{Rank: 2, Messages: 7, Bytes: 7}},
		},
	}
}

func TestOf(t *testing.T) {
	s := Of("42", 3, figures())
	require.Equal(t, &Summary{
		Schema: 1, Job: "42", Ranks: 3, Recorded: 2,
		Elapsed: Spread{2, 2, 0}, InCalls: Spread{0.7505, 1, 2},
		Calls: []Call{
			{"Iallreduce", 1, 80, Spread{1, 2, 2}, 0.5, true},
			{"Barrier", 20, 0, Spread{0.75, 1, 2}, 0.375, false},
			{"Send", 7, 7, Spread{0.0005, 0.001, 0}, 0.00025, false},
		},
		Sizes:  []Size{{0, 0, 1}, {1, 1, 7}, {2, 3, 2}},
		Matrix: []Cell{{0, 2, 7, 7}, {2, 0, 3, 3 << 20}},
		PerRank: []Rank{
			{0, 2, 0.501, 7, 7},
			{2, 2, 1, 3, 3 << 20},
		},
	}, s)
	require.InDelta(t, 2.0, s.Calls[0].Seconds.Imbalance(), 1e-9)
	require.Zero(t, Spread{}.Imbalance())
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Of("42", 3, figures()).WriteText(&b))
	require.Equal(t, `statistics of 2 ranks, 2s from Init to Finalize; 1 more are no weft programs, or have not called Init
in weft 37.5 % of the time (rank 2: 50.0 %), otherwise computing

call          calls  bytes  time per rank  of run  max/mean  max on
Iallreduce *      1   80 B             1s  50.0 %      2.00  rank 2
Barrier          20    0 B          750ms  37.5 %      1.33  rank 2
Send              7    7 B          500µs   0.0 %      2.00  rank 0
* runs while the program computes, so its time does not count as in weft

message size  messages
0 B                  1
1 B                  7
2 B to 3 B           2
`, b.String())

	b.Reset()
	require.NoError(t, Of("42", 3, nil).WriteText(&b))
	require.Contains(t, b.String(), "no statistics")
	b.Reset()
	require.NoError(t, Of("42", 1, []record.Figures{{Elapsed: time.Second}}).WriteText(&b))
	require.Contains(t, b.String(), "no messages")
}

// TestPictures: the PNG has a dark cell where many bytes were sent, a light one where few were, and a
// white one where none were; the SVG is well-formed and has a cell for each pair. Both also exist for jobs
// with more ranks than pixels, and for a job without messages.
func TestPictures(t *testing.T) {
	s := Of("42", 3, figures())
	var b bytes.Buffer
	require.NoError(t, s.WritePNG(&b))
	img, err := png.Decode(&b)
	require.NoError(t, err)
	at := func(from, to int) color.Gray {
		return color.GrayModel.Convert(img.At(margin+to*cellMax+cellMax/2, margin+from*cellMax+cellMax/2)).(color.Gray)
	}
	require.Less(t, at(2, 0).Y, at(0, 2).Y)
	require.Less(t, at(0, 2).Y, uint8(255))
	require.Equal(t, uint8(255), at(1, 1).Y)

	b.Reset()
	require.NoError(t, s.WriteSVG(&b))
	require.Contains(t, b.String(), "<title>2 to 0: 3.0 MiB</title>")
	require.Contains(t, b.String(), "<title>0 to 2: 7 B</title>")
	wellFormed(t, b.Bytes())

	big := Of("42", 1500, []record.Figures{{Rank: 1499, Peers: []record.PeerFigures{{Rank: 1499, Messages: 1, Bytes: 5}}}})
	for _, s := range []*Summary{big, Of("42", 1, nil)} {
		b.Reset()
		require.NoError(t, s.WriteSVG(&b))
		wellFormed(t, b.Bytes())
		b.Reset()
		require.NoError(t, s.WritePNG(&b))
		_, err = png.Decode(&b)
		require.NoError(t, err)
	}
}

func wellFormed(t *testing.T, text []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		_, err := d.Token()
		if err == io.EOF { //nolint:errorlint // Token returns io.EOF itself
			return
		}
		require.NoError(t, err)
	}
}

func TestJSON(t *testing.T) {
	text, err := json.Marshal(Of("42", 3, figures()))
	require.NoError(t, err)
	var s Summary
	require.NoError(t, json.Unmarshal(text, &s))
	require.Equal(t, Of("42", 3, figures()), &s)
}
