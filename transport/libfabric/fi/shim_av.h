// Address vectors: calls that the headers of libfabric 1.17 lack, and calls that the headers of 2.x
// mark as deprecated.

#ifndef WEFT_FI_SHIM_AV_H
#define WEFT_FI_SHIM_AV_H

#include "shim.h"

// Calls fi_av_open with *map_addr as attr->map_addr, and stores the value that attr->map_addr has
// afterwards in *map_addr. It is an integer there, because Go must never hold a pointer that may
// not be a valid address.
static inline int weft_av_open(struct fid_domain *domain, struct fi_av_attr *attr,
			       uintptr_t *map_addr, struct fid_av **av)
{
	int rc;

	attr->map_addr = (void *) *map_addr;
	rc = fi_av_open(domain, attr, av, NULL);
	*map_addr = (uintptr_t) attr->map_addr;
	return rc;
}

// Does what fi_av_bind does. The headers of 2.x mark fi_av_bind as deprecated, and a call of it
// would cause a warning of the compiler.
static inline int weft_av_bind(struct fid_av *av, struct fid *eq, uint64_t flags)
{
	return av->fid.ops->bind(&av->fid, eq, flags);
}

static inline int weft_av_insert(struct fid_av *av, const void *addr, size_t count,
				 fi_addr_t *fi_addr, uint64_t flags, uintptr_t context)
{
	return fi_av_insert(av, addr, count, fi_addr, flags, (void *) context);
}

static inline int weft_av_insertsvc(struct fid_av *av, const char *node, const char *service,
				    fi_addr_t *fi_addr, uint64_t flags, uintptr_t context)
{
	return FI_CHECK_OP(av->ops, struct fi_ops_av, insertsvc) ?
		fi_av_insertsvc(av, node, service, fi_addr, flags, (void *) context) : -FI_ENOSYS;
}

static inline int weft_av_insertsym(struct fid_av *av, const char *node, size_t nodes,
				    const char *service, size_t services, fi_addr_t *fi_addr,
				    uint64_t flags, uintptr_t context)
{
	return FI_CHECK_OP(av->ops, struct fi_ops_av, insertsym) ?
		fi_av_insertsym(av, node, nodes, service, services, fi_addr, flags,
				(void *) context) : -FI_ENOSYS;
}

#if WEFT_HEADERS_AT_LEAST(2, 0)
#define WEFT_AV_AUTH_KEY 1
#define weft_av_insert_auth_key fi_av_insert_auth_key
#define weft_av_lookup_auth_key fi_av_lookup_auth_key
#define weft_av_set_user_id fi_av_set_user_id
#else
#define WEFT_AV_AUTH_KEY 0
static inline int weft_av_insert_auth_key(struct fid_av *av, const void *key, size_t size,
					  fi_addr_t *fi_addr, uint64_t flags)
{
	return -FI_ENOSYS;
}
static inline int weft_av_lookup_auth_key(struct fid_av *av, fi_addr_t addr, void *key,
					  size_t *size)
{
	return -FI_ENOSYS;
}
static inline int weft_av_set_user_id(struct fid_av *av, fi_addr_t fi_addr, fi_addr_t user_id,
				      uint64_t flags)
{
	return -FI_ENOSYS;
}
#endif

#if WEFT_HEADERS_AT_LEAST(2, 0)
#define WEFT_GROUP_ADDR 1
#else
#define WEFT_GROUP_ADDR 0
#endif

#endif
