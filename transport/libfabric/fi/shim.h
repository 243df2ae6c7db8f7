// What Go cannot say to libfabric by itself: calls that take addresses of
// pinned memory as integers, several calls in one crossing, and what differs
// between the headers of libfabric 1.17 and 2.x.

#ifndef WEFT_FI_SHIM_H
#define WEFT_FI_SHIM_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

// The version of the headers, as FI_VERSION makes it.
#define WEFT_HEADERS FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)
#define WEFT_HEADERS_AT_LEAST(major, minor) \
	(FI_MAJOR_VERSION > (major) || (FI_MAJOR_VERSION == (major) && FI_MINOR_VERSION >= (minor)))

#if !WEFT_HEADERS_AT_LEAST(1, 17)
#error "weft needs libfabric 1.17 or newer"
#endif

#endif
