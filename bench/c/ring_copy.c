/*
 * Measures the limit of a transfer by two copies between two cores. One process, the
 * writer, copies messages to a ring buffer that both processes map. The other, the reader,
 * copies them out of it. If there are two cores, each process is bound to one.
 *
 *   cc -O2 -march=native -o ring_copy ring_copy.c
 *   ./ring_copy RING BYTES PIECES [ahead|string]
 *
 * RING is the size of the ring, and BYTES that of a message, both in bytes. BYTES must divide
 * RING. The writer divides a message into PIECES parts of equal size, and lets the reader see
 * each part as soon as the part is written. With "ahead" both processes prefetch all cache
 * lines of a part before they copy it. With "string" the writer copies with the processor's
 * string instruction. All other copies are loops over registers of 32 bytes, as in Go.
 * The program prints the bandwidth of a stream and the time of a message in one
 * direction.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOTAL = 1 << 30, MOST = 400000 };

static size_t ring, bytes, piece;
static long messages, pieces;
static int ahead, string;

/* One direction: the ring's data, the number of parts written, and the number of messages read. */
struct way {
    char *data;
    volatile uint64_t *written, *read;
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static cpu_set_t have; /* the cores that the program may use */

static void pin(int i)
{
    cpu_set_t want;
    if (CPU_COUNT(&have) < 2)
        return;
    CPU_ZERO(&want);
    for (int c = 0, k = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &have) && k++ == i)
            CPU_SET(c, &want);
    sched_setaffinity(0, sizeof want, &want);
}

static uint64_t load(volatile uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void store(volatile uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

/* copy copies as Go's copy does for some kilobytes, so that the result does not depend on the C library. */
static void copy(char *to, const char *from, size_t n)
{
    typedef long part __attribute__((vector_size(32), aligned(1), may_alias));
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        part a = *(const part *)(from + i), b = *(const part *)(from + i + 32);
        *(part *)(to + i) = a;
        *(part *)(to + i + 32) = b;
    }
    memcpy(to + i, from + i, n - i);
}

static void move_string(char *to, const char *from, size_t n)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}

static char *place(struct way *w, long message, long part)
{
    return w->data + (size_t)message * bytes % ring + part * piece;
}

static void put(struct way *w, const char *from, long message)
{
    for (long p = 0; p < pieces; p++) {
        char *to = place(w, message, p);
        for (size_t i = 0; ahead && i < piece; i += 64)
            __builtin_prefetch(to + i, 1);
        (string ? move_string : copy)(to, from + p * piece, piece);
        store(w->written, message * pieces + p + 1);
    }
}

static void take(struct way *w, char *to, long message)
{
    for (long p = 0; p < pieces; p++) {
        char *from = place(w, message, p);
        while (load(w->written) < (uint64_t)(message * pieces + p + 1))
            ;
        for (size_t i = 0; ahead && i < piece; i += 64)
            __builtin_prefetch(from + i, 0);
        copy(to + p * piece, from, piece);
    }
    store(w->read, message + 1);
}

/* run calls the function part in two processes, with the process's number, 0 or 1, and returns the
 * time in process 0, in us. */
static double run(void (*part)(struct way *, char *, int), struct way *ways)
{
    char *own = aligned_alloc(4096, (bytes + 4095) & ~4095UL);
    memset(own, 1, bytes);
    *ways[0].written = *ways[0].read = *ways[1].written = *ways[1].read = 0;
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(1);
        part(ways, own, 1);
        _exit(0);
    }
    pin(0);
    double start = now_us();
    part(ways, own, 0);
    double took = now_us() - start;
    waitpid(child, NULL, 0);
    free(own);
    return took;
}

static void stream(struct way *w, char *own, int side)
{
    uint64_t room = ring / bytes;
    for (long m = 0; m < messages; m++) {
        if (side) {
            take(&w[0], own, m);
            continue;
        }
        while (m - load(w[0].read) >= room)
            ;
        put(&w[0], own, m);
    }
    while (load(w[0].read) < (uint64_t)messages)
        ;
}

static void pingpong(struct way *w, char *own, int side)
{
    for (long m = 0; m < messages; m++) {
        if (side)
            take(&w[0], own, m);
        put(&w[side], own, m);
        if (!side)
            take(&w[1], own, m);
    }
}

int main(int argc, char **argv)
{
    if (argc < 4 || (ring = strtoul(argv[1], NULL, 0)) == 0 || (bytes = strtoul(argv[2], NULL, 0)) == 0 ||
        (pieces = atol(argv[3])) < 1 || ring % bytes || bytes % pieces) {
        fprintf(stderr, "usage: ring_copy RING BYTES PIECES [ahead|string]\n");
        return 2;
    }
    if (sched_getaffinity(0, sizeof have, &have)) {
        perror("sched_getaffinity");
        return 1;
    }
    ahead = argc > 4 && strcmp(argv[4], "ahead") == 0;
    string = argc > 4 && strcmp(argv[4], "string") == 0;
    piece = bytes / pieces;
    messages = TOTAL / bytes < MOST ? TOTAL / bytes : MOST;
    struct way ways[2];
    for (int i = 0; i < 2; i++) {
        char *mem = mmap(NULL, ring + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (mem == MAP_FAILED) {
            perror("mmap");
            return 1;
        }
        memset(mem, 0, ring + 4096);
        ways[i] = (struct way){mem + 4096, (uint64_t *)mem, (uint64_t *)(mem + 256)};
    }
    double s = run(stream, ways);
    double l = run(pingpong, ways);
    printf("ring %zu bytes %zu pieces %ld%s: stream %.2f GB/s, one way %.3f us\n", ring, bytes, pieces,
           ahead ? " ahead" : string ? " string" : "", messages * (double)bytes / s / 1e3, l / messages / 2);
    return 0;
}
