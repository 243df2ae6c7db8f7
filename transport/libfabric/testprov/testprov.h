/*
 * testprov is a libfabric provider for tests. It moves data between the processes of one host over
 * Unix sockets, has the manner of another provider (script.h), and fails on request. It checks what
 * its callers do: descriptors of local memory, keys, sizes, numbers of segments. docs/adr/0031 has
 * the design.
 *
 *   caller ── fi_send, fi_write, … ──► operation ──► connection ──► socket ──► target.c of the peer
 *          ◄─ completion queue ◄────── operation ◄── reply ◄─────────────────────┘
 *
 * The lock of a domain guards the domain and everything that was opened in it.
 */
#ifndef TESTPROV_H
#define TESTPROV_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

#include "compat.h"
#include "list.h"
#include "script.h"

#define TP_NAME "testprov"

enum {
	TP_IOV_MAX = 8,			/* largest iov_limit and rma_iov_limit of any manner */
	TP_ERR_DATA = 64,		/* largest err_data, in bytes */
	TP_QUEUED_MAX = 4 << 20,	/* bytes that wait for one socket, above which posts are refused */
};

extern struct fi_provider tp_provider;

/* The address of an endpoint: an IPv4 address and a port. Both are only names: the endpoint
 * listens at the abstract Unix socket "weft-testprov-IP-PORT". */
struct tp_addr {
	uint32_t ip;	/* in host order */
	uint32_t port;
};

enum { TP_ADDR_SIZE = 16 }; /* size of an address in every format */

int tp_addr_parse(const char *node, const char *service, struct tp_addr *addr);
bool tp_addr_get(uint32_t format, const void *raw, size_t len, struct tp_addr *addr);
void tp_addr_put(uint32_t format, const struct tp_addr *addr, void *raw);

struct tp_fabric {
	struct fid_fabric fid;
	int refs;
};

/* What epoll reports. */
enum tp_source_kind { TP_LISTENER, TP_CONN, TP_TIMER, TP_WAKE };
struct tp_source {
	enum tp_source_kind kind;
};

struct tp_domain {
	struct fid_domain fid;
	struct tp_fabric *fabric;
	struct fi_info *info;
	struct tp_script script;
	struct tp_faults faults;
	long nic; /* the number of its adapter */
	pthread_mutex_t lock; /* recursive, because a caller may hold it in tp_progress */
	int refs;
	int epfd;		/* readable if a socket or the timer needs tp_progress */
	struct tp_source timer; /* a timerfd: the next late completion or delayed request is due */
	int timer_fd;
	struct tp_list eps, regions, dead; /* dead: connections that tp_progress frees */
	struct tp_list late;		   /* late completions, struct tp_late, by time */
	struct tp_list held;		   /* requests that wait to be reordered, struct tp_held */
	uint64_t next_key;
	struct tp_eq *eq; /* reports asynchronous registrations */
	pthread_t thread; /* makes progress, with automatic progress */
	bool threaded, stop;
	struct tp_source wake; /* an eventfd that ends the thread's sleep */
	int wake_fd;
};

struct tp_av_entry {
	struct tp_addr addr;
	bool used, reached; /* reached: a connection was made */
};

struct tp_av {
	struct fid_av fid;
	struct tp_domain *domain;
	struct tp_eq *eq;
	enum fi_av_type type;
	uint64_t flags;
	size_t count, capacity;
	struct tp_av_entry *entries;
	int refs;
};

struct tp_av_entry *tp_av_find(struct tp_av *av, fi_addr_t at);
fi_addr_t tp_av_reverse(struct tp_av *av, const struct tp_addr *addr);
int tp_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);

/* A file descriptor that is readable while a queue has something to read, or, with manual progress,
 * while the domain needs progress. */
struct tp_wait {
	enum fi_wait_obj object;
	int fd;	   /* an epoll descriptor over event and, with manual progress, the domain's */
	int event; /* an eventfd */
	bool set;  /* event is readable */
};

