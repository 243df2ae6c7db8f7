/* Counters of completed operations. */
#include "testprov.h"

/* Counts the end of an operation. cntr may be NULL. */
void tp_cntr_count(struct tp_cntr *cntr, bool failed)
{
	if (!cntr)
		return;
	if (failed)
		cntr->errors++;
	else
		cntr->value++;
	tp_wait_set(&cntr->wait);
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid);
	uint64_t n;

	tp_lock(c->domain);
	tp_progress_manual(c->domain);
	n = c->value;
	tp_unlock(c->domain);
	return n;
}

static uint64_t cntr_readerr(struct fid_cntr *fid)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid);
	uint64_t n;

	tp_lock(c->domain);
	tp_progress_manual(c->domain);
	n = c->errors;
	tp_unlock(c->domain);
	return n;
}

/* Sets *what to value, or adds value to it. */
static int change(struct tp_cntr *c, uint64_t *what, bool add, uint64_t value)
{
	tp_lock(c->domain);
	*what = add ? *what + value : value;
	tp_wait_set(&c->wait);
	tp_unlock(c->domain);
	return 0;
}

static int cntr_add(struct fid_cntr *fid, uint64_t value)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid);

	return change(c, &c->value, true, value);
}

static int cntr_set(struct fid_cntr *fid, uint64_t value)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid);

	return change(c, &c->value, false, value);
}

static int cntr_adderr(struct fid_cntr *fid, uint64_t value)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid);

	return change(c, &c->errors, true, value);
}

static int cntr_seterr(struct fid_cntr *fid, uint64_t value)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid);

	return change(c, &c->errors, false, value);
}

static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid);
	const int64_t end = tp_now_us() + timeout * 1000LL;
	const uint64_t before = cntr_readerr(fid);

	for (;;) {
		int64_t left = (end - tp_now_us() + 999) / 1000;
		bool reached, failed;

		tp_lock(c->domain);
		tp_wait_clear(&c->wait);
		tp_progress_manual(c->domain);
		reached = c->value >= threshold;
		failed = c->errors != before;
		tp_unlock(c->domain);
		if (reached)
			return 0;
		if (failed)
			return -FI_EAVAIL;
		if (timeout >= 0 && left <= 0)
			return -FI_ETIMEDOUT;
		tp_wait_sleep(&c->wait, timeout < 0 ? -1 : (int) left);
	}
}

static int cntr_control(struct fid *fid, int command, void *arg)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid.fid);

	return command == FI_GETWAIT ? tp_wait_get(&c->wait, arg) : -FI_ENOSYS;
}

static int cntr_close(struct fid *fid)
{
	struct tp_cntr *c = container_of(fid, struct tp_cntr, fid.fid);

	tp_lock(c->domain);
	if (c->refs) {
		tp_unlock(c->domain);
		return -FI_EBUSY;
	}
	c->domain->refs--;
	tp_unlock(c->domain);
	tp_wait_close(&c->wait);
	free(c);
	return 0;
}

int tp_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr,
		 void *context)
{
	static struct fi_ops fid_ops = {
		.size = sizeof fid_ops, .close = cntr_close, .bind = tp_no_bind,
		.control = cntr_control, .ops_open = tp_no_ops_open,
	};
	static struct fi_ops_cntr ops = {
		.size = sizeof ops, .read = cntr_read, .readerr = cntr_readerr, .add = cntr_add,
		.set = cntr_set, .wait = cntr_wait, .adderr = cntr_adderr, .seterr = cntr_seterr,
	};
	struct tp_domain *d = container_of(domain, struct tp_domain, fid);
	struct tp_cntr *c;
	int rc;

	if (attr && (attr->events != FI_CNTR_EVENTS_COMP || attr->flags ||
		     (attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC && attr->wait_obj != FI_WAIT_FD)))
		return -FI_ENOSYS;
	c = calloc(1, sizeof *c);
	if (!c)
		return -FI_ENOMEM;
	rc = tp_wait_open(&c->wait, d->threaded ? NULL : d, attr ? attr->wait_obj : FI_WAIT_UNSPEC);
	if (rc) {
		free(c);
		return rc;
	}
	c->fid.fid = (struct fid){FI_CLASS_CNTR, context, &fid_ops};
	c->fid.ops = &ops;
	c->domain = d;
	tp_lock(d);
	d->refs++;
	tp_unlock(d);
	*cntr = &c->fid;
	return 0;
}
