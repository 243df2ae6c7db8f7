// Data transfer for a caller that manages memory and contexts itself, see raw.go.
// All addresses are passed as integers.

#ifndef WEFT_FI_RAW_H
#define WEFT_FI_RAW_H

#include "shim.h"
#include "shim_mr.h"

// A receive to be posted.
struct weft_raw_post {
	uint64_t buf, len, context;
};

// The result of posting receives in weft_raw_poll.
struct weft_raw_posted {
	uint64_t count; // number of posted receives
	int64_t error;	// the errno of the next receive, which could not be posted; 0: all were posted
};

struct weft_raw_mr {
	int64_t error;
	uintptr_t mr, desc;
	uint64_t key;
};

static inline ssize_t
weft_raw_inject(uintptr_t ep, uintptr_t buf, size_t len, uint64_t dest)
{
	return fi_inject((struct fid_ep *) ep, (const void *) buf, len, dest);
}

static inline ssize_t
weft_raw_send(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, uint64_t dest, uintptr_t context)
{
	return fi_send((struct fid_ep *) ep, (const void *) buf, len, (void *) desc, dest, (void *) context);
}

// Sends two buffers as one message.
static inline ssize_t
weft_raw_send2(uintptr_t ep, uintptr_t head, size_t head_len, uintptr_t head_desc, uintptr_t body, size_t body_len,
	       uintptr_t body_desc, uint64_t dest, uintptr_t context)
{
	struct iovec iov[2] = {{(void *) head, head_len}, {(void *) body, body_len}};
	void *desc[2] = {(void *) head_desc, (void *) body_desc};

	return fi_sendv((struct fid_ep *) ep, iov, desc, 2, dest, (void *) context);
}

static inline ssize_t
weft_raw_read(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, uint64_t src, uint64_t addr, uint64_t key,
	      uintptr_t context)
{
	return fi_read((struct fid_ep *) ep, (void *) buf, len, (void *) desc, src, addr, key, (void *) context);
}

static inline ssize_t
weft_raw_write(uintptr_t ep, uintptr_t buf, size_t len, uintptr_t desc, uint64_t dest, uint64_t addr, uint64_t key,
	       uintptr_t context, uint64_t flags)
{
	struct iovec iov = {(void *) buf, len};
	struct fi_rma_iov rma = {.addr = addr, .len = len, .key = key};
	void *local = (void *) desc;
	struct fi_msg_rma msg = {
		.msg_iov = &iov,
		.desc = &local,
		.iov_count = 1,
		.addr = dest,
		.rma_iov = &rma,
		.rma_iov_count = 1,
		.context = (void *) context,
	};

	return fi_writemsg((struct fid_ep *) ep, &msg, flags);
}

static inline ssize_t
weft_raw_atomic(uintptr_t ep, uintptr_t buf, size_t count, uintptr_t desc, uint64_t dest, uint64_t addr, uint64_t key,
		int type, int op, uintptr_t context, uint64_t flags)
{
	struct fi_ioc ioc = {.addr = (void *) buf, .count = count};
	struct fi_rma_ioc rma = {.addr = addr, .count = count, .key = key};
	void *local = (void *) desc;
	struct fi_msg_atomic msg = {
		.msg_iov = &ioc,
		.desc = &local,
		.iov_count = 1,
		.addr = dest,
		.rma_iov = &rma,
		.rma_iov_count = 1,
		.datatype = (enum fi_datatype) type,
		.op = (enum fi_op) op,
		.context = (void *) context,
	};

	return fi_atomicmsg((struct fid_ep *) ep, &msg, flags);
}

static inline ssize_t
weft_raw_fetch_atomic(uintptr_t ep, uintptr_t buf, size_t count, uintptr_t desc, uintptr_t result, uint64_t dest,
		      uint64_t addr, uint64_t key, int type, int op, uintptr_t context)
{
	return fi_fetch_atomic((struct fid_ep *) ep, (const void *) buf, count, (void *) desc, (void *) result,
			       (void *) desc, dest, addr, key, (enum fi_datatype) type, (enum fi_op) op,
			       (void *) context);
}

static inline ssize_t
weft_raw_compare_atomic(uintptr_t ep, uintptr_t buf, size_t count, uintptr_t desc, uintptr_t compare, uintptr_t result,
			uint64_t dest, uint64_t addr, uint64_t key, int type, int op, uintptr_t context)
{
	return fi_compare_atomic((struct fid_ep *) ep, (const void *) buf, count, (void *) desc, (const void *) compare,
				 (void *) desc, (void *) result, (void *) desc, dest, addr, key,
				 (enum fi_datatype) type, (enum fi_op) op, (void *) context);
}

