/* Collectives. A size is the number of bytes of a rank's part, as in OSU's benchmarks. Figures
 * are means over ranks. Reductions add floats. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdlib.h>
#include <time.h>

static void *send, *recv;
static int size; /* bytes of a rank's part */

static void release(void)
{
    free(send);
    free(recv);
}

static void begin(struct part *p, int bytes, int out, int in, void (*once)(void), void (*verify)(void))
{
    size = bytes;
    send = allocate((size_t)size * out);
    recv = allocate((size_t)size * in);
    *p = (struct part){ .once = once, .verify = verify, .close = release, .apart = 1, .mean = 1, .per_op = 1, .bytes = size };
}

static int elements(void) { return size / (int)sizeof(float); }

/* barrier: calls of MPI_Barrier, one immediately after the other. The check does some barriers. Before
 * each barrier one rank waits 2 ms, each time a different one. No rank may leave the barrier before that
 * rank arrives. The check can compare times, because all ranks are on one host and have the same clock. */

static void barrier_once(void) { MPI_Barrier(MPI_COMM_WORLD); }

static void barrier_check(void)
{
    for (int late = 0; late < ranks && late < 4; late++) {
        if (rank == late)
            nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
        double arrived = now(), last;
        MPI_Barrier(MPI_COMM_WORLD);
        double left = now();
        MPI_Allreduce(&arrived, &last, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (left < last)
            fail("left %g s before the last rank arrived", last - left);
    }
}

static void barrier(struct part *p, int bytes)
{
    begin(p, bytes, 1, 1, barrier_once, barrier_check);
    p->apart = 0;
    p->bytes = 0;
}

static void bcast_once(void) { MPI_Bcast(send, size, MPI_BYTE, 0, MPI_COMM_WORLD); }

static void bcast_check(void)
{
    bcast_once();
    compare(send, size, 0);
}

static void bcast(struct part *p, int bytes)
{
    begin(p, bytes, 1, 1, bcast_once, bcast_check);
    if (rank == 0)
        fill(send, size, 0);
}

static void reduce_once(void) { MPI_Reduce(send, recv, elements(), MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD); }

static void reduce_check(void)
{
    reduce_once();
    if (rank == 0)
        compare_sum(recv, elements());
}

static void reduce(struct part *p, int bytes)
{
    begin(p, bytes, 1, 1, reduce_once, reduce_check);
    fill_values(send, elements());
}

static void allreduce_once(void) { MPI_Allreduce(send, recv, elements(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

static void allreduce_check(void)
{
    allreduce_once();
    compare_sum(recv, elements());
}

static void allreduce(struct part *p, int bytes)
{
    begin(p, bytes, 1, 1, allreduce_once, allreduce_check);
    fill_values(send, elements());
}

static void alltoall_once(void) { MPI_Alltoall(send, size, MPI_BYTE, recv, size, MPI_BYTE, MPI_COMM_WORLD); }

static void alltoall_check(void)
{
    alltoall_once();
    for (int from = 0; from < ranks; from++)
        compare((unsigned char *)recv + (size_t)from * size, size, from * ranks + rank);
}

static void alltoall(struct part *p, int bytes)
{
    begin(p, bytes, ranks, ranks, alltoall_once, alltoall_check);
    p->bytes = (double)size * ranks;
    for (int to = 0; to < ranks; to++)
        fill((unsigned char *)send + (size_t)to * size, size, rank * ranks + to);
}

static void allgather_once(void) { MPI_Allgather(send, size, MPI_BYTE, recv, size, MPI_BYTE, MPI_COMM_WORLD); }

static void allgather_check(void)
{
    allgather_once();
    for (int from = 0; from < ranks; from++)
        compare((unsigned char *)recv + (size_t)from * size, size, from);
}

static void allgather(struct part *p, int bytes)
{
    begin(p, bytes, 1, ranks, allgather_once, allgather_check);
    p->bytes = (double)size * ranks;
    fill(send, size, rank);
}

/* neighbor_alltoall: MPI_Neighbor_alltoall on a periodic grid of two dimensions. A size is the number of
 * bytes for each neighbour. The check does not compare: before MPI 4.0 the standard did not say in which
 * order the blocks of a neighbour arrive that is one in both directions of a dimension. */

static MPI_Comm grid;

static void grid_release(void)
{
    release();
    MPI_Comm_free(&grid);
}

static void neighbor_once(void) { MPI_Neighbor_alltoall(send, size, MPI_BYTE, recv, size, MPI_BYTE, grid); }

static void neighbor(struct part *p, int bytes)
{
    int dims[2] = { 0, 0 }, periods[2] = { 1, 1 };

    begin(p, bytes, 4, 4, neighbor_once, neighbor_once);
    p->bytes = 4.0 * size;
    p->close = grid_release;
    MPI_Dims_create(ranks, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
}

const struct benchmark collectives[] = {
    { "barrier", 1, barrier }, { "bcast", 1, bcast }, { "reduce", 1, reduce }, { "allreduce", 1, allreduce },
    { "alltoall", 1, alltoall }, { "allgather", 1, allgather }, { "neighbor_alltoall", 1, neighbor },
    { NULL, 0, NULL },
};
