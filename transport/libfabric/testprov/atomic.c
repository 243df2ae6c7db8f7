/* The calls of atomic operations: plain, fetching and comparing. */
#include "testprov.h"

static struct tp_ep *ep_of(struct fid_ep *fid)
{
	return container_of(fid, struct tp_ep, fid);
}

/* The local operands beside those of fi_msg_atomic. */
struct operands {
	const struct fi_ioc *compare, *result;
	void **compare_desc, **result_desc;
	size_t compares, results;
};

static int to_iov(const struct fi_ioc *ioc, size_t count, size_t size, struct iovec *iov)
{
	if (count > TP_IOV_MAX)
		return -FI_EINVAL;
	for (size_t i = 0; i < count; i++)
		iov[i] = (struct iovec){ioc[i].addr, ioc[i].count * size};
	return 0;
}

static ssize_t atomic(struct fid_ep *fid, bool inject, const struct fi_msg_atomic *m, const struct operands *o,
		      uint64_t flags)
{
	const size_t size = tp_type_size(m->datatype);
	const bool read = m->op == FI_ATOMIC_READ;
	const bool fetches = o->result, compares = o->compare;
	struct iovec iov[TP_IOV_MAX], compare[TP_IOV_MAX], result[TP_IOV_MAX];
	struct fi_rma_iov remote[TP_IOV_MAX];
	struct tp_request r = {
		.ep = ep_of(fid), .kind = TP_ATOMIC, .dest = m->addr, .context = m->context, .flags = flags,
		.data = m->data, .has_data = flags & FI_REMOTE_CQ_DATA, .inject = inject,
		.iov = iov, .desc = m->desc, .count = read ? 0 : m->iov_count,
		.result = result, .result_desc = o->result_desc, .results = o->results,
		.remote = remote, .remotes = m->rma_iov_count, .datatype = m->datatype, .op = m->op,
		.wire = (fetches ? TP_FETCH : 0) | (compares ? TP_COMPARE : 0),
		.completion = FI_ATOMIC | (fetches ? FI_READ : FI_WRITE),
		.counter = fetches ? TP_CNTR_READ : TP_CNTR_WRITE,
	};
	size_t far = 0, near;
	uint8_t *head = NULL;
	ssize_t rc;

	if (!tp_atomic_valid(m->datatype, m->op, fetches, compares))
		return -FI_EOPNOTSUPP;
	if (m->rma_iov_count > TP_IOV_MAX || to_iov(m->msg_iov, r.count, size, iov) ||
	    to_iov(o->compare, o->compares, size, compare) || to_iov(o->result, o->results, size, result))
		return -FI_EINVAL;
	for (size_t i = 0; i < m->rma_iov_count; i++) {
		remote[i] = (struct fi_rma_iov){m->rma_iov[i].addr, m->rma_iov[i].count * size, m->rma_iov[i].key};
		far += remote[i].len;
	}
	near = read ? tp_iov_len(result, o->results) : tp_iov_len(iov, r.count);
	if (far != near || (fetches && tp_iov_len(result, o->results) != far) ||
	    (compares && tp_iov_len(compare, o->compares) != far))
		return -FI_EINVAL;
	if (compares) {
		rc = tp_mr_local(r.ep->domain, compare, o->compare_desc, o->compares, FI_WRITE);
		if (rc)
			return rc;
		head = malloc(far + 1);
		if (!head)
			return -FI_ENOMEM;
		tp_iov_get(compare, o->compares, 0, head, far);
		r.head = head;
		r.head_len = far;
	}
	rc = tp_post(&r);
	free(head);
	return rc;
}

static uint64_t tx_flags(struct fid_ep *fid)
{
	return ep_of(fid)->info->tx_attr->op_flags | FI_COMPLETION * !ep_of(fid)->tx_selective;
}

static size_t elements(const struct fi_ioc *ioc, size_t count)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += ioc[i].count;
	return n;
}

#define ATOMIC(ioc, descs, n, to, at, total, k, type, what, ctx)                                     \
	(&(const struct fi_msg_atomic){                                                              \
		.msg_iov = ioc, .desc = descs, .iov_count = n, .addr = to,                           \
		.rma_iov = &(const struct fi_rma_ioc){at, total, k}, .rma_iov_count = 1,             \
		.datatype = type, .op = what, .context = ctx,                                        \
	})
#define ONE(b, n) (&(struct fi_ioc){(void *) (b), n})

