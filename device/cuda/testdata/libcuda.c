/*
 * A simulated CUDA driver library for tests: two GPUs, whose memory is mapped in the process with PROT_NONE.
 * Like the real driver, it fails calls that need a context on a thread without one.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GPUS = 2, DEPTH = 8 };
enum { MAPPED = 12345 }; /* an allocation of this size counts as memory of cuMemMap */
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, ILLEGAL_ADDRESS = 700 };

struct memory {
	struct memory *next;
	uintptr_t at;
	size_t n;
	unsigned long long id;
};

static struct { int ordinal; } contexts[GPUS];
static struct { int unused; } streams[64];
static int initialized, opened, mem = -1;
static struct memory *all; /* guarded by lock */
static unsigned long long allocations; /* so far; guarded by lock */
static volatile int lock;
static __thread void *stack[DEPTH];
static __thread int depth;

static void enter(void)
{
	while (__sync_lock_test_and_set(&lock, 1))
		;
}

static void leave(void)
{
	__sync_lock_release(&lock);
}

int cuInit(unsigned int flags)
{
	mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	initialized = !flags && mem >= 0;
	return initialized ? OK : INVALID_VALUE;
}

int cuDeviceGetCount(int *n)
{
	*n = GPUS;
	return initialized ? OK : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = 10 + ordinal;
	return ordinal < 0 || ordinal >= GPUS ? INVALID_DEVICE : OK;
}

int cuDevicePrimaryCtxRetain(void **ctx, int device)
{
	*ctx = &contexts[device - 10];
	return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	return device < 10 || device >= 10 + GPUS ? INVALID_DEVICE : OK;
}

int cuCtxPushCurrent_v2(void *ctx)
{
	if (depth == DEPTH)
		return INVALID_VALUE;
	stack[depth++] = ctx;
	return OK;
}

int cuCtxPopCurrent_v2(void **ctx)
{
	if (!depth)
		return INVALID_CONTEXT;
	*ctx = stack[--depth];
	return OK;
}

int cuMemAlloc_v2(unsigned long long *at, size_t n)
{
	struct memory *m;
	void *p;

	if (!depth)
		return INVALID_CONTEXT;
	if (!n)
		return INVALID_VALUE;
	p = n > 1ULL << 40 ? MAP_FAILED : mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return OUT_OF_MEMORY;
	m = malloc(sizeof *m);
	enter();
	*m = (struct memory){all, (uintptr_t) p, n, ++allocations};
	all = m;
	leave();
	*at = (uintptr_t) p;
	return OK;
}

int cuMemFree_v2(unsigned long long at)
{
	struct memory *m;

	if (!depth)
		return INVALID_CONTEXT;
	enter();
	for (struct memory **p = &all; (m = *p); p = &m->next)
		if (m->at == at) {
			*p = m->next;
			break;
		}
	leave();
	if (!m)
		return INVALID_VALUE;
	munmap((void *) m->at, m->n);
	free(m);
	return OK;
}

int cuPointerGetAttribute(void *value, int attribute, unsigned long long at)
{
	unsigned long long id = 0;
	int mapped = 0;

	if (!depth)
		return INVALID_CONTEXT;
	enter();
	for (struct memory *m = all; m; m = m->next)
		if (at >= m->at && at < m->at + m->n) {
			id = m->id;
			mapped = m->n == MAPPED;
		}
	leave();
	if (!id)
		return INVALID_VALUE;
	switch (attribute) {
	case 7: /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
		*(unsigned long long *) value = id;
		return OK;
	case 10: /* CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE */
		*(unsigned int *) value = !mapped;
		return OK;
	}
	return INVALID_VALUE;
}

int cuStreamCreate(void **stream, unsigned int flags)
{
	if (!depth)
		return INVALID_CONTEXT;
	*stream = &streams[__sync_fetch_and_add(&opened, 1)];
	return flags == 1 ? OK : INVALID_VALUE;
}

int cuStreamSynchronize(void *stream)
{
	return depth && stream ? OK : INVALID_CONTEXT;
}

static int copy(void *host, uintptr_t at, size_t n, void *stream, int in)
{
	int within = 0;

	if (!depth || !stream)
		return INVALID_CONTEXT;
	enter();
	for (struct memory *m = all; m; m = m->next)
		within |= at >= m->at && at + n <= m->at + m->n;
	leave();
	if (!within)
		return ILLEGAL_ADDRESS;
	for (size_t done = 0; done < n;) {
		ssize_t k = in ? pwrite(mem, (char *) host + done, n - done, (off_t) (at + done))
			       : pread(mem, (char *) host + done, n - done, (off_t) (at + done));

		if (k <= 0)
			return ILLEGAL_ADDRESS;
		done += (size_t) k;
	}
	return OK;
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t n, void *stream)
{
	return copy(to, from, n, stream, 0);
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t n, void *stream)
{
	return copy((void *) from, to, n, stream, 1);
}

int cuGetErrorName(int result, const char **name)
{
	*name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : result == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE"
	      : result == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL;
	return *name ? OK : INVALID_VALUE;
}

int cuGetErrorString(int result, const char **text)
{
	*text = result == OUT_OF_MEMORY ? "out of memory" : NULL;
	return *text ? OK : INVALID_VALUE;
}
