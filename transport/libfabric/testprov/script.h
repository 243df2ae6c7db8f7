/*
 * The script of the provider: the manner that it has, and the faults that it makes. The environment
 * variable FI_TESTPROV_SCRIPT has the script when fi_getinfo is called, and again when a domain is
 * opened. It is the name of a manner, or empty, and settings after it: "cxi,late=200,seed=7".
 */
#ifndef TESTPROV_SCRIPT_H
#define TESTPROV_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TP_SCRIPT "FI_TESTPROV_SCRIPT"

/* What a real provider offers and requires, as far as fi_info says it. */
struct tp_manner {
	const char *name;
	uint64_t caps, mode, msg_order, comp_order;
	uint32_t addr_format, protocol;
	int mr_mode;
	size_t key_size, inject, iov_limit, rma_iov_limit, tx_size, rx_size, max_msg;
	int av_type;	/* FI_AV_UNSPEC: either */
	int progress;	/* of data and control */
	int threading;
	bool separate;	/* the release of a multi-receive buffer has a completion of its own */
	bool emulated;	/* without FI_DELIVERY_COMPLETE, a write completes before its data is placed */
};

struct tp_script {
	struct tp_manner m;
	/* Faults: each is off if its number is 0. "One of n" counts, "percent" is chance. */
	long eagain;	 /* percent of the posts that are refused with FI_EAGAIN */
	long enorx;	 /* one of n messages is refused with FI_ENORX */
	long ekey;	 /* one of n accesses is refused with FI_EKEYREJECTED */
	long err;	 /* one of n operations fails with FI_EIO, a prov_errno and err_data */
	long erecv;	 /* one of n messages breaks while it arrives: its send and its receive fail */
	long late;	 /* completions come up to this many microseconds late */
	long reorder;	 /* up to n accesses wait and are done in another order, if order allows */
	long overrun;	 /* a completion queue overruns after n completions */
	long nics;	 /* number of adapters, each with a domain of its own; 0: a domain without one */
	long vanish;	 /* a domain of an adapter but the first one fails all operations after the n-th */
	long emr;	 /* a domain of an adapter but the first one refuses registrations after the n-th */
	long eclose;	 /* the n-th close of a region of a domain fails */
	long pin;	 /* to register memory takes this many microseconds */
	long unexpected; /* bytes of unexpected messages, beyond which messages are refused (FI_ENORX) */
	long seed;	 /* of the chance */
	bool silent;	 /* an endpoint that cannot be reached means FI_EAGAIN, without end */
	bool nop2p;	 /* FI_HMEM_P2P_REQUIRED is refused */
};

/* The state of the faults of one domain. */
struct tp_faults {
	uint64_t random;
	long messages, accesses, operations, receives, sent, registrations, closes;
};

enum { TP_PROV_FAULT = 4242, TP_PROV_NORX = 17, TP_PROV_KEY = 23, TP_PROV_GONE = 19 }; /* values of prov_errno */

int tp_script_read(struct tp_script *s);
long tp_random(struct tp_faults *f, long n);
const char *tp_strerror(int prov);
const char *tp_strerror_to(int prov, char *buf, size_t len);

#endif
