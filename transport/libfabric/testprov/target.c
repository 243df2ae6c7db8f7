/* The target's side of operations, and the replies at the initiator. */
#include "testprov.h"

/* An access that waits, so that others overtake it. */
struct tp_held {
	struct tp_list link;
	struct tp_conn *conn;
	struct tp_header head;
	uint8_t *payload;
	bool replied;
	int wait; /* how often tp_target_due passes it over */
};

/* Takes a message. */
static void handle_send(struct tp_conn *c, const struct tp_header *h, uint8_t **payload)
{
	struct tp_domain *d = c->ep->domain;
	const struct tp_script *s = &d->script;
	const bool tagged = h->flags & TP_WIRE_FLAGS(TP_TAGGED);
	struct tp_unexpected *u;

	if ((s->enorx && ++d->faults.messages % s->enorx == 0) ||
	    (s->unexpected && c->ep->msg.bytes + c->ep->tagged.bytes + h->len > (size_t) s->unexpected &&
	     tp_list_empty(tagged ? &c->ep->tagged.posted : &c->ep->msg.posted))) {
		tp_conn_reply(c, h->id, FI_ENORX, TP_PROV_NORX, NULL, 0);
		return;
	}
	u = calloc(1, sizeof *u);
	if (!u) {
		tp_conn_reply(c, h->id, FI_ENOMEM, FI_ENOMEM, NULL, 0);
		return;
	}
	*u = (struct tp_unexpected){
		.from = c->peer, .conn = c, .id = h->id, .tag = h->tag, .data = h->data,
		.flags = h->flags & TP_WIRE_FI, .len = h->len, .payload = *payload,
	};
	*payload = NULL;
	tp_list_init(&u->link);
	u->broken = s->erecv && ++d->faults.receives % s->erecv == 0;
	if (u->broken)
		tp_conn_reply(c, h->id, FI_EIO, TP_PROV_FAULT, NULL, 0);
	else if (!(h->flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE)))
		tp_conn_reply(c, h->id, 0, 0, NULL, 0);
	tp_match_arrived(c->ep, u, tagged);
}

/* The memory of one access: the segments in the order in which the peer names them. */
struct reach {
	struct iovec iov[TP_IOV_MAX * TP_IOV_MAX];
	size_t count, len;
	struct tp_mr *mr;
};

/* Checks the access of a request, and finds its memory. It returns 0 or an errno. */
static int reach(struct tp_conn *c, const struct tp_header *h, const uint8_t *payload, uint64_t access,
		 struct reach *r)
{
	struct fi_rma_iov remote[TP_IOV_MAX];

	memset(r, 0, sizeof *r);
	if (h->remote)
		memcpy(remote, payload, h->remote * sizeof *remote);
	for (int i = 0; i < h->remote; i++) {
		size_t n = TP_IOV_MAX;
		int rc = tp_mr_remote(c->ep, remote[i].addr, remote[i].key, remote[i].len, access,
				      r->iov + r->count, &n, &r->mr);

		if (rc)
			return rc;
		r->count += n;
		r->len += remote[i].len;
	}
	return 0;
}

static uint64_t access_of(const struct tp_header *h)
{
	switch (h->kind) {
	case TP_READ: return FI_REMOTE_READ;
	case TP_WRITE: return FI_REMOTE_WRITE;
	default: break;
	}
	if (h->op == FI_ATOMIC_READ)
		return FI_REMOTE_READ;
	return FI_REMOTE_WRITE | (h->flags & TP_WIRE_FLAGS(TP_FETCH) ? FI_REMOTE_READ : 0);
}

