/*
 * The loops of ./bench in C, against MPI: the names, the data, the steps and
 * the statistic are the same, so that a difference in figures is one of the
 * libraries. bench.c has the steps, the other files the benchmarks.
 */
#ifndef BENCH_H
#define BENCH_H

#include <mpi.h>
#include <stddef.h>

enum { TAG = 1, WINDOW = 64 };

/* This rank's place in MPI_COMM_WORLD. */
extern int rank, ranks;

/* A rank's part in a benchmark of one size. */
struct part {
    void (*once)(void);   /* the operation; NULL on a rank that only looks on */
    void (*verify)(void); /* does it once with data that it checks; NULL: nothing to do */
    void (*close)(void);  /* releases what prepare made, on all ranks */

    /* In place of once: does the operation n times and returns the time that
     * counts, in seconds. */
    double (*repeat)(long n);

    double sample;   /* least seconds of a batch; 0: MIN_SAMPLE */
    int apart;       /* calls are timed one by one, with a barrier after each */
    int mean;        /* samples are the mean over ranks, else rank 0's own */
    double per_op;   /* divides the time of an operation, for a time per message */
    double bytes;    /* that an operation moves; 0: no bandwidth is told */
    double messages; /* of an operation; 0: no rate is told */

    /* The time that communication alone takes; 0: no overlap is told. */
    double pure;
    double computed; /* seconds of computation, all operations together */
    long done;       /* operations */
};

struct benchmark {
    const char *name;
    int least; /* ranks needed */
    void (*prepare)(struct part *p, int size);
    int threads; /* it needs MPI_THREAD_MULTIPLE */
};

/* Each ends with a NULL name. */
extern const struct benchmark p2p[], collectives[], onesided[], overlaps[], threads[], apps[];

void prepare_latency(struct part *p, int bytes);

double now(void); /* seconds */

/* The time of n operations that counts, in seconds. */
double repeat(const struct part *p, long n);

/* Does n times what takes about 50 ns, and how long once takes, in seconds: the
 * fastest of several. */
void compute(long n);
double loop_time(void);

void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Zeroed memory that begins on a page. */
void *allocate(size_t bytes);

/* The data of a rank, which no other rank's and no shift equal. */
void fill(unsigned char *buf, size_t n, int of);
void compare(const unsigned char *buf, size_t n, int of);

/* What reductions add: small values, so that sums are exact. */
void fill_values(float *buf, size_t n);
void compare_sum(const float *buf, size_t n);

#endif
