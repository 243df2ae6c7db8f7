/* Completion queues. */
#include <stdio.h>

#include "testprov.h"

/* Reports whether the queue holds as many entries as it has room for. Then the provider reads no
 * more requests from sockets, which with FI_RM_ENABLED must not overrun the queue. */
bool tp_cq_full(const struct tp_cq *cq)
{
	return cq->count >= cq->size;
}

/* Adds a copy of entry to the queue. A queue that has overrun takes no more. */
void tp_cq_put(struct tp_cq *cq, const struct tp_entry *entry)
{
	const long limit = cq->domain->script.overrun;
	struct tp_entry *e;

	if (cq->overrun)
		return;
	e = malloc(sizeof *e);
	if (!e) {
		cq->overrun = true;
		return;
	}
	*e = *entry;
	if (e->e.err_data_size)
		e->e.err_data = e->err_data;
	cq->total++;
	if (limit && cq->total > (uint64_t) limit) {
		cq->overrun = true;
		e->e = (struct fi_cq_err_entry){.err = FI_EOVERRUN};
	}
	if (e->e.err) {
		tp_list_add(&cq->failures, &e->link);
	} else {
		tp_list_add(&cq->entries, &e->link);
		cq->count++;
	}
	tp_wait_set(&cq->wait);
}

static size_t entry_size(enum fi_cq_format f)
{
	switch (f) {
	case FI_CQ_FORMAT_CONTEXT: return sizeof(struct fi_cq_entry);
	case FI_CQ_FORMAT_MSG: return sizeof(struct fi_cq_msg_entry);
	case FI_CQ_FORMAT_DATA: return sizeof(struct fi_cq_data_entry);
	default: return sizeof(struct fi_cq_tagged_entry);
	}
}

/* Moves up to count entries to buf. The caller holds the lock. */
static ssize_t take(struct tp_cq *cq, void *buf, size_t count, fi_addr_t *from)
{
	const size_t size = entry_size(cq->format);
	size_t n = 0;

	if (!tp_list_empty(&cq->failures))
		return -FI_EAVAIL;
	while (n < count && !tp_list_empty(&cq->entries)) {
		struct tp_entry *e = tp_list_first(&cq->entries, struct tp_entry);
		struct fi_cq_tagged_entry t = {e->e.op_context, e->e.flags, e->e.len,
					       e->e.buf, e->e.data, e->e.tag};

		/* Every format is the beginning of the tagged one. */
		memcpy((char *) buf + n * size, &t, size);
		if (from)
			from[n] = e->from;
		tp_list_remove(&e->link);
		free(e);
		cq->count--;
		n++;
	}
	if (tp_list_empty(&cq->entries) && tp_list_empty(&cq->failures) && !cq->signaled)
		tp_wait_clear(&cq->wait);
	return n ? (ssize_t) n : -FI_EAGAIN;
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *from)
{
	struct tp_cq *cq = container_of(fid, struct tp_cq, fid);
	ssize_t n;

	tp_lock(cq->domain);
	tp_progress_manual(cq->domain);
	n = count ? take(cq, buf, count, from) : tp_list_empty(&cq->failures) ? 0 : -FI_EAVAIL;
	tp_unlock(cq->domain);
	return n;
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
	return cq_readfrom(fid, buf, count, NULL);
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf, uint64_t flags)
{
	struct tp_cq *cq = container_of(fid, struct tp_cq, fid);
	void *data = buf->err_data;
	size_t room = buf->err_data_size;
	struct tp_entry *e;

	(void) flags;
	tp_lock(cq->domain);
	if (tp_list_empty(&cq->failures)) {
		tp_unlock(cq->domain);
		return -FI_EAGAIN;
	}
	e = tp_list_first(&cq->failures, struct tp_entry);
	tp_list_remove(&e->link);
	free(cq->last);
	cq->last = e;
	*buf = e->e;
	if (room) { /* the caller has memory for err_data */
		buf->err_data = data;
		buf->err_data_size = room < e->e.err_data_size ? room : e->e.err_data_size;
		memcpy(data, e->err_data, buf->err_data_size);
	}
	tp_unlock(cq->domain);
	return 1;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *buf, size_t count, fi_addr_t *from,
			    const void *cond, int timeout)
{
	struct tp_cq *cq = container_of(fid, struct tp_cq, fid);
	const int64_t end = tp_now_us() + timeout * 1000LL;

	(void) cond;
	if (cq->wait.object == FI_WAIT_NONE)
		return -FI_EINVAL;
	for (;;) {
		ssize_t n = cq_readfrom(fid, buf, count, from);
		int64_t left = (end - tp_now_us() + 999) / 1000;
		bool signaled;

		if (n != -FI_EAGAIN)
			return n;
		tp_lock(cq->domain);
		signaled = cq->signaled;
		cq->signaled = false;
		tp_unlock(cq->domain);
		if (signaled || (timeout >= 0 && left <= 0))
			return -FI_EAGAIN;
		tp_wait_sleep(&cq->wait, timeout < 0 ? -1 : (int) left);
	}
}

