#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, *app, found;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &app, &found);
    printf("hello from %d of %d app %d\n", rank, size, found ? *app : -1);
    if (argc > 1 && rank == 1)
        MPI_Abort(MPI_COMM_WORLD, 9);
    if (argc > 1)
        MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
