/* Event queues: asynchronous insertions and registrations, and events that the caller writes. */
#include <stdio.h>

#include "testprov.h"

struct tp_event {
	struct tp_list link;
	uint32_t event;
	size_t len;
	struct fi_eq_err_entry failure;
	uint8_t data[];
};

static int put(struct tp_eq *eq, uint32_t event, const void *data, size_t len)
{
	struct tp_event *e = calloc(1, sizeof *e + len);

	if (!e)
		return -FI_ENOMEM;
	e->event = event;
	e->len = len;
	memcpy(e->data, data, len);
	pthread_mutex_lock(&eq->lock);
	tp_list_add(&eq->events, &e->link);
	tp_wait_set(&eq->wait);
	pthread_mutex_unlock(&eq->lock);
	return 0;
}

/* Reports the end of an asynchronous call. */
void tp_eq_put(struct tp_eq *eq, uint32_t event, fid_t fid, void *context, uint64_t data)
{
	struct fi_eq_entry entry = {fid, context, data};

	(void) put(eq, event, &entry, sizeof entry);
}

static ssize_t eq_write(struct fid_eq *fid, uint32_t event, const void *buf, size_t len, uint64_t flags)
{
	int rc = flags ? -FI_EINVAL : put(container_of(fid, struct tp_eq, fid), event, buf, len);

	return rc ? rc : (ssize_t) len;
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *event, void *buf, size_t len, uint64_t flags)
{
	struct tp_eq *eq = container_of(fid, struct tp_eq, fid);
	ssize_t n = -FI_EAGAIN;

	pthread_mutex_lock(&eq->lock);
	if (!tp_list_empty(&eq->failures)) {
		n = -FI_EAVAIL;
	} else if (!tp_list_empty(&eq->events)) {
		struct tp_event *e = tp_list_first(&eq->events, struct tp_event);

		if (len < e->len) {
			n = -FI_ETOOSMALL;
		} else {
			n = (ssize_t) e->len;
			*event = e->event;
			memcpy(buf, e->data, e->len);
			if (!(flags & FI_PEEK)) {
				tp_list_remove(&e->link);
				free(e);
			}
		}
	}
	if (tp_list_empty(&eq->events) && tp_list_empty(&eq->failures))
		tp_wait_clear(&eq->wait);
	pthread_mutex_unlock(&eq->lock);
	return n;
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *buf, uint64_t flags)
{
	struct tp_eq *eq = container_of(fid, struct tp_eq, fid);
	ssize_t n = -FI_EAGAIN;

	(void) flags;
	pthread_mutex_lock(&eq->lock);
	if (!tp_list_empty(&eq->failures)) {
		struct tp_event *e = tp_list_first(&eq->failures, struct tp_event);

		tp_list_remove(&e->link);
		*buf = e->failure;
		free(eq->last);
		eq->last = e;
		n = sizeof *buf;
	}
	pthread_mutex_unlock(&eq->lock);
	return n;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *event, void *buf, size_t len, int timeout,
			uint64_t flags)
{
	struct tp_eq *eq = container_of(fid, struct tp_eq, fid);
	const int64_t end = tp_now_us() + timeout * 1000LL;

	for (;;) {
		ssize_t n = eq_read(fid, event, buf, len, flags);
		int64_t left = (end - tp_now_us() + 999) / 1000;

		if (n != -FI_EAGAIN || (timeout >= 0 && left <= 0))
			return n;
		tp_wait_sleep(&eq->wait, timeout < 0 ? -1 : (int) left);
	}
}

int tp_eq_trywait(struct tp_eq *eq)
{
	bool empty;

	pthread_mutex_lock(&eq->lock);
	empty = tp_list_empty(&eq->events) && tp_list_empty(&eq->failures);
	if (empty)
		tp_wait_clear(&eq->wait);
	pthread_mutex_unlock(&eq->lock);
	return empty ? 0 : -FI_EAGAIN;
}

static const char *eq_strerror(struct fid_eq *fid, int prov, const void *data, char *buf, size_t len)
{
	(void) fid, (void) data;
	return tp_strerror_to(prov, buf, len);
}

static int eq_control(struct fid *fid, int command, void *arg)
{
	struct tp_eq *eq = container_of(fid, struct tp_eq, fid.fid);

	return command == FI_GETWAIT ? tp_wait_get(&eq->wait, arg) : -FI_ENOSYS;
}

static int eq_close(struct fid *fid)
{
	struct tp_eq *eq = container_of(fid, struct tp_eq, fid.fid);

	if (eq->refs)
		return -FI_EBUSY;
	tp_list_each(&eq->events, struct tp_event, e)
		free(e);
	tp_list_each(&eq->failures, struct tp_event, f)
		free(f);
	free(eq->last);
	tp_wait_close(&eq->wait);
	pthread_mutex_destroy(&eq->lock);
	eq->fabric->refs--;
	free(eq);
	return 0;
}

int tp_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = eq_close, .bind = tp_no_bind,
		.control = eq_control, .ops_open = tp_no_ops_open,
	};
	static struct fi_ops_eq ops = {
		.size = sizeof ops, .read = eq_read, .readerr = eq_readerr, .write = eq_write,
		.sread = eq_sread, .strerror = eq_strerror,
	};
	struct tp_eq *q;
	int rc;

	if (attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC && attr->wait_obj != FI_WAIT_FD)
		return -FI_ENOSYS;
	q = calloc(1, sizeof *q);
	if (!q)
		return -FI_ENOMEM;
	rc = tp_wait_open(&q->wait, NULL, attr->wait_obj);
	if (rc) {
		free(q);
		return rc;
	}
	q->fid.fid = (struct fid){FI_CLASS_EQ, context, &fid_ops};
	q->fid.ops = &ops;
	q->fabric = container_of(fabric, struct tp_fabric, fid);
	q->fabric->refs++;
	tp_list_init(&q->events);
	tp_list_init(&q->failures);
	pthread_mutex_init(&q->lock, NULL);
	*eq = &q->fid;
	return 0;
}
