/*
 * The loops of ./bench in C, for MPI. The names, the data, the steps and the
 * statistics are the same, so that only the libraries cause differences in figures.
 * bench.c has the steps, the other files have the benchmarks.
 */
#ifndef BENCH_H
#define BENCH_H

#include <mpi.h>
#include <stddef.h>

enum { TAG = 1, WINDOW = 64 };

/* This rank in MPI_COMM_WORLD, and its size. */
extern int rank, ranks;

/* One rank's part in a benchmark of one size. */
struct part {
    void (*once)(void);   /* the operation; NULL on a rank that does not take part */
    void (*verify)(void); /* does the operation once and checks the data; NULL: nothing to do */
    void (*close)(void);  /* releases the resources of prepare, on all ranks */

    /* Replaces once: does the operation n times and returns the time that counts,
     * in seconds. */
    double (*repeat)(long n);

    double sample;   /* shortest time of a batch in seconds; 0: MIN_SAMPLE */
    int apart;       /* time each call separately, with a barrier after it */
    int mean;        /* samples are means over ranks, else those of rank 0 */
    double per_op;   /* messages per operation: times are divided by it */
    double bytes;    /* bytes that an operation moves, for the bandwidth; 0: print none */
    double messages; /* messages of an operation, for the message rate; 0: print none */

    /* The time of the communication alone; 0: print no overlap. */
    double pure;
    double computed; /* seconds of computation, all operations together */
    long done;       /* operations so far */
};

struct benchmark {
    const char *name;
    int least; /* ranks needed */
    void (*prepare)(struct part *p, int size);
    int threads; /* the benchmark needs MPI_THREAD_MULTIPLE */
};

/* The last element of each array has a NULL name. */
extern const struct benchmark p2p[], collectives[], onesided[], overlaps[], threads[], apps[];

void prepare_latency(struct part *p, int bytes);

double now(void); /* seconds */

/* Does n operations and returns the time that counts, in seconds. */
double repeat(const struct part *p, long n);

/* compute keeps the core busy for about n times 50 ns. loop_time returns the time of
 * compute(1) in seconds, the fastest of several measurements. */
void compute(long n);
double loop_time(void);

void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Returns zeroed memory that begins on a page. */
void *allocate(size_t bytes);

/* The data of a rank, which differs from other ranks' data and from itself at other offsets. */
void fill(unsigned char *buf, size_t n, int of);
void compare(const unsigned char *buf, size_t n, int of);

/* The data of reductions: small values, so that sums are exact. */
void fill_values(float *buf, size_t n);
void compare_sum(const float *buf, size_t n);

#endif