int tp_wait_open(struct tp_wait *w, struct tp_domain *d, enum fi_wait_obj object);
void tp_wait_close(struct tp_wait *w);
void tp_wait_set(struct tp_wait *w);
void tp_wait_clear(struct tp_wait *w);
int tp_wait_get(struct tp_wait *w, void *arg);
int tp_wait_sleep(struct tp_wait *w, int timeout);
int64_t tp_now_us(void);

/* An entry of a completion queue. It is a failure if e.err is not 0. */
struct tp_entry {
	struct tp_list link;
	struct fi_cq_err_entry e;
	fi_addr_t from;
	uint8_t err_data[TP_ERR_DATA];
	struct tp_cq *cq; /* while the entry is late */
};

struct tp_cq {
	struct fid_cq fid;
	struct tp_domain *domain;
	enum fi_cq_format format;
	size_t size, count; /* count: successful entries in the queue */
	struct tp_list entries, failures;
	struct tp_entry *last; /* the failure that readerr has returned, which holds its err_data */
	struct tp_wait wait;
	uint64_t total; /* entries so far */
	bool overrun, signaled;
	int refs;
};

int tp_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
void tp_cq_put(struct tp_cq *cq, const struct tp_entry *entry);
bool tp_cq_full(const struct tp_cq *cq);
int tp_cq_trywait(struct tp_cq *cq);

struct tp_eq {
	struct fid_eq fid;
	struct tp_fabric *fabric;
	pthread_mutex_t lock;
	struct tp_list events, failures;
	struct tp_event *last;
	struct tp_wait wait;
	int refs;
};

int tp_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context);
void tp_eq_put(struct tp_eq *eq, uint32_t event, fid_t fid, void *context, uint64_t data);
int tp_eq_trywait(struct tp_eq *eq);

struct tp_cntr {
	struct fid_cntr fid;
	struct tp_domain *domain;
	uint64_t value, errors;
	struct tp_wait wait;
	int refs;
};

int tp_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr,
		 void *context);
void tp_cntr_count(struct tp_cntr *cntr, bool failed);

/* Registered memory. */
struct tp_mr {
	struct fid_mr fid;
	struct tp_list link; /* in tp_domain.regions */
	struct tp_domain *domain;
	struct iovec iov[TP_IOV_MAX];
	size_t count, len;
	uint64_t access, offset;
	enum fi_hmem_iface iface;
	bool enabled;
	struct tp_ep *ep;     /* with FI_MR_ENDPOINT, the endpoint that it is bound to */
	struct tp_cntr *cntr; /* counts writes by peers */
};

extern struct fi_ops_mr tp_mr_ops;
int tp_mr_local(struct tp_domain *d, const struct iovec *iov, void **desc, size_t count, uint64_t access);
int tp_mr_remote(struct tp_ep *ep, uint64_t addr, uint64_t key, size_t len, uint64_t access,
		 struct iovec *out, size_t *count, struct tp_mr **mr);

/* A receive that the caller has posted. */
struct tp_recv {
	struct tp_list link;
	struct iovec iov[TP_IOV_MAX];
	size_t count, len;
	size_t used; /* bytes of a multi-receive buffer that messages take */
	uint64_t flags, tag, ignore;
	fi_addr_t from; /* FI_ADDR_UNSPEC: any */
	void *context;
};

/* A message that has arrived and that no receive has taken. */
struct tp_unexpected {
	struct tp_list link;
	struct tp_addr from;
	struct tp_conn *conn; /* where the reply goes; NULL: the connection has ended */
	uint64_t id;	      /* 0: the sender expects no reply */
	uint64_t tag, data, flags;
	void *claim; /* the context of the FI_PEEK that has claimed the message */
	bool claimed;
	bool broken; /* the message is not whole: its receive fails */
	size_t len;
	uint8_t *payload;
};

/* The receives and the messages of one kind: tagged or not. */
struct tp_queue {
	struct tp_list posted, unexpected;
	size_t count, bytes; /* of posted receives; of unexpected messages */
};

enum tp_counter { TP_CNTR_SEND, TP_CNTR_RECV, TP_CNTR_READ, TP_CNTR_WRITE, TP_CNTR_REMOTE_READ,
		  TP_CNTR_REMOTE_WRITE, TP_CNTRS };

enum { TP_BUCKETS = 64 };

