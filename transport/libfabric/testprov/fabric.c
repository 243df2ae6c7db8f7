/* Fabrics and domains. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "testprov.h"

int tp_no_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	(void) fid, (void) with, (void) flags;
	return -FI_ENOSYS;
}

int tp_no_control(struct fid *fid, int command, void *arg)
{
	(void) fid, (void) command, (void) arg;
	return -FI_ENOSYS;
}

int tp_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
	(void) fid, (void) name, (void) flags, (void) ops, (void) context;
	return -FI_ENOSYS;
}

static int fabric_close(struct fid *fid)
{
	struct tp_fabric *f = container_of(fid, struct tp_fabric, fid.fid);

	if (f->refs)
		return -FI_EBUSY;
	free(f);
	return 0;
}

static int no_passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep, void *context)
{
	(void) fabric, (void) info, (void) pep, (void) context;
	return -FI_ENOSYS;
}

static int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **wait)
{
	(void) fabric, (void) attr, (void) wait;
	return -FI_ENOSYS;
}

static int trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	(void) fabric;
	for (int i = 0; i < count; i++) {
		int rc;

		switch (fids[i]->fclass) {
		case FI_CLASS_CQ:
			rc = tp_cq_trywait(container_of(fids[i], struct tp_cq, fid.fid));
			break;
		case FI_CLASS_EQ:
			rc = tp_eq_trywait(container_of(fids[i], struct tp_eq, fid.fid));
			break;
		case FI_CLASS_CNTR:
			rc = 0;
			break;
		default:
			rc = -FI_EINVAL;
		}
		if (rc)
			return rc;
	}
	return 0;
}

int tp_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = fabric_close, .bind = tp_no_bind,
		.control = tp_no_control, .ops_open = tp_no_ops_open,
	};
	static struct fi_ops_fabric ops = {
		.size = sizeof ops, .domain = tp_domain_open, .passive_ep = no_passive_ep,
		.eq_open = tp_eq_open, .wait_open = no_wait_open, .trywait = trywait,
	};
	struct tp_fabric *f;

	if (attr->name && strcmp(attr->name, TP_NAME))
		return -FI_EINVAL;
	f = calloc(1, sizeof *f);
	if (!f)
		return -FI_ENOMEM;
	f->fid.fid = (struct fid){FI_CLASS_FABRIC, context, &fid_ops};
	f->fid.ops = &ops;
	f->fid.api_version = attr->api_version;
	*fabric = &f->fid;
	return 0;
}

static void domain_free(struct tp_domain *d)
{
	if (d->epfd >= 0)
		close(d->epfd);
	if (d->timer_fd >= 0)
		close(d->timer_fd);
	if (d->wake_fd >= 0)
		close(d->wake_fd);
	if (d->info)
		fi_freeinfo(d->info);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static int domain_close(struct fid *fid)
{
	struct tp_domain *d = container_of(fid, struct tp_domain, fid.fid);

	if (d->refs)
		return -FI_EBUSY;
	tp_thread_stop(d);
	tp_list_each(&d->dead, struct tp_conn, c) {
		tp_list_remove(&c->link);
		tp_conn_free(c);
	}
	d->fabric->refs--;
	domain_free(d);
	return 0;
}

static int domain_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	struct tp_domain *d = container_of(fid, struct tp_domain, fid.fid);

	if (with->fclass != FI_CLASS_EQ || flags & ~FI_REG_MR)
		return -FI_EINVAL;
	d->eq = container_of(with, struct tp_eq, fid.fid);
	return 0;
}

static int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	(void) domain, (void) info, (void) ep, (void) context;
	return -FI_ENOSYS;
}

static int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **poll)
{
	(void) domain, (void) attr, (void) poll;
	return -FI_ENOSYS;
}

static int no_stx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context)
{
	(void) domain, (void) attr, (void) stx, (void) context;
	return -FI_ENOSYS;
}

static int no_srx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep, void *context)
{
	(void) domain, (void) attr, (void) ep, (void) context;
	return -FI_ENOSYS;
}

static int query_atomic(struct fid_domain *domain, enum fi_datatype type, enum fi_op op,
			struct fi_atomic_attr *attr, uint64_t flags)
{
	struct tp_domain *d = container_of(domain, struct tp_domain, fid);
	const size_t size = tp_type_size(type);

	if (!tp_atomic_valid(type, op, flags & FI_FETCH_ATOMIC, flags & FI_COMPARE_ATOMIC))
		return -FI_EOPNOTSUPP;
	attr->size = size;
	attr->count = d->script.m.max_msg / size;
	return 0;
}

static int no_query_collective(struct fid_domain *domain, enum fi_collective_op coll,
			       struct fi_collective_attr *attr, uint64_t flags)
{
	(void) domain, (void) coll, (void) attr, (void) flags;
	return -FI_ENOSYS;
}

static int open_descriptors(struct tp_domain *d)
{
	int rc;

	d->epfd = epoll_create1(EPOLL_CLOEXEC);
	d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	d->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->epfd < 0 || d->timer_fd < 0 || d->wake_fd < 0)
		return -errno;
	d->timer.kind = TP_TIMER;
	d->wake.kind = TP_WAKE;
	rc = tp_watch(d, d->timer_fd, EPOLLIN, &d->timer, EPOLL_CTL_ADD);
	return rc ? rc : tp_watch(d, d->wake_fd, EPOLLIN, &d->wake, EPOLL_CTL_ADD);
}

int tp_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
		   void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = domain_close, .bind = domain_bind,
		.control = tp_no_control, .ops_open = tp_no_ops_open,
	};
	static struct fi_ops_domain ops = {
		.size = sizeof ops, .av_open = tp_av_open, .cq_open = tp_cq_open,
		.endpoint = tp_ep_open, .scalable_ep = no_scalable_ep, .cntr_open = tp_cntr_open,
		.poll_open = no_poll_open, .stx_ctx = no_stx, .srx_ctx = no_srx,
		.query_atomic = query_atomic, .query_collective = no_query_collective,
	};
	struct tp_domain *d = calloc(1, sizeof *d);
	pthread_mutexattr_t recursive;
	int rc;

	if (!d)
		return -FI_ENOMEM;
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&d->lock, &recursive);
	pthread_mutexattr_destroy(&recursive);
	d->epfd = d->timer_fd = d->wake_fd = -1;
	d->fid.fid = (struct fid){FI_CLASS_DOMAIN, context, &fid_ops};
	d->fid.ops = &ops;
	d->fid.mr = &tp_mr_ops;
	d->fabric = container_of(fabric, struct tp_fabric, fid);
	tp_list_init(&d->eps);
	tp_list_init(&d->regions);
	tp_list_init(&d->dead);
	tp_list_init(&d->late);
	tp_list_init(&d->held);
	d->next_key = 1;
	d->info = fi_dupinfo(info);
	rc = d->info ? tp_script_read(&d->script) : -FI_ENOMEM;
	d->nic = d->info && d->info->domain_attr->name ? tp_nic_of(&d->script.m, d->info->domain_attr->name) : 0;
	d->faults.random = 0x9e3779b97f4a7c15ULL ^ (uint64_t) d->script.seed;
	if (!rc)
		rc = open_descriptors(d);
	if (!rc && d->info->domain_attr->data_progress == FI_PROGRESS_AUTO)
		rc = tp_thread_start(d);
	if (rc) {
		domain_free(d);
		return rc;
	}
	d->fabric->refs++;
	*domain = &d->fid;
	return 0;
}
