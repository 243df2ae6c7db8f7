package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
)

// record stores facts for [built.notes]. They are from object, a JSON object that the benchmark of
// the side has printed.
func (b *built) record(side string, bench *benchmark, ranks int, object map[string]any) {
	if n, ok := object["cores"].(float64); ok && !bench.threads {
		if b.cores[ranks] == nil {
			b.cores[ranks] = map[string]int{}
		}
		b.cores[ranks][side] = int(n)
	}
	if name, ok := object["transport"].(string); ok && !slices.Contains(b.over, name) {
		b.over = append(b.over, name)
	}
	if n, ok := object["allocs_per_op"].(float64); ok && n > b.most {
		b.most = n
		size, _ := object["size"].(float64)
		b.where = fmt.Sprintf("%s of %s, %d ranks", bench.name, sizeText(int(size), bench.counts), ranks)
	}
	if _, ok := object["overlap_percent"]; ok {
		b.overlaps = true
	}
}

// notes returns the facts that record has stored as sentences.
func (b *built) notes() []string {
	var notes []string
	if len(b.over) > 0 {
		notes = append(notes, fmt.Sprintf("weft's ranks used the transport %s.", strings.Join(b.over, ", ")))
		most := fmt.Sprintf("An operation of weft allocated at most %.2g objects", b.most)
		if b.where != "" {
			most += " (" + b.where + ")"
		}
		notes = append(notes, most+".")
	}
	var placed []string
	for _, ranks := range slices.Sorted(maps.Keys(b.cores)) {
		var sides []string
		for _, side := range slices.Sorted(maps.Keys(b.cores[ranks])) {
			sides = append(sides, fmt.Sprintf("%s %d", side, b.cores[ranks][side]))
		}
		placed = append(placed, fmt.Sprintf("with %d ranks %s", ranks, strings.Join(sides, ", ")))
	}
	if len(placed) > 0 {
		notes = append(notes, "Each launcher places ranks as it does by default, except that Open MPI binds no rank with threads to a core; cores that rank 0 may run on: "+strings.Join(placed, "; ")+".")
	}
	if cores := runtime.NumCPU(); b.overlaps && cores <= 2 {
		notes = append(notes, fmt.Sprintf("Overlap has no spare core here: 2 ranks compute on %d.", cores))
	}
	if len(b.Missing) > 0 {
		notes = append(notes, "Not installed: "+strings.Join(b.Missing, ", ")+".")
	}
	return notes
}
