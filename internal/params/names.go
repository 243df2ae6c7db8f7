package params

import (
	"slices"
	"strings"
)

// others lists the WEFT_ variables that are not tunables, except those for the settings of gorun:
// gorun makes their names, which begin with WEFT_JOB_ or WEFT_LAUNCHER_, from the keys of the
// settings.
var others = []string{
	// gorun sets these for each rank.
	"WEFT_RANK", "WEFT_SIZE", "WEFT_LOCAL_RANK", "WEFT_LOCAL_SIZE", "WEFT_EPOCH",
	"WEFT_JOB_ID", "WEFT_JOB_FD", "WEFT_LISTEN_FD", "WEFT_STAGE_DIR",
	// gorun and programs of weft set these for the processes that they start.
	"WEFT_JOINED", "WEFT_ALLOCATED",
	// Users set this for ranks.
	"WEFT_VERBOSE",
}

// UnknownVars returns a sentence for each WEFT_ variable in environ that is not known, with a
// similar name if there is one. The sentences are sorted. environ has the form of os.Environ. The
// known variables are those of the tunables, those in others, and those in more. A name in more
// that ends with an underscore stands for all names that begin with it.
func UnknownVars(environ []string, more ...string) []string {
	known := slices.Concat(others, more)
	for _, p := range Table {
		known = append(known, p.Env())
	}
	var lines []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "WEFT_") || slices.ContainsFunc(known, func(k string) bool {
			return name == k || strings.HasSuffix(k, "_") && strings.HasPrefix(name, k)
		}) {
			continue
		}
		line := name + " is set, and nothing reads it"
		if near := Nearest(name, known); near != "" {
			line += "; did you mean " + near + "?"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// Nearest returns the one of names that has the least distance from text, without regard to case.
// If that distance is more than 1 and more than a third of text's length, Nearest returns "".
func Nearest(text string, names []string) string {
	best, bestDist := "", 1+max(1, len(text)/3)
	for _, n := range names {
		if d := distance(strings.ToLower(text), strings.ToLower(n)); d < bestDist {
			best, bestDist = n, d
		}
	}
	return best
}

// distance returns the least number of steps that turn a into b. A step inserts, removes or changes
// a byte, or swaps it with the next one. If a or b has more than 64 bytes, distance returns 64.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
