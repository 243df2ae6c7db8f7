/* Progress: a call of the caller, or a thread of the domain, moves data and ends operations. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "testprov.h"

void tp_lock(struct tp_domain *d)
{
	pthread_mutex_lock(&d->lock);
}

void tp_unlock(struct tp_domain *d)
{
	pthread_mutex_unlock(&d->lock);
}

int64_t tp_now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* Adds fd to the descriptors of the domain, or changes what is awaited of it, as epoll_ctl(2)'s
 * how says. */
int tp_watch(struct tp_domain *d, int fd, uint32_t events, struct tp_source *s, int how)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	return epoll_ctl(d->epfd, how, fd, &ev) ? -errno : 0;
}

/* Moves all data that can be moved without blocking. The caller holds the lock. */
void tp_progress(struct tp_domain *d)
{
	struct epoll_event ev[32];
	uint64_t ignored;
	int n = epoll_wait(d->epfd, ev, count_of(ev), 0);

	for (int i = 0; i < n; i++) {
		struct tp_source *s = ev[i].data.ptr;

		switch (s->kind) {
		case TP_LISTENER:
			tp_ep_accept(container_of(s, struct tp_ep, listener));
			break;
		case TP_CONN:
			tp_conn_event(container_of(s, struct tp_conn, source), ev[i].events);
			break;
		case TP_TIMER:
			(void) !read(d->timer_fd, &ignored, sizeof ignored);
			break;
		case TP_WAKE:
			(void) !read(d->wake_fd, &ignored, sizeof ignored);
			break;
		}
	}
	tp_late_due(d);
	tp_target_due(d);
	tp_timer(d);
	tp_list_each(&d->dead, struct tp_conn, c) {
		tp_list_remove(&c->link);
		tp_conn_free(c);
	}
}

/* Makes progress on behalf of a call that reads a queue or a counter. */
void tp_progress_manual(struct tp_domain *d)
{
	if (!d->threaded)
		tp_progress(d);
}

/* Sets the timer for the next late completion, or soon if requests are held back. */
void tp_timer(struct tp_domain *d)
{
	struct itimerspec when = {0};
	int64_t due = 0;

	if (!tp_list_empty(&d->late))
		due = tp_list_first(&d->late, struct tp_late)->due;
	if (!tp_list_empty(&d->held))
		due = tp_now_us() + 200;
	if (!d->script.late && !d->script.reorder)
		return;
	when.it_value.tv_sec = due / 1000000;
	when.it_value.tv_nsec = due % 1000000 * 1000;
	timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void *run(void *arg)
{
	struct tp_domain *d = arg;
	struct epoll_event ev;

	for (;;) {
		bool full = false, stop;

		(void) epoll_wait(d->epfd, &ev, 1, -1);
		tp_lock(d);
		stop = d->stop;
		if (!stop)
			tp_progress(d);
		tp_list_each(&d->eps, struct tp_ep, ep)
			full |= ep->rx_cq && tp_cq_full(ep->rx_cq);
		tp_unlock(d);
		if (stop)
			return NULL;
		if (full) /* sockets stay readable until the caller reads its queue */
			usleep(500);
	}
}

/* Starts the thread that makes progress. tp_thread_stop ends it and waits for its end. */
int tp_thread_start(struct tp_domain *d)
{
	int rc = pthread_create(&d->thread, NULL, run, d);

	d->threaded = !rc;
	return -rc;
}

void tp_thread_stop(struct tp_domain *d)
{
	const uint64_t one = 1;

	if (!d->threaded)
		return;
	tp_lock(d);
	d->stop = true;
	(void) !write(d->wake_fd, &one, sizeof one);
	tp_unlock(d);
	pthread_join(d->thread, NULL);
	d->threaded = false;
}
