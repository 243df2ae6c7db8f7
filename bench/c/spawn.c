// Spawn measures MPI_Comm_spawn of a number of processes, until they have called MPI_Init, and
// MPI_Comm_disconnect. It prints the median and the mean in milliseconds.
//
//	mpicc.openmpi -O2 -o /tmp/spawn bench/c/spawn.c
//	mpirun.openmpi --oversubscribe -np 1 /tmp/spawn 16 20
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	MPI_Comm parent;
	MPI_Init(&argc, &argv);
	MPI_Comm_get_parent(&parent);
	if (parent != MPI_COMM_NULL) {
		MPI_Comm_disconnect(&parent);
		MPI_Finalize();
		return 0;
	}
	int n = argc > 1 ? atoi(argv[1]) : 16, rounds = argc > 2 ? atoi(argv[2]) : 20;
	double *ms = malloc(rounds * sizeof *ms), sum = 0;
	for (int i = 0; i < rounds; i++) {
		MPI_Comm kids;
		double begun = MPI_Wtime();
		MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, n, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &kids, MPI_ERRCODES_IGNORE);
		MPI_Comm_disconnect(&kids);
		ms[i] = 1e3 * (MPI_Wtime() - begun);
		sum += ms[i];
	}
	qsort(ms, rounds, sizeof *ms, ascending);
	printf("%d processes: median %.1f ms, mean %.1f ms\n", n, ms[rounds / 2], sum / rounds);
	free(ms);
	MPI_Finalize();
	return 0;
}
