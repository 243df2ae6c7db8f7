//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
)

// The targets for weft over a libfabric provider, compared with a C program over the same provider. A
// message or RMA operation may take extraRatio times as long as in the C program. Over shm, one of fewer than
// extraBelow bytes may instead take extraMicros longer, because it takes less than a microsecond, and one of
// extraBelow bytes shmRatio times as long. A stream of puts or gets must reach leastRate times the rate.
const (
	extraMicros = 0.25
	extraRatio  = 1.05
	shmRatio    = 1.3
	extraBelow  = 4096 // bytes
	leastRate   = 0.95
)

// messages returns the contests that compare the latency of messages over each provider with
// fi_pingpong. Both sides report means, because fi_pingpong reports nothing else.
func (b *built) messages(s *settings) []*contest.Contest {
	if !b.libfabric || !b.Has("fi_pingpong") {
		return nil
	}
	var all []*contest.Contest
	for _, provider := range s.providers {
		for _, size := range s.sizes {
			all = append(all, &contest.Contest{
				Name:  "libfabric",
				Lines: allow(fmt.Sprintf("%s, %s, one way", provider, contest.BytesText(size)), provider, size),
				Ours:  b.bench(s, overProvider(provider), "mean_us", 1, "latency", "-sizes", strconv.Itoa(size)),
				Peers: []contest.Side{pingpong(s, provider, size)},
			})
		}
	}
	return all
}

// onesided returns the contests that compare Put and Get over each provider with a loop of fi_write or
// fi_read in C.
func (b *built) onesided(s *settings) []*contest.Contest {
	program := b.Path("fi_rma")
	if !b.libfabric || program == "" {
		return nil
	}
	limit := func(kind, provider string, size int, key string, scale float64) []contest.Side {
		return []contest.Side{{Name: "C", Measure: contest.Single(func(ctx context.Context) (float64, error) {
			ctx, cancel := context.WithTimeout(ctx, sideLimit+2*s.time)
			defer cancel()
			out, err := contest.Output(ctx, program, kind, strconv.Itoa(size), fmt.Sprint(s.time.Seconds()), provider)
			if err != nil {
				return 0, err
			}
			x, err := field(out, key)
			return x * scale, err
		})}}
	}
	var all []*contest.Contest
	for _, provider := range s.providers {
		for _, kind := range []string{"put", "get"} {
			all = append(all, &contest.Contest{
				Name:  "rma",
				Lines: allow(fmt.Sprintf("%s, %s and flush, 8 B", provider, kind), provider, 8),
				Ours:  b.bench(s, overProvider(provider), "median_us", 1, kind+"_latency", "-sizes", "8"),
				Peers: limit(kind+"_latency", provider, 8, "median_us", 1),
			})
			for _, size := range s.sizes {
				what := fmt.Sprintf("%s, %s, windows of 64 × %s", provider, kind, contest.BytesText(size))
				all = append(all, &contest.Contest{
					Name:  "rma",
					Lines: []contest.Line{{What: what, Unit: "MB/s", Target: leastRate, More: true}},
					Ours:  b.bench(s, overProvider(provider), "bytes_per_s", 1e-6, kind+"_bw", "-sizes", strconv.Itoa(size)),
					Peers: limit(kind, provider, size, "bytes_per_s", 1e-6),
				})
			}
		}
	}
	return all
}

// allow returns a line of the table for the time of a message or RMA operation of size bytes over a
// provider, with its target.
func allow(what, provider string, size int) []contest.Line {
	line := contest.Line{What: what, Unit: "µs", Target: extraRatio}
	switch {
	case provider == "shm" && size < extraBelow:
		line.Target, line.Of = extraMicros, contest.OfDifference
	case provider == "shm" && size == extraBelow:
		line.Target = shmRatio
	}
	return []contest.Line{line}
}

// overProvider returns the flags that make gorun use a provider.
func overProvider(name string) []string {
	return []string{"-transport", "libfabric", "-provider", name}
}

// fewAbove is a message size in bytes. Above it, the trial of pingpong has fewer iterations, because
// some providers take milliseconds per message.
const fewAbove = 4096

