/*
 * Measures the physical limit of a message over one loopback TCP socket. There are two
 * processes, each of which repeats a non-blocking recv without a pause. If there are two
 * cores, each process is bound to one.
 *
 *   cc -O2 -o tcp_pingpong tcp_pingpong.c
 *   ./tcp_pingpong [lat] SIZE ITERATIONS    time in one direction: minimum and median over batches, in us
 *   ./tcp_pingpong bw SIZE ITERATIONS       time per message, in windows of 64 messages and an answer
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 50, WINDOW = 64 };

static void die(const char *what) { perror(what); exit(1); }

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
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

static void put(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = send(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k > 0) { p += k; n -= k; }
        else if (errno != EAGAIN && errno != EINTR) die("send");
    }
}

static void get(int fd, char *p, size_t n)
{
    while (n) {
        ssize_t k = recv(fd, p, n, MSG_DONTWAIT);
        if (k > 0) { p += k; n -= k; }
        else if (k == 0) { fprintf(stderr, "recv: the peer has ended\n"); exit(1); }
        else if (errno != EAGAIN && errno != EINTR) die("recv");
    }
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void batch(int fd, int first, int bw, char *buf, size_t size, int n)
{
    char ack = 0;
    for (int i = 0; i < n; i++) {
        if (bw && first) {
            for (int w = 0; w < WINDOW; w++) put(fd, buf, size);
            get(fd, &ack, 1);
        } else if (bw) {
            for (int w = 0; w < WINDOW; w++) get(fd, buf, size);
            put(fd, &ack, 1);
        } else if (first) {
            put(fd, buf, size); get(fd, buf, size);
        } else {
            get(fd, buf, size); put(fd, buf, size);
        }
    }
}

int main(int argc, char **argv)
{
    int bw = 0, one = 1;
    if (argc > 1 && (!strcmp(argv[1], "bw") || !strcmp(argv[1], "lat"))) {
        bw = !strcmp(argv[1], "bw");
        argv++, argc--;
    }
    long size = argc > 1 ? atol(argv[1]) : 8, iters = argc > 2 ? atol(argv[2]) : (bw ? 1000 : 100000);
    if (size < 1 || iters < 1) {
        fprintf(stderr, "usage: tcp_pingpong [lat|bw] SIZE ITERATIONS\n");
        return 2;
    }
    int per = iters / BATCHES > 0 ? iters / BATCHES : 1;

    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t al = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (l < 0 || bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 1) ||
        getsockname(l, (struct sockaddr *)&a, &al))
        die("listen");

    pid_t child = fork();
    if (child < 0) die("fork");
    int first = child != 0, fd;
    if (first) {
        if ((fd = accept(l, NULL, NULL)) < 0) die("accept");
    } else {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    }
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) die("TCP_NODELAY");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    pin(!first);

    char *buf = malloc(size);
    if (!buf) die("malloc");
    memset(buf, 1, size);
    double us[BATCHES];
    batch(fd, first, bw, buf, size, per); /* warm up */
    for (int b = 0; b < BATCHES; b++) {
        double t = now_us();
        batch(fd, first, bw, buf, size, per);
        us[b] = (now_us() - t) / per / (bw ? WINDOW : 2);
    }
    if (!first) return 0;
    qsort(us, BATCHES, sizeof *us, cmp);
    printf("tcp %s size %ld min_us %.3f median_us %.3f bytes_per_s %.0f\n", bw ? "bw" : "latency",
           size, us[0], us[BATCHES / 2], size / us[BATCHES / 2] * 1e6);
    waitpid(child, NULL, 0);
    return 0;
}
