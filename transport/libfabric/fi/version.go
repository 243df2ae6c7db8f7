//go:build libfabric

package fi

// #include "shim.h"
import "C"

import "fmt"

// Version is a version of libfabric or of its interface.
type Version uint32

// MakeVersion is FI_VERSION.
func MakeVersion(major, minor int) Version { return Version(major<<16 | minor) }

// HeaderVersion is the version of the headers that this was built with, and the
// newest interface to ask GetInfo for.
const HeaderVersion = Version(C.WEFT_HEADERS)

// LibraryVersion is the version of the library that is loaded (fi_version).
func LibraryVersion() Version { return Version(C.fi_version()) }

// Major is the first number of a version.
func (v Version) Major() int { return int(v >> 16) }

// Minor is the second number of a version.
func (v Version) Minor() int { return int(v & 0xffff) }

// String is as "1.17".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) }