static ssize_t cq_sread(struct fid_cq *fid, void *buf, size_t count, const void *cond, int timeout)
{
	return cq_sreadfrom(fid, buf, count, NULL, cond, timeout);
}

static int cq_signal(struct fid_cq *fid)
{
	struct tp_cq *cq = container_of(fid, struct tp_cq, fid);

	tp_lock(cq->domain);
	cq->signaled = true;
	tp_wait_set(&cq->wait);
	tp_unlock(cq->domain);
	return 0;
}

/* Returns -FI_EAGAIN if the caller must read the queue instead of sleeping. */
int tp_cq_trywait(struct tp_cq *cq)
{
	bool empty;

	tp_lock(cq->domain);
	tp_progress_manual(cq->domain);
	empty = tp_list_empty(&cq->entries) && tp_list_empty(&cq->failures);
	if (empty && !cq->signaled)
		tp_wait_clear(&cq->wait);
	tp_unlock(cq->domain);
	return empty ? 0 : -FI_EAGAIN;
}

static const char *cq_strerror(struct fid_cq *fid, int prov, const void *data, char *buf, size_t len)
{
	(void) fid, (void) data;
	return tp_strerror_to(prov, buf, len);
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	struct tp_cq *cq = container_of(fid, struct tp_cq, fid.fid);

	switch (command) {
	case FI_GETWAIT:
		return tp_wait_get(&cq->wait, arg);
	case FI_GETWAITOBJ:
		*(enum fi_wait_obj *) arg = cq->wait.object;
		return 0;
	default:
		return -FI_ENOSYS;
	}
}

static int cq_close(struct fid *fid)
{
	struct tp_cq *cq = container_of(fid, struct tp_cq, fid.fid);

	tp_lock(cq->domain);
	if (cq->refs) {
		tp_unlock(cq->domain);
		return -FI_EBUSY;
	}
	tp_list_each(&cq->entries, struct tp_entry, e)
		free(e);
	tp_list_each(&cq->failures, struct tp_entry, f)
		free(f);
	tp_list_each(&cq->domain->late, struct tp_late, l) {
		if (l->entry->cq == cq) {
			tp_list_remove(&l->link);
			free(l->entry);
			free(l);
		}
	}
	cq->domain->refs--;
	tp_unlock(cq->domain);
	tp_wait_close(&cq->wait);
	free(cq->last);
	free(cq);
	return 0;
}

int tp_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = cq_close, .bind = tp_no_bind,
		.control = cq_control, .ops_open = tp_no_ops_open,
	};
	static struct fi_ops_cq ops = {
		.size = sizeof ops, .read = cq_read, .readfrom = cq_readfrom, .readerr = cq_readerr,
		.sread = cq_sread, .sreadfrom = cq_sreadfrom, .signal = cq_signal, .strerror = cq_strerror,
	};
	struct tp_domain *d = container_of(domain, struct tp_domain, fid);
	struct tp_cq *q;
	int rc;

	if (attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC && attr->wait_obj != FI_WAIT_FD)
		return -FI_ENOSYS;
	q = calloc(1, sizeof *q);
	if (!q)
		return -FI_ENOMEM;
	q->fid.fid = (struct fid){FI_CLASS_CQ, context, &fid_ops};
	q->fid.ops = &ops;
	q->domain = d;
	q->format = attr->format ? attr->format : FI_CQ_FORMAT_CONTEXT;
	q->size = attr->size ? attr->size : 1024;
	tp_list_init(&q->entries);
	tp_list_init(&q->failures);
	rc = tp_wait_open(&q->wait, d->threaded ? NULL : d, attr->wait_obj);
	if (rc) {
		free(q);
		return rc;
	}
	tp_lock(d);
	d->refs++;
	tp_unlock(d);
	*cq = &q->fid;
	return 0;
}