/* Reports to the target's caller that a peer has written to its memory. */
static void report(struct tp_conn *c, const struct tp_header *h, const struct reach *r)
{
	const bool read = h->kind == TP_READ || (h->kind == TP_ATOMIC && h->op == FI_ATOMIC_READ);
	struct tp_entry e = {
		.e = {
			.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, .len = r->len, .data = h->data,
		},
		.from = c->ep->info->caps & FI_SOURCE ? tp_av_reverse(c->ep->av, &c->peer) : FI_ADDR_NOTAVAIL,
	};

	tp_cntr_count(c->ep->cntrs[read ? TP_CNTR_REMOTE_READ : TP_CNTR_REMOTE_WRITE], false);
	if (!read && r->mr)
		tp_cntr_count(r->mr->cntr, false);
	if (h->flags & FI_REMOTE_CQ_DATA && c->ep->rx_cq)
		tp_complete(c->ep->rx_cq, &e);
}

/* Does an atomic operation: data has the comparands, if any, and then the operands. */
static int do_atomic(struct tp_conn *c, const struct tp_header *h, const uint8_t *data, size_t len,
		     const struct reach *r, bool reply)
{
	const size_t size = tp_type_size(h->datatype);
	const bool compare = h->flags & TP_WIRE_FLAGS(TP_COMPARE), fetch = h->flags & TP_WIRE_FLAGS(TP_FETCH);
	const size_t want = (h->op == FI_ATOMIC_READ ? 0 : r->len) + (compare ? r->len : 0);
	uint8_t *old, *new;

	if (!size || r->len % size || want != len || !tp_atomic_valid(h->datatype, h->op, fetch, compare))
		return FI_EINVAL;
	old = malloc(2 * r->len + 1);
	if (!old)
		return FI_ENOMEM;
	new = old + r->len;
	tp_iov_get(r->iov, r->count, 0, old, r->len);
	if (h->op != FI_ATOMIC_READ) {
		memcpy(new, old, r->len);
		tp_atomic_apply(h->datatype, h->op, new, data + (compare ? r->len : 0), data, r->len / size);
		tp_iov_put(r->iov, r->count, 0, new, r->len);
	}
	report(c, h, r);
	if (reply)
		tp_conn_reply(c, h->id, 0, 0, old, fetch ? r->len : 0);
	free(old);
	return 0;
}

/* Does an access, and answers unless the request has been answered. */
static void perform(struct tp_conn *c, const struct tp_header *h, const uint8_t *payload, bool replied)
{
	const size_t head = h->remote * sizeof(struct fi_rma_iov);
	struct reach r;
	uint8_t *data;
	int rc = reach(c, h, payload, access_of(h), &r);

	if (rc) {
		if (!replied)
			tp_conn_reply(c, h->id, rc, rc == FI_EKEYREJECTED ? TP_PROV_KEY : rc, NULL, 0);
		return;
	}
	switch (h->kind) {
	case TP_WRITE:
		if (r.len != h->len - head) {
			rc = FI_EINVAL;
			break;
		}
		if (r.len)
			tp_iov_put(r.iov, r.count, 0, payload + head, r.len);
		report(c, h, &r);
		if (!replied)
			tp_conn_reply(c, h->id, 0, 0, NULL, 0);
		break;
	case TP_READ:
		data = malloc(r.len + 1);
		if (!data) {
			rc = FI_ENOMEM;
			break;
		}
		tp_iov_get(r.iov, r.count, 0, data, r.len);
		report(c, h, &r);
		tp_conn_reply(c, h->id, 0, 0, data, r.len);
		free(data);
		break;
	default:
		rc = do_atomic(c, h, payload + head, h->len - head, &r, !replied);
	}
	if (rc && !replied)
		tp_conn_reply(c, h->id, rc, rc, NULL, 0);
}

static void held_free(struct tp_held *e)
{
	tp_list_remove(&e->link);
	free(e->payload);
	free(e);
}

/* Does the accesses of the connection that are held back: FI_FENCE, or its end. */
static void release(struct tp_conn *c)
{
	tp_list_each(&c->ep->domain->held, struct tp_held, e) {
		if (e->conn != c)
			continue;
		perform(c, &e->head, e->payload, e->replied);
		held_free(e);
	}
}

