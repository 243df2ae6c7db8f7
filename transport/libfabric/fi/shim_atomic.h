// Atomic operations, with addresses of pinned memory, descriptors and contexts as integers. If a
// provider has no atomics, its ops table is null, and the functions return -FI_ENOSYS.

#ifndef WEFT_FI_SHIM_ATOMIC_H
#define WEFT_FI_SHIM_ATOMIC_H

#include "shim.h"

typedef long double weft_long_double;

// The first numbers after the last datatype and the last operation of the headers. Numbers from
// there on must not reach the library, because a provider may use them as an index beyond the end
// of a table.
#if WEFT_HEADERS_AT_LEAST(2, 0)
#define WEFT_DATATYPE_END (FI_FLOAT8_E5M2 + 1)
#define WEFT_ATOMIC_OP_END (FI_DIFF + 1)
_Static_assert(FI_FLOAT16 == 16 && FI_BFLOAT16 == 17 && FI_FLOAT8_E4M3 == 18 && FI_FLOAT8_E5M2 == 19, "datatypes");
_Static_assert(FI_DIFF == 19, "operations");
#else
#define WEFT_DATATYPE_END (FI_UINT128 + 1)
#define WEFT_ATOMIC_OP_END (FI_MSWAP + 1)
#endif

// The families of atomic operations: plain, fetching and comparing. weft_atomicvalid calls
// fi_atomicvalid or its variant for the family.
enum weft_family { WEFT_BASE, WEFT_FETCH, WEFT_COMPARE };

static inline int weft_atomicvalid(uintptr_t fid, enum weft_family family, uint32_t datatype, uint32_t op,
				   size_t *count)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	switch (family) {
	case WEFT_BASE:
		return fi_atomicvalid(ep, datatype, op, count);
	case WEFT_FETCH:
		return fi_fetch_atomicvalid(ep, datatype, op, count);
	case WEFT_COMPARE:
		return fi_compare_atomicvalid(ep, datatype, op, count);
	}
	return -FI_EINVAL;
}

// The arguments that all families have in common: the target and the operation.
struct weft_target {
	fi_addr_t dest;
	uint64_t addr, key;
	uint32_t datatype, op;
};

static inline ssize_t weft_atomic(uintptr_t fid, uintptr_t buf, size_t count, uintptr_t desc,
				  struct weft_target t, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	return fi_atomic(ep, (const void *) buf, count, (void *) desc, t.dest, t.addr, t.key, t.datatype, t.op,
			 (void *) context);
}

static inline ssize_t weft_inject_atomic(uintptr_t fid, uintptr_t buf, size_t count, struct weft_target t)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	return fi_inject_atomic(ep, (const void *) buf, count, t.dest, t.addr, t.key, t.datatype, t.op);
}

static inline ssize_t weft_fetch_atomic(uintptr_t fid, uintptr_t buf, size_t count, uintptr_t desc,
					uintptr_t result, uintptr_t result_desc, struct weft_target t,
					uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	return fi_fetch_atomic(ep, (const void *) buf, count, (void *) desc, (void *) result, (void *) result_desc,
			       t.dest, t.addr, t.key, t.datatype, t.op, (void *) context);
}

static inline ssize_t weft_compare_atomic(uintptr_t fid, uintptr_t buf, size_t count, uintptr_t desc,
					  uintptr_t compare, uintptr_t compare_desc, uintptr_t result,
					  uintptr_t result_desc, struct weft_target t, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	return fi_compare_atomic(ep, (const void *) buf, count, (void *) desc, (const void *) compare,
				 (void *) compare_desc, (void *) result, (void *) result_desc, t.dest, t.addr, t.key,
				 t.datatype, t.op, (void *) context);
}

// A vector of buffers: the addresses of its struct fi_ioc and descriptor arrays.
struct weft_iocs {
	uintptr_t iov, desc;
	size_t count;
};

static inline ssize_t weft_atomicv(uintptr_t fid, struct weft_iocs v, struct weft_target t, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	return fi_atomicv(ep, (const struct fi_ioc *) v.iov, (void **) v.desc, v.count, t.dest, t.addr, t.key,
			  t.datatype, t.op, (void *) context);
}

static inline ssize_t weft_fetch_atomicv(uintptr_t fid, struct weft_iocs v, struct weft_iocs result,
					 struct weft_target t, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	return fi_fetch_atomicv(ep, (const struct fi_ioc *) v.iov, (void **) v.desc, v.count,
				(struct fi_ioc *) result.iov, (void **) result.desc, result.count, t.dest, t.addr,
				t.key, t.datatype, t.op, (void *) context);
}

static inline ssize_t weft_compare_atomicv(uintptr_t fid, struct weft_iocs v, struct weft_iocs compare,
					   struct weft_iocs result, struct weft_target t, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	return fi_compare_atomicv(ep, (const struct fi_ioc *) v.iov, (void **) v.desc, v.count,
				  (const struct fi_ioc *) compare.iov, (void **) compare.desc, compare.count,
				  (struct fi_ioc *) result.iov, (void **) result.desc, result.count, t.dest, t.addr,
				  t.key, t.datatype, t.op, (void *) context);
}

// weft_atomicmsg calls fi_atomicmsg, fi_fetch_atomicmsg or fi_compare_atomicmsg.
// It uses the addresses and keys in rma, not those in t.
static inline ssize_t weft_atomicmsg(uintptr_t fid, enum weft_family family, struct weft_iocs v,
				     struct weft_iocs compare, struct weft_iocs result, struct weft_target t,
				     uintptr_t rma, size_t rma_count, uintptr_t context, uint64_t data,
				     uint64_t flags)
{
	struct fi_msg_atomic msg = {
		.msg_iov = (const struct fi_ioc *) v.iov,
		.desc = (void **) v.desc,
		.iov_count = v.count,
		.addr = t.dest,
		.rma_iov = (const struct fi_rma_ioc *) rma,
		.rma_iov_count = rma_count,
		.datatype = t.datatype,
		.op = t.op,
		.context = (void *) context,
		.data = data,
	};
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->atomic)
		return -FI_ENOSYS;
	switch (family) {
	case WEFT_BASE:
		return fi_atomicmsg(ep, &msg, flags);
	case WEFT_FETCH:
		return fi_fetch_atomicmsg(ep, &msg, (struct fi_ioc *) result.iov, (void **) result.desc,
					  result.count, flags);
	case WEFT_COMPARE:
		return fi_compare_atomicmsg(ep, &msg, (const struct fi_ioc *) compare.iov, (void **) compare.desc,
					    compare.count, (struct fi_ioc *) result.iov, (void **) result.desc,
					    result.count, flags);
	}
	return -FI_EINVAL;
}

#endif
