/*
 * Connections. The endpoint that starts operations makes a connection to each target. Requests go
 * in the direction of the target, replies come back. So two endpoints that send to each other have
 * two connections. One connection delivers in order.
 *
 *   initiator ── hello, request, request, … ──► target
 *             ◄── reply, reply, … ─────────────
 */
#include <limits.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "testprov.h"

/* Makes a connection of the socket fd, which it owns from then on. It returns NULL, and leaves fd
 * open, if there is no memory. */
struct tp_conn *tp_conn_new(struct tp_ep *ep, int fd, bool initiator)
{
	struct tp_conn *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->source.kind = TP_CONN;
	c->ep = ep;
	c->fd = fd;
	c->initiator = initiator;
	tp_list_init(&c->out);
	tp_list_init(&c->ops);
	tp_list_init(&c->link);
	if (tp_watch(ep->domain, fd, EPOLLIN, &c->source, EPOLL_CTL_ADD)) {
		free(c);
		return NULL;
	}
	if (!initiator)
		tp_list_add(&ep->accepted, &c->link);
	return c;
}

static struct tp_list *bucket(struct tp_ep *ep, const struct tp_addr *peer)
{
	return &ep->conns[(peer->ip * 31 + peer->port) % TP_BUCKETS];
}

/* Sends the hello that says the address of this endpoint. */
static int hello(struct tp_conn *c)
{
	struct tp_out *out = calloc(1, sizeof *out);

	if (!out)
		return -FI_ENOMEM;
	out->head = (struct tp_header){.magic = TP_MAGIC, .kind = TP_HELLO, .from = c->ep->addr};
	return tp_conn_queue(c, out);
}

/* Finds the connection to peer, or makes one. It returns the errno of connect(2) as a negative
 * number: -FI_EAGAIN if the peer has too many connections to accept. */
int tp_conn_get(struct tp_ep *ep, const struct tp_addr *peer, struct tp_conn **conn)
{
	struct sockaddr_un sun;
	struct tp_list *l = bucket(ep, peer);
	struct tp_conn *c;
	int fd, rc;

	tp_list_each(l, struct tp_conn, have) {
		if (have->peer.ip == peer->ip && have->peer.port == peer->port) {
			*conn = have;
			return 0;
		}
	}
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *) &sun, (socklen_t) tp_socket_address(peer, &sun))) {
		rc = -errno;
		close(fd);
		return rc;
	}
	c = tp_conn_new(ep, fd, true);
	if (!c) {
		close(fd);
		return -FI_ENOMEM;
	}
	c->peer = *peer;
	c->known = true;
	tp_list_add(l, &c->link);
	rc = hello(c);
	if (rc)
		return rc;
	if (c->dead)
		return -FI_ECONNREFUSED; /* the peer has closed its endpoint meanwhile */
	*conn = c;
	return 0;
}

/* Adds out to what the connection sends, which owns out from then on, and sends what it can. */
int tp_conn_queue(struct tp_conn *c, struct tp_out *out)
{
	const bool idle = tp_list_empty(&c->out);

	tp_list_add(&c->out, &out->link);
	c->queued += sizeof out->head + out->head.len;
	if (idle)
		tp_conn_flush(c);
	return 0;
}

static void out_free(struct tp_out *out)
{
	tp_list_remove(&out->link);
	free(out->copy);
	free(out);
}

/* Stores in iov what of out has not been sent yet, and returns the number of segments. */
static int rest(const struct tp_out *out, struct iovec *iov)
{
	size_t skip = out->sent;
	int n = 0;

	for (size_t i = 0; i < out->count + 2; i++) {
		struct iovec part = {(void *) &out->head, sizeof out->head};

		if (i == 1)
			part = (struct iovec){out->copy, out->copied};
		else if (i > 1)
			part = out->iov[i - 2];
		if (skip >= part.iov_len) {
			skip -= part.iov_len;
			continue;
		}
		iov[n].iov_base = (char *) part.iov_base + skip;
		iov[n++].iov_len = part.iov_len - skip;
		skip = 0;
	}
	return n;
}

/* Sends as much as the socket takes. */
void tp_conn_flush(struct tp_conn *c)
{
	bool full = false;

	while (!c->dead && !full && !tp_list_empty(&c->out)) {
		struct tp_out *out = tp_list_first(&c->out, struct tp_out);
		struct iovec iov[TP_IOV_MAX + 2];
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = (size_t) rest(out, iov)};
		ssize_t n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0) {
			if (errno == EAGAIN || errno == EWOULDBLOCK) {
				full = true;
				break;
			}
			if (errno == EINTR)
				continue;
			tp_conn_fail(c, errno == EPIPE ? FI_ECONNRESET : errno);
			return;
		}
		out->sent += (size_t) n;
		if (out->sent == sizeof out->head + out->head.len) {
			c->queued -= out->sent;
			out_free(out);
		}
	}
	if (!c->dead && full != c->writing) {
		c->writing = full;
		tp_watch(c->ep->domain, c->fd, EPOLLIN | (full ? EPOLLOUT : 0), &c->source, EPOLL_CTL_MOD);
	}
}

