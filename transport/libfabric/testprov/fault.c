/* Completions, which the script may delay. */
#include "testprov.h"

static void put_late(struct tp_domain *d, struct tp_entry *e, int64_t due)
{
	struct tp_late *l = malloc(sizeof *l);
	struct tp_list *at;

	if (!l) {
		tp_cq_put(e->cq, e);
		free(e);
		return;
	}
	*l = (struct tp_late){.due = due, .entry = e};
	for (at = d->late.next; at != &d->late; at = at->next)
		if (container_of(at, struct tp_late, link)->due > due)
			break;
	tp_list_add(at, &l->link);
	tp_timer(d);
}

/* Adds the completion or failure to the queue, now or, if the script says so, later. Late ones
 * come in any order, but the release of a multi-receive buffer comes after its messages. */
void tp_complete(struct tp_cq *cq, struct tp_entry *entry)
{
	struct tp_domain *d = cq->domain;
	struct tp_entry *e;
	int64_t due;

	if (!d->script.late) {
		tp_cq_put(cq, entry);
		return;
	}
	e = malloc(sizeof *e);
	if (!e) {
		tp_cq_put(cq, entry);
		return;
	}
	*e = *entry;
	e->cq = cq;
	due = tp_now_us() + tp_random(&d->faults, d->script.late + 1);
	if (e->e.flags & FI_MULTI_RECV && !tp_list_empty(&d->late)) {
		int64_t last = container_of(d->late.prev, struct tp_late, link)->due;

		due = last > due ? last : due;
	}
	put_late(d, e, due);
}

/* Adds the late completions that are due. */
void tp_late_due(struct tp_domain *d)
{
	const int64_t now = tp_list_empty(&d->late) ? 0 : tp_now_us();

	tp_list_each(&d->late, struct tp_late, l) {
		if (l->due > now)
			return;
		tp_list_remove(&l->link);
		tp_cq_put(l->entry->cq, l->entry);
		free(l->entry);
		free(l);
	}
}
