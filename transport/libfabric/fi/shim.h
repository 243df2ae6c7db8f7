// Calls of libfabric that Go cannot make directly: those that take addresses of
// pinned memory as integers, several calls in one call from Go, and those that
// differ between the headers of libfabric 1.17 and 2.x.

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

// The version of the headers, in the form of FI_VERSION.
#define WEFT_HEADERS FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)
#define WEFT_HEADERS_AT_LEAST(major, minor) \
	(FI_MAJOR_VERSION > (major) || (FI_MAJOR_VERSION == (major) && FI_MINOR_VERSION >= (minor)))

#if !WEFT_HEADERS_AT_LEAST(1, 17)
#error "weft needs libfabric 1.17 or newer"
#endif

// The values of constants that some headers define with a _Pragma, which cgo cannot parse.
#define WEFT_MR_UNSPEC 0
#define WEFT_MR_BASIC (1 << 0)
#define WEFT_MR_SCALABLE (1 << 1)
#define WEFT_LOCAL_MR (1ULL << 55)
#define WEFT_REG_MR (1ULL << 59)
#define WEFT_ORDER_STRICT 0x1FFULL
#define WEFT_ORDER_DATA (1ULL << 16)

// Constants that only libfabric 1.x or only 2.x has. With headers that lack a bit, its constant is
// zero, because these headers may use the same bit for something else.
#if WEFT_HEADERS_AT_LEAST(2, 0)
#define WEFT_PRIORITY 0ULL
#define WEFT_VARIABLE_MSG 0ULL
#define WEFT_NOTIFY_FLAGS_ONLY 0ULL
#define WEFT_RESTRICTED_COMP 0ULL
#define WEFT_BUFFERED_RECV 0ULL
#define WEFT_TAGGED_DIRECTED_RECV FI_TAGGED_DIRECTED_RECV
#define WEFT_TAGGED_MULTI_RECV FI_TAGGED_MULTI_RECV
#define WEFT_EXACT_DIRECTED_RECV FI_EXACT_DIRECTED_RECV
#define WEFT_AUTH_KEY FI_AUTH_KEY
#define WEFT_MR_DMABUF FI_MR_DMABUF
#define WEFT_MR_SINGLE_USE FI_MR_SINGLE_USE
#define WEFT_PROGRESS_CONTROL_UNIFIED FI_PROGRESS_CONTROL_UNIFIED
#define WEFT_ADDR_UCX FI_ADDR_UCX
#else
#define WEFT_PRIORITY FI_PRIORITY
#define WEFT_VARIABLE_MSG FI_VARIABLE_MSG
#define WEFT_NOTIFY_FLAGS_ONLY FI_NOTIFY_FLAGS_ONLY
#define WEFT_RESTRICTED_COMP FI_RESTRICTED_COMP
#define WEFT_BUFFERED_RECV FI_BUFFERED_RECV
#define WEFT_TAGGED_DIRECTED_RECV 0ULL
#define WEFT_TAGGED_MULTI_RECV 0ULL
#define WEFT_EXACT_DIRECTED_RECV 0ULL
#define WEFT_AUTH_KEY 0ULL
#define WEFT_MR_DMABUF 0ULL
#define WEFT_MR_SINGLE_USE 0ULL
#define WEFT_PROGRESS_CONTROL_UNIFIED (FI_PROGRESS_MANUAL + 1)
#define WEFT_ADDR_UCX (FI_ADDR_CXI + 1)
#endif

// Constants that were added in versions after 2.0. With headers that lack one, it is zero, except
// WEFT_SOCKADDR_IP.
#ifdef FI_RESCAN
#define WEFT_RESCAN FI_RESCAN
#else
#define WEFT_RESCAN 0ULL
#endif
#ifdef FI_FIREWALL_ADDR
#define WEFT_FIREWALL FI_FIREWALL_ADDR
#else
#define WEFT_FIREWALL 0ULL
#endif
#ifdef FI_XPU
#define WEFT_XPU FI_XPU
#else
#define WEFT_XPU 0ULL
#endif
#ifdef FI_MR_XPU_DESC
#define WEFT_MR_XPU_DESC FI_MR_XPU_DESC
#else
#define WEFT_MR_XPU_DESC 0
#endif
#define WEFT_SOCKADDR_IP (WEFT_ADDR_UCX + 1)

// In 2.x data_progress of fi_domain_attr is in an unnamed union, and the last members differ
// between versions. Go accesses these members through the structure and the functions here, which
// are the same for all versions.
struct weft_domain_rest {
	size_t max_ep_auth_key, max_xpu_ctx_cnt;
	uint32_t max_group_id;
	uint64_t max_cntr_value, max_err_cntr_value;
};

static inline enum fi_progress *weft_data_progress(struct fi_domain_attr *a)
{
	return &a->data_progress;
}

static inline void weft_domain_rest_get(const struct fi_domain_attr *a, struct weft_domain_rest *r)
{
	memset(r, 0, sizeof *r);
#if WEFT_HEADERS_AT_LEAST(1, 20)
	r->max_ep_auth_key = a->max_ep_auth_key;
#endif
#if WEFT_HEADERS_AT_LEAST(2, 0)
	r->max_group_id = a->max_group_id;
#endif
#if WEFT_HEADERS_AT_LEAST(2, 5)
	r->max_cntr_value = a->max_cntr_value;
	r->max_err_cntr_value = a->max_err_cntr_value;
#endif
#if WEFT_HEADERS_AT_LEAST(2, 6)
	r->max_xpu_ctx_cnt = a->max_xpu_ctx_cnt;
#endif
}

static inline void weft_domain_rest_set(struct fi_domain_attr *a, const struct weft_domain_rest *r)
{
#if WEFT_HEADERS_AT_LEAST(1, 20)
	a->max_ep_auth_key = r->max_ep_auth_key;
#endif
#if WEFT_HEADERS_AT_LEAST(2, 0)
	a->max_group_id = r->max_group_id;
#endif
#if WEFT_HEADERS_AT_LEAST(2, 5)
	a->max_cntr_value = r->max_cntr_value;
	a->max_err_cntr_value = r->max_err_cntr_value;
#endif
#if WEFT_HEADERS_AT_LEAST(2, 6)
	a->max_xpu_ctx_cnt = r->max_xpu_ctx_cnt;
#endif
}

#endif
