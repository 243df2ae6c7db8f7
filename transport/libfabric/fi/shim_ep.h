// Data transfer of endpoints and queues. Addresses of pinned memory and of libfabric's own objects
// are passed as integers, because cgo would check the memory behind a pointer in every call. If a
// provider does not support a kind of message, its ops table for that kind is null, and the
// functions return -FI_ENOSYS.

#ifndef WEFT_FI_SHIM_EP_H
#define WEFT_FI_SHIM_EP_H

#include <poll.h>
#include <stdbool.h>

#include "shim.h"

#define WEFT_EP(ep) ((struct fid_ep *) (ep))
#define WEFT_CQ(cq) ((struct fid_cq *) (cq))

static inline struct fi_msg
weft_msg(uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uint64_t data, uintptr_t context)
{
	struct fi_msg msg = {
		.msg_iov = (const struct iovec *) iov,
		.desc = (void **) desc,
		.iov_count = count,
		.addr = addr,
		.context = (void *) context,
		.data = data,
	};
	return msg;
}

static inline ssize_t
weft_send(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, fi_addr_t addr, uintptr_t context)
{
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_send(WEFT_EP(ep), (const void *) buf, len, (void *) desc, addr, (void *) context);
}

static inline ssize_t
weft_sendv(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uintptr_t context)
{
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_sendv(WEFT_EP(ep), (const struct iovec *) iov, (void **) desc, count, addr, (void *) context);
}

static inline ssize_t
weft_senddata(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, uint64_t data, fi_addr_t addr,
	      uintptr_t context)
{
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_senddata(WEFT_EP(ep), (const void *) buf, len, (void *) desc, data, addr, (void *) context);
}

static inline ssize_t
weft_sendmsg(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uint64_t data,
	     uintptr_t context, uint64_t flags)
{
	struct fi_msg msg = weft_msg(iov, desc, count, addr, data, context);
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_sendmsg(WEFT_EP(ep), &msg, flags);
}

static inline ssize_t
weft_inject(uintptr_t ep, uintptr_t buf, size_t len, fi_addr_t addr)
{
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_inject(WEFT_EP(ep), (const void *) buf, len, addr);
}

static inline ssize_t
weft_injectdata(uintptr_t ep, uintptr_t buf, size_t len, uint64_t data, fi_addr_t addr)
{
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_injectdata(WEFT_EP(ep), (const void *) buf, len, data, addr);
}

static inline ssize_t
weft_recv(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, fi_addr_t addr, uintptr_t context)
{
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_recv(WEFT_EP(ep), (void *) buf, len, (void *) desc, addr, (void *) context);
}

static inline ssize_t
weft_recvv(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uintptr_t context)
{
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_recvv(WEFT_EP(ep), (const struct iovec *) iov, (void **) desc, count, addr, (void *) context);
}

static inline ssize_t
weft_recvmsg(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uintptr_t context,
	     uint64_t flags)
{
	struct fi_msg msg = weft_msg(iov, desc, count, addr, 0, context);
	if (!WEFT_EP(ep)->msg)
		return -FI_ENOSYS;
	return fi_recvmsg(WEFT_EP(ep), &msg, flags);
}

static inline struct fi_msg_tagged
weft_msg_tagged(uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uint64_t tag, uint64_t ignore,
		uint64_t data, uintptr_t context)
{
	struct fi_msg_tagged msg = {
		.msg_iov = (const struct iovec *) iov,
		.desc = (void **) desc,
		.iov_count = count,
		.addr = addr,
		.tag = tag,
		.ignore = ignore,
		.context = (void *) context,
		.data = data,
	};
	return msg;
}

static inline ssize_t
weft_tsend(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, fi_addr_t addr, uint64_t tag,
	   uintptr_t context)
{
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_tsend(WEFT_EP(ep), (const void *) buf, len, (void *) desc, addr, tag, (void *) context);
}

static inline ssize_t
weft_tsendv(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uint64_t tag,
	    uintptr_t context)
{
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_tsendv(WEFT_EP(ep), (const struct iovec *) iov, (void **) desc, count, addr, tag,
			 (void *) context);
}

static inline ssize_t
weft_tsenddata(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, uint64_t data, fi_addr_t addr,
	       uint64_t tag, uintptr_t context)
{
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_tsenddata(WEFT_EP(ep), (const void *) buf, len, (void *) desc, data, addr, tag,
			    (void *) context);
}

static inline ssize_t
weft_tsendmsg(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uint64_t tag,
	      uint64_t data, uintptr_t context, uint64_t flags)
{
	struct fi_msg_tagged msg = weft_msg_tagged(iov, desc, count, addr, tag, 0, data, context);
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_tsendmsg(WEFT_EP(ep), &msg, flags);
}

