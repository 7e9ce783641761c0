/* Ranks that share a container, and reduce its elements. */

#include <forebay/mlbs_mpi.hpp>

#include <cstdio>
#include <cstdlib>

namespace {

int rank = 0, ranks = 0;

void expect(bool is_right, int line) {
    if (!is_right) {
        std::fprintf(stderr, "rank %d, line %d: %s\n", rank, line, forebay::message());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

#define EXPECT(what) expect((what), __LINE__)

double value(int of, int record, std::size_t at) {
    return of * 1000.0 + record + 0.25 * static_cast<double>(at % 1000);
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    constexpr int records = 12;
    forebay::hints hints;
    hints.name = "shared";
    hints.order = FOREBAY_ORDER_LIFO;
    {
        forebay::mpi::MLBStore<double> store(70000, hints);
        EXPECT(store.status() == 0 && ranks >= 2);
        for (int record = 0; record < records; record++) {
            for (std::size_t at = 0; at < store.size(); at++)
                store[at] = value(rank, record, at);
            EXPECT(store.write(static_cast<std::uint64_t>(rank * 100 + record)) == 0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        std::vector<std::uint64_t> ids;
        EXPECT(store.ids(ids) == 0 && ids.size() == static_cast<std::size_t>(ranks * records));
        // Each reads what another one has written, from the last to the first.
        const int other = (rank + 1) % ranks;
        for (int record = records - 1; record >= 0; record--) {
            EXPECT(store.read(static_cast<std::uint64_t>(other * 100 + record)) == 0);
            for (std::size_t at = 0; at < store.size(); at++)
                EXPECT(store[at] == value(other, record, at));
        }
        // What one replaces, all others see.
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0) {
            for (double &element : store)
                element = 77.0;
            EXPECT(store.write(100) == 0);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        EXPECT(store.read(100) == 0 && store[69999] == 77.0);

        // Sums at one rank, and at all; over a communicator of two.
        double sum = 0;
        for (int one = 0; one < ranks; one++)
            sum += one + 1.0;
        for (double &element : store)
            element = rank + 1.0;
        const std::size_t root = static_cast<std::size_t>(ranks - 1);
        EXPECT(store.reduce(MPI_SUM, root) == 0);
        EXPECT(store[0] == (rank == ranks - 1 ? sum : rank + 1.0) && store[69999] == store[0]);
        EXPECT(store.reduce(MPI_SUM, static_cast<std::size_t>(ranks)) == -EINVAL);
        for (double &element : store)
            element = rank + 1.0;
        EXPECT(store.allReduce(MPI_MAX) == 0 && store[0] == ranks && store[69999] == ranks);
        MPI_Comm pair;
        EXPECT(MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &pair) == MPI_SUCCESS);
        store.setComm(pair);
        for (double &element : store)
            element = rank + 1.0;
        EXPECT(store.allReduce(MPI_SUM) == 0);
        const int first = rank / 2 * 2;
        EXPECT(store[5] == (first + 1 < ranks ? 2.0 * first + 3.0 : first + 1.0));
        MPI_Comm_free(&pair);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        std::puts("done");
    MPI_Finalize();
    return 0;
}
