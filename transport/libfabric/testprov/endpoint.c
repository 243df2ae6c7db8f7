/* Endpoints: opening, binding, options, and the listening socket. */
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "testprov.h"

/* Binds the listening socket of the endpoint to the name of its address, and chooses a free port if
 * the address has none. */
static int bind_socket(struct tp_ep *ep)
{
	struct sockaddr_un sun;
	const bool any = !ep->addr.port;

	ep->given = !any;
	ep->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ep->fd < 0)
		return -errno;
	for (int try = 0;; try++) {
		if (any)
			ep->addr.port = 1024 + (uint32_t) (getpid() * 257 + tp_now_us() + try * 7919) % 64000;
		if (!bind(ep->fd, (struct sockaddr *) &sun, (socklen_t) tp_socket_address(&ep->addr, &sun)))
			return 0;
		if (errno != EADDRINUSE || !any || try == 1000)
			return -errno;
	}
}

/* Accepts the connections that wait. Connections of other users are closed. */
void tp_ep_accept(struct tp_ep *ep)
{
	for (;;) {
		int fd = accept4(ep->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct ucred user;
		socklen_t len = sizeof user;

		if (fd < 0)
			return;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &len) || user.uid != geteuid() ||
		    !tp_conn_new(ep, fd, false))
			close(fd);
	}
}

static int enable(struct tp_ep *ep)
{
	int rc;

	if (ep->enabled)
		return -FI_EOPBADSTATE;
	if (!ep->av)
		return -FI_ENOAV;
	if ((ep->info->caps & FI_SEND && !ep->tx_cq) || (ep->info->caps & FI_RECV && !ep->rx_cq))
		return -FI_ENOCQ;
	if (listen(ep->fd, 128))
		return -errno;
	ep->listener.kind = TP_LISTENER;
	rc = tp_watch(ep->domain, ep->fd, EPOLLIN, &ep->listener, EPOLL_CTL_ADD);
	ep->enabled = !rc;
	return rc;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid.fid);
	int rc = 0;

	tp_lock(ep->domain);
	switch (command) {
	case FI_ENABLE:
		rc = enable(ep);
		break;
	case FI_GETOPSFLAG:
		*(uint64_t *) arg = *(uint64_t *) arg & FI_RECV ? ep->info->rx_attr->op_flags : ep->info->tx_attr->op_flags;
		break;
	case FI_SETOPSFLAG:
		if (*(uint64_t *) arg & FI_RECV)
			ep->info->rx_attr->op_flags = *(uint64_t *) arg & ~(FI_RECV | FI_TRANSMIT);
		else
			ep->info->tx_attr->op_flags = *(uint64_t *) arg & ~(FI_RECV | FI_TRANSMIT);
		break;
	default:
		rc = -FI_ENOSYS;
	}
	tp_unlock(ep->domain);
	return rc;
}

static int bind_cntr(struct tp_ep *ep, struct tp_cntr *cntr, uint64_t flags)
{
	static const uint64_t bits[TP_CNTRS] = {
		[TP_CNTR_SEND] = FI_SEND, [TP_CNTR_RECV] = FI_RECV, [TP_CNTR_READ] = FI_READ,
		[TP_CNTR_WRITE] = FI_WRITE, [TP_CNTR_REMOTE_READ] = FI_REMOTE_READ,
		[TP_CNTR_REMOTE_WRITE] = FI_REMOTE_WRITE,
	};
	for (int i = 0; i < TP_CNTRS; i++) {
		if (!(flags & bits[i]))
			continue;
		if (ep->cntrs[i])
			return -FI_EINVAL;
		ep->cntrs[i] = cntr;
		cntr->refs++;
	}
	return 0;
}

static int bind_cq(struct tp_ep *ep, struct tp_cq *cq, uint64_t flags)
{
	if (!(flags & (FI_TRANSMIT | FI_RECV)) || (flags & FI_TRANSMIT && ep->tx_cq) ||
	    (flags & FI_RECV && ep->rx_cq))
		return -FI_EINVAL;
	if (flags & FI_TRANSMIT) {
		ep->tx_cq = cq;
		ep->tx_selective = flags & FI_SELECTIVE_COMPLETION;
		cq->refs++;
	}
	if (flags & FI_RECV) {
		ep->rx_cq = cq;
		ep->rx_selective = flags & FI_SELECTIVE_COMPLETION;
		cq->refs++;
	}
	return 0;
}

