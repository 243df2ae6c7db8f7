/* Wait objects of queues and counters. */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "testprov.h"

/* Opens w, which also watches the domain's descriptors if d is not NULL. Every queue has a
 * descriptor, for sread; only with FI_WAIT_FD, or FI_WAIT_UNSPEC, does the caller get it. */
int tp_wait_open(struct tp_wait *w, struct tp_domain *d, enum fi_wait_obj object)
{
	struct epoll_event ev = {.events = EPOLLIN};

	w->object = object;
	w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	w->fd = epoll_create1(EPOLL_CLOEXEC);
	if (w->event < 0 || w->fd < 0 || epoll_ctl(w->fd, EPOLL_CTL_ADD, w->event, &ev) ||
	    (d && epoll_ctl(w->fd, EPOLL_CTL_ADD, d->epfd, &ev))) {
		int rc = -errno;

		tp_wait_close(w);
		return rc;
	}
	return 0;
}

void tp_wait_close(struct tp_wait *w)
{
	if (w->fd >= 0)
		close(w->fd);
	if (w->event >= 0)
		close(w->event);
	w->fd = w->event = -1;
}

void tp_wait_set(struct tp_wait *w)
{
	const uint64_t one = 1;

	if (!w->set)
		(void) !write(w->event, &one, sizeof one);
	w->set = true;
}

void tp_wait_clear(struct tp_wait *w)
{
	uint64_t ignored;

	if (w->set)
		(void) !read(w->event, &ignored, sizeof ignored);
	w->set = false;
}

/* FI_GETWAIT */
int tp_wait_get(struct tp_wait *w, void *arg)
{
	if (w->object != FI_WAIT_FD && w->object != FI_WAIT_UNSPEC)
		return -FI_ENOSYS;
	*(int *) arg = w->fd;
	return 0;
}

/* Sleeps until w is readable, at most timeout milliseconds; a negative timeout is infinite. */
int tp_wait_sleep(struct tp_wait *w, int timeout)
{
	struct pollfd p = {.fd = w->fd, .events = POLLIN};

	return poll(&p, 1, timeout) < 0 ? -errno : 0;
}
