// CUDA's driver interface, as far as this package needs it. The names, types and values are those of cuda.h,
// which need not be installed. The library is loaded by dlopen(3).

#ifndef WEFT_CUDA_DRIVER_H
#define WEFT_CUDA_DRIVER_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int CUresult;			   // 0: CUDA_SUCCESS
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;

enum { CU_STREAM_NON_BLOCKING = 1, CU_POINTER_ATTRIBUTE_BUFFER_ID = 7, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10 };

static struct {
	CUresult (*init)(unsigned int flags);
	CUresult (*count)(int *count);
	CUresult (*get)(CUdevice *device, int ordinal);
	CUresult (*retain)(CUcontext *ctx, CUdevice device);
	CUresult (*release)(CUdevice device);
	CUresult (*push)(CUcontext ctx);
	CUresult (*pop)(CUcontext *ctx);
	CUresult (*alloc)(CUdeviceptr *at, size_t n);
	CUresult (*free)(CUdeviceptr at);
	CUresult (*attribute)(void *value, int attribute, CUdeviceptr at);
	CUresult (*stream)(CUstream *stream, unsigned int flags);
	CUresult (*wait)(CUstream stream);
	CUresult (*to_host)(void *to, CUdeviceptr from, size_t n, CUstream stream);
	CUresult (*to_device)(CUdeviceptr to, const void *from, size_t n, CUstream stream);
	CUresult (*name)(CUresult result, const char **name);
	CUresult (*text)(CUresult result, const char **text);
} weft_cuda;

// Loads the library. It returns 0, or writes to text what is missing and returns -1.
static inline int weft_cuda_load(char *text, size_t len)
{
	static const struct {
		const char *name;
		void *at;
	} functions[] = {
		{"cuInit", &weft_cuda.init}, {"cuDeviceGetCount", &weft_cuda.count}, {"cuDeviceGet", &weft_cuda.get},
		{"cuDevicePrimaryCtxRetain", &weft_cuda.retain}, {"cuCtxPushCurrent_v2", &weft_cuda.push},
		{"cuCtxPopCurrent_v2", &weft_cuda.pop}, {"cuMemAlloc_v2", &weft_cuda.alloc}, {"cuMemFree_v2", &weft_cuda.free},
		{"cuPointerGetAttribute", &weft_cuda.attribute}, {"cuStreamCreate", &weft_cuda.stream}, {"cuStreamSynchronize", &weft_cuda.wait},
		{"cuMemcpyDtoHAsync_v2", &weft_cuda.to_host}, {"cuMemcpyHtoDAsync_v2", &weft_cuda.to_device},
		{"cuGetErrorName", &weft_cuda.name}, {"cuGetErrorString", &weft_cuda.text},
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		snprintf(text, len, "%s", dlerror());
		return -1;
	}
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *f = dlsym(library, functions[i].name);

		if (!f) {
			snprintf(text, len, "%s", dlerror());
			return -1;
		}
		memcpy(functions[i].at, &f, sizeof f);
	}
	*(void **) &weft_cuda.release = dlsym(library, "cuDevicePrimaryCtxRelease_v2"); // since CUDA 11
	return 0;
}

// Writes the name and the meaning of a result to text.
static inline void weft_cuda_error(CUresult result, char *text, size_t len)
{
	const char *name = NULL, *meaning = NULL;

	if (weft_cuda.name(result, &name) || !name)
		name = "unknown error";
	if (weft_cuda.text(result, &meaning) || !meaning)
		meaning = "";
	snprintf(text, len, "%s (%d): %s", name, result, meaning);
}

static inline CUresult weft_cuda_init(void) { return weft_cuda.init(0); }

static inline CUresult weft_cuda_count(int *n) { return weft_cuda.count(n); }

// Retains the device's primary context, and creates a non-blocking stream in it.
static inline CUresult weft_cuda_open(int ordinal, CUcontext *ctx, CUstream *stream)
{
	CUdevice device;
	CUcontext old;
	CUresult rc = weft_cuda.get(&device, ordinal);

	if (!rc)
		rc = weft_cuda.retain(ctx, device);
	if (rc)
		return rc;
	rc = weft_cuda.push(*ctx);
	if (!rc) {
		rc = weft_cuda.stream(stream, CU_STREAM_NON_BLOCKING);
		weft_cuda.pop(&old);
	}
	if (rc && weft_cuda.release)
		weft_cuda.release(device);
	return rc;
}

// Each of the following calls makes ctx the context of its thread until it returns, because Go moves
// goroutines from thread to thread.

static inline CUresult weft_cuda_alloc(CUcontext ctx, uintptr_t *at, size_t n)
{
	CUdeviceptr p = 0;
	CUcontext old;
	CUresult rc = weft_cuda.push(ctx);

	if (rc)
		return rc;
	rc = weft_cuda.alloc(&p, n);
	weft_cuda.pop(&old);
	*at = (uintptr_t) p;
	return rc;
}

static inline CUresult weft_cuda_free(CUcontext ctx, uintptr_t at)
{
	CUcontext old;
	CUresult rc = weft_cuda.push(ctx);

	if (rc)
		return rc;
	rc = weft_cuda.free(at);
	weft_cuda.pop(&old);
	return rc;
}

// Returns the number of the allocation that contains the n bytes, n > 0; 0: it is unknown. Only memory of
// cuMemAlloc has numbers here (CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE). Other memory, of cuMemMap or
// of a pool, can change its pages without a new allocation.
static inline uint64_t weft_cuda_allocation(CUcontext ctx, uintptr_t at, size_t n)
{
	unsigned long long plain = 0, first = 0, last = 0; // larger than any of the values
	CUcontext old;
	CUresult rc = weft_cuda.push(ctx);

	if (rc)
		return 0;
	rc = weft_cuda.attribute(&plain, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at);
	if (!rc)
		rc = weft_cuda.attribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
	if (!rc)
		rc = weft_cuda.attribute(&last, CU_POINTER_ATTRIBUTE_BUFFER_ID, at + n - 1);
	weft_cuda.pop(&old);
	return rc || !plain || first != last ? 0 : first;
}

// Copies n bytes and waits until they are there.
static inline CUresult weft_cuda_copy(CUcontext ctx, CUstream stream, void *host, uintptr_t device, size_t n, int to_device)
{
	CUcontext old;
	CUresult rc = weft_cuda.push(ctx), waited;

	if (rc)
		return rc;
	rc = to_device ? weft_cuda.to_device(device, host, n, stream) : weft_cuda.to_host(host, device, n, stream);
	waited = weft_cuda.wait(stream);
	weft_cuda.pop(&old);
	return rc ? rc : waited;
}

#endif
