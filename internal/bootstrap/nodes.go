package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// parseMapping parses MPICH's PMI_process_mapping, which gives the host of each rank:
//
//	(vector,(0,2,4),(2,1,3))
//
// Each triple is the first node, the number of nodes, and the number of ranks on each. The whole
// vector repeats until every rank has a host. The result contains the number of each rank's host,
// from 0 in the order in which the hosts first occur.
func parseMapping(text string, size int) ([]int, error) {
	if size < 1 || size > maxSize {
		return nil, fmt.Errorf("mapping for %d ranks", size)
	}
	body, ok := strings.CutPrefix(strings.Trim(text, `"`), "(vector,")
	if !ok {
		return nil, errors.New("not a vector mapping")
	}
	body, ok = strings.CutSuffix(body, ")")
	if !ok {
		return nil, errors.New("mapping has no end")
	}
	type block struct{ first, nodes, ppn int }
	var blocks []block
	for body != "" {
		head, rest, ok := strings.Cut(strings.TrimPrefix(body, ","), ")")
		head, open := strings.CutPrefix(head, "(")
		f := strings.Split(head, ",")
		if !ok || !open || len(f) != 3 {
			return nil, errors.New("a block of the mapping is not of the form (first,nodes,ranks)")
		}
		var n [3]int
		for i := range n {
			v, err := strconv.Atoi(f[i])
			if err != nil || v < 0 || v > maxSize || i > 0 && v == 0 {
				return nil, fmt.Errorf("%q is not a valid number in a mapping", f[i])
			}
			n[i] = v
		}
		blocks = append(blocks, block{n[0], n[1], n[2]})
		body = rest
	}
	if len(blocks) == 0 {
		return nil, errors.New("mapping has no blocks")
	}
	nodes := make([]int, 0, size)
	for len(nodes) < size {
		for _, b := range blocks {
			for node := b.first; node < b.first+b.nodes && len(nodes) < size; node++ {
				for i := 0; i < b.ppn && len(nodes) < size; i++ {
					nodes = append(nodes, node)
				}
			}
		}
	}
	return dense(nodes), nil
}

// dense replaces values by numbers from 0, in the order in which the values first occur.
func dense[T comparable](values []T) []int {
	number := make(map[T]int)
	out := make([]int, len(values))
	for i, v := range values {
		n, ok := number[v]
		if !ok {
			n = len(number)
			number[v] = n
		}
		out[i] = n
	}
	return out
}

// hostKey returns a text that identifies the host of this process: its name and, on Linux, the boot
// id of its kernel. So two hosts with the same name have different texts, and so have two
// containers of one host that have different names.
func hostKey() string {
	name, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return url.QueryEscape(name + "/" + strings.TrimSpace(string(boot)))
}

// exchangeNodes returns the number of each rank's host if the launcher does not provide it. Rank 0
// gets the hostKeys that all ranks have put, and puts the hosts of all ranks in a short form, as
// runs. So each other rank needs only a few gets instead of one for each rank.
//
// Before the call, every rank has put its hostKey under hostName(rank) and passed a fence.
func exchangeNodes(ctx context.Context, p *pmiClient, rank, size int) ([]int, error) {
	if rank == 0 {
		hosts := make([]string, size)
		for r := range hosts {
			h, err := p.get(ctx, hostName(r))
			if err != nil {
				return nil, err
			}
			hosts[r] = h
		}
		for i, chunk := range encodeRuns(Runs(dense(hosts))) {
			if err := p.Put(nodesName(i), chunk); err != nil {
				return nil, err
			}
		}
	}
	if err := p.Fence(ctx); err != nil {
		return nil, err
	}
	var text strings.Builder
	for i := 0; ; i++ {
		chunk, err := p.get(ctx, nodesName(i))
		if err != nil {
			return nil, err
		}
		text.WriteString(strings.TrimSuffix(chunk, "+"))
		if !strings.HasSuffix(chunk, "+") {
			break
		}
	}
	return decodeRuns(text.String(), size)
}

func hostName(rank int) string   { return "weft-host-" + strconv.Itoa(rank) }
func nodesName(chunk int) string { return "weft-nodes-" + strconv.Itoa(chunk) }

// encodeRuns returns the text "host*count," for each run, cut into chunks of at most MaxValue
// bytes. A chunk that ends with '+' continues in the next chunk.
func encodeRuns(runs []Run) []string {
	var text strings.Builder
	for _, r := range runs {
		fmt.Fprintf(&text, "%d*%d,", r.Value, r.Count)
	}
	var chunks []string
	s := text.String()
	for len(s) > MaxValue {
		chunks = append(chunks, s[:MaxValue-1]+"+")
		s = s[MaxValue-1:]
	}
	return append(chunks, s)
}

func decodeRuns(text string, size int) ([]int, error) {
	nodes := make([]int, 0, min(size, maxSize))
	for text != "" {
		run, rest, ok := strings.Cut(text, ",")
		value, count, star := strings.Cut(run, "*")
		v, err1 := strconv.Atoi(value)
		n, err2 := strconv.Atoi(count)
		if !ok || !star || err1 != nil || err2 != nil || v < 0 || v >= size || n < 1 || n > size-len(nodes) {
			return nil, fmt.Errorf("nodes of the ranks: %q", run)
		}
		for range n {
			nodes = append(nodes, v)
		}
		text = rest
	}
	if len(nodes) != size {
		return nil, fmt.Errorf("nodes of the ranks: %d of %d", len(nodes), size)
	}
	return nodes, nil
}
