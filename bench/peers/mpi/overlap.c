/*
 * How much of the time of an Iallreduce overlaps with computation, as in osu_iallreduce:
 *
 *   pure      Iallreduce, Wait
 *   overall   Iallreduce, compute for as long as pure took, Wait
 *   overlap   100 * (1 - (overall - compute) / pure), not below 0
 */
#include "bench.h"

#include <stdlib.h>

enum { TRIALS = 100 }; /* number of operations over which the time pure is averaged */

static float *send, *recv;
static int elements;
static long loops; /* argument of the function compute in an operation */
static struct part *part;
static volatile double sink = 1;

void compute(long n)
{
    double x = sink;
    while (n--)
        for (int i = 0; i < 16; i++)
            x = x * 0.999 + 0.5;
    sink = x;
}

double loop_time(void)
{
    const long n = 2000;
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        double start = now();
        compute(n);
        double took = now() - start;
        best = took < best ? took : best;
    }
    return (best > 1e-9 ? best : 1e-9) / n;
}

static MPI_Request start(void)
{
    MPI_Request r;
    MPI_Iallreduce(send, recv, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &r);
    return r;
}

static void alone(void)
{
    MPI_Request r = start();
    MPI_Wait(&r, MPI_STATUS_IGNORE);
}

static void both(void)
{
    MPI_Request r = start();
    double begun = now();
    compute(loops);
    part->computed += now() - begun;
    part->done++;
    MPI_Wait(&r, MPI_STATUS_IGNORE);
}

static void check(void)
{
    alone();
    compare_sum(recv, elements);
    const struct part pure = { .once = alone, .apart = 1 };
    repeat(&pure, TRIALS / 10); /* warms up */
    double mine = repeat(&pure, TRIALS) / TRIALS, sum;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    part->pure = sum / ranks;
    loops = part->pure / loop_time();
    if (loops < 1)
        loops = 1;
}

static void release(void)
{
    free(send);
    free(recv);
}

static void iallreduce(struct part *p, int size)
{
    elements = size / (int)sizeof(float);
    send = allocate(size);
    recv = allocate(size);
    fill_values(send, elements);
    part = p;
    p->once = both;
    p->verify = check;
    p->close = release;
    p->apart = p->mean = 1;
    p->bytes = size;
}

const struct benchmark overlaps[] = { { "iallreduce-overlap", 1, iallreduce }, { NULL, 0, NULL } };