/* A write that has been answered is done although its connection has ended. */
void tp_target_forget(struct tp_conn *c)
{
	tp_list_each(&c->ep->domain->held, struct tp_held, e) {
		if (e->conn != c)
			continue;
		if (e->replied)
			perform(c, &e->head, e->payload, true);
		held_free(e);
	}
}

/* Does accesses that have been held back, in an order by chance. */
void tp_target_due(struct tp_domain *d)
{
	tp_list_each(&d->held, struct tp_held, e) {
		if (e->wait-- > 0)
			continue;
		perform(e->conn, &e->head, e->payload, e->replied);
		held_free(e);
	}
}

/* Holds an access back, if the script says so and no order of the endpoint forbids that. It returns
 * true if it has taken over the payload. */
static bool hold(struct tp_conn *c, const struct tp_header *h, uint8_t *payload)
{
	struct tp_domain *d = c->ep->domain;
	const bool emulated = d->script.m.emulated && h->kind == TP_WRITE && !(h->flags & (FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE));
	const bool ordered = c->ep->info->rx_attr->msg_order & ~FI_ORDER_SAS;
	struct reach r;
	struct tp_held *e;

	if (ordered || !(d->script.reorder || emulated) || reach(c, h, payload, access_of(h), &r))
		return false;
	e = calloc(1, sizeof *e);
	if (!e)
		return false;
	*e = (struct tp_held){.conn = c, .head = *h, .payload = payload, .replied = emulated};
	e->wait = d->script.reorder ? (int) tp_random(&d->faults, d->script.reorder + 1) : 1;
	tp_list_add(&d->held, &e->link);
	if (emulated)
		tp_conn_reply(c, h->id, 0, 0, NULL, 0);
	return true;
}

static void handle_access(struct tp_conn *c, const struct tp_header *h, uint8_t **payload)
{
	struct tp_domain *d = c->ep->domain;

	if (h->flags & FI_FENCE)
		release(c);
	if (d->script.ekey && ++d->faults.accesses % d->script.ekey == 0) {
		tp_conn_reply(c, h->id, FI_EKEYREJECTED, TP_PROV_KEY, NULL, 0);
		return;
	}
	if (hold(c, h, *payload))
		*payload = NULL;
	else
		perform(c, h, *payload, false);
}

/* Ends the operation that a reply is for. A failed one without an id was an injected message, whose
 * failure has no context. */
static void handle_reply(struct tp_conn *c, const struct tp_header *h, const uint8_t *payload)
{
	if (!h->id) {
		struct tp_entry e = {
			.e = {.err = (int) h->status, .prov_errno = (int) h->prov, .flags = FI_SEND | FI_MSG},
			.from = FI_ADDR_NOTAVAIL,
		};

		if (c->ep->tx_cq)
			tp_complete(c->ep->tx_cq, &e);
		return;
	}
	tp_list_each(&c->ops, struct tp_op, op) {
		if (op->id != h->id)
			continue;
		if (h->len != (h->status ? 0 : tp_iov_len(op->result, op->results))) {
			tp_op_end(op, EPROTO, EPROTO);
			return;
		}
		if (h->len)
			tp_iov_put(op->result, op->results, 0, payload, h->len);
		tp_op_end(op, (int) h->status, (int) h->prov);
		return;
	}
}

/* Handles what has arrived over a connection. It owns the payload. */
void tp_target(struct tp_conn *c, struct tp_header *h, uint8_t *payload)
{
	switch (h->kind) {
	case TP_HELLO:
		c->peer = h->from;
		c->known = true;
		break;
	case TP_SEND:
		handle_send(c, h, &payload);
		break;
	case TP_WRITE:
	case TP_READ:
	case TP_ATOMIC:
		handle_access(c, h, &payload);
		break;
	case TP_REPLY:
		handle_reply(c, h, payload);
		break;
	default:
		tp_conn_fail(c, EPROTO);
	}
	free(payload);
}
