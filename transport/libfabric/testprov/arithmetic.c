/* The arithmetic of atomic operations. The domain's lock makes them atomic: only the provider of
 * the target does them. */
#include "testprov.h"

#define INTEGERS(X)                                                                                \
	X(FI_INT8, int8_t) X(FI_UINT8, uint8_t) X(FI_INT16, int16_t) X(FI_UINT16, uint16_t)        \
	X(FI_INT32, int32_t) X(FI_UINT32, uint32_t) X(FI_INT64, int64_t) X(FI_UINT64, uint64_t)
#define REALS(X) X(FI_FLOAT, float) X(FI_DOUBLE, double) X(FI_LONG_DOUBLE, long_double)
#define COMPLEXES(X)                                                                               \
	X(FI_FLOAT_COMPLEX, float_complex) X(FI_DOUBLE_COMPLEX, double_complex)                    \
	X(FI_LONG_DOUBLE_COMPLEX, long_double_complex)

typedef long double long_double;
typedef float _Complex float_complex;
typedef double _Complex double_complex;
typedef long double _Complex long_double_complex;

size_t tp_type_size(enum fi_datatype type)
{
	switch ((int) type) {
#define SIZE(name, t) case name: return sizeof(t);
	INTEGERS(SIZE) REALS(SIZE) COMPLEXES(SIZE)
	default: return 0;
	}
}

/* Reports whether the provider has the operation in the form: plain, fetching or comparing. */
bool tp_atomic_valid(enum fi_datatype type, enum fi_op op, bool fetch, bool compare)
{
	const bool complex = type == FI_FLOAT_COMPLEX || type == FI_DOUBLE_COMPLEX || type == FI_LONG_DOUBLE_COMPLEX;
	const bool real = type == FI_FLOAT || type == FI_DOUBLE || type == FI_LONG_DOUBLE;

	if (!tp_type_size(type))
		return false;
	if (compare)
		return fetch && ((op >= FI_CSWAP && op <= FI_CSWAP_GT && (!complex || op <= FI_CSWAP_NE)) ||
				 (op == FI_MSWAP && !complex && !real));
	switch (op) {
	case FI_MIN:
	case FI_MAX:
		return !complex;
	case FI_SUM:
	case FI_PROD:
	case FI_LOR:
	case FI_LAND:
	case FI_LXOR:
	case FI_ATOMIC_WRITE:
		return true;
	case FI_BOR:
	case FI_BAND:
	case FI_BXOR:
		return !complex && !real;
	case FI_ATOMIC_READ:
		return fetch;
	default:
		return false;
	}
}

/* The operations of one element: the target t, the operand b and the comparand c. */
#define COMMON(t, b, c)                                                                            \
	case FI_SUM: t += b; break;                                                                \
	case FI_PROD: t *= b; break;                                                               \
	case FI_LOR: t = t != 0 || b != 0; break;                                                  \
	case FI_LAND: t = t != 0 && b != 0; break;                                                 \
	case FI_LXOR: t = (t != 0) != (b != 0); break;                                             \
	case FI_ATOMIC_WRITE: t = b; break;                                                        \
	case FI_CSWAP: t = c == t ? b : t; break;                                                  \
	case FI_CSWAP_NE: t = c != t ? b : t; break;
#define ORDERED(t, b, c)                                                                           \
	case FI_MIN: t = b < t ? b : t; break;                                                     \
	case FI_MAX: t = b > t ? b : t; break;                                                     \
	case FI_CSWAP_LE: t = c <= t ? b : t; break;                                               \
	case FI_CSWAP_LT: t = c < t ? b : t; break;                                                \
	case FI_CSWAP_GE: t = c >= t ? b : t; break;                                               \
	case FI_CSWAP_GT: t = c > t ? b : t; break;
#define BITS(t, b, c)                                                                              \
	case FI_BOR: t |= b; break;                                                                \
	case FI_BAND: t &= b; break;                                                               \
	case FI_BXOR: t ^= b; break;                                                               \
	case FI_MSWAP: t = (b & c) | (t & ~c); break;
#define NOTHING(t, b, c)

/* Elements may lie at any address, so they are copied. */
#define APPLY(name, type, second, third)                                                           \
	case name:                                                                                 \
		for (size_t i = 0; i < count; i++) {                                               \
			type t, b, c = 0;                                                          \
			memcpy(&t, (char *) target + i * sizeof t, sizeof t);                      \
			memcpy(&b, (const char *) operand + i * sizeof b, sizeof b);               \
			if (compares)                                                              \
				memcpy(&c, (const char *) compare + i * sizeof c, sizeof c);       \
			switch ((int) op) { COMMON(t, b, c) second(t, b, c) third(t, b, c) }       \
			memcpy((char *) target + i * sizeof t, &t, sizeof t);                      \
		}                                                                                  \
		break;
#define INTEGER(name, type) APPLY(name, type, ORDERED, BITS)
#define REAL(name, type) APPLY(name, type, ORDERED, NOTHING)
#define COMPLEX(name, type) APPLY(name, type, NOTHING, NOTHING)

/* Combines count elements of target with those of operand. compare has the comparands of an
 * operation that compares; for others it is not read. */
void tp_atomic_apply(enum fi_datatype type, enum fi_op op, void *target, const void *operand,
		     const void *compare, size_t count)
{
	const bool compares = op >= FI_CSWAP && op <= FI_MSWAP;

	switch ((int) type) {
	INTEGERS(INTEGER) REALS(REAL) COMPLEXES(COMPLEX)
	}
}
