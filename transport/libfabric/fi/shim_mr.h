// Memory regions. weft_mr_attr takes the place of struct fi_mr_attr: it has no unions, and is the
// same for all versions of the headers.

#ifndef WEFT_FI_SHIM_MR_H
#define WEFT_FI_SHIM_MR_H

#include "shim.h"

// The attributes of a region, as Go passes them. iov, dmabuf_base and context are integers, because
// Go must never hold a pointer that may not be a valid address.
struct weft_mr_attr {
	uintptr_t iov; // address of iov_count struct iovec; 0: the memory is a dma-buf
	size_t iov_count;
	int dmabuf_fd;
	uint64_t dmabuf_offset;
	size_t dmabuf_len;
	uintptr_t dmabuf_base;
	uint64_t access;
	uint64_t offset;
	uint64_t requested_key;
	uintptr_t context;
	size_t auth_key_size;
	uint8_t *auth_key;
	int iface;
	int64_t device;
	size_t page_size;
	struct fid_mr *base;
	size_t sub_count;
};

static inline int weft_mr_reg(struct fid_domain *domain, uintptr_t buf, size_t len,
			      uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
			      struct fid_mr **mr)
{
	if (!domain->mr)
		return -FI_ENOSYS;
	return fi_mr_reg(domain, (const void *) buf, len, access, offset, key, flags, mr, NULL);
}

static inline int weft_mr_regv(struct fid_domain *domain, uintptr_t iov, size_t count,
			       uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
			       struct fid_mr **mr)
{
	if (!domain->mr)
		return -FI_ENOSYS;
	return fi_mr_regv(domain, (const struct iovec *) iov, count, access, offset, key, flags,
			  mr, NULL);
}

static inline int weft_mr_regattr(struct fid_domain *domain, const struct weft_mr_attr *a,
				  uint64_t flags, struct fid_mr **mr)
{
	struct fi_mr_attr attr;

	if (!domain->mr)
		return -FI_ENOSYS;
	memset(&attr, 0, sizeof(attr));
	attr.mr_iov = (const struct iovec *) a->iov;
	attr.iov_count = a->iov_count;
	attr.access = a->access;
	attr.offset = a->offset;
	attr.requested_key = a->requested_key;
	attr.context = (void *) a->context;
	attr.auth_key_size = a->auth_key_size;
	attr.auth_key = a->auth_key;
	attr.iface = (enum fi_hmem_iface) a->iface;
	switch (attr.iface) {
	case FI_HMEM_CUDA:
		attr.device.cuda = (int) a->device;
		break;
	case FI_HMEM_ZE:
		attr.device.ze = (int) a->device;
		break;
	case FI_HMEM_NEURON:
		attr.device.neuron = (int) a->device;
		break;
	case FI_HMEM_SYNAPSEAI:
		attr.device.synapseai = (int) a->device;
		break;
	default:
		attr.device.reserved = (uint64_t) a->device;
	}
#if WEFT_HEADERS_AT_LEAST(2, 0)
	struct fi_mr_dmabuf dmabuf = {
		.fd = a->dmabuf_fd,
		.offset = a->dmabuf_offset,
		.len = a->dmabuf_len,
		.base_addr = (void *) a->dmabuf_base,
	};
	if (flags & FI_MR_DMABUF) {
		attr.dmabuf = &dmabuf;
		attr.iov_count = 1;
	}
	attr.page_size = a->page_size;
	attr.base_mr = a->base;
	attr.sub_mr_cnt = a->sub_count;
#else
	if (!a->iov || a->base)
		return -FI_ENOSYS;
#endif
	return fi_mr_regattr(domain, &attr, flags, mr);
}

static inline uintptr_t weft_mr_desc(struct fid_mr *mr)
{
	return (uintptr_t) fi_mr_desc(mr);
}

static inline int weft_mr_refresh(struct fid_mr *mr, uintptr_t iov, size_t count,
				  uint64_t flags)
{
	return fi_mr_refresh(mr, (const struct iovec *) iov, count, flags);
}

// weft_mr_auth_key allocates a struct fi_mr_auth_key, which libfabric 1.17 lacks, and stores its
// size in *size. The caller frees it. With headers that lack the structure, WEFT_MR_AUTH_KEY is 0.
#if WEFT_HEADERS_AT_LEAST(2, 0)
#define WEFT_MR_AUTH_KEY 1
static inline uint8_t *weft_mr_auth_key(struct fid_av *av, fi_addr_t src, size_t *size)
{
	struct fi_mr_auth_key *key = calloc(1, sizeof(*key));

	if (key) {
		key->av = av;
		key->src_addr = src;
		*size = sizeof(*key);
	}
	return (uint8_t *) key;
}
#else
#define WEFT_MR_AUTH_KEY 0
static inline uint8_t *weft_mr_auth_key(struct fid_av *av, fi_addr_t src, size_t *size)
{
	return NULL;
}
#endif

#endif
