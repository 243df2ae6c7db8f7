package wireup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/transport"
)

// Exchange of addresses
//
// Ranks whose launcher does not know their addresses exchange these through the launcher's key-value
// space. If each of N ranks asked for the addresses of all, the launcher would answer N² requests. So
// with several ranks per host, the first rank of each host puts the addresses of its host together:
//
//	each rank           put ─► fence ──────────────────────────────► fence ─► get the lists of all hosts
//	the first of a host          └─► get those of its host ─► put a list ┘
//
// A list is a value, or several if it is longer than one may be. With few ranks per host the lists cost
// more, by the second fence, than they save. They save nothing if a fence brings all pairs to all ranks
// (bootstrap.LocalKVS). If a host has no list, because its first rank has failed, ranks ask for the addresses
// one by one.

// noAddress is what a rank publishes instead of its address if it cannot open a transport.
const noAddress = "-"

// listFrom is the mean number of ranks per host from which on ranks exchange lists.
const listFrom = 4

// Each value of a list begins with one of these, which says whether another one follows.
const (
	moreFollow = "+"
	lastOne    = "."
)

// separator separates the addresses in a list.
const separator = "|"

// addressKey returns the key under which a rank publishes its address in a transport.
func addressKey(transport string, rank int) string {
	return "weft-" + transport + "-" + strconv.Itoa(rank)
}

// listKey returns the key of the value with the number part of a host's list.
func listKey(transport string, host, part int) string {
	return fmt.Sprintf("weft-%s-host-%d-%d", transport, host, part)
}

// exchange publishes own, this rank's address in the transport with this name, waits for those of
// all ranks, and inserts them. For a rank that cannot open the transport it inserts an empty
// address.
func exchange(ctx context.Context, w *bootstrap.World, name string, av transport.AddressVector, own transport.Address) error {
	if err := publish(ctx, w, name, string(own)); err != nil {
		return err
	}
	texts, err := collect(ctx, w, name)
	if err != nil {
		return err
	}
	addrs := make([]transport.Address, len(texts))
	for i, a := range texts {
		if a != noAddress {
			addrs[i] = transport.Address(a)
		}
	}
	return insertAll(av, addrs)
}

// byLists reports whether the ranks exchange lists. The answer is the same on all ranks.
func byLists(w *bootstrap.World) bool {
	if l, ok := w.KVS.(bootstrap.LocalKVS); ok && l.Local() {
		return false
	}
	return w.Size >= listFrom*len(hostsOf(w))
}

// hostsOf returns the ranks of each host, in ascending order.
func hostsOf(w *bootstrap.World) (ranks [][]int) {
	for rank, host := range w.HostOf {
		for len(ranks) <= host {
			ranks = append(ranks, nil)
		}
		ranks[host] = append(ranks[host], rank)
	}
	return ranks
}

// publish publishes this rank's address, or noAddress, so that collect of any rank returns it. Every rank
// calls publish, and waits in it for the others.
func publish(ctx context.Context, w *bootstrap.World, name, own string) error {
	if err := w.KVS.Put(addressKey(name, w.Rank), own); err != nil {
		return fmt.Errorf("publish address %q: %w", own, err)
	}
	if err := w.KVS.Fence(ctx); err != nil {
		return fmt.Errorf("wait for the addresses of all ranks: %w", err)
	}
	if !byLists(w) {
		return nil
	}
	host := w.HostOf[w.Rank]
	if of := hostsOf(w)[host]; of[0] == w.Rank {
		addrs, err := get(ctx, w, name, of)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if strings.Contains(a, separator) {
				return fmt.Errorf("the address %q contains %q", a, separator)
			}
		}
		for part, value := range cut(strings.Join(addrs, separator), bootstrap.MaxValue) {
			if err := w.KVS.Put(listKey(name, host, part), value); err != nil {
				return fmt.Errorf("publish the addresses of a host: %w", err)
			}
		}
	}
	if err := w.KVS.Fence(ctx); err != nil {
		return fmt.Errorf("wait for the addresses of all hosts: %w", err)
	}
	return nil
}

// cut cuts the text of a list into values of at most size bytes.
func cut(text string, size int) (values []string) {
	for len(text) > size-1 {
		values = append(values, moreFollow+text[:size-1])
		text = text[size-1:]
	}
	return append(values, lastOne+text)
}

// collect returns what each rank has published, by rank.
func collect(ctx context.Context, w *bootstrap.World, name string) ([]string, error) {
	all := make([]int, w.Size)
	for rank := range all {
		all[rank] = rank
	}
	if !byLists(w) {
		return get(ctx, w, name, all)
	}
	addrs := make([]string, w.Size)
	for host, ranks := range hostsOf(w) {
		list, err := listOf(ctx, w, name, host)
		if errors.Is(err, bootstrap.ErrNoKey) {
			list, err = get(ctx, w, name, ranks)
		}
		if err != nil {
			return nil, fmt.Errorf("get the addresses of host %d: %w", host, err)
		}
		if len(list) != len(ranks) {
			return nil, fmt.Errorf("host %d has %d ranks and %d addresses", host, len(ranks), len(list))
		}
		for i, rank := range ranks {
			addrs[rank] = list[i]
		}
	}
	return addrs, nil
}

// listOf returns the addresses in a host's list. If there is none, the error wraps ErrNoKey.
func listOf(ctx context.Context, w *bootstrap.World, name string, host int) ([]string, error) {
	var text strings.Builder
	for part, more := 0, true; more; part++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		value, err := w.KVS.Get(listKey(name, host, part))
		if err != nil {
			return nil, err
		}
		var rest string
		if rest, more = strings.CutPrefix(value, moreFollow); !more {
			rest = strings.TrimPrefix(value, lastOne)
		}
		text.WriteString(rest)
	}
	return strings.Split(text.String(), separator), nil
}

// get returns what these ranks have published, each under a key of its own.
func get(ctx context.Context, w *bootstrap.World, name string, ranks []int) ([]string, error) {
	addrs := make([]string, len(ranks))
	for i, rank := range ranks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var err error
		if addrs[i], err = w.KVS.Get(addressKey(name, rank)); err != nil {
			return nil, fmt.Errorf("get the address of rank %d: %w", rank, err)
		}
	}
	return addrs, nil
}
