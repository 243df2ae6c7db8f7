/*
 * The loops of "bench latency" and "bench bw" against MPI:
 *
 *   mpicc -O2 -o mpi_pingpong mpi_pingpong.c
 *   mpirun -np 2 ./mpi_pingpong latency SIZE [SECONDS]   half of a round trip
 *   mpirun -np 2 ./mpi_pingpong bw SIZE [SECONDS]        windows of 64 messages and an ack
 *
 * The data are verified, rank 0 chooses how many iterations fit the time, and
 * batches are timed. Prints times per message, in us.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, TAG = 1, MAX_SAMPLES = 10000 };

static int rank, bw, size;
static unsigned char *out, *in;
static char ack[4];
static MPI_Request reqs[WINDOW];

static void fail(const char *what)
{
    fprintf(stderr, "mpi_pingpong: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char pattern(int i, int r) { return (unsigned char)(i * 7 + (i >> 8) + r * 31 + 1); }

static void once(void)
{
    if (bw && rank == 0) {
        for (int w = 0; w < WINDOW; w++)
            MPI_Isend(out, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &reqs[w]);
        MPI_Waitall(WINDOW, reqs, MPI_STATUSES_IGNORE);
        MPI_Recv(ack, sizeof ack, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (bw) {
        for (int w = 0; w < WINDOW; w++)
            MPI_Irecv(in, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &reqs[w]);
        MPI_Waitall(WINDOW, reqs, MPI_STATUSES_IGNORE);
        MPI_Send(ack, sizeof ack, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    } else if (rank == 0) {
        MPI_Send(out, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(in, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
    }
}

static void verify(void)
{
    once();
    if (bw && rank == 0)
        return;
    for (int i = 0; i < size; i++)
        if (in[i] != pattern(i, 1 - rank))
            fail("the data are wrong");
}

static double repeat(long n)
{
    double t = MPI_Wtime();
    for (long i = 0; i < n; i++)
        once();
    return MPI_Wtime() - t;
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc > 2) {
        bw = !strcmp(argv[1], "bw");
        size = atoi(argv[2]);
    }
    double seconds = argc > 3 ? atof(argv[3]) : 0.5;
    if (argc < 3 || argc > 4 || (!bw && strcmp(argv[1], "latency")) || size < 1 || !(seconds > 0))
        fail("usage: mpi_pingpong latency|bw SIZE [SECONDS]");
    if (ranks != 2)
        fail("two ranks are needed");
    out = malloc(size);
    in = malloc(size);
    if (!out || !in)
        fail("out of memory");
    for (int i = 0; i < size; i++)
        out[i] = pattern(i, rank);
    memset(in, 0, size);
    verify();

    long n = 1, last;
    double took;
    do { /* warm up */
        MPI_Barrier(MPI_COMM_WORLD);
        took = repeat(n);
        last = n;
        n = took > seconds / 10 ? 0 : 2 * n;
        MPI_Bcast(&n, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    } while (n);

    double per_op = took / last > 1e-9 ? took / last : 1e-9;
    long iters = seconds / per_op > 10 ? seconds / per_op : 10;
    long plan[2] = { 0, 10e-6 / per_op + 1 }; /* batches; operations in each */
    if (plan[1] < (iters + MAX_SAMPLES - 1) / MAX_SAMPLES)
        plan[1] = (iters + MAX_SAMPLES - 1) / MAX_SAMPLES;
    if (plan[1] > iters)
        plan[1] = iters;
    plan[0] = iters / plan[1];
    MPI_Bcast(plan, 2, MPI_LONG, 0, MPI_COMM_WORLD);

    double *us = malloc(plan[0] * sizeof *us);
    if (!us)
        fail("out of memory");
    MPI_Barrier(MPI_COMM_WORLD);
    for (long b = 0; b < plan[0]; b++)
        us[b] = repeat(plan[1]) * 1e6 / plan[1] / (bw ? WINDOW : 2);
    if (rank == 0) {
        qsort(us, plan[0], sizeof *us, cmp);
        double median = us[(long)(0.5 * (plan[0] - 1) + 0.5)];
        printf("mpi %s size %d min_us %.3f median_us %.3f p99_us %.3f bytes_per_s %.0f\n", argv[1], size,
               us[0], median, us[(long)(0.99 * (plan[0] - 1) + 0.5)], size / median * 1e6);
    }
    MPI_Finalize();
    return 0;
}
