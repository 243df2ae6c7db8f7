/*
 * Measures the bandwidth over one loopback TCP socket: one process only sends, another
 * only receives. Both repeat their system call without a pause, and each is bound to a core.
 *
 *   gcc -O2 -o tcp_stream bench/c/tcp_stream.c
 *   ./tcp_stream PIECE SNDBUF [GIB]
 *
 * PIECE is the number of bytes of one send, from a buffer of 1 MiB. SNDBUF is the
 * sender's SO_SNDBUF in bytes; 0 means the kernel's default. The program prints GB/s
 * and the mean size of a receive.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BUFFER (1UL << 20)

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Binds the process to a core. If there is only one core, both share it. */
static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static char *buffer(int fill)
{
    char *b = aligned_alloc(4096, BUFFER);
    if (!b)
        fail("aligned_alloc");
    memset(b, fill, BUFFER);
    return b;
}

static void sender(const struct sockaddr_in *to, size_t piece, int sndbuf, size_t total)
{
    pin(1);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || (sndbuf && setsockopt(s, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf)))
        fail("socket");
    if (connect(s, (const struct sockaddr *)to, sizeof *to))
        fail("connect");
    char *b = buffer(1);
    for (size_t sent = 0, at = 0; sent < total;) {
        size_t n = piece < BUFFER - at ? piece : BUFFER - at;
        ssize_t k = send(s, b + at, n, MSG_DONTWAIT);
        if (k < 0 && errno != EAGAIN)
            fail("send");
        if (k > 0) {
            sent += k;
            at = (at + k) % BUFFER;
        }
    }
}

int main(int argc, char **argv)
{
    size_t piece = argc > 1 ? strtoul(argv[1], 0, 10) : 0;
    int sndbuf = argc > 2 ? atoi(argv[2]) : -1;
    size_t total = (argc > 3 ? strtoul(argv[3], 0, 10) : 4) << 30;
    if (argc < 3 || argc > 4 || !piece || sndbuf < 0 || !total) {
        fprintf(stderr, "usage: tcp_stream PIECE SNDBUF [GIB]\n");
        return 2;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (l < 0 || bind(l, (struct sockaddr *)&a, len) || getsockname(l, (struct sockaddr *)&a, &len) || listen(l, 1))
        fail("listen");
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        sender(&a, piece, sndbuf, total);
        return 0;
    }
    pin(0);
    int s = accept(l, 0, 0);
    if (s < 0)
        fail("accept");
    char *b = buffer(2);
    size_t got = 0, at = 0, receives = 0;
    double start = now();
    while (got < total) {
        ssize_t k = recv(s, b + at, BUFFER - at, MSG_DONTWAIT);
        if (k < 0 && errno == EAGAIN)
            continue;
        if (k <= 0)
            fail("recv");
        got += k;
        at = (at + k) % BUFFER;
        receives++;
    }
    double took = now() - start;
    printf("tcp stream piece %zu sndbuf %d gb_per_s %.2f mean_recv %zu\n", piece, sndbuf, got / took / 1e9, got / receives);
    int status;
    return waitpid(child, &status, 0) < 0 || status;
}
