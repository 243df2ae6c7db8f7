/* The calls that read and write memory of peers. */
#include "testprov.h"

static struct tp_ep *ep_of(struct fid_ep *fid)
{
	return container_of(fid, struct tp_ep, fid);
}

static ssize_t transfer(struct fid_ep *fid, bool read, bool inject, const struct fi_msg_rma *m, uint64_t flags)
{
	const size_t len = tp_iov_len(m->msg_iov, m->iov_count);
	struct fi_rma_iov remote[TP_IOV_MAX];
	struct tp_request r = {
		.ep = ep_of(fid), .kind = read ? TP_READ : TP_WRITE, .dest = m->addr, .context = m->context,
		.flags = flags, .data = m->data, .has_data = flags & FI_REMOTE_CQ_DATA, .inject = inject,
		.completion = FI_RMA | (read ? FI_READ : FI_WRITE),
		.counter = read ? TP_CNTR_READ : TP_CNTR_WRITE,
		.remote = m->rma_iov, .remotes = m->rma_iov_count,
	};
	size_t far = 0;

	if (m->rma_iov_count > TP_IOV_MAX || m->iov_count > TP_IOV_MAX)
		return -FI_EINVAL;
	/* A call with one remote segment means as many bytes as the local ones have. */
	memcpy(remote, m->rma_iov, m->rma_iov_count * sizeof *remote);
	for (size_t i = 0; i < m->rma_iov_count; i++)
		far += remote[i].len;
	if (far != len)
		return -FI_EINVAL;
	if (read) {
		r.result = m->msg_iov;
		r.result_desc = m->desc;
		r.results = m->iov_count;
		if (flags & FI_INJECT)
			return -FI_EINVAL;
	} else {
		r.iov = m->msg_iov;
		r.desc = m->desc;
		r.count = m->iov_count;
	}
	if (len > r.ep->info->ep_attr->max_msg_size)
		return -FI_EMSGSIZE;
	return tp_post(&r);
}

static uint64_t tx_flags(struct fid_ep *fid)
{
	return ep_of(fid)->info->tx_attr->op_flags | FI_COMPLETION * !ep_of(fid)->tx_selective;
}

#define REMOTE(at, n, k) .rma_iov = &(const struct fi_rma_iov){at, n, k}, .rma_iov_count = 1
#define BUFFER(b, n) .msg_iov = &(const struct iovec){(void *) (b), n}, .iov_count = 1
#define RMA(...) (&(const struct fi_msg_rma){__VA_ARGS__})

static ssize_t rma_read(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t addr,
			uint64_t key, void *context)
{
	return transfer(ep, true, false,
			RMA(BUFFER(buf, len), .desc = &desc, .addr = from, REMOTE(addr, len, key), .context = context), tx_flags(ep));
}

static ssize_t rma_readv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t from,
			 uint64_t addr, uint64_t key, void *context)
{
	return transfer(ep, true, false,
			RMA(.msg_iov = iov, .iov_count = count, .desc = desc, .addr = from,
			    REMOTE(addr, tp_iov_len(iov, count), key), .context = context), tx_flags(ep));
}

static ssize_t rma_readmsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags)
{
	return transfer(ep, true, false, m, flags);
}

static ssize_t rma_write(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t addr,
			 uint64_t key, void *context)
{
	return transfer(ep, false, false,
			RMA(BUFFER(buf, len), .desc = &desc, .addr = to, REMOTE(addr, len, key), .context = context), tx_flags(ep));
}

static ssize_t rma_writev(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t to,
			  uint64_t addr, uint64_t key, void *context)
{
	return transfer(ep, false, false,
			RMA(.msg_iov = iov, .iov_count = count, .desc = desc, .addr = to,
			    REMOTE(addr, tp_iov_len(iov, count), key), .context = context), tx_flags(ep));
}

static ssize_t rma_writemsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags)
{
	return transfer(ep, false, false, m, flags);
}

static ssize_t rma_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to, uint64_t addr, uint64_t key)
{
	return transfer(ep, false, true, RMA(BUFFER(buf, len), .addr = to, REMOTE(addr, len, key)), 0);
}

static ssize_t rma_writedata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to,
			     uint64_t addr, uint64_t key, void *context)
{
	return transfer(ep, false, false,
			RMA(BUFFER(buf, len), .desc = &desc, .addr = to, REMOTE(addr, len, key), .context = context, .data = data),
			tx_flags(ep) | FI_REMOTE_CQ_DATA);
}

static ssize_t rma_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t addr,
			      uint64_t key)
{
	return transfer(ep, false, true, RMA(BUFFER(buf, len), .addr = to, REMOTE(addr, len, key), .data = data),
			FI_REMOTE_CQ_DATA);
}

struct fi_ops_rma tp_rma_ops = {
	.size = sizeof tp_rma_ops, .read = rma_read, .readv = rma_readv, .readmsg = rma_readmsg, .write = rma_write,
	.writev = rma_writev, .writemsg = rma_writemsg, .inject = rma_inject, .writedata = rma_writedata,
	.injectdata = rma_injectdata,
};
