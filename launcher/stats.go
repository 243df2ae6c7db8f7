package launcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/stats"
)

// wantsStats reports whether the user wants statistics at the end of the job.
func (s *session) wantsStats() bool { return s.job.Stats || s.statsDir != "" }

// groupStats are the statistics of a group of ranks.
type groupStats struct {
	group int
	*stats.Summary
}

// statistics returns the statistics of each group that has run.
func (r *run) statistics() (list []groupStats) {
	for _, g := range r.groups {
		if g.size == 0 {
			continue
		}
		var own []record.Figures
		for _, f := range r.figures {
			if f.Rank -= g.first; f.Rank >= 0 && f.Rank < g.size {
				own = append(own, f)
			}
		}
		list = append(list, groupStats{g.id, stats.Of(g.jobID, g.size, own)})
	}
	return list
}

// writeStats prints the statistics of the last run to stderr, and writes the files that the user
// wants. It returns the first error of the files.
func (s *session) writeStats() error {
	var text bytes.Buffer
	var failed error
	for _, g := range s.stats {
		if s.job.Stats {
			prefix := ""
			if g.group > 0 {
				prefix = fmt.Sprintf("group %d: ", g.group)
			}
			text.WriteString("gorun: " + prefix)
			if err := g.WriteText(&text); err != nil {
				return err
			}
		}
		if err := s.writeStatsFiles(g); err != nil && failed == nil {
			failed = err
		}
	}
	s.printAtEnd(text.String())
	return failed
}

// writeStatsFiles writes the files of a group: stats.json, matrix.svg and matrix.png, in whose names
// the number of a spawned group follows, such as stats.2.json.
func (s *session) writeStatsFiles(g groupStats) error {
	if s.statsDir == "" {
		return nil
	}
	for _, f := range []struct {
		name, ext string
		write     func(io.Writer) error
	}{
		{"stats", ".json", func(w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(g.Summary)
		}},
		{"matrix", ".svg", g.WriteSVG},
		{"matrix", ".png", g.WritePNG},
	} {
		name := f.name + f.ext
		if g.group > 0 {
			name = fmt.Sprintf("%s.%d%s", f.name, g.group, f.ext)
		}
		var data bytes.Buffer
		if err := f.write(&data); err != nil {
			return err
		}
		if err := replaceFile(filepath.Join(s.statsDir, name), data.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