static int ep_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid.fid);
	int rc = 0;

	tp_lock(ep->domain);
	if (ep->enabled) {
		rc = -FI_EOPBADSTATE;
	} else if (with->fclass == FI_CLASS_AV && !ep->av) {
		ep->av = container_of(with, struct tp_av, fid.fid);
		ep->av->refs++;
	} else if (with->fclass == FI_CLASS_CQ) {
		rc = bind_cq(ep, container_of(with, struct tp_cq, fid.fid), flags);
	} else if (with->fclass == FI_CLASS_CNTR) {
		rc = bind_cntr(ep, container_of(with, struct tp_cntr, fid.fid), flags);
	} else if (with->fclass == FI_CLASS_EQ && !ep->eq) {
		ep->eq = container_of(with, struct tp_eq, fid.fid);
		ep->eq->refs++;
	} else {
		rc = -FI_EINVAL;
	}
	tp_unlock(ep->domain);
	return rc;
}

/* Closes the endpoint. Data of injected messages that fits into a socket is still sent; everything
 * else that is in flight ends without a completion. */
static int ep_close(struct fid *fid)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid.fid);
	struct tp_domain *d = ep->domain;

	tp_lock(d);
	if (ep->regions) {
		tp_unlock(d);
		return -FI_EBUSY;
	}
	for (int i = 0; i < TP_BUCKETS; i++) {
		tp_list_each(&ep->conns[i], struct tp_conn, c) {
			tp_conn_flush(c);
			tp_conn_fail(c, 0);
		}
	}
	tp_list_each(&ep->accepted, struct tp_conn, c)
		tp_conn_fail(c, 0);
	tp_match_close(ep);
	tp_list_remove(&ep->link);
	close(ep->fd);
	if (ep->av)
		ep->av->refs--;
	if (ep->tx_cq)
		ep->tx_cq->refs--;
	if (ep->rx_cq)
		ep->rx_cq->refs--;
	if (ep->eq)
		ep->eq->refs--;
	for (int i = 0; i < TP_CNTRS; i++)
		if (ep->cntrs[i])
			ep->cntrs[i]->refs--;
	tp_list_each(&d->dead, struct tp_conn, c) {
		if (c->ep != ep)
			continue;
		tp_list_remove(&c->link);
		tp_conn_free(c);
	}
	d->refs--;
	tp_unlock(d);
	fi_freeinfo(ep->info);
	free(ep);
	return 0;
}

static ssize_t ep_cancel(fid_t fid, void *context)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid.fid);
	bool found;

	tp_lock(ep->domain);
	found = tp_cancel(ep, context);
	tp_unlock(ep->domain);
	return found ? 0 : -FI_ENOENT;
}

static int ep_getopt(fid_t fid, int level, int name, void *value, size_t *len)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid.fid);

	if (level == FI_OPT_ENDPOINT && name == FI_OPT_FI_HMEM_P2P && ep->info->caps & FI_HMEM) {
		if (*len < sizeof(int))
			return -FI_ETOOSMALL;
		*(int *) value = ep->p2p;
		*len = sizeof(int);
		return 0;
	}
	if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV)
		return -FI_ENOPROTOOPT;
	if (*len < sizeof(size_t))
		return -FI_ETOOSMALL;
	*(size_t *) value = ep->min_multi_recv;
	*len = sizeof(size_t);
	return 0;
}

static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t len)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid.fid);

	if (level == FI_OPT_ENDPOINT && name == FI_OPT_FI_HMEM_P2P && ep->info->caps & FI_HMEM) {
		int p2p = len == sizeof(int) ? *(const int *) value : -1;

		if (p2p < FI_HMEM_P2P_ENABLED || p2p > FI_HMEM_P2P_DISABLED || ep->enabled)
			return -FI_EINVAL;
		if (p2p == FI_HMEM_P2P_REQUIRED && ep->domain->script.nop2p)
			return -FI_EOPNOTSUPP;
		ep->p2p = p2p;
		return 0;
	}
	if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV)
		return -FI_ENOPROTOOPT;
	if (len != sizeof(size_t))
		return -FI_EINVAL;
	ep->min_multi_recv = *(const size_t *) value;
	return 0;
}

static int no_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **ep, void *context)
{
	(void) sep, (void) index, (void) attr, (void) ep, (void) context;
	return -FI_ENOSYS;
}

