// Connection management. If a provider has none, its ops table is null, and the
// calls return -FI_ENOSYS.

#ifndef WEFT_FI_SHIM_CM_H
#define WEFT_FI_SHIM_CM_H

#include "shim.h"

static inline int weft_connect(struct fid_ep *ep, const void *addr, const void *param, size_t len)
{
	return ep->cm ? fi_connect(ep, addr, param, len) : -FI_ENOSYS;
}

static inline int weft_accept(struct fid_ep *ep, const void *param, size_t len)
{
	return ep->cm ? fi_accept(ep, param, len) : -FI_ENOSYS;
}

static inline int weft_shutdown(struct fid_ep *ep)
{
	return ep->cm ? fi_shutdown(ep, 0) : -FI_ENOSYS;
}

static inline int weft_getpeer(struct fid_ep *ep, void *addr, size_t *len)
{
	return ep->cm ? fi_getpeer(ep, addr, len) : -FI_ENOSYS;
}

static inline int weft_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc)
{
	return ep->cm ? fi_join(ep, addr, flags, mc, NULL) : -FI_ENOSYS;
}

static inline int weft_backlog(struct fid_pep *pep, int backlog)
{
	return fi_control(&pep->fid, FI_BACKLOG, &backlog);
}

// weft_cm_data_size stores the largest size of the private data of a connection request or its
// answer, in bytes, in *size.
static inline int weft_cm_data_size(struct fid *fid, size_t *size)
{
	size_t len = sizeof(*size);
	return fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, size, &len);
}

#endif
