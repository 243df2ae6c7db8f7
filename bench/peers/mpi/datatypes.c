/* Messages whose data are not contiguous, between ranks 0 and 1: vector and face. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

enum { VIEW_BYTES = 1 << 20 };

static unsigned char *out, *in;
static int bytes, peer;
static MPI_Datatype type;

static void release(void)
{
    free(out);
    free(in);
    MPI_Type_free(&type);
}

static void there(void)
{
    MPI_Send(out, 1, type, 1, TAG, MPI_COMM_WORLD);
    MPI_Recv(in, 1, type, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void back(void)
{
    MPI_Recv(in, 1, type, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(out, 1, type, 0, TAG, MPI_COMM_WORLD);
}

static void (*trip)(void);

/* Packs what was received and what the peer has sent, and compares them. */
static void check(void)
{
    int n, at = 0, other = 0;
    unsigned char *want = allocate(bytes), *got, *sent;

    trip();
    MPI_Type_size(type, &n);
    got = allocate(n);
    sent = allocate(n);
    fill(want, bytes, peer);
    MPI_Pack(in, 1, type, got, n, &at, MPI_COMM_SELF);
    MPI_Pack(want, 1, type, sent, n, &other, MPI_COMM_SELF);
    if (at != n || memcmp(got, sent, n) != 0)
        fail("rank %d has sent other data", peer);
    free(want);
    free(got);
    free(sent);
}

/* Begins a ping-pong of one element of the datatype, in memory of n bytes. */
static void begin(struct part *p, int n)
{
    int size;

    MPI_Type_commit(&type);
    MPI_Type_size(type, &size);
    bytes = n;
    peer = 1 - rank;
    out = allocate(n);
    in = allocate(n);
    fill(out, n, rank);
    p->close = release;
    p->per_op = 2;
    p->bytes = 2.0 * size;
    if (rank > 1)
        return;
    p->once = trip = rank == 0 ? there : back;
    p->verify = check;
}

static void vector(struct part *p, int block)
{
    MPI_Type_vector(VIEW_BYTES / block, block, 2 * block, MPI_BYTE, &type);
    begin(p, 2 * VIEW_BYTES);
}

static void face(struct part *p, int n)
{
    int sizes[] = { n, n, n }, subsizes[] = { n, 1, n }, starts[] = { 0, 0, 0 };

    MPI_Type_create_subarray(3, sizes, subsizes, starts, MPI_ORDER_C, MPI_DOUBLE, &type);
    begin(p, 8 * n * n * n);
}

const struct benchmark datatypes[] = { { "vector", 2, vector }, { "face", 2, face }, { NULL, 0, NULL } };