// Posts the npost receives in posts, in their order, until one fails, and stores the outcome in
// posted. Then reads up to count completions into entries, unless count is 0; while the queue is
// empty, reads it up to tries times. Returns the number of completions, 0 for an empty queue, or a
// negative errno of fi_cq_read.
static inline ssize_t
weft_raw_poll(uintptr_t ep, uintptr_t cq, uintptr_t posts, size_t npost, uint64_t flags, uintptr_t desc, uintptr_t posted,
	      uintptr_t entries, size_t count, unsigned tries)
{
	struct weft_raw_post *post = (struct weft_raw_post *) posts;
	struct weft_raw_posted *done = (struct weft_raw_posted *) posted;
	ssize_t rc;
	size_t i;

	done->count = 0;
	done->error = 0;
	for (i = 0; i < npost; i++, post++) {
		struct iovec iov = {(void *) (uintptr_t) post->buf, post->len};
		void *local = (void *) desc;
		struct fi_msg msg = {
			.msg_iov = &iov,
			.desc = &local,
			.iov_count = 1,
			.addr = FI_ADDR_UNSPEC,
			.context = (void *) (uintptr_t) post->context,
		};

		rc = fi_recvmsg((struct fid_ep *) ep, &msg, flags);
		if (rc) {
			done->error = -rc;
			break;
		}
		done->count++;
	}
	if (!count)
		return 0;
	do {
		rc = fi_cq_read((struct fid_cq *) cq, (void *) entries, count);
	} while ((rc == -FI_EAGAIN || rc == 0) && tries-- > 1);
	return rc == -FI_EAGAIN ? 0 : rc;
}

// A failed operation and what the provider says about it.
struct weft_raw_failure {
	struct fi_cq_err_entry entry;
	char text[256]; // the provider's text for prov_errno, empty if it has none
	uint8_t data[256]; // the first data_size bytes are err_data, or its beginning
	size_t data_size;
};

// Removes a failed operation from the queue. The result is that of fi_cq_readerr.
static inline ssize_t
weft_raw_readerr(uintptr_t cq, uintptr_t failure)
{
	struct weft_raw_failure *f = (struct weft_raw_failure *) failure;
	struct fi_cq_err_entry *e = &f->entry;
	const char *text;
	ssize_t n;

	memset(f, 0, sizeof(*f));
	e->err_data = f->data;
	e->err_data_size = sizeof(f->data);
	n = fi_cq_readerr((struct fid_cq *) cq, e, 0);
	if (n <= 0)
		return n;
	f->data_size = e->err_data_size < sizeof(f->data) ? e->err_data_size : sizeof(f->data);
	if (f->data_size && e->err_data && e->err_data != f->data)
		memcpy(f->data, e->err_data, f->data_size);
	text = fi_cq_strerror((struct fid_cq *) cq, e->prov_errno, f->data, f->text, sizeof(f->text));
	if (text && text != f->text)
		strncpy(f->text, text, sizeof(f->text) - 1);
	f->text[sizeof(f->text) - 1] = 0;
	return n;
}

static inline int
weft_raw_trywait(uintptr_t fabric, uintptr_t cq)
{
	struct fid *fids[1] = {&((struct fid_cq *) cq)->fid};

	return fi_trywait((struct fid_fabric *) fabric, fids, 1);
}

// Registers memory of the host, or of a device if iface is not FI_HMEM_SYSTEM. If ep is not 0, binds the
// region to that endpoint and enables it.
static inline struct weft_raw_mr
weft_raw_mr_reg(uintptr_t domain, uintptr_t ep, uintptr_t buf, size_t len, uint64_t access, uint64_t key,
		int iface, int64_t device)
{
	struct weft_raw_mr out = {0};
	struct fid_mr *mr = NULL;
	int rc;

	if (iface == FI_HMEM_SYSTEM) {
		rc = fi_mr_reg((struct fid_domain *) domain, (const void *) buf, len, access, 0, key, 0, &mr, NULL);
	} else {
		const struct iovec iov = {(void *) buf, len};
		const struct weft_mr_attr attr = {
			.iov = (uintptr_t) &iov, .iov_count = 1, .access = access, .requested_key = key,
			.iface = iface, .device = device,
		};

		rc = weft_mr_regattr((struct fid_domain *) domain, &attr, 0, &mr);
	}
	if (!rc && ep) {
		rc = fi_mr_bind(mr, &((struct fid_ep *) ep)->fid, 0);
		if (!rc)
			rc = fi_mr_enable(mr);
		if (rc)
			fi_close(&mr->fid);
	}
	out.error = -rc;
	if (!rc) {
		out.mr = (uintptr_t) mr;
		out.desc = (uintptr_t) fi_mr_desc(mr);
		out.key = fi_mr_key(mr);
	}
	return out;
}

static inline int
weft_raw_mr_close(uintptr_t mr)
{
	return fi_close(&((struct fid_mr *) mr)->fid);
}

static inline int
weft_raw_set_min_multi_recv(uintptr_t ep, size_t size)
{
	return fi_setopt(&((struct fid_ep *) ep)->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &size, sizeof(size));
}

#endif
