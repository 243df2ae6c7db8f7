//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// memory prints gorun's peak resident memory for several numbers of ranks, and the memory per rank:
// the difference to the peak for the smallest job, divided by the number of additional ranks.
func (b *bench) memory() error {
	fmt.Printf("\n| ranks | hosts | gorun's peak, KiB | KiB per rank |\n|---|---|---|---|\n")
	for _, n := range []int{1, hosts} {
		base := 0
		for _, np := range []int{hosts, 64, 256, 1000} {
			if n > 1 && np > 256 {
				continue
			}
			argv := []string{b.path("gorun"), "-np", strconv.Itoa(np), b.path("hello")}
			if n > 1 {
				argv = b.gorun(n, np, b.path("hello"))
			}
			peak, err := b.peak(argv)
			if err != nil {
				return err
			}
			per := "-"
			if base == 0 {
				base = peak
			} else {
				per = fmt.Sprintf("%.1f", float64(peak-base)/float64(np-hosts))
			}
			fmt.Printf("| %d | %d | %d | %s |\n", np, n, peak, per)
		}
	}
	return nil
}

// peak runs a command and returns the peak resident memory of its process in KiB, without that of its
// children.
func (b *bench) peak(argv []string) (kib int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), jobTimeout)
	defer cancel()
	// The kernel's figure for a process that has ended (ru_maxrss) is the maximum over the process
	// and its children. So peak polls /proc, which has the figure of the process alone.
	cmd := b.from.Command(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = io.Discard, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)); err == nil {
			if _, rest, ok := strings.Cut(string(text), "VmHWM:"); ok {
				if n, err := strconv.Atoi(strings.Fields(rest)[0]); err == nil {
					kib = max(kib, n)
				}
			}
		}
		select {
		case err := <-done:
			return kib, err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// output makes 16 ranks write lines as fast as they can, and prints the rate at which gorun forwards the
// lines, and the number of lines that are lost or mixed up.
func (b *bench) output() error {
	const np, perRank, width = 16, 200_000, 100
	script := fmt.Sprintf(`r=$PMI_RANK; exec awk -v r=$r 'BEGIN { x = sprintf("%%*s", %d, ""); for (i = 0; i < %d; i++) { l = r " " i; print l substr(x, 1, %d - length(l)) } }'`,
		width, perRank, width-1)
	fmt.Printf("\n| 16 ranks on | MB | MB/s | lines lost or mixed |\n|---|---|---|---|\n")
	for _, n := range []int{1, hosts} {
		argv := []string{b.path("gorun"), "-np", strconv.Itoa(np), "sh", "-c", script}
		if n > 1 {
			argv = b.gorun(n, np, "sh", "-c", script)
		}
		var rates []float64
		bad := 0
		for range max(b.rounds/2, 1) {
			took, wrong, err := b.lines(argv, np, perRank, width)
			if err != nil {
				return err
			}
			bad += wrong
			rates = append(rates, np*perRank*width/1e6/took.Seconds())
		}
		where := "this host"
		if n > 1 {
			where = fmt.Sprintf("%d hosts by ssh", n)
		}
		fmt.Printf("| %s | %d | %.0f | %d |\n", where, np*perRank*width/1_000_000, median(rates), bad)
	}
	return nil
}

// lines runs a command whose np ranks write perRank lines of width bytes each, and reads the lines. It
// returns the time of the command, and the number of lines that are missing or wrong.
func (b *bench) lines(argv []string, np, perRank, width int) (took time.Duration, wrong int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), jobTimeout)
	defer cancel()
	cmd := b.from.Command(ctx, argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	next := make([]int, np)
	in := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, err
		}
		head, rest, _ := bytes.Cut(line, []byte{' '})
		number, _, _ := bytes.Cut(rest, []byte{' '})
		rank, err1 := strconv.Atoi(string(head))
		i, err2 := strconv.Atoi(string(number))
		if err1 != nil || err2 != nil || rank < 0 || rank >= np || len(line) != width || next[rank] != i {
			wrong++
			continue
		}
		next[rank]++
	}
	err = cmd.Wait()
	took = time.Since(begun)
	for _, n := range next {
		wrong += perRank - n
	}
	return took, wrong, err
}

// failure prints how long a job lasts after a failure: a rank on another host is killed, an agent
// (gorun's process on another host) is killed, or a host loses its network.
func (b *bench) failure() error {
	fmt.Printf("\n| what fails | job over after, s | at most |\n|---|---|---|\n")
	for _, c := range []struct {
		name string
		fail func() error
		back func()
	}{
		{"a rank on another host, by SIGKILL", func() error { return b.kill("sleep", "987") }, func() {}},
		{"an agent, by SIGKILL", func() error { return b.kill(b.path("gorun"), "-agent") }, func() {}},
		{"a host, cut off the network", func() error { b.hosts[1].Cut(); return nil }, func() { b.hosts[1].Join() }},
	} {
		var took []time.Duration
		for range max(b.rounds/2, 1) {
			d, err := b.fails(c.fail)
			c.back()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			took = append(took, d)
		}
		most := took[0]
		for _, d := range took {
			most = max(most, d)
		}
		fmt.Printf("| %s | %s | %s |\n", c.name, seconds(median(took)), seconds(most))
	}
	return nil
}

// kill kills one process on the second host whose command line contains the last of the words, but
// not "sh -c". The words before the last one are only for the error.
func (b *bench) kill(words ...string) error {
	for _, p := range b.hosts[1].Processes(nil) {
		if line := strings.Join(p.Args, " "); strings.Contains(line, words[len(words)-1]) && !strings.Contains(line, "sh -c") {
			return syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("%s does not run on %s", strings.Join(words, " "), b.hosts[1].Name())
}

// fails starts a long job, calls fail, and returns how long the job lasts after that.
func (b *bench) fails(fail func() error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), jobTimeout)
	defer cancel()
	argv := b.gorun(hosts, 2*hosts, "sh", "-c", "echo up; exec sleep 987")
	cmd := b.from.Command(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	in := bufio.NewScanner(out)
	for range 2 * hosts {
		if !in.Scan() {
			return 0, errors.Join(errors.New("the job does not start"), cmd.Wait())
		}
	}
	begun := time.Now()
	if err := fail(); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return 0, err
	}
	err = cmd.Wait()
	took := time.Since(begun)
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, fmt.Errorf("the job ended with %w", err)
	}
	return took, nil
}
