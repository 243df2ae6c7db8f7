// Command treebench measures the cost of the start and the end of a job on many hosts by a
// simulation in one process. Agents are goroutines that run launcher/internal/tree over streams in
// memory. Time is that of a bubble of testing/synctest, which passes only while all goroutines
// wait. So the times show latencies and the order of messages, not processor time. Messages and
// bytes are those of the protocol. The memory of the root is measured separately, with children
// that send prepared bytes.
//
//	go run ./launcher/internal/tree/treebench -agents 1,10,100,1000,10000 -radix 64 -latency 200us -connect 20ms
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/tree"
)

// setting is the job to simulate.
type setting struct {
	agents  int
	radix   int
	atOnce  int
	ranks   int           // ranks on each host
	latency time.Duration // latency of each message, one way
	connect time.Duration // time to start an agent
	output  int           // bytes that each host writes
	puts    int           // bytes that each rank puts before each fence
}

func main() {
	s, sizes, ok := parse(os.Stderr, os.Args[1:])
	if !ok {
		os.Exit(2)
	}
	os.Args = os.Args[:1] // so that package testing uses the defaults of its flags
	// synctest.Test needs a *testing.T.
	testing.Main(func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "tree", F: func(t *testing.T) { table(t, os.Stdout, s, sizes) }}}, nil, nil)
}

func parse(stderr io.Writer, args []string) (s setting, sizes []int, ok bool) {
	fs := flag.NewFlagSet("tree", flag.ContinueOnError)
	fs.SetOutput(stderr)
	agents := fs.String("agents", "1,10,100,1000,10000", "numbers of hosts besides gorun's own, separated by commas")
	fs.IntVar(&s.radix, "radix", 64, "largest number of children of an agent")
	fs.IntVar(&s.atOnce, "at-once", 32, "connections that an agent opens at the same time")
	fs.IntVar(&s.ranks, "ranks", 8, "ranks on each host")
	fs.DurationVar(&s.latency, "latency", 200*time.Microsecond, "latency of each message, one way")
	fs.DurationVar(&s.connect, "connect", 20*time.Millisecond, "time to start an agent")
	fs.IntVar(&s.output, "output", 4096, "bytes that each host writes")
	fs.IntVar(&s.puts, "puts", 0, "bytes that each rank puts before each fence")
	if err := fs.Parse(args); err != nil {
		return s, nil, false
	}
	for _, text := range strings.Split(*agents, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 60000 {
			fmt.Fprintf(stderr, "treebench: -agents: expected numbers from 1 to 60000, found %q\n", text)
			return s, nil, false
		}
		sizes = append(sizes, n)
	}
	if fs.NArg() > 0 || s.radix < 1 || s.atOnce < 1 || s.ranks < 1 || s.latency < 0 || s.connect < 0 || s.output < 0 || s.puts < 0 {
		fmt.Fprintln(stderr, "treebench: expected positive values of the flags and no arguments")
		return s, nil, false
	}
	return s, sizes, true
}

// table simulates jobs of several sizes and writes a line about each, in Markdown.
func table(t *testing.T, stdout io.Writer, s setting, sizes []int) {
	fmt.Fprintf(stdout, "Radix %d, %d connections at once of %v each, latency %v one way, %d ranks and %d bytes of output per host, %d bytes put per rank and fence.\n\n",
		s.radix, s.atOnce, s.connect, s.latency, s.ranks, s.output, s.puts)
	head := append([]string{"agents", "levels"}, phaseNames...)
	head = append(head, "root: messages in, Output in, out", "root: KB in, out", "agent: most messages", "root: peak queue", "root: heap, B per rank")
	fmt.Fprintf(stdout, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, n := range sizes {
		s.agents = n
		r := simulate(t, s)
		row := []string{strconv.Itoa(n), strconv.Itoa(tree.Depth(n, s.radix))}
		for _, d := range r.took {
			row = append(row, fmt.Sprintf("%.2f ms", float64(d)/1e6))
		}
		row = append(row,
			fmt.Sprintf("%d, %d, %d", r.root.MessagesIn-r.outputs, r.outputs, r.root.MessagesOut),
			fmt.Sprintf("%d, %d", r.root.BytesIn>>10, r.root.BytesOut>>10),
			strconv.FormatInt(r.busiest, 10),
			fmt.Sprintf("%d KB", r.root.PeakQueued>>10),
			strconv.FormatInt(rootHeap(s)/int64(n*s.ranks), 10))
		fmt.Fprintf(stdout, "| %s |\n", strings.Join(row, " | "))
	}
}