struct tp_ep {
	struct fid_ep fid;
	struct tp_list link; /* in tp_domain.eps */
	struct tp_domain *domain;
	struct fi_info *info;
	struct tp_addr addr;
	bool given; /* the caller has chosen the port, so it may know those of peers before they are there */
	struct tp_source listener;
	int fd; /* the listening socket */
	struct tp_av *av;
	struct tp_cq *tx_cq, *rx_cq;
	bool tx_selective, rx_selective, enabled;
	struct tp_eq *eq;
	struct tp_cntr *cntrs[TP_CNTRS];
	size_t min_multi_recv;
	int p2p; /* FI_OPT_FI_HMEM_P2P, which has no other effect; -1: the caller has not set it */
	struct tp_queue msg, tagged;
	struct tp_list conns[TP_BUCKETS]; /* connections that this endpoint has made, by address */
	struct tp_list accepted;
	size_t in_flight; /* operations */
	uint64_t next_id;
	int regions; /* regions that are bound to this endpoint */
};

int tp_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
void tp_ep_accept(struct tp_ep *ep);

extern struct fi_ops_msg tp_msg_ops;
extern struct fi_ops_tagged tp_tagged_ops;
extern struct fi_ops_rma tp_rma_ops;
extern struct fi_ops_atomic tp_atomic_ops;

/* What goes over a connection. A request is answered by a reply with the same id, unless its id is
 * 0. A request without an id gets a reply with the id 0 if it fails. */
enum tp_kind { TP_HELLO = 1, TP_SEND, TP_WRITE, TP_READ, TP_ATOMIC, TP_REPLY };

enum { TP_MAGIC = 0x77747031 };

struct tp_header {
	uint32_t magic;
	uint8_t kind;
	uint8_t remote; /* number of struct fi_rma_iov in front of the data */
	uint8_t datatype, op;
	uint32_t status; /* of a reply: an errno */
	uint32_t prov;	 /* of a reply: prov_errno */
	uint64_t id, flags, tag, data;
	uint64_t len; /* bytes that follow the header */
	struct tp_addr from;
};

enum { TP_FETCH = 1, TP_COMPARE = 2, TP_TAGGED = 4 }; /* in tp_header.flags, above FI_ flags */
#define TP_WIRE_FLAGS(f) ((uint64_t) (f) << 60)
#define TP_WIRE_FI ((1ULL << 60) - 1)

/* An operation in flight, until its reply. */
struct tp_op {
	struct tp_list link; /* in tp_conn.ops */
	struct tp_ep *ep;
	uint64_t id;
	enum tp_kind kind;
	void *context;
	uint64_t flags; /* of its completion */
	uint64_t tag;
	bool silent; /* success makes no completion */
	enum tp_counter counter;
	struct iovec result[TP_IOV_MAX]; /* where the data of the reply goes */
	size_t results;
};

/* A header and its data, which wait for a socket. */
struct tp_out {
	struct tp_list link;
	struct tp_header head;
	uint8_t *copy; /* data that the connection owns, copied bytes */
	size_t copied;
	struct iovec iov[TP_IOV_MAX]; /* data in the caller's memory, which follows the copy */
	size_t count, sent;
};

struct tp_conn {
	struct tp_source source;
	struct tp_list link; /* in tp_ep.conns or accepted, or in tp_domain.dead */
	struct tp_ep *ep;
	struct tp_addr peer;
	int fd;
	bool initiator, dead, known; /* known: the peer has said its address */
	bool writing;		     /* epoll watches for room in the socket */
	struct tp_list out, ops;
	size_t queued; /* bytes in out */
	struct tp_header in;
	size_t got; /* bytes of the header and of its data that have arrived */
	uint8_t *payload;
};

/* connection.c */
int tp_conn_get(struct tp_ep *ep, const struct tp_addr *peer, struct tp_conn **conn);
struct tp_conn *tp_conn_new(struct tp_ep *ep, int fd, bool initiator);
int tp_conn_queue(struct tp_conn *c, struct tp_out *out);
void tp_conn_flush(struct tp_conn *c);
void tp_conn_event(struct tp_conn *c, uint32_t events);
void tp_conn_fail(struct tp_conn *c, int err);
void tp_conn_free(struct tp_conn *c);
void tp_conn_reply(struct tp_conn *c, uint64_t id, int status, int prov, const void *data, size_t len);
int tp_socket_address(const struct tp_addr *addr, void *sockaddr);

