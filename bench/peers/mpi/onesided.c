/* One-sided transfers between rank 0 and rank 1's part of a window: one transfer and a
 * flush. During the measurement rank 1 only waits in the collective that ends it. The
 * library allocates the window, so that it can use memory that the ranks share. */
#include "bench.h"

/* Each rank's part is at least a page, as in ./bench. With a part of exactly 8 bytes
 * MPICH 4.0.2 does not put anything, and gets 8 bytes from the origin's own part. */
enum { PAGE = 4096 };

static MPI_Win win;
static unsigned char *local, *buf;
static int size, from; /* from: the rank that the data come from */

static void put(void)
{
    MPI_Put(buf, size, MPI_BYTE, 1, 0, size, MPI_BYTE, win);
    MPI_Win_flush(1, win);
}

static void get(void)
{
    MPI_Get(buf, size, MPI_BYTE, 1, 0, size, MPI_BYTE, win);
    MPI_Win_flush(1, win);
}

static void check(void)
{
    fill(buf, size, rank);
    if (rank == 1) {
        fill(local, size, 1);
        MPI_Win_sync(win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        from ? get() : put();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        MPI_Win_sync(win);
    if (rank < 2)
        compare(rank ? local : buf, size, from);
}

static void release(void)
{
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    MPI_Free_mem(buf);
}

static void begin(struct part *p, int bytes, void (*once)(void))
{
    size = bytes;
    MPI_Win_allocate(size < PAGE ? PAGE : size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &local, &win);
    MPI_Alloc_mem(size, MPI_INFO_NULL, &buf);
    MPI_Win_lock_all(0, win);
    p->bytes = size;
    p->once = rank == 0 ? once : NULL;
    p->verify = check;
    p->close = release;
}

static void put_latency(struct part *p, int bytes)
{
    from = 0;
    begin(p, bytes, put);
}

static void get_latency(struct part *p, int bytes)
{
    from = 1;
    begin(p, bytes, get);
}

const struct benchmark onesided[] = {
    { "put_latency", 2, put_latency }, { "get_latency", 2, get_latency }, { NULL, 0, NULL },
};
