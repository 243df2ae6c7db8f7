package live

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTop writes a table of the ranks, with what they have done between the snapshots before and now.
// It has at most lines lines, if lines is not 0; the ranks that it leaves out are counted.
func WriteTop(out io.Writer, before, now *Snapshot, lines int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s  %s  %s  ranks %d  hosts %d  %v\n", now.Job, now.Name, now.Phase, len(now.Ranks), len(now.Hosts),
		now.At.Sub(now.Begun).Round(time.Second))
	if len(now.Silent) > 0 {
		fmt.Fprintf(&b, "no answer from %s\n", strings.Join(now.Silent, ", "))
	}
	rows := Rows(before, now)
	left := 0
	if room := lines - strings.Count(b.String(), "\n") - 2; lines > 0 && len(rows) > room {
		room = max(room, 0)
		left, rows = len(rows)-room, rows[:room]
	}
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "RANK\tHOST\tIN WEFT\tCALLS/s\tMESSAGES/s\tMB/s\tDOES")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%.0f %%\t%.0f\t%.0f\t%.1f\t%s\n", r.Name, r.Host, 100*r.InCalls, r.Calls, r.Messages, r.Bytes/1e6, r.Doing())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if left > 0 {
		fmt.Fprintf(&b, "… and %d more ranks\n", left)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
