// Remote memory access, with addresses of pinned memory, descriptors and contexts as integers. If a
// provider has no RMA, its ops table is null, and the functions return -FI_ENOSYS.

#ifndef WEFT_FI_SHIM_RMA_H
#define WEFT_FI_SHIM_RMA_H

#include "shim.h"

static inline ssize_t weft_read(uintptr_t fid, uintptr_t buf, size_t len, uintptr_t desc, fi_addr_t src,
				uint64_t addr, uint64_t key, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return fi_read(ep, (void *) buf, len, (void *) desc, src, addr, key, (void *) context);
}

static inline ssize_t weft_readv(uintptr_t fid, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t src,
				 uint64_t addr, uint64_t key, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return fi_readv(ep, (const struct iovec *) iov, (void **) desc, count, src, addr, key, (void *) context);
}

static inline ssize_t weft_write(uintptr_t fid, uintptr_t buf, size_t len, uintptr_t desc, fi_addr_t dest,
				 uint64_t addr, uint64_t key, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return fi_write(ep, (const void *) buf, len, (void *) desc, dest, addr, key, (void *) context);
}

static inline ssize_t weft_writev(uintptr_t fid, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t dest,
				  uint64_t addr, uint64_t key, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return fi_writev(ep, (const struct iovec *) iov, (void **) desc, count, dest, addr, key, (void *) context);
}

static inline ssize_t weft_writedata(uintptr_t fid, uintptr_t buf, size_t len, uintptr_t desc, uint64_t data,
				     fi_addr_t dest, uint64_t addr, uint64_t key, uintptr_t context)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return fi_writedata(ep, (const void *) buf, len, (void *) desc, data, dest, addr, key, (void *) context);
}

static inline ssize_t weft_inject_write(uintptr_t fid, uintptr_t buf, size_t len, fi_addr_t dest, uint64_t addr,
					uint64_t key)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return fi_inject_write(ep, (const void *) buf, len, dest, addr, key);
}

static inline ssize_t weft_inject_writedata(uintptr_t fid, uintptr_t buf, size_t len, uint64_t data,
					    fi_addr_t dest, uint64_t addr, uint64_t key)
{
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return fi_inject_writedata(ep, (const void *) buf, len, data, dest, addr, key);
}

// weft_rmamsg calls fi_writemsg if write is not 0, else fi_readmsg.
static inline ssize_t weft_rmamsg(uintptr_t fid, int write, uintptr_t iov, uintptr_t desc, size_t count,
				  fi_addr_t addr, uintptr_t rma, size_t rma_count, uintptr_t context, uint64_t data,
				  uint64_t flags)
{
	struct fi_msg_rma msg = {
		.msg_iov = (const struct iovec *) iov,
		.desc = (void **) desc,
		.iov_count = count,
		.addr = addr,
		.rma_iov = (const struct fi_rma_iov *) rma,
		.rma_iov_count = rma_count,
		.context = (void *) context,
		.data = data,
	};
	struct fid_ep *ep = (struct fid_ep *) fid;
	if (!ep->rma)
		return -FI_ENOSYS;
	return write ? fi_writemsg(ep, &msg, flags) : fi_readmsg(ep, &msg, flags);
}

#endif
