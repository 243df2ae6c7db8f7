/* Operations that an endpoint starts: sends, reads, writes and atomics. */
#include "testprov.h"

size_t tp_iov_len(const struct iovec *iov, size_t count)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += iov[i].iov_len;
	return n;
}

/* Copies len bytes between data and the segments, from the offset at on. */
static void copy(const struct iovec *iov, size_t count, size_t at, uint8_t *data, size_t len, bool in)
{
	for (size_t i = 0; i < count && len; i++) {
		size_t n = iov[i].iov_len;

		if (at >= n) {
			at -= n;
			continue;
		}
		n = n - at < len ? n - at : len;
		if (tp_device_has((char *) iov[i].iov_base + at, n))
			tp_device_copy((char *) iov[i].iov_base + at, data, n, in);
		else if (in)
			memcpy((char *) iov[i].iov_base + at, data, n);
		else
			memcpy(data, (char *) iov[i].iov_base + at, n);
		data += n;
		len -= n;
		at = 0;
	}
}

void tp_iov_put(const struct iovec *iov, size_t count, size_t at, const void *data, size_t len)
{
	copy(iov, count, at, (uint8_t *) data, len, true);
}

void tp_iov_get(const struct iovec *iov, size_t count, size_t at, void *data, size_t len)
{
	copy(iov, count, at, data, len, false);
}

/* Ends an operation: makes its completion, or its failure if err is not 0, and frees it. */
void tp_op_end(struct tp_op *op, int err, int prov)
{
	struct tp_ep *ep = op->ep;
	struct tp_entry e = {.e = {.op_context = op->context, .flags = op->flags, .tag = op->tag}, .from = FI_ADDR_NOTAVAIL};

	tp_list_remove(&op->link);
	ep->in_flight--;
	if (err) {
		e.e.err = err;
		e.e.prov_errno = prov;
		e.e.err_data_size = strlen(tp_strerror(prov)) + 1;
		if (e.e.err_data_size > TP_ERR_DATA)
			e.e.err_data_size = TP_ERR_DATA;
		memcpy(e.err_data, tp_strerror(prov), e.e.err_data_size);
		e.err_data[TP_ERR_DATA - 1] = 0;
	}
	tp_cntr_count(ep->cntrs[op->counter], err);
	if ((err || !op->silent) && ep->tx_cq)
		tp_complete(ep->tx_cq, &e);
	free(op);
}

/* Checks the arguments of a request against what fi_info says. */
static ssize_t check(const struct tp_request *r, size_t len)
{
	const struct fi_info *i = r->ep->info;
	const uint64_t local = r->kind == TP_READ ? FI_READ : r->kind == TP_SEND ? FI_SEND : FI_WRITE;
	int rc;

	if (!r->ep->enabled)
		return -FI_EOPBADSTATE;
	if (r->count > i->tx_attr->iov_limit || r->results > i->tx_attr->iov_limit ||
	    r->remotes > i->tx_attr->rma_iov_limit)
		return -FI_EINVAL;
	if (len > i->ep_attr->max_msg_size)
		return -FI_EMSGSIZE;
	if ((r->inject || r->flags & FI_INJECT) && len > i->tx_attr->inject_size)
		return -FI_EMSGSIZE;
	if (r->inject || r->flags & FI_INJECT)
		return 0; /* injected data needs no descriptor */
	rc = tp_mr_local(r->ep->domain, r->iov, r->desc, r->count, local);
	if (!rc)
		rc = tp_mr_local(r->ep->domain, r->result, r->result_desc, r->results, FI_READ);
	return rc;
}

/* Finds the target of a request and its connection. */
static ssize_t find_target(struct tp_request *r, struct tp_conn **c)
{
	struct tp_av_entry *to = tp_av_find(r->ep->av, r->dest);
	int rc;

	if (!to)
		return -FI_EINVAL;
	rc = tp_conn_get(r->ep, &to->addr, c);
	/* An endpoint at a port that callers have chosen may come yet, if it was never there. One that
	 * has gone does not come back. */
	if (rc == -FI_ECONNREFUSED && (r->ep->domain->script.silent || (r->ep->given && !to->reached)))
		return -FI_EAGAIN;
	if (!rc)
		to->reached = true;
	return rc;
}

/* Makes what the connection sends for r: a header, the remote segments and the operands in front of
 * the data, and the data, which is copied now if it is injected or memory of a device, and otherwise when
 * it is sent. */
