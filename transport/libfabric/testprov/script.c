/* Reads the script, and has the table of manners. */
#include <stdio.h>

#include "testprov.h"

#define ALL_CAPS                                                                                   \
	(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_RECV | FI_READ | FI_WRITE |        \
	 FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE |         \
	 FI_LOCAL_COMM | FI_RMA_EVENT | FI_HMEM)

/* The first address format that belongs to no other provider. */
#define FORMAT_RAW (FI_PROV_SPECIFIC | 0x77)

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* The plain manner has everything and requires nothing. The others are named after the provider
 * that they resemble, in what matters to its users, as fi_verbs(7), fi_efa(7), fi_cxi(7) and
 * fi_psm2(7) say it. */
static const struct tp_manner manners[] = {
	{
		.name = "plain",
		.caps = ALL_CAPS, .msg_order = FI_ORDER_STRICT, .comp_order = FI_ORDER_NONE,
		.addr_format = FORMAT_RAW, .protocol = FI_PROV_SPECIFIC | 1,
		.key_size = 8, .inject = 256, .iov_limit = 4, .rma_iov_limit = 4,
		.tx_size = 512, .rx_size = 512, .max_msg = 64 * MIB,
		.progress = FI_PROGRESS_MANUAL, .threading = FI_THREAD_SAFE,
	},
	{
		.name = "ip", /* plain with addresses of IP */
		.caps = ALL_CAPS, .msg_order = FI_ORDER_STRICT, .comp_order = FI_ORDER_NONE,
		.addr_format = FI_SOCKADDR_IN, .protocol = FI_PROV_SPECIFIC | 1,
		.key_size = 8, .inject = 256, .iov_limit = 4, .rma_iov_limit = 4,
		.tx_size = 512, .rx_size = 512, .max_msg = 64 * MIB,
		.progress = FI_PROGRESS_MANUAL, .threading = FI_THREAD_SAFE,
	},
	{
		.name = "verbs",
		.caps = ALL_CAPS & ~FI_DIRECTED_RECV, .msg_order = FI_ORDER_SAS,
		.comp_order = FI_ORDER_NONE, .addr_format = FI_SOCKADDR_IN,
		.protocol = FI_PROTO_RDMA_CM_IB_RC,
		.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
		.key_size = 4, .inject = 64, .iov_limit = 4, .rma_iov_limit = 1,
		.tx_size = 384, .rx_size = 384, .max_msg = 1024 * MIB,
		.progress = FI_PROGRESS_MANUAL, .threading = FI_THREAD_SAFE,
	},
	{
		.name = "efa",
		.caps = ALL_CAPS, .msg_order = FI_ORDER_SAS, .comp_order = FI_ORDER_NONE,
		.addr_format = FI_ADDR_EFA, .protocol = FI_PROTO_EFA,
		.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
		.key_size = 4, .inject = 32, .iov_limit = 4, .rma_iov_limit = 4,
		.tx_size = 256, .rx_size = 8192, .max_msg = 1024 * MIB,
		.progress = FI_PROGRESS_MANUAL, .threading = FI_THREAD_SAFE, .emulated = true,
	},
	{
		.name = "cxi",
		.caps = ALL_CAPS, .msg_order = FI_ORDER_SAS | FI_ORDER_WAW | FI_ORDER_WAS,
		.comp_order = FI_ORDER_NONE, .addr_format = FI_ADDR_CXI, .protocol = FI_PROTO_CXI,
		.mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED,
		.key_size = 2, .inject = 192, .iov_limit = 1, .rma_iov_limit = 1,
		.tx_size = 256, .rx_size = 512, .max_msg = 1024 * MIB,
		.progress = FI_PROGRESS_AUTO, .threading = FI_THREAD_SAFE, .separate = true,
	},
	{
		.name = "psm",
		.caps = ALL_CAPS & ~FI_MULTI_RECV, .mode = FI_CONTEXT,
		.msg_order = FI_ORDER_SAS | FI_ORDER_RAW | FI_ORDER_WAW, .comp_order = FI_ORDER_NONE,
		.addr_format = FI_ADDR_PSMX2, .protocol = FI_PROTO_PSMX2,
		.key_size = 8, .inject = 64, .iov_limit = 4, .rma_iov_limit = 1,
		.tx_size = 512, .rx_size = 512, .max_msg = 1024 * MIB, .av_type = FI_AV_MAP,
		.progress = FI_PROGRESS_MANUAL, .threading = FI_THREAD_DOMAIN,
	},
};

/* A setting of the script: a number, which is stored in a long, a size_t or a bool. */
struct setting {
	const char *name;
	void *at;
	size_t size;
};

/* Settings that give a manner capabilities, or take them away. */
static const struct {
	const char *name;
	uint64_t caps;
} abilities[] = {
	{"multi", FI_MULTI_RECV}, {"msg", FI_MSG}, {"rma", FI_RMA | FI_ATOMIC}, {"hmem", FI_HMEM},
};

