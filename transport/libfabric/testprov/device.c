/*
 * Simulated devices. Their memory is mapped in the process with PROT_NONE; a caller says at registration
 * that it is a device's. The provider accesses it by /proc/self/mem, as a debugger does.
 */
#include <fcntl.h>
#include <unistd.h>

#include "testprov.h"

enum { DEVICES = 8 }; /* of each kind; the kinds are those that testprov accepts */

/* A range of registered memory of a device. Regions of several domains may have the same one. */
struct range {
	struct tp_list link;
	uintptr_t at;
	size_t len;
};

static struct tp_list ranges = {&ranges, &ranges};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int mem = -1; /* open while there is a range */

/* Checks the device of a registration. It returns 0 or a negative errno. */
int tp_device_check(const struct tp_domain *d, const struct fi_mr_attr *attr)
{
	if (attr->iface == FI_HMEM_SYSTEM)
		return 0;
	if (!(d->info->caps & FI_HMEM) || attr->iface != FI_HMEM_CUDA)
		return -FI_ENOSYS;
	return attr->device.cuda < 0 || attr->device.cuda >= DEVICES ? -FI_EINVAL : 0;
}

/* Makes the memory of a region known as that of a device. */
int tp_device_add(const struct iovec *iov, size_t count)
{
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (tp_list_empty(&ranges))
		mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	if (mem < 0)
		rc = -errno;
	for (size_t i = 0; i < count && !rc; i++) {
		struct range *r = calloc(1, sizeof *r);

		if (!r) {
			rc = -FI_ENOMEM;
			break;
		}
		r->at = (uintptr_t) iov[i].iov_base;
		r->len = iov[i].iov_len;
		tp_list_add(&ranges, &r->link);
	}
	pthread_mutex_unlock(&lock);
	if (rc)
		tp_device_remove(iov, count);
	return rc;
}

/* The reverse of tp_device_add. */
void tp_device_remove(const struct iovec *iov, size_t count)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count; i++) {
		tp_list_each(&ranges, struct range, r) {
			if (r->at != (uintptr_t) iov[i].iov_base || r->len != iov[i].iov_len)
				continue;
			tp_list_remove(&r->link);
			free(r);
			break;
		}
	}
	if (mem >= 0 && tp_list_empty(&ranges)) {
		close(mem);
		mem = -1;
	}
	pthread_mutex_unlock(&lock);
}

/* Reports whether the memory belongs to a device. */
bool tp_device_has(const void *at, size_t len)
{
	bool has = false;

	pthread_mutex_lock(&lock);
	tp_list_each(&ranges, struct range, r)
		has |= (uintptr_t) at < r->at + r->len && (uintptr_t) at + len > r->at;
	pthread_mutex_unlock(&lock);
	return has;
}

/* Copies len bytes from data to memory of a device if in is true, else from there to data. The memory must be
 * registered. */
void tp_device_copy(void *at, void *data, size_t len, bool in)
{
	while (len) {
		ssize_t n = in ? pwrite(mem, data, len, (off_t) (uintptr_t) at)
			       : pread(mem, data, len, (off_t) (uintptr_t) at);

		if (n <= 0)
			abort(); /* the caller has freed memory that is registered */
		at = (char *) at + n;
		data = (char *) data + n;
		len -= (size_t) n;
	}
}