/* operation.c */
struct tp_request {
	struct tp_ep *ep;
	enum tp_kind kind;
	fi_addr_t dest;
	void *context;
	uint64_t flags; /* of the call */
	uint64_t tag, data;
	bool tagged, has_data, inject;
	const struct iovec *iov; /* data in the caller's memory */
	void **desc;
	size_t count;
	const struct iovec *result; /* memory of the caller that the reply fills */
	void **result_desc;
	size_t results;
	const struct fi_rma_iov *remote;
	size_t remotes;
	const void *head; /* bytes in front of the data: operands that are not contiguous */
	size_t head_len;
	enum fi_datatype datatype;
	enum fi_op op;
	uint64_t wire;	     /* TP_FETCH, TP_COMPARE */
	uint64_t completion; /* flags of the completion */
	enum tp_counter counter;
};
ssize_t tp_post(struct tp_request *r);
void tp_op_end(struct tp_op *op, int err, int prov);
size_t tp_iov_len(const struct iovec *iov, size_t count);
void tp_iov_put(const struct iovec *iov, size_t count, size_t at, const void *data, size_t len);
void tp_iov_get(const struct iovec *iov, size_t count, size_t at, void *data, size_t len);

/* match.c */
ssize_t tp_recv_post(struct tp_ep *ep, bool tagged, const struct fi_msg_tagged *m, uint64_t flags);
void tp_match_arrived(struct tp_ep *ep, struct tp_unexpected *u, bool tagged);
bool tp_cancel(struct tp_ep *ep, void *context);
void tp_match_forget(struct tp_ep *ep, struct tp_conn *c);
void tp_match_close(struct tp_ep *ep);

/* target.c */
void tp_target(struct tp_conn *c, struct tp_header *h, uint8_t *payload);
void tp_target_due(struct tp_domain *d);
void tp_target_forget(struct tp_conn *c);

/* arithmetic.c */
size_t tp_type_size(enum fi_datatype type);
bool tp_atomic_valid(enum fi_datatype type, enum fi_op op, bool fetch, bool compare);
void tp_atomic_apply(enum fi_datatype type, enum fi_op op, void *target, const void *operand,
		     const void *compare, size_t count);

/* progress.c */
void tp_lock(struct tp_domain *d);
void tp_unlock(struct tp_domain *d);
void tp_progress(struct tp_domain *d);
void tp_progress_manual(struct tp_domain *d);
int tp_watch(struct tp_domain *d, int fd, uint32_t events, struct tp_source *s, int how);
void tp_timer(struct tp_domain *d);
int tp_thread_start(struct tp_domain *d);
void tp_thread_stop(struct tp_domain *d);

/* device.c */
int tp_device_check(const struct tp_domain *d, const struct fi_mr_attr *attr);
int tp_device_add(const struct iovec *iov, size_t count);
void tp_device_remove(const struct iovec *iov, size_t count);
bool tp_device_has(const void *at, size_t len);
void tp_device_copy(void *at, void *data, size_t len, bool in);

/* nic.c */
enum { TP_NICS = 8 };
struct fid_nic *tp_nic_new(long number);
long tp_nic_of(const struct tp_manner *m, const char *domain);
int tp_nic_domain(const struct tp_manner *m, long number, char *name, size_t len);

/* fault.c */
struct tp_late {
	struct tp_list link;
	int64_t due;
	struct tp_entry *entry;
};
void tp_complete(struct tp_cq *cq, struct tp_entry *entry);
void tp_late_due(struct tp_domain *d);

int tp_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int tp_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain,
		   void *context);
int tp_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **info);

/* Entries of tables for calls that the provider lacks. */
int tp_no_bind(struct fid *fid, struct fid *with, uint64_t flags);
int tp_no_control(struct fid *fid, int command, void *arg);
int tp_no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

#endif