static inline ssize_t
weft_tinject(uintptr_t ep, uintptr_t buf, size_t len, fi_addr_t addr, uint64_t tag)
{
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_tinject(WEFT_EP(ep), (const void *) buf, len, addr, tag);
}

static inline ssize_t
weft_tinjectdata(uintptr_t ep, uintptr_t buf, size_t len, uint64_t data, fi_addr_t addr, uint64_t tag)
{
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_tinjectdata(WEFT_EP(ep), (const void *) buf, len, data, addr, tag);
}

static inline ssize_t
weft_trecv(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, fi_addr_t addr, uint64_t tag,
	   uint64_t ignore, uintptr_t context)
{
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_trecv(WEFT_EP(ep), (void *) buf, len, (void *) desc, addr, tag, ignore, (void *) context);
}

static inline ssize_t
weft_trecvv(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uint64_t tag,
	    uint64_t ignore, uintptr_t context)
{
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_trecvv(WEFT_EP(ep), (const struct iovec *) iov, (void **) desc, count, addr, tag, ignore,
			 (void *) context);
}

static inline ssize_t
weft_trecvmsg(uintptr_t ep, uintptr_t iov, uintptr_t desc, size_t count, fi_addr_t addr, uint64_t tag,
	      uint64_t ignore, uintptr_t context, uint64_t flags)
{
	struct fi_msg_tagged msg = weft_msg_tagged(iov, desc, count, addr, tag, ignore, 0, context);
	if (!WEFT_EP(ep)->tagged)
		return -FI_ENOSYS;
	return fi_trecvmsg(WEFT_EP(ep), &msg, flags);
}

static inline ssize_t weft_cancel(uintptr_t ep, uintptr_t context)
{
	return fi_cancel(&WEFT_EP(ep)->fid, (void *) context);
}

// Options that the headers of libfabric 1.17 lack. The numbers are part of the library's interface;
// a library that does not know an option returns an error.
enum {
	WEFT_OPT_CUDA_API_PERMITTED = 10,
	WEFT_OPT_SHARED_MEMORY_PERMITTED,
	WEFT_OPT_MAX_MSG_SIZE,
	WEFT_OPT_MAX_TAGGED_SIZE,
	WEFT_OPT_MAX_RMA_SIZE,
	WEFT_OPT_MAX_ATOMIC_SIZE,
	WEFT_OPT_INJECT_MSG_SIZE,
	WEFT_OPT_INJECT_TAGGED_SIZE,
	WEFT_OPT_INJECT_RMA_SIZE,
	WEFT_OPT_INJECT_ATOMIC_SIZE,
	WEFT_OPT_FIREWALL_ADDR,
};
#if WEFT_HEADERS_AT_LEAST(2, 6)
_Static_assert((int) WEFT_OPT_FIREWALL_ADDR == (int) FI_OPT_FIREWALL_ADDR, "an option has moved");
#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static inline ssize_t weft_tx_size_left(struct fid_ep *ep)
{
	return FI_CHECK_OP(ep->ops, struct fi_ops_ep, tx_size_left) ? fi_tx_size_left(ep) : -FI_ENOSYS;
}

static inline ssize_t weft_rx_size_left(struct fid_ep *ep)
{
	return FI_CHECK_OP(ep->ops, struct fi_ops_ep, rx_size_left) ? fi_rx_size_left(ep) : -FI_ENOSYS;
}
#pragma GCC diagnostic pop

// The value of FI_CNTR_EVENTS_BYTES, which only the headers of 2.x have.
#define WEFT_CNTR_EVENTS_BYTES (FI_CNTR_EVENTS_COMP + 1)

// The layout of CQEntry. C code does not access the first field, a Go pointer.
struct weft_cq_entry {
	uint64_t go_context, flags, len, buf, data, tag, op_context;
};

// The largest number of completions that one call reads.
#define WEFT_CQ_BATCH 64

union weft_cq_batch {
	struct fi_cq_entry context[WEFT_CQ_BATCH];
	struct fi_cq_msg_entry msg[WEFT_CQ_BATCH];
	struct fi_cq_data_entry data[WEFT_CQ_BATCH];
	struct fi_cq_tagged_entry tagged[WEFT_CQ_BATCH];
};

// weft_cq_spread copies the first n completions of a batch, which are in this format, to entries.
// Fields that the format lacks become zero.
static inline void
weft_cq_spread(const union weft_cq_batch *batch, enum fi_cq_format format, struct weft_cq_entry *entries,
	       ssize_t n)
{
	for (ssize_t i = 0; i < n; i++) {
		struct fi_cq_tagged_entry e = {0};
		switch (format) {
		case FI_CQ_FORMAT_TAGGED: e = batch->tagged[i]; break;
		case FI_CQ_FORMAT_DATA: memcpy(&e, &batch->data[i], sizeof batch->data[i]); break;
		case FI_CQ_FORMAT_MSG: memcpy(&e, &batch->msg[i], sizeof batch->msg[i]); break;
		default: e.op_context = batch->context[i].op_context; break;
		}
		entries[i].flags = e.flags;
		entries[i].len = e.len;
		entries[i].buf = (uintptr_t) e.buf;
		entries[i].data = e.data;
		entries[i].tag = e.tag;
		entries[i].op_context = (uintptr_t) e.op_context;
	}
}

