package job

import (
	"fmt"
	"os"
	"strings"
)

// thisMachine says whether a host name means the machine gorun runs on.
func thisMachine(name string) bool {
	switch strings.ToLower(name) {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	own, err := os.Hostname()
	if err != nil {
		return false
	}
	short, _, _ := strings.Cut(own, ".")
	return strings.EqualFold(name, own) || strings.EqualFold(name, short)
}

// elsewhere is what is wrong with a host that is another machine.
func elsewhere(name string) string {
	own, err := os.Hostname()
	if err != nil {
		own = "127.0.0.1"
	}
	return fmt.Sprintf("expected localhost or %s, found %s: only ranks of this machine can be started", own, quote(name))
}

// parseHosts reads "a:4,b:4", the value of -host, and returns the slots of
// this machine; 0 where an entry leaves them open.
func parseHosts(text string) (slots int, problem string) {
	open := false
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		name, count := entry, ""
		switch {
		case strings.HasPrefix(entry, "["): // [::1]:4
			var ok bool
			if name, count, ok = strings.Cut(entry[1:], "]"); !ok {
				return 0, fmt.Sprintf("expected HOST[:SLOTS], found %s", quote(entry))
			}
			count = strings.TrimPrefix(count, ":")
		case strings.Count(entry, ":") == 1:
			name, count, _ = strings.Cut(entry, ":")
			if count == "" {
				return 0, fmt.Sprintf("expected HOST[:SLOTS], found %s", quote(entry))
			}
		}
		if name == "" {
			return 0, fmt.Sprintf("expected HOST[:SLOTS] separated by commas, found %s", quote(text))
		}
		if !thisMachine(name) {
			return 0, elsewhere(name)
		}
		if count == "" {
			open = true
			continue
		}
		n, ok := parseRanks(count)
		if !ok {
			return 0, fmt.Sprintf("expected HOST[:SLOTS] with %s slots, found %s", ranksRange, quote(entry))
		}
		slots += n
	}
	if open {
		return 0, ""
	}
	return min(slots, MaxRanks), ""
}