static int set(struct tp_script *s, const char *name, const char *value)
{
	const struct setting settings[] = {
		{"eagain", &s->eagain, sizeof s->eagain},
		{"enorx", &s->enorx, sizeof s->enorx},
		{"ekey", &s->ekey, sizeof s->ekey},
		{"err", &s->err, sizeof s->err},
		{"erecv", &s->erecv, sizeof s->erecv},
		{"late", &s->late, sizeof s->late},
		{"reorder", &s->reorder, sizeof s->reorder},
		{"overrun", &s->overrun, sizeof s->overrun},
		{"nics", &s->nics, sizeof s->nics},
		{"vanish", &s->vanish, sizeof s->vanish},
		{"emr", &s->emr, sizeof s->emr},
		{"eclose", &s->eclose, sizeof s->eclose},
		{"pin", &s->pin, sizeof s->pin},
		{"unexpected", &s->unexpected, sizeof s->unexpected},
		{"seed", &s->seed, sizeof s->seed},
		{"silent", &s->silent, sizeof s->silent},
		{"nop2p", &s->nop2p, sizeof s->nop2p},
		{"inject", &s->m.inject, sizeof s->m.inject},
		{"iov", &s->m.iov_limit, sizeof s->m.iov_limit},
		{"tx", &s->m.tx_size, sizeof s->m.tx_size},
		{"rx", &s->m.rx_size, sizeof s->m.rx_size},
		{"key", &s->m.key_size, sizeof s->m.key_size},
		{"max", &s->m.max_msg, sizeof s->m.max_msg},
		{"separate", &s->m.separate, sizeof s->m.separate},
	};
	char *end;
	long n = strtol(value, &end, 10);

	if (!*value || *end || n < 0)
		return -FI_EINVAL;
	for (size_t i = 0; i < count_of(settings); i++) {
		if (strcmp(name, settings[i].name))
			continue;
		if (settings[i].size == sizeof(bool))
			*(bool *) settings[i].at = n;
		else
			*(long *) settings[i].at = n;
		return 0;
	}
	if (!strcmp(name, "auto")) {
		s->m.progress = n ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
		return 0;
	}
	for (size_t i = 0; i < count_of(abilities); i++) {
		if (strcmp(name, abilities[i].name))
			continue;
		s->m.caps = n ? s->m.caps | abilities[i].caps : s->m.caps & ~abilities[i].caps;
		return 0;
	}
	return -FI_EINVAL;
}

static int word(struct tp_script *s, char *w)
{
	char *value = strchr(w, '=');

	if (value) {
		*value++ = 0;
		return set(s, w, value);
	}
	for (size_t i = 0; i < count_of(manners); i++) {
		if (!strcmp(w, manners[i].name)) {
			s->m = manners[i];
			return 0;
		}
	}
	return -FI_EINVAL;
}

/* Reads the script from the environment. It returns -FI_EINVAL, and says which word it does not
 * know on the standard error, if the script is wrong: a test must not run without its faults. */
int tp_script_read(struct tp_script *s)
{
	const char *text = getenv(TP_SCRIPT);
	char copy[256], *rest = NULL;

	_Static_assert(sizeof(long) == sizeof(size_t), "set stores sizes as long");
	memset(s, 0, sizeof *s);
	s->m = manners[0];
	if (!text)
		return 0;
	if (strlen(text) >= sizeof copy) {
		fprintf(stderr, "testprov: %s is too long\n", TP_SCRIPT);
		return -FI_EINVAL;
	}
	strcpy(copy, text);
	for (char *w = strtok_r(copy, ",", &rest); w; w = strtok_r(NULL, ",", &rest)) {
		if (word(s, w)) {
			fprintf(stderr, "testprov: unknown word in %s: %s\n", TP_SCRIPT, w);
			return -FI_EINVAL;
		}
	}
	if (s->nics > TP_NICS || s->m.iov_limit < 1 || s->m.iov_limit > TP_IOV_MAX || s->m.key_size < 1 || s->m.key_size > 8)
		return -FI_EINVAL;
	return 0;
}

/* Returns a number of 0 to n - 1 (xorshift64*). */
long tp_random(struct tp_faults *f, long n)
{
	f->random ^= f->random >> 12;
	f->random ^= f->random << 25;
	f->random ^= f->random >> 27;
	return (long) ((f->random * 0x2545F4914F6CDD1DULL >> 33) % (uint64_t) n);
}

const char *tp_strerror(int prov)
{
	switch (prov) {
	case 0: return "success";
	case TP_PROV_FAULT: return "the script makes this operation fail";
	case TP_PROV_NORX: return "the target had no receive buffer for the message";
	case TP_PROV_GONE: return "the adapter is gone";
	case TP_PROV_KEY: return "the target rejected the key";
	default: return strerror(prov);
	}
}

/* fi_cq_strerror and fi_eq_strerror: copies the text to buf, if there is one. */
const char *tp_strerror_to(int prov, char *buf, size_t len)
{
	if (!buf || !len)
		return tp_strerror(prov);
	snprintf(buf, len, "%s", tp_strerror(prov));
	return buf;
}
