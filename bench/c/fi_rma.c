/*
 * Measures the limit of one-sided transfers over a libfabric provider. There are two
 * processes. One, the origin, writes to or reads from the registered memory of the other,
 * the target, which only calls fi_cq_read, so that its provider makes progress. Both poll
 * without a pause. If there are two cores, each process is bound to one.
 *
 *   gcc -O2 -o fi_rma bench/c/fi_rma.c -lfabric
 *   ./fi_rma put|get SIZE SECONDS PROVIDER                   windows of 64 transfers of SIZE bytes
 *   ./fi_rma put_latency|get_latency SIZE SECONDS PROVIDER   one transfer at a time
 *
 * A write is complete when its data is in the target's memory
 * (FI_DELIVERY_COMPLETE). Each transfer of a window uses a different part of memory.
 * The program verifies the data first. It prints the time of a transfer, as the minimum and
 * the median over the windows, and the bandwidth.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum { WINDOW = 64, SAMPLES = 1 << 20, LIMIT = 10 /* seconds that the verification may take */ };

/* peer_info is what each process sends to the other over the control socket. */
struct peer_info {
    uint64_t key, base, addrlen;
    char addr[256];
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *mr;
static struct fi_context2 contexts[WINDOW];

static char *memory; /* room for WINDOW transfers */
static size_t size;
static fi_addr_t peer;
static struct peer_info theirs;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void check(const char *what, ssize_t ret)
{
    if (ret < 0) {
        fprintf(stderr, "%s: %s\n", what, fi_strerror(-ret));
        exit(1);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void pin(int i)
{
    cpu_set_t have, want;
    if (sched_getaffinity(0, sizeof have, &have) || CPU_COUNT(&have) < 2)
        return;
    CPU_ZERO(&want);
    for (int c = 0, k = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &have) && k++ == i)
            CPU_SET(c, &want);
    sched_setaffinity(0, sizeof want, &want);
}

static char pattern(size_t i, int from)
{
    return (char)(i * 7 + (i >> 8) + from * 31 + 1);
}

static void fill(int from)
{
    for (size_t i = 0; i < WINDOW * size; i++)
        memory[i] = pattern(i, from);
}

static int differs(int from, size_t *at)
{
    for (size_t i = 0; i < WINDOW * size; i++)
        if (memory[i] != pattern(i, from)) {
            *at = i;
            return 1;
        }
    return 0;
}

/* progress lets the provider make progress, and returns how many transfers have completed since the
 * last call. */
static int progress(void)
{
    struct fi_cq_entry done[WINDOW];
    ssize_t n = fi_cq_read(cq, done, WINDOW);
    if (n == -FI_EAGAIN)
        return 0;
    if (n == -FI_EAVAIL) {
        struct fi_cq_err_entry e = {0};
        if (fi_cq_readerr(cq, &e, 0) == -FI_EAGAIN)
            return 0;
        fprintf(stderr, "completion: %s\n", fi_strerror(e.err));
        exit(1);
    }
    check("fi_cq_read", n);
    return n;
}

/* received lets the provider make progress and polls the control socket. It returns the byte that has
 * arrived there, or 0 if none has. */
static char received(int control)
{
    char c = 0;
    for (int i = 0; i < 256; i++)
        progress();
    ssize_t k = recv(control, &c, 1, MSG_DONTWAIT);
    if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR)) {
        fprintf(stderr, "control: the other process has ended\n");
        exit(1);
    }
    return k > 0 ? c : 0;
}

static void notify(int control, char c)
{
    if (send(control, &c, 1, MSG_NOSIGNAL) != 1)
        fail("control");
}

static void setup(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        fail("fi_allocinfo");
    hints->caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->fabric_attr->prov_name = strdup(provider);
    /* No node for shm, which would use it as the name of a shared memory segment. */
    const char *node = strcmp(provider, "shm") ? "127.0.0.1" : NULL;
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), node, NULL, node ? FI_SOURCE : 0, hints, &info));
    fi_freeinfo(hints);

    struct fi_av_attr avattr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cqattr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 4 * WINDOW};
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, info, &domain, NULL));
    check("fi_av_open", fi_av_open(domain, &avattr, &av, NULL));
    check("fi_cq_open", fi_cq_open(domain, &cqattr, &cq, NULL));
    check("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
    check("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
    check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(ep));

    uint64_t access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    check("fi_mr_reg", fi_mr_reg(domain, memory, WINDOW * size, access, 0, 1, 0, &mr, NULL));
    if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        check("fi_mr_bind", fi_mr_bind(mr, &ep->fid, 0));
        check("fi_mr_enable", fi_mr_enable(mr));
    }
}

