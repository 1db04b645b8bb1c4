/*
 * MPI over TCP: messages of many sizes around a ring and between all, each checked.
 *     mpi_ring ROUNDS
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LARGEST (1 << 20)

static unsigned char out[LARGEST], in[LARGEST];
static long errors;

/* What byte number `at` of a message must be. */
static unsigned char wanted(int from, int round, int at) {
    uint32_t value = (uint32_t)from * 2654435761u + (uint32_t)round * 40503u + (uint32_t)at * 2246822519u;
    return (unsigned char)(value >> 24);
}

static void fill(int from, int round, int size) {
    for (int at = 0; at < size; at++) out[at] = wanted(from, round, at);
}

static void check(int from, int round, int size) {
    for (int at = 0; at < size; at++)
        if (in[at] != wanted(from, round, at)) {
            fprintf(stderr, "round %d from %d: byte %d of %d differs\n", round, from, at, size);
            errors++;
            return;
        }
}

int main(int count, char **words) {
    static const int sizes[] = {0, 1, 7, 100, 1000, 4096, 10000, 65536, 300000, LARGEST};
    int rank, ranks, rounds = count > 1 ? atoi(words[1]) : 100;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int round = 0; round < rounds; round++) {
        int size = sizes[round % (int)(sizeof sizes / sizeof *sizes)];
        fill(rank, round, size);
        MPI_Sendrecv(out, size, MPI_BYTE, next, 1, in, size, MPI_BYTE, previous, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        check(previous, round, size);
        long sum = 0, mine = rank + round;
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        if (sum != (long)ranks * round + (long)ranks * (ranks - 1) / 2) errors++;
    }
    long all = 0;
    MPI_Reduce(&errors, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, %d rounds, %ld errors\n", ranks, rounds, all);
    MPI_Finalize();
    return rank == 0 && all != 0;
}