/* Reads len bytes in total to buf, of which have have arrived. Returns 1 if all have, 0 if the
 * socket has no more yet, -1 if the connection has failed. */
static int fill(struct tp_conn *c, void *buf, size_t have, size_t len)
{
	while (have < len) {
		ssize_t n = recv(c->fd, (char *) buf + have, len - have, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n <= 0) {
			tp_conn_fail(c, FI_ECONNRESET);
			return -1;
		}
		have += (size_t) n;
		c->got += (size_t) n;
	}
	return 1;
}

/* Checks a header that has arrived, and makes room for its data. */
static bool prepare(struct tp_conn *c)
{
	const struct tp_header *h = &c->in;
	const size_t limit = 3 * c->ep->domain->script.m.max_msg + TP_IOV_MAX * sizeof(struct fi_rma_iov);

	if (h->magic != TP_MAGIC || h->len > limit || h->remote * sizeof(struct fi_rma_iov) > h->len ||
	    h->remote > TP_IOV_MAX || (h->kind == TP_REPLY) != c->initiator || (h->kind != TP_HELLO && !c->known))
		return false;
	c->payload = h->len ? malloc(h->len) : NULL;
	return !h->len || c->payload;
}

enum { MESSAGES = 64 }; /* how many one call of receive takes */

static void receive(struct tp_conn *c)
{
	for (int i = 0; i < MESSAGES && !c->dead; i++) {
		if (!c->initiator && c->ep->rx_cq && tp_cq_full(c->ep->rx_cq))
			return; /* the peer waits until the caller has read its queue */
		if (c->got < sizeof c->in) {
			if (fill(c, &c->in, c->got, sizeof c->in) <= 0)
				return;
			if (!prepare(c)) {
				tp_conn_fail(c, EPROTO);
				return;
			}
		}
		if (fill(c, c->payload, c->got - sizeof c->in, c->in.len) <= 0)
			return;

		struct tp_header h = c->in;
		uint8_t *payload = c->payload;

		c->got = 0;
		c->payload = NULL;
		tp_target(c, &h, payload);
	}
}

/* Handles what epoll reports about the connection. */
void tp_conn_event(struct tp_conn *c, uint32_t events)
{
	if (!c->dead && events & EPOLLOUT)
		tp_conn_flush(c);
	if (!c->dead && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		receive(c);
}

/* Ends the connection. If err is not 0, its operations fail with err, and so do injected messages
 * that have not been sent. tp_progress frees the connection later, because a caller may use it. */
void tp_conn_fail(struct tp_conn *c, int err)
{
	if (c->dead)
		return;
	c->dead = true;
	close(c->fd);
	tp_list_remove(&c->link);
	tp_list_add(&c->ep->domain->dead, &c->link);
	tp_match_forget(c->ep, c);
	tp_target_forget(c);
	tp_list_each(&c->out, struct tp_out, out) {
		if (err && c->initiator && !out->head.id && out->head.kind != TP_HELLO && c->ep->tx_cq) {
			struct tp_entry e = {.e = {.err = err, .flags = out->head.flags & TP_WIRE_FI}};

			tp_complete(c->ep->tx_cq, &e);
		}
		out_free(out);
	}
	tp_list_each(&c->ops, struct tp_op, op) {
		if (err) {
			tp_op_end(op, err, err);
		} else {
			tp_list_remove(&op->link);
			c->ep->in_flight--;
			free(op);
		}
	}
}

void tp_conn_free(struct tp_conn *c)
{
	free(c->payload);
	free(c);
}

/* Answers a request. A request without an id is answered only if it has failed. */
void tp_conn_reply(struct tp_conn *c, uint64_t id, int status, int prov, const void *data, size_t len)
{
	struct tp_out *out;

	if (!c || c->dead || (!id && !status))
		return;
	out = calloc(1, sizeof *out);
	if (out && len) {
		out->copy = malloc(len);
		if (out->copy)
			memcpy(out->copy, data, len);
	}
	if (!out || (len && !out->copy)) {
		free(out);
		tp_conn_fail(c, FI_ENOMEM);
		return;
	}
	out->copied = len;
	out->head = (struct tp_header){
		.magic = TP_MAGIC, .kind = TP_REPLY, .status = (uint32_t) status, .prov = (uint32_t) prov,
		.id = id, .len = len,
	};
	tp_conn_queue(c, out);
}
