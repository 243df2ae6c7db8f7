/* Threads of a rank that communicate at the same time. The library must provide
 * MPI_THREAD_MULTIPLE. */
#include "bench.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum { BYTES = 8 }; /* of a message */

static pthread_t *members;
static int count, peer;

static void start(int n, void *(*run)(void *))
{
    count = n;
    peer = 1 - rank;
    members = allocate(n * sizeof *members);
    for (intptr_t i = 0; i < n; i++)
        if (pthread_create(&members[i], NULL, run, (void *)i))
            fail("no thread %d", (int)i);
}

static void join(void)
{
    for (int i = 0; i < count; i++)
        pthread_join(members[i], NULL);
    free(members);
}

/* threads: each thread does round trips with one thread of the other rank. Each pair of threads has
 * its own tag. */

static pthread_barrier_t gate; /* among all members, which are the threads, and the main thread */
static long todo;              /* number of round trips that each member is to do; 0: it is to end */
static unsigned char (*sent)[BYTES], (*got)[BYTES];

static void round_trip(int i)
{
    if (rank == 0)
        MPI_Send(sent[i], BYTES, MPI_BYTE, peer, TAG + i, MPI_COMM_WORLD);
    MPI_Recv(got[i], BYTES, MPI_BYTE, peer, TAG + i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1)
        MPI_Send(sent[i], BYTES, MPI_BYTE, peer, TAG + i, MPI_COMM_WORLD);
}

static void *member(void *arg)
{
    for (;;) {
        pthread_barrier_wait(&gate);
        if (!todo)
            return NULL;
        for (long n = 0; n < todo; n++)
            round_trip((intptr_t)arg);
        pthread_barrier_wait(&gate);
    }
}

/* Has every member do n round trips, and returns the time of all together, in seconds. */
static double team_repeat(long n)
{
    double begun = now();
    todo = n;
    pthread_barrier_wait(&gate);
    pthread_barrier_wait(&gate);
    return now() - begun;
}

static void check(void)
{
    team_repeat(1);
    for (int i = 0; i < count; i++)
        compare(got[i], BYTES, peer);
}

static void release(void)
{
    todo = 0;
    pthread_barrier_wait(&gate);
    join();
    pthread_barrier_destroy(&gate);
    free(sent);
    free(got);
}

static void nothing(void) {}

static void threads_prepare(struct part *p, int pairs)
{
    p->per_op = pairs;
    p->messages = 2.0 * pairs;
    p->sample = 5e-3; /* so long that the time in which the members start does not matter */
    p->close = nothing;
    if (rank > 1)
        return;
    sent = allocate(pairs * sizeof *sent);
    got = allocate(pairs * sizeof *got);
    for (int i = 0; i < pairs; i++)
        fill(sent[i], BYTES, rank);
    pthread_barrier_init(&gate, NULL, pairs + 1);
    start(pairs, member);
    p->repeat = team_repeat;
    p->verify = check;
    p->close = release;
}

/* waiters: what latency measures, while other threads of both ranks are blocked in MPI_Recv. */

static void *waiter(void *arg)
{
    char byte;
    MPI_Recv(&byte, 1, MPI_BYTE, peer, TAG + 1 + (int)(intptr_t)arg, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return NULL;
}

static void (*release_latency)(void);

static void release_waiters(void)
{
    for (int i = 0; i < count; i++)
        MPI_Send("", 1, MPI_BYTE, peer, TAG + 1 + i, MPI_COMM_WORLD);
    join();
    release_latency();
}

static void waiters_prepare(struct part *p, int n)
{
    prepare_latency(p, BYTES);
    if (rank > 1)
        return;
    start(n, waiter);
    release_latency = p->close;
    p->close = release_waiters;
}

const struct benchmark threads[] = {
    { "threads", 2, threads_prepare, 1 }, { "waiters", 2, waiters_prepare, 1 }, { NULL, 0, NULL, 0 },
};
