/*
 * Measures the physical limit of a small message between two cores, in memory that two
 * processes share. There is one cache line for each direction. Each process polls the
 * line that the other one writes. If there are two cores, each process is bound to one.
 *
 *   cc -O2 -o cacheline cacheline.c
 *   ./cacheline SECONDS        prints a JSON object: the time of 8 bytes in one direction, in us
 *
 *   first   count ──► line 0 ──►  second
 *           count ◄── line 1 ◄──  the same
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 1000, MAX_BATCHES = 1000000 };

/* The two counts are 256 bytes apart, because processors fetch cache lines in pairs. */
struct line {
    _Alignas(256) volatile uint64_t count;
};

#define END UINT64_MAX

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

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void echo(struct line *lines)
{
    for (uint64_t seen = 0, count; seen != END; seen = count) {
        while ((count = __atomic_load_n(&lines[0].count, __ATOMIC_ACQUIRE)) == seen)
            ;
        __atomic_store_n(&lines[1].count, count, __ATOMIC_RELEASE);
    }
}

/* Does BATCH round trips and returns the time in one direction, in us. */
static double batch(struct line *lines, uint64_t *count)
{
    double start = now_us();
    for (int i = 0; i < BATCH; i++) {
        __atomic_store_n(&lines[0].count, ++*count, __ATOMIC_RELEASE);
        while (__atomic_load_n(&lines[1].count, __ATOMIC_ACQUIRE) != *count)
            ;
    }
    return (now_us() - start) / BATCH / 2;
}

int main(int argc, char **argv)
{
    double us = argc == 2 ? atof(argv[1]) * 1e6 : 0;
    if (!(us > 0)) {
        fprintf(stderr, "usage: cacheline SECONDS\n");
        return 2;
    }
    struct line *lines = mmap(NULL, 2 * sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lines == MAP_FAILED) die("mmap");
    double *samples = malloc(MAX_BATCHES * sizeof *samples);
    if (!samples) die("malloc");

    pid_t child = fork();
    if (child < 0) die("fork");
    pin(!child);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        echo(lines);
        return 0;
    }
    uint64_t count = 0;
    long n = 0;
    double start = now_us(), warm = start + us / 10, end = start + us;
    while (now_us() < warm)
        batch(lines, &count);
    do
        samples[n++] = batch(lines, &count);
    while (now_us() < end && n < MAX_BATCHES);
    __atomic_store_n(&lines[0].count, END, __ATOMIC_RELEASE);
    waitpid(child, NULL, 0);
    qsort(samples, n, sizeof *samples, ascending);
    printf("{\"bench\":\"cacheline\",\"size\":8,\"min_us\":%.6g,\"median_us\":%.6g,\"iterations\":%ld}\n", samples[0], samples[n / 2], n * BATCH);
    return 0;
}
