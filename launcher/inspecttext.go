package launcher

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// The bounds of a summary. It replaces what exceeds them by an ellipsis, or leaves it out.
const (
	maxGroups = 40 // most lines about sets of ranks that do the same
	maxRuns   = 8  // most runs of consecutive ranks, such as 0-2, in one list of ranks
	maxPeers  = 4  // most peers of a call that several ranks make with different peers
	maxLate   = 8  // most lines about collectives that wait for ranks
)

// sameCalls is a set of ranks whose calls differ only in their peers: the ranks that the calls send
// to, receive from or probe. These ranks share one line of the summary.
type sameCalls struct {
	ranks []int    // in ascending order after [run.summary] has sorted them
	parts []string // the text of the calls, cut at each place where a peer is named
	// peers has an element for each rank, in the order in which the ranks were added: the peers of
	// the rank, one for each place between two parts.
	peers [][]string
	// seqs is a text with the numbers of the collectives that the ranks have called, such as "its
	// collective 5". It is "" if they have called none.
	seqs string
}

// ranksText returns the ranks of e as text, such as "rank 3" or "4 ranks (0-2, 7)".
func (e *sameCalls) ranksText() string {
	if len(e.ranks) == 1 {
		return fmt.Sprintf("rank %d", e.ranks[0])
	}
	return fmt.Sprintf("%d ranks (%s)", len(e.ranks), rankList(e.ranks))
}

// rankList returns ascending ranks as text, such as "0-2, 7". It names at most maxRuns runs of
// consecutive ranks, and then writes an ellipsis.
func rankList(ranks []int) string {
	var runs []string
	for len(ranks) > 0 {
		if len(runs) == maxRuns {
			runs = append(runs, "…")
			break
		}
		n := 1
		for n < len(ranks) && ranks[n] == ranks[0]+n {
			n++
		}
		text := strconv.Itoa(ranks[0])
		if n > 1 {
			text += "-" + strconv.Itoa(ranks[n-1])
		}
		runs, ranks = append(runs, text), ranks[n:]
	}
	return strings.Join(runs, ", ")
}

// callsText returns the calls of e as text. At each place for a peer it lists the different peers
// of the ranks of e, at most maxPeers of them.
func (e *sameCalls) callsText() string {
	var b strings.Builder
	b.WriteString(e.parts[0])
	for i, part := range e.parts[1:] {
		var peers []string
		for _, p := range e.peers {
			if text := p[i]; !slices.Contains(peers, text) {
				if len(peers) == maxPeers {
					peers = append(peers, "…")
					break
				}
				peers = append(peers, text)
			}
		}
		b.WriteString(strings.Join(peers, ", ") + part)
	}
	return b.String()
}

// groupText returns what the ranks of a group do: the fields parts, peers and seqs of a sameCalls.
// The ranks of a group all have the same peers.
func groupText(g proto.Group) (parts, peers []string, seqs string) {
	parts = []string{""}
	say := func(text string) { parts[len(parts)-1] += text }
	switch s := g.State; {
	case s == nil && g.NoAnswer:
		say("does not answer: " + g.Process)
	case s == nil:
		say("not in comm: " + g.Process)
	case len(s.Calls) == 0 && s.At == "":
		say("in no call of comm")
	case len(s.Calls) == 0:
		say(s.At)
	default:
		var numbers []string
		for i, c := range s.Calls {
			if i > 0 {
				say("; ")
			}
			say("comm." + c.Name)
			if c.Comm != "" {
				say("(" + c.Comm)
				peers = append(peers, callArguments(c, say, func() { parts = append(parts, "") })...)
				say(")")
			}
			if c.Where != "" {
				say(" at " + c.Where)
			} else {
				say(" under way")
			}
			if c.Seq > 0 {
				numbers = append(numbers, fmt.Sprintf("its collective %d", c.Seq))
			}
		}
		if s.More > 0 {
			say("; and " + plural(s.More, "more goroutine"))
		}
		seqs = strings.Join(numbers, ", ")
	}
	return parts, peers, seqs
}

// callArguments appends the peer and the tag of a send, receive or probe to a text. It calls say to
// append words. In place of the peer it calls place, which begins a new part of the text, and it
// returns the peer as text: its rank in the communicator and, if that differs, its rank in the
// world. If the call accepts any rank, callArguments appends that in words and returns no peer. For
// other calls it does nothing.
func callArguments(c wire.RankCall, say func(string), place func()) (peers []string) {
	word := ", from "
	switch c.Wait {
	case wire.WaitSend:
		word = ", to "
	case wire.WaitRecv, wire.WaitProbe:
	default:
		return nil
	}
	if c.Peer < 0 {
		say(word + "any rank")
	} else {
		say(word)
		place()
		text := strconv.Itoa(c.Peer)
		if c.World != c.Peer && !c.Connection {
			text += fmt.Sprintf(" (rank %d of the world)", c.World)
		}
		peers = []string{text}
	}
	if c.Tag < 0 {
		say(", any tag")
	} else {
		say(fmt.Sprintf(", tag %d", c.Tag))
	}
	return peers
}
