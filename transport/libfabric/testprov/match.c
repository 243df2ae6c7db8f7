/*
 * Matching of messages and receives. Each kind, tagged or not, has a list of posted receives and a
 * list of messages that no receive has taken, both in the order of their arrival.
 */
#include "testprov.h"

static struct tp_queue *queue_of(struct tp_ep *ep, bool tagged)
{
	return tagged ? &ep->tagged : &ep->msg;
}

/* Reports whether the receive takes the message. */
static bool matches(struct tp_ep *ep, const struct tp_recv *r, const struct tp_unexpected *u, bool tagged)
{
	if (tagged && (r->tag & ~r->ignore) != (u->tag & ~r->ignore))
		return false;
	if (r->from != FI_ADDR_UNSPEC && ep->info->caps & FI_DIRECTED_RECV) {
		struct tp_av_entry *e = tp_av_find(ep->av, r->from);

		return e && e->addr.ip == u->from.ip && e->addr.port == u->from.port;
	}
	return true;
}

static void message_free(struct tp_ep *ep, struct tp_unexpected *u, bool tagged)
{
	if (u->link.next != &u->link)
		queue_of(ep, tagged)->bytes -= u->len;
	tp_list_remove(&u->link);
	free(u->payload);
	free(u);
}

static void recv_free(struct tp_ep *ep, struct tp_recv *r, bool tagged)
{
	if (r->link.next != &r->link)
		queue_of(ep, tagged)->count--;
	tp_list_remove(&r->link);
	free(r);
}

static struct tp_entry entry_for(struct tp_ep *ep, const struct tp_recv *r, const struct tp_unexpected *u, bool tagged)
{
	return (struct tp_entry){
		.e = {
			.op_context = r->context, .len = u->len, .buf = r->count ? r->iov[0].iov_base : NULL,
			.data = u->data, .tag = u->tag,
			.flags = FI_RECV | (tagged ? FI_TAGGED : FI_MSG) | (u->flags & FI_REMOTE_CQ_DATA),
		},
		.from = ep->info->caps & FI_SOURCE ? tp_av_reverse(ep->av, &u->from) : FI_ADDR_NOTAVAIL,
	};
}

/* Copies the message to the receive, makes the completion, and answers a sender that waits for the
 * delivery. It returns true if the receive is used up. The caller frees both. */
static bool deliver(struct tp_ep *ep, struct tp_recv *r, struct tp_unexpected *u, bool tagged)
{
	const bool multi = r->flags & FI_MULTI_RECV;
	const size_t room = r->len - r->used;
	const size_t n = u->len < room ? u->len : room;
	struct tp_entry e = entry_for(ep, r, u, tagged);
	struct tp_entry release = {.e = {.op_context = r->context, .flags = FI_MULTI_RECV}, .from = FI_ADDR_NOTAVAIL};
	bool done = true;

	if (multi)
		e.e.buf = (char *) r->iov[0].iov_base + r->used;
	tp_iov_put(r->iov, r->count, r->used, u->payload, n);
	if (n < u->len) {
		e.e.err = FI_ETRUNC;
		e.e.len = n;
		e.e.olen = u->len - n;
	}
	if (u->broken) {
		e.e.err = FI_EIO;
		e.e.prov_errno = TP_PROV_FAULT;
		e.e.len = 0;
	}
	if (multi) {
		r->used += n;
		done = r->len - r->used < ep->min_multi_recv;
		if (done && !ep->domain->script.m.separate)
			e.e.flags |= FI_MULTI_RECV;
	}
	tp_cntr_count(ep->cntrs[TP_CNTR_RECV], e.e.err);
	if (e.e.err || multi || !ep->rx_selective || r->flags & FI_COMPLETION)
		tp_complete(ep->rx_cq, &e);
	if (multi && done && ep->domain->script.m.separate)
		tp_complete(ep->rx_cq, &release);
	if (!u->broken && u->flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE))
		tp_conn_reply(u->conn, u->id, 0, 0, NULL, 0);
	return done;
}

/* Gives a message that has just arrived to the first receive that takes it, or keeps it. */
void tp_match_arrived(struct tp_ep *ep, struct tp_unexpected *u, bool tagged)
{
	struct tp_queue *q = queue_of(ep, tagged);

	tp_list_each(&q->posted, struct tp_recv, r) {
		if (!matches(ep, r, u, tagged))
			continue;
		if (deliver(ep, r, u, tagged))
			recv_free(ep, r, tagged);
		message_free(ep, u, tagged);
		return;
	}
	q->bytes += u->len;
	tp_list_add(&q->unexpected, &u->link);
}

/* FI_PEEK: looks for a message, and reports it, or that there is none, by a completion. */
static void peek(struct tp_ep *ep, struct tp_recv *r, uint64_t flags)
{
	struct tp_entry none = {
		.e = {.op_context = r->context, .err = FI_ENOMSG, .flags = FI_RECV | FI_TAGGED},
		.from = FI_ADDR_NOTAVAIL,
	};

	tp_list_each(&ep->tagged.unexpected, struct tp_unexpected, u) {
		if (u->claimed || !matches(ep, r, u, true))
			continue;

		struct tp_entry e = entry_for(ep, r, u, true);

		e.e.buf = NULL;
		tp_complete(ep->rx_cq, &e);
		if (flags & FI_CLAIM) {
			u->claimed = true;
			u->claim = r->context;
		} else if (flags & FI_DISCARD) {
			tp_conn_reply(u->conn, u->flags & FI_DELIVERY_COMPLETE ? u->id : 0, 0, 0, NULL, 0);
			message_free(ep, u, true);
		}
		return;
	}
	tp_complete(ep->rx_cq, &none);
}