static void meet(int control)
{
    struct peer_info ours = {.key = fi_mr_key(mr), .addrlen = sizeof ours.addr};
    size_t len = sizeof ours.addr;
    if (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
        ours.base = (uintptr_t)memory;
    check("fi_getname", fi_getname(&ep->fid, ours.addr, &len));
    ours.addrlen = len;
    if (send(control, &ours, sizeof ours, MSG_NOSIGNAL) != sizeof ours ||
        recv(control, &theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs)
        fail("control");
    if (fi_av_insert(av, theirs.addr, 1, &peer, 0, NULL) != 1) {
        fprintf(stderr, "fi_av_insert: the address was not inserted\n");
        exit(1);
    }
}

/* put posts a write that completes when the data has arrived at the target. It sets the flag for this
 * in each call, because some providers, such as net, ignore the endpoint's op_flags. */
static ssize_t put(char *local, void *desc, uint64_t remote, struct fi_context2 *context)
{
    struct iovec iov = {local, size};
    struct fi_rma_iov to = {remote, size, theirs.key};
    struct fi_msg_rma msg = {
        .msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = peer, .rma_iov = &to, .rma_iov_count = 1, .context = context,
    };
    return fi_writemsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* transfers posts n reads or writes and waits until all have completed. */
static void transfers(int get, int n)
{
    int posted = 0, done = 0;
    void *desc = fi_mr_desc(mr);
    while (done < n) {
        while (posted < n) {
            char *local = memory + posted * size;
            uint64_t remote = theirs.base + posted * size;
            ssize_t ret = get
                ? fi_read(ep, local, size, desc, peer, remote, theirs.key, &contexts[posted])
                : put(local, desc, remote, &contexts[posted]);
            if (ret == -FI_EAGAIN)
                break;
            check(get ? "fi_read" : "fi_writemsg", ret);
            posted++;
        }
        done += progress();
    }
}

static void target(int control)
{
    char c;
    size_t at;
    fill(1);
    notify(control, 'r');
    while (!(c = received(control)))
        ;
    if (c == 'v') { /* the origin has written */
        double limit = now() + LIMIT;
        while (differs(0, &at)) {
            progress();
            if (now() > limit) {
                fprintf(stderr, "verify: byte %zu of the target is %d, not %d\n", at, memory[at], pattern(at, 0));
                exit(1);
            }
        }
        notify(control, 'k');
        while (!(c = received(control)))
            ;
    }
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void origin(int control, int get, int window, double seconds, const char *name)
{
    static double us[SAMPLES];
    size_t at;
    int n = 0;
    fill(0);
    while (received(control) != 'r')
        ;
    transfers(get, WINDOW);
    if (!get) {
        notify(control, 'v');
        while (received(control) != 'k')
            ;
    } else if (differs(1, &at)) {
        fprintf(stderr, "verify: byte %zu of the read data is %d, not %d\n", at, memory[at], pattern(at, 1));
        exit(1);
    }
    for (double end = now() + seconds / 5; now() < end;) /* warm up */
        transfers(get, window);
    for (double t = now(), end = t + seconds; n < SAMPLES && (n == 0 || t < end);) {
        transfers(get, window);
        double after = now();
        us[n++] = (after - t) * 1e6 / window;
        t = after;
    }
    notify(control, 'e');
    qsort(us, n, sizeof *us, cmp);
    printf("fi_rma %s provider %s size %zu window %d samples %d min_us %.3f median_us %.3f bytes_per_s %.0f\n", name,
           info->fabric_attr->prov_name, size, window, n, us[0], us[n / 2], size / us[n / 2] * 1e6);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    int get = !strcmp(name, "get") || !strcmp(name, "get_latency");
    int latency = !strcmp(name, "put_latency") || !strcmp(name, "get_latency");
    size = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    double seconds = argc > 3 ? strtod(argv[3], NULL) : 0;
    if (argc != 5 || !(get || latency || !strcmp(name, "put")) || !size || seconds <= 0) {
        fprintf(stderr, "usage: fi_rma put|get|put_latency|get_latency SIZE SECONDS PROVIDER\n");
        return 2;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0), control, one = 1;
    if (l < 0 || bind(l, (struct sockaddr *)&a, sizeof a) || getsockname(l, (struct sockaddr *)&a, &len) || listen(l, 1))
        fail("listen");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child) {
        control = accept(l, NULL, NULL);
    } else {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        control = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(control, (struct sockaddr *)&a, sizeof a))
            fail("connect");
    }
    if (control < 0 || setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
        fail("control");
    pin(!child);
    if (!(memory = aligned_alloc(4096, (WINDOW * size + 4095) / 4096 * 4096)))
        fail("aligned_alloc");
    setup(argv[4]);
    meet(control);
    int status = 0;
    if (child)
        origin(control, get, latency ? 1 : WINDOW, seconds, name);
    else
        target(control);
    if (!child) {
        /* Let the provider make progress until the origin shuts down the control socket, because
         * the origin may need that for its last completions. */
        char c;
        while (recv(control, &c, 1, MSG_DONTWAIT) != 0)
            progress();
    }
    shutdown(control, SHUT_WR);
    fi_close(&mr->fid);
    fi_close(&ep->fid);
    fi_close(&cq->fid);
    fi_close(&av->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
    fflush(stdout);
    return child ? (waitpid(child, &status, 0) < 0 || status) : 0;
}
