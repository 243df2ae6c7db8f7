package mpiio

import (
	"fmt"
	"strconv"

	"github.com/weft-hpc/weft/internal/mpi"
)

// Hint is the type behind pio.Hint.
type Hint struct{ Key, Value string }

// choice is the value of a hint that enables or disables something.
type choice uint8

const (
	automatic choice = iota
	enable
	disable
)

var choices = [...]string{automatic: "automatic", enable: "enable", disable: "disable"}

// hints are the hints of a file, under the names of ROMIO.
type hints struct {
	// The same on all ranks:
	cbBufferSize, cbNodes    int // bytes; number of aggregators, 0: one for each host
	cbRead, cbWrite, dsWrite choice

	dsRead            choice
	indRead, indWrite int // bytes

	aggregators []int // the ranks that access the file in collective calls; Open and SetHints choose them
}

func defaultHints() hints {
	return hints{cbBufferSize: 16 << 20, indRead: 4 << 20, indWrite: 512 << 10}
}

// maxNumber is the largest number that a hint can have.
const maxNumber = 1 << 30

// set applies hints in their order. Unknown keys are ignored.
func (h *hints) set(list []Hint) error {
	for _, x := range list {
		var err error
		switch x.Key {
		case "cb_buffer_size":
			h.cbBufferSize, err = number(x, 1)
		case "cb_nodes":
			h.cbNodes, err = number(x, 0)
		case "romio_cb_read":
			h.cbRead, err = option(x)
		case "romio_cb_write":
			h.cbWrite, err = option(x)
		case "romio_ds_read":
			h.dsRead, err = option(x)
		case "romio_ds_write":
			h.dsWrite, err = option(x)
		case "ind_rd_buffer_size":
			h.indRead, err = number(x, 1)
		case "ind_wr_buffer_size":
			h.indWrite, err = number(x, 1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func number(x Hint, least int) (int, error) {
	n, err := strconv.Atoi(x.Value)
	if err != nil || n < least || n > maxNumber {
		return 0, fmt.Errorf("%w: hint %s=%q: expected a number from %d to %d", mpi.ErrArg, x.Key, x.Value, least, maxNumber)
	}
	return n, nil
}

func option(x Hint) (choice, error) {
	for c, name := range choices {
		if x.Value == name {
			return choice(c), nil
		}
	}
	return 0, fmt.Errorf("%w: hint %s=%q: expected automatic, enable or disable", mpi.ErrArg, x.Key, x.Value)
}

// list returns the hints as the program reads them.
func (h *hints) list() []Hint {
	return []Hint{
		{"cb_buffer_size", strconv.Itoa(h.cbBufferSize)}, {"cb_nodes", strconv.Itoa(len(h.aggregators))},
		{"romio_cb_read", choices[h.cbRead]}, {"romio_cb_write", choices[h.cbWrite]},
		{"romio_ds_read", choices[h.dsRead]}, {"romio_ds_write", choices[h.dsWrite]},
		{"ind_rd_buffer_size", strconv.Itoa(h.indRead)}, {"ind_wr_buffer_size", strconv.Itoa(h.indWrite)},
	}
}

// hash returns a hash of the flags and of the hints that must be the same on all ranks.
func (h *hints) hash(flag int) int64 {
	return hashOf(fmt.Sprint(flag, h.cbBufferSize, h.cbNodes, h.cbRead, h.cbWrite, h.dsWrite))
}

// aggregators returns the ranks that access the file in collective calls: n ranks, spread over the
// hosts, or if n is 0, one rank of each host.
func aggregators(hosts, leaders []int, n int) []int {
	if n == 0 || n == len(leaders) {
		return leaders
	}
	if n < len(leaders) {
		return leaders[:n]
	}
	// By turns one more rank of each host, until there are n or no rank is left.
	var list []int
	for round := 0; len(list) < n; round++ {
		before := len(list)
		for _, leader := range leaders {
			seen := 0
			for r, h := range hosts {
				if h != hosts[leader] {
					continue
				}
				if seen == round && len(list) < n {
					list = append(list, r)
				}
				seen++
			}
		}
		if len(list) == before {
			break
		}
	}
	return list
}
