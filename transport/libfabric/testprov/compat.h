/* What differs between the headers of libfabric 1.x and 2.x. testprov.h includes them first. */
#ifndef TESTPROV_COMPAT_H
#define TESTPROV_COMPAT_H

#include <stddef.h>

/* Only headers of 1.x have these. */
#ifndef container_of
#define container_of(field, type, member) ((type *) ((char *) (field) - offsetof(type, member)))
#endif
#ifndef count_of
#define count_of(array) (sizeof(array) / sizeof *(array))
#endif
#ifndef FI_PROV_SPECIFIC
#define FI_PROV_SPECIFIC (1U << 31)
#endif

/* In headers of 2.x each use of these names is a warning. Callers that ask for an interface of 1.x
 * may use them nevertheless. */
#if FI_MAJOR_VERSION >= 2
#undef FI_MR_UNSPEC
#undef FI_MR_BASIC
#undef FI_MR_SCALABLE
#undef FI_ORDER_NONE
#undef FI_ORDER_STRICT
#undef FI_REG_MR
enum { FI_MR_UNSPEC = 0, FI_MR_BASIC = 1, FI_MR_SCALABLE = 2 };
#define FI_ORDER_NONE 0ULL
#define FI_ORDER_STRICT 0x1ffULL
#define FI_REG_MR (1ULL << 59)
#endif

#endif