/* FI_CLAIM without FI_PEEK: receives, or with FI_DISCARD drops, the message that was claimed with
 * the same context. */
static ssize_t take_claimed(struct tp_ep *ep, struct tp_recv *r, uint64_t flags)
{
	tp_list_each(&ep->tagged.unexpected, struct tp_unexpected, u) {
		if (!u->claimed || u->claim != r->context)
			continue;
		if (flags & FI_DISCARD)
			r->count = r->len = 0;
		if (flags & FI_DISCARD)
			u->len = 0;
		deliver(ep, r, u, true);
		message_free(ep, u, true);
		return 0;
	}
	return -FI_ENOMSG;
}

/* Gives messages that wait to a new receive. It returns true if the receive is used up. */
static bool match_waiting(struct tp_ep *ep, struct tp_recv *r, bool tagged)
{
	tp_list_each(&queue_of(ep, tagged)->unexpected, struct tp_unexpected, u) {
		bool done;

		if (u->claimed || !matches(ep, r, u, tagged))
			continue;
		done = deliver(ep, r, u, tagged);
		message_free(ep, u, tagged);
		if (done)
			return true;
	}
	return false;
}

static ssize_t recv_check(struct tp_ep *ep, const struct fi_msg_tagged *m, uint64_t flags, bool tagged)
{
	const size_t limit = ep->info->rx_attr->iov_limit;

	if (!ep->enabled)
		return -FI_EOPBADSTATE;
	if (m->iov_count > limit || (flags & FI_MULTI_RECV && (tagged || m->iov_count != 1 || !(ep->info->caps & FI_MULTI_RECV))))
		return -FI_EINVAL;
	if (!tagged && flags & (FI_PEEK | FI_CLAIM))
		return -FI_EINVAL;
	if (flags & (FI_PEEK | FI_CLAIM | FI_DISCARD))
		return 0;
	return tp_mr_local(ep->domain, m->msg_iov, m->desc, m->iov_count, FI_RECV);
}

/* Posts a receive. For untagged ones the tag of m is not used. */
ssize_t tp_recv_post(struct tp_ep *ep, bool tagged, const struct fi_msg_tagged *m, uint64_t flags)
{
	struct tp_queue *q = queue_of(ep, tagged);
	struct tp_recv *r = NULL;
	ssize_t rc;

	tp_lock(ep->domain);
	rc = recv_check(ep, m, flags, tagged);
	if (!rc && q->count >= ep->info->rx_attr->size)
		rc = -FI_EAGAIN;
	if (!rc && ep->domain->script.eagain && tp_random(&ep->domain->faults, 100) < ep->domain->script.eagain)
		rc = -FI_EAGAIN;
	if (!rc) {
		r = calloc(1, sizeof *r);
		rc = r ? 0 : -FI_ENOMEM;
	}
	if (rc) {
		tp_unlock(ep->domain);
		return rc;
	}
	tp_list_init(&r->link);
	if (m->iov_count)
		memcpy(r->iov, m->msg_iov, m->iov_count * sizeof *r->iov);
	r->count = m->iov_count;
	r->len = tp_iov_len(r->iov, r->count);
	r->flags = flags;
	r->tag = m->tag;
	r->ignore = m->ignore;
	r->from = m->addr;
	r->context = m->context;
	if (flags & FI_PEEK) {
		peek(ep, r, flags);
		free(r);
	} else if (flags & FI_CLAIM) {
		rc = take_claimed(ep, r, flags);
		free(r);
	} else if (match_waiting(ep, r, tagged)) {
		free(r);
	} else {
		q->count++;
		tp_list_add(&q->posted, &r->link);
	}
	tp_unlock(ep->domain);
	return rc;
}

/* Cancels the receive with this context, whose failure is FI_ECANCELED. */
bool tp_cancel(struct tp_ep *ep, void *context)
{
	for (int tagged = 0; tagged < 2; tagged++) {
		tp_list_each(&queue_of(ep, tagged)->posted, struct tp_recv, r) {
			struct tp_entry e = {
				.e = {
					.op_context = context, .err = FI_ECANCELED,
					.flags = FI_RECV | (tagged ? FI_TAGGED : FI_MSG) | (r->flags & FI_MULTI_RECV),
				},
				.from = FI_ADDR_NOTAVAIL,
			};

			if (r->context != context)
				continue;
			recv_free(ep, r, tagged);
			tp_complete(ep->rx_cq, &e);
			return true;
		}
	}
	return false;
}

/* Keeps the messages of a connection that has ended, which need no replies any more. */
void tp_match_forget(struct tp_ep *ep, struct tp_conn *c)
{
	for (int tagged = 0; tagged < 2; tagged++)
		tp_list_each(&queue_of(ep, tagged)->unexpected, struct tp_unexpected, u)
			if (u->conn == c)
				u->conn = NULL;
}

/* Frees the receives and messages of an endpoint that is closed. */
void tp_match_close(struct tp_ep *ep)
{
	for (int tagged = 0; tagged < 2; tagged++) {
		tp_list_each(&queue_of(ep, tagged)->posted, struct tp_recv, r)
			recv_free(ep, r, tagged);
		tp_list_each(&queue_of(ep, tagged)->unexpected, struct tp_unexpected, u)
			message_free(ep, u, tagged);
	}
}
