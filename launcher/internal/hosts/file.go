package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode"
)

// Limits of a hostfile. They are large enough for Limit hosts.
const (
	maxFile = 16 << 20 // largest size of the file, in bytes
	maxLine = 1 << 20  // largest length of a line, in bytes
)

// ReadFile reads a hostfile from r. Each line names one host, or several in the form of ParseList,
// and possibly the number of their slots. "#" begins a comment. ReadFile accepts the forms of
// several programs:
//
//	node1 slots=4 max_slots=8    Open MPI; blanks around "=" are allowed
//	user@node1:4                 MPICH
//	node[1-3]                    Slurm; PBS, with a line for each slot
//
// After a host these keys may follow, each with "=" and a value: slots (or count), max_slots (or
// slots_max), user (or username, user_name), port, address, and binding, a key of MPICH that has no
// effect here. In keys "-" and "_" are the same. A host that several lines name has one entry in
// the result: see Set. name is the name of the file. Errors begin with it and, for an error in a
// line, the number of the line.
func ReadFile(name string, r io.Reader) ([]Host, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, cause(err))
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: expected a hostfile of at most %d MiB, found more", name, maxFile>>20)
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	var s Set
	room := Limit
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		list, err := parseLine(line, &room)
		for _, h := range list {
			if err == nil {
				err = s.Add(h)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	list := s.Hosts()
	if list == nil {
		return nil, fmt.Errorf("%s:%d: the file names no host", name, max(number, 1))
	}
	return list, nil
}

// cause returns the error inside of an fs.PathError: without the operation and the name of the
// file. It returns other errors unchanged.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// parseLine returns the hosts of a line of a hostfile. It subtracts from room the number of hosts
// that ranges in the line describe, and returns an error if that is more than room. Hosts without a
// range do not count, because the size of the file bounds their number.
func parseLine(line string, room *int) ([]Host, error) {
	if len(line) > maxLine {
		return nil, fmt.Errorf("expected a line of at most %d MiB, found more", maxLine>>20)
	}
	line, _, _ = strings.Cut(line, "#")
	words := fields(line)
	if len(words) == 0 {
		return nil, nil
	}
	var list []Host
	for _, e := range split(words[0]) {
		one, r := 1, room
		if !strings.Contains(e, "[") {
			r = &one
		}
		more, err := parseEntry(e, words[0], r)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	seen := make(map[string]bool)
	for _, word := range words[1:] {
		k, value, ok := strings.Cut(word, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("expected KEY=VALUE after the host, found %s", quote(word))
		}
		k = canonical(k)
		if seen[k] {
			return nil, fmt.Errorf("expected one %s, found two", k)
		}
		seen[k] = true
		for i := range list {
			if err := list[i].setKey(k, value); err != nil {
				return nil, err
			}
		}
	}
	if seen["address"] && len(list) > 1 {
		return nil, fmt.Errorf("expected one host with an address, found %d", len(list))
	}
	for _, h := range list {
		if h.MaxSlots > 0 && h.Slots > h.MaxSlots {
			return nil, fmt.Errorf("expected at most max_slots=%d slots, found %d", h.MaxSlots, h.Slots)
		}
	}
	return list, nil
}

// fields splits a line into words at its blanks. From the second word on it removes blanks around
// "=" instead, so that "slots = 4" is one word.
func fields(line string) []string {
	var words []string
	joined := false
	for _, w := range strings.FieldsFunc(line, unicode.IsSpace) {
		if n := len(words); n > 1 && (joined || strings.HasPrefix(w, "=")) {
			words[n-1] += w
		} else {
			words = append(words, w)
		}
		joined = strings.HasSuffix(w, "=")
	}
	return words
}

// canonical returns the spelling of a key that setKey knows. In an unknown key it only replaces "-"
// by "_".
func canonical(k string) string {
	switch k := strings.ReplaceAll(k, "-", "_"); k {
	case "slots", "count":
		return "slots"
	case "max_slots", "slots_max":
		return "max_slots"
	case "user", "username", "user_name":
		return "user"
	}
	return k
}

// setKey sets the field of h to which the key k of a hostfile belongs. k is a result of canonical.
// setKey returns an error if k is unknown, if value is invalid, or if the line has given the slots,
// the user or the port already.
func (h *Host) setKey(k, value string) error {
	number := func(to *int, high int) error {
		n, ok := parseCount(value, high)
		switch {
		case !ok:
			return fmt.Errorf("%s: expected an integer from 1 to %d, found %s", k, high, quote(value))
		case *to != 0:
			return fmt.Errorf("expected one number of slots for %s, found two", h.Name)
		}
		*to = n
		return nil
	}
	switch k {
	case "slots":
		return number(&h.Slots, Limit)
	case "max_slots":
		return number(&h.MaxSlots, Limit)
	case "port":
		return number(&h.Port, 65535)
	case "user":
		if h.User != "" {
			return fmt.Errorf("expected one user for %s, found two", h.Name)
		}
		h.User = value
		return CheckUser(value)
	case "address":
		h.Address = value
		return CheckAddress(value)
	case "binding":
		return nil
	}
	return fmt.Errorf("unknown key %s; expected slots, max_slots, user, port or address", quote(k))
}
