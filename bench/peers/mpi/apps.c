/*
 * Communication as programs use it: each rank computes before it communicates. Only the
 * time in calls of MPI counts, which includes the time that a rank waits for another rank
 * that computes longer.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* compute: an exchange between the same pairs of ranks as in mr. */

enum { EXCHANGED = 8 << 10 }; /* bytes of a message */

static unsigned char out[EXCHANGED], in[EXCHANGED];
static int peer;
static long loops; /* argument of the function compute in an operation */

static void sendrecv(void)
{
    MPI_Sendrecv(out, EXCHANGED, MPI_BYTE, peer, TAG, in, EXCHANGED, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void compute_check(void)
{
    sendrecv();
    compare(in, EXCHANGED, peer);
}

static double compute_repeat(long n)
{
    double sum = 0;
    while (n--) {
        compute(loops);
        double start = now();
        sendrecv();
        sum += now() - start;
    }
    return sum;
}

static void nothing(void) {}

static void compute_exchange(struct part *p, int micros)
{
    peer = (rank + ranks / 2) % ranks;
    fill(out, EXCHANGED, rank);
    loops = micros * 1e-6 / loop_time();
    if (loops < 1)
        loops = 1;
    p->repeat = compute_repeat;
    p->verify = compute_check;
    p->close = nothing;
    p->mean = 1;
}

/* This rank's part of a grid: n rows of n points. Buffers also have a row of each neighbour
 * above and below them, the halo. */

static int n, up, down; /* the ranks above and below, or MPI_PROC_NULL */
static long first, last; /* indexes of the rank's own points in a buffer: first to last-1 */
static double in_mpi;   /* seconds in calls of MPI */

static void begin_strip(int rows)
{
    if (rows < 3)
        fail("%d rows are too few", rows);
    n = rows;
    first = n;
    last = (long)(n + 1) * n;
    up = rank == 0 ? MPI_PROC_NULL : rank - 1;
    down = rank == ranks - 1 ? MPI_PROC_NULL : rank + 1;
}

/* Allocates a buffer for n rows and the two rows of the halo. */
static double *grid(void) { return allocate(sizeof(double) * (n + 2) * n); }

/* Sends the outer rows of g to the neighbours, and receives their outer rows in the halo of g. */
static void exchange(double *g)
{
    double start = now();
    MPI_Request reqs[4];
    MPI_Irecv(g, n, MPI_DOUBLE, up, TAG, MPI_COMM_WORLD, &reqs[0]);
    MPI_Irecv(g + last, n, MPI_DOUBLE, down, TAG, MPI_COMM_WORLD, &reqs[1]);
    MPI_Isend(g + first, n, MPI_DOUBLE, up, TAG, MPI_COMM_WORLD, &reqs[2]);
    MPI_Isend(g + last - n, n, MPI_DOUBLE, down, TAG, MPI_COMM_WORLD, &reqs[3]);
    MPI_Waitall(4, reqs, MPI_STATUSES_IGNORE);
    in_mpi += now() - start;
}

/* Returns the sum of a number over all ranks. */
static double sum(double x)
{
    double start = now();
    MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    in_mpi += now() - start;
    return x;
}

static void (*iteration)(void);

static double strip_repeat(long count)
{
    in_mpi = 0;
    while (count--)
        iteration();
    return in_mpi;
}

/* Checks the result of a sum, and the halo of a grid whose values identify their rank and position. */
static void strip_check(void)
{
    double got = sum(rank + 1);
    if (got != ranks * (ranks + 1) / 2)
        fail("the sum over ranks is %g, not %d", got, ranks * (ranks + 1) / 2);
    double *g = grid();
    long length = last + n;
    for (long i = 0; i < length; i++)
        g[i] = rank * length + i;
    exchange(g);
    for (int i = 0; i < n; i++) {
        if (up != MPI_PROC_NULL && g[i] != up * length + last - n + i)
            fail("point %d from above is %g", i, g[i]);
        if (down != MPI_PROC_NULL && g[last + i] != down * length + first + i)
            fail("point %d from below is %g", i, g[last + i]);
    }
    free(g);
}

static void strip(struct part *p, void (*once)(void), void (*check)(void), void (*release)(void))
{
    iteration = once;
    p->repeat = strip_repeat;
    p->verify = check;
    p->close = release;
    p->mean = 1;
    /* Longer than usual, because only the communication counts, which is a small part of an
     * iteration. */
    p->sample = 1e-3;
}

/* jacobi */

static double *old, *new;

static void relax(void)
{
    exchange(old);
    double change = 0;
    for (int r = 1; r <= n; r++) {
        const double *above = old + (long)(r - 1) * n, *row = above + n, *below = row + n;
        double *to = new + (long)r * n;
        for (int i = 1; i < n - 1; i++) {
            double v = 0.25 * (above[i] + below[i] + row[i - 1] + row[i + 1]);
            change += (v - row[i]) * (v - row[i]);
            to[i] = v;
        }
    }
    double *swap = old;
    old = new;
    new = swap;
    sum(change);
}

static void jacobi_release(void)
{
    free(old);
    free(new);
}

static void jacobi(struct part *p, int rows)
{
    begin_strip(rows);
    old = grid();
    new = grid();
    for (long i = 0; i < last + n; i++)
        old[i] = i % 17;
    strip(p, relax, strip_check, jacobi_release);
}

/* cg: conjugate gradients for the five-point operator. */

enum { CHECKED = 20 }; /* number of iterations that the check does */

static double *x, *r, *p, *q;
static double rho;

/* Applies the five-point operator to from, and writes the result to to, except to its halo. */
static void laplace(double *to, const double *from)
{
    for (int row = 1; row <= n; row++) {
        const double *above = from + (long)(row - 1) * n, *mid = above + n, *below = mid + n;
        double *res = to + (long)row * n;
        res[0] = 4 * mid[0] - above[0] - below[0] - mid[1];
        for (int i = 1; i < n - 1; i++)
            res[i] = 4 * mid[i] - above[i] - below[i] - mid[i - 1] - mid[i + 1];
        res[n - 1] = 4 * mid[n - 1] - above[n - 1] - below[n - 1] - mid[n - 2];
    }
}

static double dot(const double *a, const double *b)
{
    double s = 0;
    for (long i = first; i < last; i++)
        s += a[i] * b[i];
    return s;
}

/* Adds alpha times v to y. */
static void axpy(double *y, double alpha, const double *v)
{
    for (long i = first; i < last; i++)
        y[i] += alpha * v[i];
}

static double right(long i) { return 1 + (double)(i % 7); } /* the right-hand side */

static void cg_begin(void)
{
    memset(x, 0, sizeof *x * (last + n));
    for (long i = first; i < last; i++)
        p[i] = r[i] = right(i);
    rho = sum(dot(r, r));
}

static void cg_once(void)
{
    if (rho < 1e-20) /* the system is solved, so start again */
        cg_begin();
    exchange(p);
    laplace(q, p);
    double alpha = rho / sum(dot(p, q));
    axpy(x, alpha, p);
    axpy(r, -alpha, q);
    double next = sum(dot(r, r)), beta = next / rho;
    for (long i = first; i < last; i++)
        p[i] = r[i] + beta * p[i];
    rho = next;
}

/* Does some iterations and then compares the residual, which the iterations update, with
 * the residual computed from x. If a halo or a sum was wrong, they differ by more than rounding
 * errors. */
static void cg_check(void)
{
    strip_check();
    cg_begin();
    for (int i = 0; i < CHECKED; i++)
        cg_once();
    exchange(x);
    laplace(q, x);
    for (long i = first; i < last; i++)
        if (fabs(r[i] - (right(i) - q[i])) > 1e-6)
            fail("the residual of point %ld is %g, not %g", i - first, r[i], right(i) - q[i]);
}

static void cg_release(void)
{
    free(x);
    free(r);
    free(p);
    free(q);
}

static void cg(struct part *part, int rows)
{
    begin_strip(rows);
    x = grid();
    r = grid();
    p = grid();
    q = grid();
    rho = 0; /* so that the first iteration starts at the beginning */
    strip(part, cg_once, cg_check, cg_release);
}

const struct benchmark apps[] = {
    { "compute", 2, compute_exchange }, { "jacobi", 2, jacobi }, { "cg", 2, cg }, { NULL, 0, NULL },
};
