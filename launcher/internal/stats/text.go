package stats

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// WriteText writes the statistics as text for a terminal.
func (s *Summary) WriteText(w io.Writer) error {
	var b strings.Builder
	s.text(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Summary) text(b *strings.Builder) {
	if s.Recorded == 0 {
		b.WriteString("no statistics: no rank is a weft program that has called Init\n")
		return
	}
	fmt.Fprintf(b, "statistics of %d ranks, %v from Init to Finalize", s.Recorded, seconds(s.Elapsed.Mean))
	if n := s.Ranks - s.Recorded; n > 0 {
		fmt.Fprintf(b, "; %d more are no weft programs, or have not called Init", n)
	}
	most := s.PerRank[0]
	for _, r := range s.PerRank {
		if r.InCalls*most.Elapsed > most.InCalls*r.Elapsed {
			most = r
		}
	}
	fmt.Fprintf(b, "\nin weft %s of the time (rank %d: %s), otherwise computing\n\n", percent(s.InCalls.Mean, s.Elapsed.Mean),
		most.Rank, percent(most.InCalls, most.Elapsed))
	rows := [][]string{{"call", "calls", "bytes", "time per rank", "of run", "max/mean", "max on"}}
	background := false
	for _, c := range s.Calls {
		name := c.Name
		if c.Background {
			name += " *"
			background = true
		}
		rows = append(rows, []string{name, fmt.Sprint(c.Calls), byteSize(c.Bytes), seconds(c.Seconds.Mean).String(),
			percent(c.Share, 1), fmt.Sprintf("%.2f", c.Seconds.Imbalance()), fmt.Sprintf("rank %d", c.Seconds.MaxRank)})
	}
	writeTable(b, rows)
	if background {
		b.WriteString("* runs while the program computes, so its time does not count as in weft\n")
	}
	if len(s.Sizes) == 0 {
		b.WriteString("\nno messages: the ranks have used shared memory, or have sent nothing\n")
		return
	}
	rows = [][]string{{"message size", "messages"}}
	for _, z := range s.Sizes {
		text := byteSize(z.From)
		if z.To > z.From {
			text += " to " + byteSize(z.To)
		}
		rows = append(rows, []string{text, fmt.Sprint(z.Messages)})
	}
	b.WriteString("\n")
	writeTable(b, rows)
}

// writeTable writes rows in columns. The first column is aligned to the left, the others to the right.
func writeTable(b *strings.Builder, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + pad)
			} else {
				b.WriteString("  " + pad + cell)
			}
		}
		b.WriteString("\n")
	}
}

// seconds returns a time with three or four digits.
func seconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	unit := time.Nanosecond
	for d/unit >= 10000 {
		unit *= 10
	}
	return d.Round(unit)
}

func percent(part, all float64) string {
	if all == 0 {
		return "0.0 %"
	}
	return fmt.Sprintf("%.1f %%", 100*part/all)
}

// byteSize returns a number of bytes with a binary prefix.
func byteSize(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if v /= 1 << 10; v < 1<<10 {
			return fmt.Sprintf("%.1f %s", v, unit)
		}
	}
	return fmt.Sprintf("%.1f EiB", v/(1<<10))
}
