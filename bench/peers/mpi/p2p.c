/* Messages between two ranks: latency, bw and bibw; and between all pairs: mr. */
#include "bench.h"

#include <stdlib.h>

static unsigned char *out, *in;
static char ack[4];
static int size, peer;
static MPI_Request reqs[2 * WINDOW];

static void release(void)
{
    free(out);
    free(in);
}

static void begin(struct part *p, int bytes, int to)
{
    size = bytes;
    peer = to;
    out = allocate(size);
    in = allocate(size);
    fill(out, size, rank);
    p->close = release;
}

/* latency: half of a round trip between ranks 0 and 1. */

static void there(void)
{
    MPI_Send(out, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
    MPI_Recv(in, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void back(void)
{
    MPI_Recv(in, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(out, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
}

static void (*checked)(void);

static void check(void)
{
    checked();
    compare(in, size, peer);
}

void prepare_latency(struct part *p, int bytes)
{
    begin(p, bytes, 1 - rank);
    p->per_op = 2;
    p->bytes = 2.0 * size;
    if (rank > 1)
        return;
    p->once = checked = rank == 0 ? there : back;
    p->verify = check;
}

/* bw: rank 0 sends windows of messages, and rank 1 answers each window with a message. All messages
 * of a window use the same buffer, as in OSU's benchmarks. */

static void stream_out(void)
{
    for (int i = 0; i < WINDOW; i++)
        MPI_Isend(out, size, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &reqs[i]);
    MPI_Waitall(WINDOW, reqs, MPI_STATUSES_IGNORE);
    MPI_Recv(ack, sizeof ack, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void stream_in(void)
{
    for (int i = 0; i < WINDOW; i++)
        MPI_Irecv(in, size, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &reqs[i]);
    MPI_Waitall(WINDOW, reqs, MPI_STATUSES_IGNORE);
    MPI_Send(ack, sizeof ack, MPI_BYTE, peer, TAG, MPI_COMM_WORLD);
}

static void stream(struct part *p, int bytes, int to, int sender)
{
    begin(p, bytes, to);
    p->per_op = WINDOW;
    p->once = sender ? stream_out : stream_in;
    checked = stream_in;
    p->verify = sender ? stream_out : check;
}

static void bw(struct part *p, int bytes)
{
    if (rank < 2) {
        stream(p, bytes, 1 - rank, rank == 0);
    } else {
        begin(p, bytes, 0);
        p->per_op = WINDOW;
    }
    p->bytes = (double)WINDOW * bytes;
}

/* bibw: windows of messages in both directions at the same time. */

static void both_ways(void)
{
    for (int i = 0; i < WINDOW; i++)
        MPI_Irecv(in, size, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &reqs[i]);
    for (int i = 0; i < WINDOW; i++)
        MPI_Isend(out, size, MPI_BYTE, peer, TAG, MPI_COMM_WORLD, &reqs[WINDOW + i]);
    MPI_Waitall(2 * WINDOW, reqs, MPI_STATUSES_IGNORE);
}

static void bibw(struct part *p, int bytes)
{
    begin(p, bytes, 1 - rank);
    p->per_op = 2 * WINDOW;
    p->bytes = 2.0 * WINDOW * bytes;
    if (rank > 1)
        return;
    p->once = checked = both_ways;
    p->verify = check;
}

/* mr: the i-th rank of the lower half of the ranks sends to the i-th rank of the upper half. */

static void mr(struct part *p, int bytes)
{
    int pairs = ranks / 2;
    stream(p, bytes, (rank + pairs) % ranks, rank < pairs);
    p->mean = 1;
    p->bytes = (double)WINDOW * bytes * pairs;
    p->messages = (double)WINDOW * pairs;
}

const struct benchmark p2p[] = {
    { "latency", 2, prepare_latency }, { "bw", 2, bw }, { "bibw", 2, bibw }, { "mr", 2, mr }, { NULL, 0, NULL },
};
