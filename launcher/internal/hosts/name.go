package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// maxName is the length of the longest name that DNS allows.
const maxName = 253

// checkName returns an error unless name is an IPv6 address, or consists of at most maxName
// letters, digits and "._-" and begins with a letter, digit or "_". So ssh cannot take the name for
// an option, because options begin with "-", and a message with the name is still one line.
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

// CheckUser returns an error if user is not fit to be passed to ssh: it is empty or too long,
// begins with "-", or has other characters than letters, digits and "._-+$\".
func CheckUser(user string) error {
	if user == "" || user[0] == '-' || len(user) > maxName || !only(user, userChars) {
		return fmt.Errorf("expected a user's name, found %s", quote(user))
	}
	return nil
}

// CheckAddress returns an error unless address may be a Host.Address: an IP address, or a name. It
// does not resolve the name.
func CheckAddress(address string) error {
	if checkName(address) != nil {
		return fmt.Errorf("expected an IP address or a name, found %s", quote(address))
	}
	return nil
}

// only reports whether text has no characters other than those in chars.
func only(text, chars string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune(chars, r) }) < 0
}

// parseCount parses a number from 1 to high that consists only of digits. It returns false if text
// is no such number.
func parseCount(text string, high int) (int, bool) {
	if !only(text, "0123456789") {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 1 && n <= high
}

// quote returns a text in quotes for an error. It cuts off all but the first 40 characters.
func quote(s string) string {
	const limit = 40
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(s)
}