static ssize_t atomic_write(struct fid_ep *ep, const void *buf, size_t count, void *desc, fi_addr_t to, uint64_t addr,
			    uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	return atomic(ep, false, ATOMIC(ONE(buf, count), &desc, 1, to, addr, count, key, type, op, context),
		      &(struct operands){0}, tx_flags(ep));
}

static ssize_t atomic_writev(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t count, fi_addr_t to,
			     uint64_t addr, uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	return atomic(ep, false, ATOMIC(iov, desc, count, to, addr, elements(iov, count), key, type, op, context),
		      &(struct operands){0}, tx_flags(ep));
}

static ssize_t atomic_writemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, uint64_t flags)
{
	return atomic(ep, false, m, &(struct operands){0}, flags);
}

static ssize_t atomic_inject(struct fid_ep *ep, const void *buf, size_t count, fi_addr_t to, uint64_t addr, uint64_t key,
			     enum fi_datatype type, enum fi_op op)
{
	return atomic(ep, true, ATOMIC(ONE(buf, count), NULL, 1, to, addr, count, key, type, op, NULL),
		      &(struct operands){0}, 0);
}

static ssize_t atomic_readwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, struct fi_ioc *result,
				   void **result_desc, size_t results, uint64_t flags)
{
	return atomic(ep, false, m, &(struct operands){.result = result, .result_desc = result_desc, .results = results}, flags);
}

static ssize_t atomic_readwritev(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t count,
				 struct fi_ioc *result, void **result_desc, size_t results, fi_addr_t to, uint64_t addr,
				 uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	return atomic_readwritemsg(ep,
				   ATOMIC(iov, desc, count, to, addr, elements(result, results), key, type, op, context),
				   result, result_desc, results, tx_flags(ep));
}

static ssize_t atomic_readwrite(struct fid_ep *ep, const void *buf, size_t count, void *desc, void *result,
				void *result_desc, fi_addr_t to, uint64_t addr, uint64_t key, enum fi_datatype type,
				enum fi_op op, void *context)
{
	return atomic_readwritev(ep, ONE(buf, count), &desc, 1, ONE(result, count), &result_desc, 1, to, addr, key, type, op, context);
}

static ssize_t atomic_compwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, const struct fi_ioc *compare,
				   void **compare_desc, size_t compares, struct fi_ioc *result, void **result_desc,
				   size_t results, uint64_t flags)
{
	return atomic(ep, false, m,
		      &(struct operands){compare, result, compare_desc, result_desc, compares, results}, flags);
}

static ssize_t atomic_compwritev(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t count,
				 const struct fi_ioc *compare, void **compare_desc, size_t compares,
				 struct fi_ioc *result, void **result_desc, size_t results, fi_addr_t to, uint64_t addr,
				 uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	return atomic_compwritemsg(ep, ATOMIC(iov, desc, count, to, addr, elements(iov, count), key, type, op, context),
				   compare, compare_desc, compares, result, result_desc, results, tx_flags(ep));
}

static ssize_t atomic_compwrite(struct fid_ep *ep, const void *buf, size_t count, void *desc, const void *compare,
				void *compare_desc, void *result, void *result_desc, fi_addr_t to, uint64_t addr,
				uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	return atomic_compwritev(ep, ONE(buf, count), &desc, 1, ONE(compare, count), &compare_desc, 1, ONE(result, count),
				 &result_desc, 1, to, addr, key, type, op, context);
}

static int valid(struct fid_ep *fid, enum fi_datatype type, enum fi_op op, bool fetch, bool compare, size_t *count)
{
	if (!tp_atomic_valid(type, op, fetch, compare))
		return -FI_EOPNOTSUPP;
	*count = ep_of(fid)->info->ep_attr->max_msg_size / tp_type_size(type);
	return 0;
}

static int writevalid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count)
{
	return valid(ep, type, op, false, false, count);
}

static int readwritevalid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count)
{
	return valid(ep, type, op, true, false, count);
}

static int compwritevalid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count)
{
	return valid(ep, type, op, true, true, count);
}

struct fi_ops_atomic tp_atomic_ops = {
	.size = sizeof tp_atomic_ops, .write = atomic_write, .writev = atomic_writev, .writemsg = atomic_writemsg,
	.inject = atomic_inject, .readwrite = atomic_readwrite, .readwritev = atomic_readwritev,
	.readwritemsg = atomic_readwritemsg, .compwrite = atomic_compwrite, .compwritev = atomic_compwritev,
	.compwritemsg = atomic_compwritemsg, .writevalid = writevalid, .readwritevalid = readwritevalid,
	.compwritevalid = compwritevalid,
};
