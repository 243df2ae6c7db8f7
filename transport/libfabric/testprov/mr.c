/* Memory registration: keys, the checks of local descriptors, and those of peers' accesses. */
#include <sys/mman.h>
#include <unistd.h>

#include "testprov.h"

static int mode(const struct tp_domain *d)
{
	const int m = d->info->domain_attr->mr_mode;

	return m == FI_MR_BASIC ? FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY : m & ~FI_MR_SCALABLE;
}

/* Reports whether every page of the memory is mapped. Otherwise an access would end the process. */
static bool mapped(const void *buf, size_t len)
{
	const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
	const uintptr_t first = (uintptr_t) buf & ~(page - 1);
	const uintptr_t end = (uintptr_t) buf + len;
	unsigned char ignored[64];

	for (uintptr_t at = first; at < end; at += page * sizeof ignored) {
		uintptr_t n = end - at < page * sizeof ignored ? end - at : page * sizeof ignored;

		if (mincore((void *) at, n, ignored))
			return false;
	}
	return true;
}

static struct tp_mr *by_key(struct tp_domain *d, uint64_t key)
{
	tp_list_each(&d->regions, struct tp_mr, r)
		if (r->fid.key == key)
			return r;
	return NULL;
}

/* Checks the descriptors of local memory that an operation uses. They must be those of regions that
 * have the memory and permit the access, if the domain has FI_MR_LOCAL, or if the memory is that of a
 * device. A region registered as FI_HMEM_SYSTEM is refused for device memory. */
int tp_mr_local(struct tp_domain *d, const struct iovec *iov, void **desc, size_t count, uint64_t access)
{
	for (size_t i = 0; i < count; i++) {
		const bool device = tp_device_has(iov[i].iov_base, iov[i].iov_len);
		struct tp_mr *mr = NULL;
		bool within = false;

		if (!iov[i].iov_len || !(device || mode(d) & FI_MR_LOCAL))
			continue;
		tp_list_each(&d->regions, struct tp_mr, r)
			if (desc && desc[i] == r)
				mr = r;
		if (!mr || (mr->access & access) != access || device != (mr->iface != FI_HMEM_SYSTEM))
			return -FI_EINVAL;
		for (size_t k = 0; k < mr->count; k++) {
			uintptr_t off = (uintptr_t) iov[i].iov_base - (uintptr_t) mr->iov[k].iov_base;

			within |= off <= mr->iov[k].iov_len && iov[i].iov_len <= mr->iov[k].iov_len - off;
		}
		if (!within)
			return -FI_EINVAL;
	}
	return 0;
}

/* Finds the memory that a peer accesses, and stores its segments in out, which has room for *count.
 * It returns the errno of the refusal, or 0. */
int tp_mr_remote(struct tp_ep *ep, uint64_t addr, uint64_t key, size_t len, uint64_t access,
		 struct iovec *out, size_t *count, struct tp_mr **mr)
{
	struct tp_domain *d = ep->domain;
	struct tp_mr *r = by_key(d, key);
	size_t at, n = 0;

	if (!r || !r->enabled || (mode(d) & FI_MR_ENDPOINT && r->ep != ep))
		return FI_EKEYREJECTED;
	if ((r->access & access) != access)
		return FI_EACCES;
	at = mode(d) & FI_MR_VIRT_ADDR ? (size_t) (addr - (uintptr_t) r->iov[0].iov_base)
				       : (size_t) (addr - r->offset);
	if (at > r->len || len > r->len - at)
		return FI_EACCES;
	for (size_t i = 0; i < r->count && len; i++) {
		size_t part = r->iov[i].iov_len;

		if (at >= part) {
			at -= part;
			continue;
		}
		part = part - at < len ? part - at : len;
		if (n == *count)
			return FI_EINVAL;
		out[n].iov_base = (char *) r->iov[i].iov_base + at;
		out[n].iov_len = part;
		if (!mapped(out[n].iov_base, part))
			return FI_EFAULT;
		n++;
		len -= part;
		at = 0;
	}
	*count = n;
	*mr = r;
	return 0;
}

static int mr_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	struct tp_mr *mr = container_of(fid, struct tp_mr, fid.fid);
	int rc = 0;

	tp_lock(mr->domain);
	if (with->fclass == FI_CLASS_EP && mode(mr->domain) & FI_MR_ENDPOINT && !mr->ep) {
		mr->ep = container_of(with, struct tp_ep, fid.fid);
		mr->ep->regions++;
	} else if (with->fclass == FI_CLASS_CNTR && flags & FI_REMOTE_WRITE && !mr->cntr) {
		mr->cntr = container_of(with, struct tp_cntr, fid.fid);
		mr->cntr->refs++;
	} else {
		rc = -FI_EINVAL;
	}
	tp_unlock(mr->domain);
	return rc;
}

