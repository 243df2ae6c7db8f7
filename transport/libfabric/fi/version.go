//go:build libfabric

package fi

// #include "shim.h"
import "C"

import "fmt"

// Version is a version of libfabric or of its interface.
type Version uint32

// MakeVersion returns the version major.minor (FI_VERSION).
func MakeVersion(major, minor int) Version { return Version(major<<16 | minor) }

// HeaderVersion is the version of the libfabric headers that the program was compiled with. It is
// also the newest version of the interface that the program can request from GetInfo.
const HeaderVersion = Version(C.WEFT_HEADERS)

// LibraryVersion returns the version of the loaded library (fi_version).
func LibraryVersion() Version { return Version(C.fi_version()) }

// Major returns the major version.
func (v Version) Major() int { return int(v >> 16) }

// Minor returns the minor version.
func (v Version) Minor() int { return int(v & 0xffff) }

// String returns the version in the form "1.17".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major(), v.Minor()) }
