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

/* This process's rank in MPI_COMM_WORLD, and the number of ranks there. */
extern int rank, ranks;

/* One rank's part in a benchmark of one size. */
struct part {
    void (*once)(void);   /* the operation; NULL: repeat does it, or the rank does not take part */
    void (*verify)(void); /* does the operation once and checks the data; NULL: nothing to check */
    void (*close)(void);  /* releases the resources of prepare; all ranks call it */

    /* If not NULL, it is used instead of once: it does the operation n times and returns
     * the time to report, in seconds. */
    double (*repeat)(long n);

    double sample;   /* shortest time of a batch in seconds; 0: MIN_SAMPLE */
    int apart;       /* each call is timed separately, with a barrier after it */
    int mean;        /* a sample is the mean over ranks; 0: it is the time of rank 0 */
    double per_op;   /* number by which times are divided, for example messages per operation */
    double bytes;    /* bytes that an operation moves, for the bandwidth; 0: no bandwidth */
    double messages; /* messages of an operation, for the message rate; 0: no rate */

    /* Seconds of the communication alone; 0: no overlap is printed. */
    double pure;
    double computed; /* seconds of computation in all operations so far */
    long done;       /* number of operations so far */
};

struct benchmark {
    const char *name;
    int least; /* smallest number of ranks; if it is 2, the number of ranks must be even */
    void (*prepare)(struct part *p, int size);
    int threads; /* the benchmark needs MPI_THREAD_MULTIPLE */
};

/* The last element of each array has a NULL name. */
extern const struct benchmark p2p[], collectives[], onesided[], overlaps[], threads[], apps[], datatypes[], files[];

void prepare_latency(struct part *p, int bytes);

double now(void); /* seconds of a monotonic clock */

/* Does n operations and returns the time to report, in seconds. */
double repeat(const struct part *p, long n);

/* compute keeps the core busy for about n times 50 ns. loop_time returns the time of
 * compute(1) in seconds: the shortest of several measurements. */
void compute(long n);
double loop_time(void);

void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Returns zeroed memory that begins on a page. */
void *allocate(size_t bytes);

/* fill writes test data that depend on the offset and on the argument "of", for example a rank.
 * compare ends the program with an error if buf does not hold these data. */
void fill(unsigned char *buf, size_t n, int of);
void compare(const unsigned char *buf, size_t n, int of);

/* The same for reductions. The values are small integers, so that sums are exact. compare_sum expects
 * the sum over all ranks. */
void fill_values(float *buf, size_t n);
void compare_sum(const float *buf, size_t n);

#endif
