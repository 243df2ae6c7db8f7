// Reads of an event queue into C memory: what a provider writes there contains pointers, and its
// size is not known before the call.

#ifndef WEFT_FI_SHIM_EQ_H
#define WEFT_FI_SHIM_EQ_H

#include "shim.h"

#define WEFT_EQ_ENTRY sizeof(struct fi_eq_entry)
#define WEFT_EQ_CM_ENTRY sizeof(struct fi_eq_cm_entry)
#define WEFT_EQ_BUFFER 2048
#define WEFT_EQ_CONTEXT offsetof(struct fi_eq_entry, context)

// The result of a read: the number of an event with its entry in buf, or the error err with its
// data in buf. Entries and data fit in buf: a connection carries at most 256 bytes of private data,
// and EQ.Write returns an error for an entry larger than buf.
struct weft_eq_event {
	uint32_t event;
	struct fi_eq_err_entry err;
	_Alignas(16) uint8_t buf[WEFT_EQ_BUFFER];
};

static inline struct weft_eq_event *weft_eq_event_new(void)
{
	return calloc(1, sizeof(struct weft_eq_event));
}

static inline ssize_t weft_eq_read(struct fid_eq *eq, struct weft_eq_event *e, uint64_t flags)
{
	return fi_eq_read(eq, &e->event, e->buf, sizeof(e->buf), flags);
}

static inline ssize_t weft_eq_sread(struct fid_eq *eq, struct weft_eq_event *e, int timeout, uint64_t flags)
{
	return fi_eq_sread(eq, &e->event, e->buf, sizeof(e->buf), timeout, flags);
}

static inline ssize_t weft_eq_readerr(struct fid_eq *eq, struct weft_eq_event *e, uint64_t flags)
{
	e->err.err_data = e->buf;
	e->err.err_data_size = sizeof(e->buf);
	ssize_t n = fi_eq_readerr(eq, &e->err, flags);
	if (!e->err.err_data)
		e->err.err_data_size = 0;
	return n;
}

#endif
