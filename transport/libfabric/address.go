//go:build libfabric

package libfabric

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// The transport.Address of an endpoint of this package is text. Its form depends on the address
// format (addr_format) of the libfabric provider:
//
//	FI_SOCKADDR_IN, _IN6   192.0.2.1:4000, [2001:db8::1]:4000
//	FI_ADDR_STR            the string without the NUL at its end: fi_shm://4711
//	others                 the bytes in hexadecimal: hex:0a1b…
//
// The address of a rank with several lanes is a list of theirs, separated by commas: that of the main
// lane first.
const (
	hexPrefix   = "hex:"
	sockaddrIn  = 16 // size of struct sockaddr_in in bytes
	sockaddrIn6 = 28 // size of struct sockaddr_in6 in bytes
)

// maxLanes is the largest number of lanes of a rank.
const maxLanes = 8

// joinAddresses returns the address of a rank whose lanes have the addresses in list.
func joinAddresses(list []transport.Address) transport.Address {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = string(a)
	}
	return transport.Address(strings.Join(texts, ","))
}

// laneAddresses returns the addresses of the lanes of the rank with address a in format f. An address in
// the format FI_ADDR_STR is that of one lane, because it may have commas.
func laneAddresses(f fi.AddrFormat, a transport.Address) []transport.Address {
	if f == fi.AddrStr {
		return []transport.Address{a}
	}
	var list []transport.Address
	for text := range strings.SplitSeq(string(a), ",") {
		list = append(list, transport.Address(text))
	}
	return list
}

func isIP(f fi.AddrFormat) bool { return f == fi.SockaddrIn || f == fi.SockaddrIn6 }

// decode converts the address b from libfabric's representation in format f to text. It returns
// ErrAddress if f is an IP format and b is neither a struct sockaddr_in nor a struct sockaddr_in6.
func decode(f fi.AddrFormat, b []byte) (transport.Address, error) {
	switch f {
	case fi.SockaddrIn, fi.SockaddrIn6:
		a, err := decodeIP(b)
		return transport.Address(a.String()), err
	case fi.AddrStr:
		text, _, _ := bytes.Cut(b, []byte{0})
		return transport.Address(text), nil
	default:
		return transport.Address(hexPrefix + hex.EncodeToString(b)), nil
	}
}

// encode converts text to libfabric's representation in format f; decode converts it back. encode
// returns ErrAddress if text does not have the form of format f, if the port of an IP address is 0,
// or if the zone of an IPv6 address is not a number.
func encode(f fi.AddrFormat, text transport.Address) ([]byte, error) {
	s := string(text)
	switch f {
	case fi.SockaddrIn, fi.SockaddrIn6:
		a, err := netip.ParseAddrPort(s)
		if err != nil || a.Port() == 0 || a.Addr().Is4() != (f == fi.SockaddrIn) {
			return nil, fmt.Errorf("%q is not an ip:port address of this fabric's IP version: %w", s, transport.ErrAddress)
		}
		return encodeIP(a)
	case fi.AddrStr:
		if !strings.Contains(s, "://") || strings.ContainsRune(s, 0) {
			return nil, fmt.Errorf("%q is not of the form scheme://name: %w", s, transport.ErrAddress)
		}
		return append([]byte(s), 0), nil
	default:
		return encodeHex(s)
	}
}

func encodeHex(s string) ([]byte, error) {
	digits, ok := strings.CutPrefix(s, hexPrefix)
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) == 0 {
		return nil, fmt.Errorf("%q is not of the form %s…: %w", s, hexPrefix, transport.ErrAddress)
	}
	return b, nil
}

// decodeIP decodes a struct sockaddr_in or sockaddr_in6.
func decodeIP(b []byte) (netip.AddrPort, error) {
	family := 0
	if len(b) >= 2 {
		family = int(binary.NativeEndian.Uint16(b))
	}
	switch {
	case family == unix.AF_INET && len(b) >= sockaddrIn:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), nil
	case family == unix.AF_INET6 && len(b) >= sockaddrIn6:
		a := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 {
			a = a.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:])), nil
	}
	return netip.AddrPort{}, fmt.Errorf("socket address of %d bytes, family %d: %w", len(b), family, transport.ErrAddress)
}

// encodeIP returns a as a struct sockaddr_in or sockaddr_in6.
func encodeIP(a netip.AddrPort) ([]byte, error) {
	if a.Addr().Is4() {
		b := make([]byte, sockaddrIn)
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		ip := a.Addr().As4()
		copy(b[4:], ip[:])
		return b, nil
	}
	b := make([]byte, sockaddrIn6)
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	ip := a.Addr().As16()
	copy(b[8:], ip[:])
	if zone := a.Addr().Zone(); zone != "" {
		scope, err := strconv.ParseUint(zone, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("zone %q of %s is not a number: %w", zone, a, transport.ErrAddress)
		}
		binary.NativeEndian.PutUint32(b[24:], uint32(scope))
	}
	return b, nil
}