static struct tp_out *make_out(const struct tp_request *r, size_t len)
{
	struct tp_out *out = calloc(1, sizeof *out);
	const size_t remote = r->remotes * sizeof *r->remote;
	bool copied = r->inject || r->flags & FI_INJECT;

	for (size_t i = 0; i < r->count && !copied; i++)
		copied = tp_device_has(r->iov[i].iov_base, r->iov[i].iov_len);
	if (!out)
		return NULL;
	out->copied = remote + r->head_len + (copied ? len : 0);
	out->copy = malloc(out->copied + 1);
	if (!out->copy) {
		free(out);
		return NULL;
	}
	if (remote)
		memcpy(out->copy, r->remote, remote);
	if (r->head_len)
		memcpy(out->copy + remote, r->head, r->head_len);
	if (copied) {
		tp_iov_get(r->iov, r->count, 0, out->copy + remote + r->head_len, len);
	} else if (r->kind != TP_READ) {
		memcpy(out->iov, r->iov, r->count * sizeof *r->iov);
		out->count = r->count;
	}
	out->head = (struct tp_header){
		.magic = TP_MAGIC, .kind = (uint8_t) r->kind, .remote = (uint8_t) r->remotes,
		.datatype = (uint8_t) r->datatype, .op = (uint8_t) r->op, .tag = r->tag, .data = r->data,
		.flags = (r->flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE | FI_FENCE)) |
			 (r->has_data ? FI_REMOTE_CQ_DATA : 0) |
			 TP_WIRE_FLAGS(r->wire | (r->tagged ? TP_TAGGED : 0)),
		.len = remote + r->head_len + (r->kind == TP_READ ? 0 : len),
		.from = r->ep->addr,
	};
	return out;
}

static struct tp_op *make_op(const struct tp_request *r)
{
	struct tp_ep *ep = r->ep;
	struct tp_op *op = calloc(1, sizeof *op);

	if (!op)
		return NULL;
	tp_list_init(&op->link);
	op->ep = ep;
	op->id = ep->next_id++;
	op->kind = r->kind;
	op->context = r->context;
	op->flags = r->completion;
	op->tag = r->tag;
	op->silent = ep->tx_selective && !(r->flags & FI_COMPLETION);
	op->counter = r->counter;
	op->results = r->results;
	if (r->results)
		memcpy(op->result, r->result, r->results * sizeof *r->result);
	return op;
}

/* Reports whether the n-th of the things that *count counts is due, and counts this one. */
static bool nth(long *count, long n)
{
	return n && ++*count % n == 0;
}

static ssize_t post(struct tp_request *r)
{
	struct tp_domain *d = r->ep->domain;
	const size_t len = tp_iov_len(r->iov, r->count);
	struct tp_conn *c;
	struct tp_out *out;
	struct tp_op *op = NULL;
	ssize_t rc = check(r, len);

	if (rc)
		return rc;
	if (d->script.eagain && tp_random(&d->faults, 100) < d->script.eagain)
		return -FI_EAGAIN;
	if (!r->inject && r->ep->in_flight >= r->ep->info->tx_attr->size)
		return -FI_EAGAIN;
	rc = find_target(r, &c);
	if (rc)
		return rc;
	if (c->queued > TP_QUEUED_MAX)
		return -FI_EAGAIN;
	if (!r->inject) {
		op = make_op(r);
		if (!op)
			return -FI_ENOMEM;
	}
	if (op && nth(&d->faults.operations, d->script.err)) {
		r->ep->in_flight++;
		tp_op_end(op, FI_EIO, TP_PROV_FAULT);
		return 0;
	}
	if (op && d->nic > 0 && d->script.vanish && ++d->faults.sent > d->script.vanish) {
		r->ep->in_flight++;
		tp_op_end(op, ENETDOWN, TP_PROV_GONE);
		return 0;
	}
	out = make_out(r, len);
	if (!out) {
		free(op);
		return -FI_ENOMEM;
	}
	if (op) {
		out->head.id = op->id;
		tp_list_add(&c->ops, &op->link);
		r->ep->in_flight++;
	}
	tp_conn_queue(c, out); /* if it fails, op has ended with an error */
	return 0;
}

/* Starts an operation. It returns 0 if the operation has a completion, or would have one. */
ssize_t tp_post(struct tp_request *r)
{
	ssize_t rc;

	tp_lock(r->ep->domain);
	rc = post(r);
	tp_unlock(r->ep->domain);
	return rc;
}