static int mr_control(struct fid *fid, int command, void *arg)
{
	struct tp_mr *mr = container_of(fid, struct tp_mr, fid.fid);
	int rc;

	(void) arg;
	if (command != FI_ENABLE)
		return -FI_ENOSYS;
	tp_lock(mr->domain);
	mr->enabled = !(mode(mr->domain) & FI_MR_ENDPOINT) || (mr->ep && mr->ep->enabled);
	rc = mr->enabled ? 0 : -FI_EOPBADSTATE;
	tp_unlock(mr->domain);
	return rc;
}

static int mr_close(struct fid *fid)
{
	struct tp_mr *mr = container_of(fid, struct tp_mr, fid.fid);
	struct tp_domain *d = mr->domain;

	tp_lock(d);
	if (d->script.eclose && ++d->faults.closes == d->script.eclose) {
		tp_unlock(d);
		return -FI_EBUSY;
	}
	tp_list_remove(&mr->link);
	if (mr->ep)
		mr->ep->regions--;
	if (mr->cntr)
		mr->cntr->refs--;
	d->refs--;
	tp_unlock(d);
	if (mr->iface != FI_HMEM_SYSTEM)
		tp_device_remove(mr->iov, mr->count);
	free(mr);
	return 0;
}

/* Chooses the key of a new region, or checks the caller's. */
static int choose_key(struct tp_domain *d, uint64_t requested, uint64_t *key)
{
	const size_t size = d->script.m.key_size;
	const uint64_t mask = size < 8 ? (1ULL << 8 * size) - 1 : UINT64_MAX;

	if (mode(d) & FI_MR_PROV_KEY) {
		/* Keys that the provider chooses are not in sequence. */
		do {
			*key = d->next_key * 0x9e3779b1ULL & mask;
			d->next_key++;
		} while (!*key || by_key(d, *key));
		return 0;
	}
	if (requested & ~mask)
		return -FI_EKEYREJECTED;
	*key = requested;
	return by_key(d, requested) ? -FI_ENOKEY : 0;
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
	static struct fi_ops ops = {
		.size = sizeof ops, .close = mr_close, .bind = mr_bind,
		.control = mr_control, .ops_open = tp_no_ops_open,
	};
	struct tp_domain *d = container_of(fid, struct tp_domain, fid.fid);
	struct tp_mr *r;
	int rc = 0;

	if (fid->fclass != FI_CLASS_DOMAIN || flags & ~FI_RMA_EVENT || !attr->iov_count || attr->iov_count > TP_IOV_MAX)
		return -FI_EINVAL;
	rc = tp_device_check(d, attr);
	if (rc)
		return rc;
	if (mode(d) & FI_MR_ALLOCATED)
		for (size_t i = 0; i < attr->iov_count; i++)
			if (!mapped(attr->mr_iov[i].iov_base, attr->mr_iov[i].iov_len))
				return -FI_EFAULT;
	if (d->script.pin)
		usleep(d->script.pin);
	r = calloc(1, sizeof *r);
	if (!r)
		return -FI_ENOMEM;
	r->fid.fid = (struct fid){FI_CLASS_MR, attr->context, &ops};
	r->domain = d;
	memcpy(r->iov, attr->mr_iov, attr->iov_count * sizeof *r->iov);
	r->count = attr->iov_count;
	r->len = tp_iov_len(r->iov, r->count);
	r->access = attr->access;
	r->offset = attr->offset;
	r->iface = attr->iface;
	r->enabled = !(mode(d) & (FI_MR_ENDPOINT | FI_MR_RMA_EVENT));
	r->fid.mem_desc = r;
	if (r->iface != FI_HMEM_SYSTEM) {
		rc = tp_device_add(r->iov, r->count);
		if (rc) {
			free(r);
			return rc;
		}
	}
	tp_lock(d);
	if (d->nic > 0 && d->script.emr && ++d->faults.registrations > d->script.emr)
		rc = -FI_ENOMEM;
	else
		rc = choose_key(d, attr->requested_key, &r->fid.key);
	if (!rc) {
		tp_list_add(&d->regions, &r->link);
		d->refs++;
	}
	tp_unlock(d);
	if (rc) {
		if (r->iface != FI_HMEM_SYSTEM)
			tp_device_remove(r->iov, r->count);
		free(r);
		return rc;
	}
	*mr = &r->fid;
	if (d->eq)
		tp_eq_put(d->eq, FI_MR_COMPLETE, &r->fid.fid, attr->context, 0);
	return 0;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset,
		   uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
	const struct fi_mr_attr attr = {
		.mr_iov = iov, .iov_count = count, .access = access, .offset = offset,
		.requested_key = key, .context = context,
	};

	return mr_regattr(fid, &attr, flags, mr);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
		  uint64_t flags, struct fid_mr **mr, void *context)
{
	const struct iovec iov = {(void *) buf, len};

	return mr_regv(fid, &iov, 1, access, offset, key, flags, mr, context);
}

struct fi_ops_mr tp_mr_ops = {
	.size = sizeof tp_mr_ops, .reg = mr_reg, .regv = mr_regv, .regattr = mr_regattr,
};
