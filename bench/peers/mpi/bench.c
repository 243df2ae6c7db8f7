/*
 *   mpicc -O2 -pthread -o bench bench.c p2p.c collectives.c onesided.c overlap.c threads.c apps.c datatypes.c files.c
 *   mpirun -np 2 ./bench NAME SIZE[,SIZE...] SECONDS
 *
 * The program measures the benchmark NAME with each size for about SECONDS seconds, and prints
 * a JSON object per size with the keys of "bench -json".
 *
 *   prepare -> verify -> warm up, doubling -> rank 0 chooses -> batch ... batch -> reduce the samples
 *                             '- Bcast: continue? -' '- Bcast -'
 */
#define _GNU_SOURCE
#include "bench.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Each size has at most MAX_SAMPLES samples. A batch of operations, which gives one sample,
 * takes at least MIN_SAMPLE seconds, so that the time to read the clock does not matter. */
#define MAX_SAMPLES 10000
#define MIN_SAMPLE 10e-6

int rank, ranks;

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "bench: rank %d: ", rank);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

void *allocate(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes + 1)) /* bytes + 1, because bytes may be 0 */
        fail("out of memory");
    return memset(p, 0, bytes);
}

static unsigned char pattern(size_t i, int of) { return (unsigned char)(i * 7 + (i >> 8) + (size_t)of * 31 + 1); }

void fill(unsigned char *buf, size_t n, int of)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = pattern(i, of);
}

void compare(const unsigned char *buf, size_t n, int of)
{
    for (size_t i = 0; i < n; i++)
        if (buf[i] != pattern(i, of))
            fail("byte %zu of %zu from rank %d is %d, not %d", i, n, of, buf[i], pattern(i, of));
}

static float value(size_t i, int of) { return (float)(i % 61 + of + 1); }

void fill_values(float *buf, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = value(i, rank);
}

void compare_sum(const float *buf, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float want = 0;
        for (int r = 0; r < ranks; r++)
            want += value(i, r);
        if (buf[i] != want)
            fail("element %zu of %zu is %g, not %g", i, n, buf[i], want);
    }
}

double repeat(const struct part *p, long n)
{
    if (p->repeat)
        return p->repeat(n);
    if (!p->once)
        return 0;
    if (!p->apart) {
        double start = now();
        for (long i = 0; i < n; i++)
            p->once();
        return now() - start;
    }
    double sum = 0;
    for (long i = 0; i < n; i++) {
        double start = now();
        p->once();
        sum += now() - start;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return sum;
}

/* Repeats the operation in rounds, each with twice as many operations as the one before, for
 * about a fifth of the time budget. Returns the time of one operation in the last round. Rank 0
 * decides when to stop. */
static double warm_up(const struct part *p, double seconds)
{
    for (long n = 1;;) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        repeat(p, n);
        double took = now() - start;
        long done = n;
        n = took > seconds / 10 ? 0 : 2 * n;
        MPI_Bcast(&n, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        if (!n)
            return took / done;
    }
}

/* Sets the number of batches and the number of operations per batch. Rank 0 chooses them for all
 * ranks, so that a batch takes about least seconds or longer. per_op is the time of an operation. */
static void agree(double seconds, double per_op, double least, long *batches, long *per)
{
    if (per_op < 1e-9)
        per_op = 1e-9;
    long iters = seconds / per_op;
    if (iters < 10)
        iters = 10;
    long plan[2] = { 0, least / per_op + 1 };
    if (plan[1] < (iters + MAX_SAMPLES - 1) / MAX_SAMPLES)
        plan[1] = (iters + MAX_SAMPLES - 1) / MAX_SAMPLES;
    if (plan[1] > iters)
        plan[1] = iters;
    plan[0] = iters / plan[1];
    MPI_Bcast(plan, 2, MPI_LONG, 0, MPI_COMM_WORLD);
    *batches = plan[0];
    *per = plan[1];
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the number of cores that this process may run on. */
static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
}

/* Prints the result for these samples, which are seconds per operation. */
static void print(const char *name, int size, const struct part *p, double *s, long n, long iterations, double computed)
{
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum += s[i];
    qsort(s, n, sizeof *s, ascending);
    double mean = sum / n, median = s[(long)(0.5 * (n - 1) + 0.5)], us = 1e6 / p->per_op;
    printf("{\"bench\":\"%s\",\"size\":%d,\"ranks\":%d,\"min_us\":%.6g,\"median_us\":%.6g,\"p99_us\":%.6g,\"mean_us\":%.6g,"
           "\"bytes_per_s\":%.6g,\"iterations\":%ld,\"cores\":%d",
           name, size, ranks, s[0] * us, median * us, s[(long)(0.99 * (n - 1) + 0.5)] * us, mean * us,
           p->bytes / median, iterations, cores());
    if (p->messages)
        printf(",\"messages_per_s\":%.6g", p->messages / median);
    if (p->pure) {
        double percent = 100 * (1 - (mean - computed) / p->pure);
        printf(",\"overlap_percent\":%.6g,\"pure_us\":%.6g,\"compute_us\":%.6g",
               percent > 0 ? percent : 0, p->pure * 1e6, computed * 1e6);
    }
    puts("}");
    fflush(stdout);
}

static void measure(const struct benchmark *b, int size, double seconds)
{
    struct part p = { .per_op = 1 };
    b->prepare(&p, size);
    if (p.verify)
        p.verify();
    long batches, per;
    agree(seconds, warm_up(&p, seconds), p.sample ? p.sample : MIN_SAMPLE, &batches, &per);
    double *samples = allocate(batches * sizeof *samples);
    MPI_Barrier(MPI_COMM_WORLD);
    p.computed = p.done = 0; /* discard what the warm-up has added */
    for (long i = 0; i < batches; i++)
        samples[i] = repeat(&p, per) / per;
    if (p.mean) {
        MPI_Reduce(rank ? samples : MPI_IN_PLACE, samples, batches, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        for (long i = 0; i < batches; i++)
            samples[i] /= ranks;
    }
    double mine = p.computed / (p.done ? p.done : 1), computed = 0;
    MPI_Reduce(&mine, &computed, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        print(b->name, size, &p, samples, batches, batches * per, computed / ranks);
    free(samples);
    p.close();
}

/* Returns the benchmark with this name. If there is none, returns NULL. */
static const struct benchmark *find(const char *name)
{
    const struct benchmark *families[] = { p2p, collectives, onesided, overlaps, threads, apps, datatypes, files };
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (const struct benchmark *b = families[f]; b->name; b++)
            if (!strcmp(b->name, name))
                return b;
    return NULL;
}

int main(int argc, char **argv)
{
    const struct benchmark *b = argc == 4 ? find(argv[1]) : NULL;
    int need = b && b->threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, got;
    MPI_Init_thread(&argc, &argv, need, &got);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double seconds = argc == 4 ? atof(argv[3]) : 0;
    if (!(seconds > 0))
        fail("usage: bench NAME SIZE[,SIZE...] SECONDS");
    if (!b)
        fail("no benchmark %s", argv[1]);
    if (got < need)
        fail("%s needs MPI_THREAD_MULTIPLE, %d, and MPI gives %d", b->name, need, got);
    if (ranks < b->least || (b->least == 2 && ranks % 2))
        fail("%s needs an even number of ranks", b->name);
    for (char *item = strtok(argv[2], ","); item; item = strtok(NULL, ","))
        measure(b, atoi(item), seconds);
    MPI_Finalize();
    return 0;
}