// sideLimit bounds the time of a C program over libfabric, in addition to the time that it measures.
const sideLimit = 30 * time.Second

// pingpong returns a side that measures with fi_pingpong, which runs a server and a client on this host.
// The first measurement also runs a trial, to find the number of iterations that fit the time.
func pingpong(s *settings, provider string, size int) contest.Side {
	// There are so many iterations that the time to connect, which fi_pingpong includes, matters
	// little.
	trial, iterations := 1000, 0
	if size > fewAbove {
		trial = 100
	}
	return contest.Side{Name: "fi_pingpong", Measure: contest.Single(func(ctx context.Context) (float64, error) {
		if iterations == 0 {
			micros, err := runPingpong(ctx, sideLimit, provider, size, trial)
			if err != nil {
				return 0, err
			}
			iterations = max(int(s.time.Seconds()*1e6/(2*micros)), trial)
		}
		return runPingpong(ctx, sideLimit+2*s.time, provider, size, iterations)
	})}
}

func runPingpong(ctx context.Context, limit time.Duration, provider string, size, iterations int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	args := []string{"-e", "rdm", "-p", provider, "-S", strconv.Itoa(size), "-I", strconv.Itoa(iterations)}
	host := "127.0.0.1"
	if provider == "shm" {
		host = "localhost" // the provider shm would use an IP address as the name of a segment
	}
	server := exec.CommandContext(ctx, "fi_pingpong", append(args, "-B", strconv.Itoa(port))...)
	var errs strings.Builder
	server.Stdout, server.Stderr = io.Discard, &errs
	if err := server.Start(); err != nil {
		return 0, err
	}
	out, err := "", listening(ctx, port)
	if err == nil {
		out, err = contest.Output(ctx, "fi_pingpong", append(args, "-P", strconv.Itoa(port), host)...)
	}
	if err != nil {
		cancel() // ends the server
	}
	if serverErr := server.Wait(); err == nil && serverErr != nil {
		err = fmt.Errorf("fi_pingpong, the server: %w", serverErr)
	}
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, errs.String())
	}
	return column(out, "usec/xfer")
}

// freePort returns the number of a TCP port that no process used when freePort looked. Another process
// may use it by now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err := errors.Join(err, l.Close()); err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// listening waits until a process listens on the port. It reads the kernel's tables. It does not connect
// to the port, because the server would handle that connection as its client.
func listening(ctx context.Context, port int) error {
	local := fmt.Sprintf(":%04X", port)
	for {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			text, err := os.ReadFile(table)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			for line := range strings.Lines(string(text)) {
				const stateListen = "0A"
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == stateListen {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nobody listens on port %d: %w", port, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// column returns a number from a table with a line of heads: the cell in the last line and in the column
// with this head.
func column(table, head string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	heads, cells := strings.Fields(lines[0]), strings.Fields(lines[len(lines)-1])
	for i, h := range heads {
		if h == head && len(lines) > 1 && i < len(cells) {
			return strconv.ParseFloat(cells[i], 64)
		}
	}
	return 0, fmt.Errorf("no column %s in %q", head, table)
}

// findLibfabric sets b.libfabric to whether programs can be built with libfabric. If they cannot,
// findLibfabric adds the package libfabric-dev to b.Missing.
func (b *built) findLibfabric(ctx context.Context) {
	b.libfabric = exec.CommandContext(ctx, "pkg-config", "--exists", "libfabric").Run() == nil
	if !b.libfabric {
		b.Missing = append(b.Missing, "libfabric-dev")
	}
}

// buildLibfabric builds the programs that use libfabric. For weft it builds bench.libfabric, a program
// of its own, so that libfabric does not affect the measurements of bench.
func (b *built) buildLibfabric(ctx context.Context) error {
	if !b.libfabric {
		return nil
	}
	if err := b.GoAs(ctx, "bench.libfabric", "./bench", "-tags", "libfabric"); err != nil {
		return err
	}
	flags, err := contest.Output(ctx, "pkg-config", "--cflags", "--libs", "libfabric")
	if err != nil {
		return err
	}
	return b.C(ctx, "gcc", "fi_rma", []string{"c/fi_rma.c"}, strings.Fields(flags)...)
}
