/* The calls that send and receive messages, tagged and not. */
#include "testprov.h"

static struct tp_ep *ep_of(struct fid_ep *fid)
{
	return container_of(fid, struct tp_ep, fid);
}

/* Sends. Calls without flags use those of the endpoint. */
static ssize_t send_any(struct fid_ep *fid, bool tagged, bool inject, const struct fi_msg_tagged *m,
			uint64_t flags)
{
	struct tp_request r = {
		.ep = ep_of(fid), .kind = TP_SEND, .dest = m->addr, .context = m->context, .flags = flags,
		.tag = m->tag, .data = m->data, .tagged = tagged, .has_data = flags & FI_REMOTE_CQ_DATA,
		.inject = inject, .iov = m->msg_iov, .desc = m->desc, .count = m->iov_count,
		.completion = FI_SEND | (tagged ? FI_TAGGED : FI_MSG), .counter = TP_CNTR_SEND,
	};

	return tp_post(&r);
}

static uint64_t tx_flags(struct fid_ep *fid)
{
	return ep_of(fid)->info->tx_attr->op_flags | FI_COMPLETION * !ep_of(fid)->tx_selective;
}

static uint64_t rx_flags(struct fid_ep *fid)
{
	return ep_of(fid)->info->rx_attr->op_flags;
}

/* The message of a call: segments, or one buffer. */
#define MESSAGE(...) (&(const struct fi_msg_tagged){__VA_ARGS__})
#define BUFFER(b, n) .msg_iov = &(const struct iovec){(void *) (b), n}, .iov_count = 1

static ssize_t msg_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, void *context)
{
	return send_any(ep, false, false, MESSAGE(BUFFER(buf, len), .desc = &desc, .addr = to, .context = context), tx_flags(ep));
}

static ssize_t msg_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t to,
			 void *context)
{
	return send_any(ep, false, false,
			MESSAGE(.msg_iov = iov, .iov_count = count, .desc = desc, .addr = to, .context = context), tx_flags(ep));
}

static ssize_t msg_sendmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	return send_any(ep, false, false,
			MESSAGE(.msg_iov = m->msg_iov, .iov_count = m->iov_count, .desc = m->desc,
				.addr = m->addr, .context = m->context, .data = m->data), flags);
}

static ssize_t msg_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to)
{
	return send_any(ep, false, true, MESSAGE(BUFFER(buf, len), .addr = to), 0);
}

static ssize_t msg_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to,
			    void *context)
{
	return send_any(ep, false, false,
			MESSAGE(BUFFER(buf, len), .desc = &desc, .addr = to, .context = context, .data = data),
			tx_flags(ep) | FI_REMOTE_CQ_DATA);
}

static ssize_t msg_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to)
{
	return send_any(ep, false, true, MESSAGE(BUFFER(buf, len), .addr = to, .data = data), FI_REMOTE_CQ_DATA);
}

static ssize_t msg_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, void *context)
{
	return tp_recv_post(ep_of(ep), false, MESSAGE(BUFFER(buf, len), .desc = &desc, .addr = from, .context = context), rx_flags(ep));
}

static ssize_t msg_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t from,
			 void *context)
{
	return tp_recv_post(ep_of(ep), false,
			    MESSAGE(.msg_iov = iov, .iov_count = count, .desc = desc, .addr = from, .context = context), rx_flags(ep));
}

static ssize_t msg_recvmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	return tp_recv_post(ep_of(ep), false,
			    MESSAGE(.msg_iov = m->msg_iov, .iov_count = m->iov_count, .desc = m->desc,
				    .addr = m->addr, .context = m->context), flags);
}

struct fi_ops_msg tp_msg_ops = {
	.size = sizeof tp_msg_ops, .recv = msg_recv, .recvv = msg_recvv, .recvmsg = msg_recvmsg,
	.send = msg_send, .sendv = msg_sendv, .sendmsg = msg_sendmsg, .inject = msg_inject,
	.senddata = msg_senddata, .injectdata = msg_injectdata,
};

static ssize_t tagged_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, uint64_t tag,
			   void *context)
{
	return send_any(ep, true, false,
			MESSAGE(BUFFER(buf, len), .desc = &desc, .addr = to, .tag = tag, .context = context), tx_flags(ep));
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t to,
			    uint64_t tag, void *context)
{
	return send_any(ep, true, false,
			MESSAGE(.msg_iov = iov, .iov_count = count, .desc = desc, .addr = to, .tag = tag, .context = context),
			tx_flags(ep));
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags)
{
	return send_any(ep, true, false, m, flags);
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t to, uint64_t tag)
{
	return send_any(ep, true, true, MESSAGE(BUFFER(buf, len), .addr = to, .tag = tag), 0);
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t to,
			       uint64_t tag, void *context)
{
	return send_any(ep, true, false,
			MESSAGE(BUFFER(buf, len), .desc = &desc, .addr = to, .tag = tag, .context = context, .data = data),
			tx_flags(ep) | FI_REMOTE_CQ_DATA);
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t to, uint64_t tag)
{
	return send_any(ep, true, true, MESSAGE(BUFFER(buf, len), .addr = to, .tag = tag, .data = data), FI_REMOTE_CQ_DATA);
}

static ssize_t tagged_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, uint64_t tag,
			   uint64_t ignore, void *context)
{
	return tp_recv_post(ep_of(ep), true,
			    MESSAGE(BUFFER(buf, len), .desc = &desc, .addr = from, .tag = tag, .ignore = ignore, .context = context),
			    rx_flags(ep));
}

static ssize_t tagged_recvv(struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t from,
			    uint64_t tag, uint64_t ignore, void *context)
{
	return tp_recv_post(ep_of(ep), true,
			    MESSAGE(.msg_iov = iov, .iov_count = count, .desc = desc, .addr = from, .tag = tag,
				    .ignore = ignore, .context = context), rx_flags(ep));
}

static ssize_t tagged_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags)
{
	return tp_recv_post(ep_of(ep), true, m, flags);
}

struct fi_ops_tagged tp_tagged_ops = {
	.size = sizeof tp_tagged_ops, .recv = tagged_recv, .recvv = tagged_recvv, .recvmsg = tagged_recvmsg,
	.send = tagged_send, .sendv = tagged_sendv, .sendmsg = tagged_sendmsg, .inject = tagged_inject,
	.senddata = tagged_senddata, .injectdata = tagged_injectdata,
};
