/* Collective access to a file: file_write and file_read. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 256, COLS = 256 };

static MPI_File file;
static MPI_Datatype block;
static double *buf;
static int count;

static double value(int i) { return i % 9973 + rank; }

static void must(int code, const char *what)
{
    if (code != MPI_SUCCESS)
        fail("%s returns %d", what, code);
}

static void put(void) { must(MPI_File_write_at_all(file, 0, buf, count, MPI_DOUBLE, MPI_STATUS_IGNORE), "MPI_File_write_at_all"); }

static void get(void) { must(MPI_File_read_at_all(file, 0, buf, count, MPI_DOUBLE, MPI_STATUS_IGNORE), "MPI_File_read_at_all"); }

static void (*once)(void);

static void check(void)
{
    double *got = allocate(count * sizeof *got);
    MPI_Status status;
    int n;

    once();
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_read_at(file, 0, got, count, MPI_DOUBLE, &status), "MPI_File_read_at");
    MPI_Get_count(&status, MPI_DOUBLE, &n);
    for (int i = 0; i < count; i++)
        if (n != count || got[i] != value(i) || buf[i] != got[i])
            fail("element %d of %d is %g, not %g", i, n, got[i], value(i));
    free(got);
}

static void release(void)
{
    free(buf);
    MPI_Type_free(&block);
    must(MPI_File_close(&file), "MPI_File_close");
}

/* Begins a benchmark of a file of size MiB: an array of two planes for each MiB, of which each rank
 * has a block. */
static void begin(struct part *p, int size, void (*f)(void))
{
    int dims[3] = { 0, 0, 0 }, sizes[3] = { 2 * size, ROWS, COLS }, subsizes[3], starts[3], at = rank, pid = getpid();
    const char *dir = getenv("TMPDIR");
    char name[4096];

    MPI_Dims_create(ranks, 3, dims);
    for (int d = 2; d >= 0; d--) {
        int i = at % dims[2 - d]; /* the numbers of dims descend */
        at /= dims[2 - d];
        starts[d] = (int)((long)sizes[d] * i / dims[2 - d]);
        subsizes[d] = (int)((long)sizes[d] * (i + 1) / dims[2 - d]) - starts[d];
    }
    count = subsizes[0] * subsizes[1] * subsizes[2];
    MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, &block);
    MPI_Type_commit(&block);
    MPI_Bcast(&pid, 1, MPI_INT, 0, MPI_COMM_WORLD);
    snprintf(name, sizeof name, "%s/weft-bench-%d", dir && *dir ? dir : "/tmp", pid);
    must(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file),
         "MPI_File_open");
    must(MPI_File_set_view(file, 0, MPI_DOUBLE, block, "native", MPI_INFO_NULL), "MPI_File_set_view");
    buf = allocate(count * sizeof *buf);
    for (int i = 0; i < count; i++)
        buf[i] = value(i);
    put();
    p->once = once = f;
    p->verify = check;
    p->close = release;
    p->apart = p->mean = 1;
    p->bytes = size * 1048576.0;
}

static void file_write(struct part *p, int size) { begin(p, size, put); }

static void file_read(struct part *p, int size) { begin(p, size, get); }

const struct benchmark files[] = { { "file_write", 1, file_write }, { "file_read", 1, file_read }, { NULL, 0, NULL } };