static inline ssize_t
weft_cq_read(uintptr_t cq, enum fi_cq_format format, uintptr_t entries, size_t count, uintptr_t from)
{
	union weft_cq_batch batch;
	ssize_t n;

	if (count > WEFT_CQ_BATCH)
		count = WEFT_CQ_BATCH;
	n = from ? fi_cq_readfrom(WEFT_CQ(cq), &batch, count, (fi_addr_t *) from)
		 : fi_cq_read(WEFT_CQ(cq), &batch, count);
	weft_cq_spread(&batch, format, (struct weft_cq_entry *) entries, n);
	return n;
}

static inline ssize_t
weft_cq_sread(uintptr_t cq, enum fi_cq_format format, uintptr_t entries, size_t count, uintptr_t from,
	      size_t threshold, int timeout)
{
	union weft_cq_batch batch;
	const void *cond = threshold ? (const void *) threshold : NULL;
	ssize_t n;

	if (count > WEFT_CQ_BATCH)
		count = WEFT_CQ_BATCH;
	n = from ? fi_cq_sreadfrom(WEFT_CQ(cq), &batch, count, (fi_addr_t *) from, cond, timeout)
		 : fi_cq_sread(WEFT_CQ(cq), &batch, count, cond, timeout);
	weft_cq_spread(&batch, format, (struct weft_cq_entry *) entries, n);
	return n;
}

// A failed operation, with copies of the data that the queue keeps only until the next read; of
// err_data at most the first 1024 bytes. If the argument ask of weft_cq_readerr is true, text is
// the provider's text for prov_errno, otherwise it is empty. The structure is in Go's memory, so
// addresses are integers: Go allows only valid pointers there.
struct weft_cq_error {
	uint64_t op_context, flags, len, buf, data, tag, olen;
	fi_addr_t src_addr;
	int err, prov_errno;
	size_t err_data_size;
	char text[256];
	uint8_t err_data[1024];
};

static inline ssize_t weft_cq_readerr(uintptr_t cq, struct weft_cq_error *out, bool ask)
{
	struct fi_cq_err_entry e;
	const char *text;
	ssize_t n;

	memset(&e, 0, sizeof e);
	e.err_data = out->err_data;
	e.err_data_size = sizeof out->err_data;
#if WEFT_HEADERS_AT_LEAST(1, 20)
	e.src_addr = FI_ADDR_NOTAVAIL; // older versions of the interface do not set src_addr
#endif
	n = fi_cq_readerr(WEFT_CQ(cq), &e, 0);
	if (n <= 0)
		return n;
	if (e.err_data_size > sizeof out->err_data)
		e.err_data_size = sizeof out->err_data;
	if (e.err_data_size && e.err_data && e.err_data != out->err_data)
		memcpy(out->err_data, e.err_data, e.err_data_size);
	out->text[0] = 0;
	text = !ask ? NULL : fi_cq_strerror(WEFT_CQ(cq), e.prov_errno, out->err_data, out->text, sizeof out->text);
	if (text && text != out->text) {
		strncpy(out->text, text, sizeof out->text - 1);
		out->text[sizeof out->text - 1] = 0;
	}
	out->op_context = (uintptr_t) e.op_context;
	out->flags = e.flags;
	out->len = e.len;
	out->buf = (uintptr_t) e.buf;
	out->data = e.data;
	out->tag = e.tag;
	out->olen = e.olen;
	out->err = e.err;
	out->prov_errno = e.prov_errno;
	out->err_data_size = e.err_data_size;
#if WEFT_HEADERS_AT_LEAST(1, 20)
	out->src_addr = e.src_addr;
#else
	out->src_addr = FI_ADDR_NOTAVAIL;
#endif
	return n;
}

// weft_cq_pollfds stores the queue's descriptors in fds, which has room for *n descriptors, and
// sets *n to their number. It sets *changes to a number that differs from that of the last call if
// the set of descriptors has changed since then.
static inline int weft_cq_pollfds(struct fid_cq *cq, struct pollfd *fds, size_t *n, uint64_t *changes)
{
	struct fi_wait_pollfd wait = {.nfds = *n, .fd = fds};
	int rc = fi_control(&cq->fid, FI_GETWAIT, &wait);
	*n = wait.nfds;
	*changes = wait.change_index;
	return rc;
}

#endif
