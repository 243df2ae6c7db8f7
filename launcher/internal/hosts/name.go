package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// maxName is the length of the longest name that DNS knows.
const maxName = 253

// checkName says whether a name can be handed to ssh, which would take a "-"
// in front for an option, and be printed in a line.
func checkName(name string) error {
	text := name
	if a, err := netip.ParseAddr(name); err == nil && a.Is6() {
		if a.Zone() == "" {
			return nil
		}
		text = a.Zone()
	}
	if len(name) > maxName || text == "" || strings.ContainsRune("-.", rune(text[0])) || !only(text, nameChars) {
		return fmt.Errorf("expected a host's name, found %s", quote(name))
	}
	return nil
}

const (
	nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	userChars = nameChars + `+$\`
)

// CheckUser says whether a user's name can be handed to ssh.
func CheckUser(user string) error {
	if user == "" || user[0] == '-' || len(user) > maxName || !only(user, userChars) {
		return fmt.Errorf("expected a user's name, found %s", quote(user))
	}
	return nil
}

// CheckAddress says whether ranks could listen on a host's Address: an IP
// address, or a name that the host itself resolves.
func CheckAddress(address string) error {
	if checkName(address) != nil {
		return fmt.Errorf("expected an IP address or a name, found %s", quote(address))
	}
	return nil
}

func only(text, chars string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune(chars, r) }) < 0
}

// parseCount reads a number from 1 to high.
func parseCount(text string, high int) (int, bool) {
	if !only(text, "0123456789") {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 1 && n <= high
}

// quote shortens what a user wrote to what fits in a line of an error.
func quote(s string) string {
	const limit = 40
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(s)
}