static int no_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **ep, void *context)
{
	(void) sep, (void) index, (void) attr, (void) ep, (void) context;
	return -FI_ENOSYS;
}

static ssize_t rx_size_left(struct fid_ep *fid)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid);

	return (ssize_t) (ep->info->rx_attr->size - ep->msg.count);
}

static ssize_t tx_size_left(struct fid_ep *fid)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid);

	return (ssize_t) (ep->info->tx_attr->size - ep->in_flight);
}

static int cm_getname(fid_t fid, void *addr, size_t *len)
{
	struct tp_ep *ep = container_of(fid, struct tp_ep, fid.fid);
	uint8_t raw[TP_ADDR_SIZE];
	const size_t room = *len;

	tp_addr_put(ep->info->addr_format, &ep->addr, raw);
	memcpy(addr, raw, room < sizeof raw ? room : sizeof raw);
	*len = sizeof raw;
	return room < sizeof raw ? -FI_ETOOSMALL : 0;
}

static int no_setname(fid_t fid, void *addr, size_t len)
{
	(void) fid, (void) addr, (void) len;
	return -FI_ENOSYS;
}

static int no_getpeer(struct fid_ep *ep, void *addr, size_t *len)
{
	(void) ep, (void) addr, (void) len;
	return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t len)
{
	(void) ep, (void) addr, (void) param, (void) len;
	return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *param, size_t len)
{
	(void) ep, (void) param, (void) len;
	return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void) ep, (void) flags;
	return -FI_ENOSYS;
}

static int no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context)
{
	(void) ep, (void) addr, (void) flags, (void) mc, (void) context;
	return -FI_ENOSYS;
}

int tp_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = ep_close, .bind = ep_bind,
		.control = ep_control, .ops_open = tp_no_ops_open,
	};
	static struct fi_ops_ep ops = {
		.size = sizeof ops, .cancel = ep_cancel, .getopt = ep_getopt, .setopt = ep_setopt,
		.tx_ctx = no_tx_ctx, .rx_ctx = no_rx_ctx,
		.rx_size_left = rx_size_left, .tx_size_left = tx_size_left,
	};
	static struct fi_ops_cm cm = {
		.size = sizeof cm, .setname = no_setname, .getname = cm_getname, .getpeer = no_getpeer,
		.connect = no_connect, .accept = no_accept, .shutdown = no_shutdown, .join = no_join,
	};
	struct tp_domain *d = container_of(domain, struct tp_domain, fid);
	struct tp_ep *e;
	int rc;

	if (!info->ep_attr || info->ep_attr->type != FI_EP_RDM)
		return -FI_EINVAL;
	e = calloc(1, sizeof *e);
	if (!e)
		return -FI_ENOMEM;
	e->info = fi_dupinfo(info);
	if (!e->info) {
		free(e);
		return -FI_ENOMEM;
	}
	e->fid = (struct fid_ep){
		.fid = {FI_CLASS_EP, context, &fid_ops}, .ops = &ops, .cm = &cm,
		.msg = info->caps & FI_MSG ? &tp_msg_ops : NULL,
		.tagged = info->caps & FI_TAGGED ? &tp_tagged_ops : NULL,
		.rma = info->caps & FI_RMA ? &tp_rma_ops : NULL,
		.atomic = info->caps & FI_ATOMIC ? &tp_atomic_ops : NULL,
	};
	e->domain = d;
	e->min_multi_recv = 64;
	e->p2p = -1;
	e->next_id = 1;
	if (!tp_addr_get(info->addr_format, info->src_addr, info->src_addrlen, &e->addr))
		e->addr = (struct tp_addr){0};
	if (!e->addr.ip)
		e->addr.ip = 0x7f000001;
	tp_list_init(&e->accepted);
	for (int i = 0; i < TP_BUCKETS; i++)
		tp_list_init(&e->conns[i]);
	tp_list_init(&e->msg.posted);
	tp_list_init(&e->msg.unexpected);
	tp_list_init(&e->tagged.posted);
	tp_list_init(&e->tagged.unexpected);
	rc = bind_socket(e);
	if (rc) {
		if (e->fd >= 0)
			close(e->fd);
		fi_freeinfo(e->info);
		free(e);
		return rc;
	}
	tp_lock(d);
	tp_list_add(&d->eps, &e->link);
	d->refs++;
	tp_unlock(d);
	*ep = &e->fid;
	return 0;
}
