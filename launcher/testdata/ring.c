#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* A token goes from rank to rank three times. Then the ranks add large arrays. So MPICH
 * sends short and long messages, for which it has different protocols. */
int main(int argc, char **argv)
{
    enum { n = 1 << 18 };
    int rank, size, token = 0;
    double *a, *b;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int lap = 0; lap < 3; lap++) {
        if (rank > 0)
            MPI_Recv(&token, 1, MPI_INT, rank - 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        token++;
        if (size > 1)
            MPI_Send(&token, 1, MPI_INT, (rank + 1) % size, 7, MPI_COMM_WORLD);
        if (rank == 0 && size > 1)
            MPI_Recv(&token, 1, MPI_INT, size - 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    a = malloc(n * sizeof *a);
    b = malloc(n * sizeof *b);
    for (int i = 0; i < n; i++)
        a[i] = rank + 1;
    MPI_Allreduce(a, b, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++)
        if (b[i] != size * (size + 1) / 2.0)
            MPI_Abort(MPI_COMM_WORLD, 4);
    if (rank == 0)
        printf("token %d\n", token);
    MPI_Finalize();
    return 0;
}
