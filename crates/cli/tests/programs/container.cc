/* A program over mlbs.hpp: what it writes to containers, it finds there, in all orders. */

#include <forebay/mlbs.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#if __cplusplus >= 202002L
#include <numeric>
#include <ranges>
#include <span>
static_assert(std::ranges::contiguous_range<forebay::MLBStore<double>>);
static_assert(std::ranges::sized_range<forebay::MLBStore<double>>);
#endif
static_assert(!std::is_copy_constructible_v<forebay::MLBStore<int>>);
static_assert(std::is_nothrow_move_constructible_v<forebay::MLBStore<int>>);

#define EXPECT(what)                                                                               \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            std::fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, forebay::message());        \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

namespace {

struct Cell {
    std::uint64_t number;
    double value;
};

using Store = forebay::MLBStore<Cell>;

Cell cell(std::uint64_t id, std::uint64_t round, std::size_t at) {
    return {id * 1000003 + round * 7919 + at, static_cast<double>(id) + 0.5 * static_cast<double>(at)};
}

void fill(Store &store, std::uint64_t id, std::uint64_t round) {
    for (std::size_t at = 0; at < store.size(); at++)
        store[at] = cell(id, round, at);
}

bool is(const Store &store, std::uint64_t id, std::uint64_t round) {
    for (std::size_t at = 0; at < store.size(); at++) {
        const Cell wanted = cell(id, round, at);
        if (store[at].number != wanted.number || store[at].value != wanted.value)
            return false;
    }
    return true;
}

forebay_records_info info(const Store &store) {
    struct forebay_records_info found;
    EXPECT(store.info(found) == 0);
    return found;
}

/* The program computes for longer than records take to come: until the helper has nothing to do. */
void computes(const Store &store) {
    std::uint64_t before = 0;
    for (int same = 0; same < 40; same++) {
        const struct forebay_records_info now = info(store);
        if (now.window_used + store.size() * sizeof(Cell) > now.window_bytes)
            return;
        if (now.loaded != before)
            same = 0;
        before = now.loaded;
        usleep(1000);
    }
}

/* Under Forebay the index, which each record changes several times, is in memory whatever else
 * wants that. */
void has_index_in_memory(const std::string &directory) {
    forebay_session *session;
    EXPECT(forebay_start(0, &session) == 0);
    std::error_code error;
    int found = 0;
    for (const auto &entry : std::filesystem::recursive_directory_iterator(directory, error)) {
        if (entry.path().extension() != ".index" || forebay_is_active(session) != 1)
            continue;
        forebay_file *file;
        struct forebay_extent extent;
        EXPECT(forebay_open(session, entry.path().c_str(), O_RDONLY, 0, &file) == 0);
        const int64_t size = forebay_size(file);
        EXPECT(forebay_placement(file, 0, size, &extent, 1) == 1);
        EXPECT(extent.tier == FOREBAY_TIER_RAM && extent.bytes == size);
        EXPECT(forebay_close(file) == 0);
        found++;
    }
    EXPECT(!error && found == forebay_is_active(session));
    EXPECT(forebay_end(session) == 0);
}

/* Several forward and backward phases over more than the tiers' RAM: every byte is looked at, and
 * after the first records of a phase those that come next are in memory. */
void phases(const std::string &directory, forebay_order order, forebay_layout layout, bool is_back) {
    constexpr std::uint64_t records = 64;
    constexpr std::size_t cells = (512 << 10) / sizeof(Cell) + 5;
    forebay::hints hints;
    hints.directory = directory;
    hints.order = order;
    hints.layout = layout;
    hints.memory = 4 << 20;
    Store store(cells, hints);
    EXPECT(store.status() == 0);
    const Cell *const start = store.data();
    std::uint64_t early = 0;
    for (std::uint64_t round = 0; round < 2; round++) {
        for (std::uint64_t id = 0; id < records; id++) {
            fill(store, id, round);
            EXPECT(store.write(id) == 0);
        }
        has_index_in_memory(directory);
        for (std::uint64_t step = 0; step < records; step++) {
            const std::uint64_t id = is_back ? records - 1 - step : step;
            std::fill(store.begin(), store.end(), Cell{});
            const std::uint64_t before = info(store).hits;
            EXPECT(store.read(id) == 0);
            EXPECT(is(store, id, round));
            if (step < 2)
                early += 1 - (info(store).hits - before);
            computes(store);
        }
    }
    EXPECT(store.data() == start);
    const struct forebay_records_info found = info(store);
    EXPECT(found.reads == 2 * records && found.writes == 2 * records && found.records == records);
    EXPECT(found.bytes == records * cells * sizeof(Cell) && found.wasted <= 8);
    const std::uint64_t warm = found.reads - 4, hits = found.hits - (4 - early);
    std::printf("%llu of %llu\n", static_cast<unsigned long long>(hits),
                static_cast<unsigned long long>(warm));
    EXPECT(hits * 100 >= warm * 95);
}

void elements() {
    forebay::MLBStore<int> store;
    EXPECT(store.status() == 0 && store.empty());
    for (int number = 0; number < 1000; number++)
        EXPECT(store.push_back(number) == 0);
    EXPECT(store.push_back(store[0]) == 0 && store.size() == 1001 && store.back() == 0);
    EXPECT(store.write(3) == 0 && store.record_size(3) == 1001);
    EXPECT(store.resize(5) == 0 && store.size() == 5 && store[4] == 4);
    EXPECT(store.read(3) == FOREBAY_E_ELEMENT);
    EXPECT(store.resize(1001) == 0 && store[5] == 0 && store.read(3) == 0 && store[999] == 999);
    forebay::MLBStore<int> other(std::move(store));
    EXPECT(store.status() == FOREBAY_E_CLOSED && store.write(1) == FOREBAY_E_CLOSED);
    EXPECT(other.size() == 1001 && other.write(1) == 0);
    store = std::move(other);
    std::vector<std::uint64_t> ids;
    EXPECT(store.ids(ids) == 0 && (ids == std::vector<std::uint64_t>{1, 3}));
    EXPECT(store.drop(1) == 0 && store.ids(ids) == 0 && ids == std::vector<std::uint64_t>{3});
    EXPECT(store.sync(3) == 0 && store.torn(ids) == 0 && ids.empty());
#if __cplusplus >= 202002L
    std::span<int> span = store;
    EXPECT(span.size() == 1001 && span.data() == store.data());
    auto even = store | std::views::filter([](int number) { return number % 2 == 0; });
    EXPECT(std::ranges::distance(even) == 501);
    std::ranges::sort(store, std::ranges::greater{});
    EXPECT(store.front() == 999);
#endif
}

/* What the limits do not allow leaves the tiers, and is read from the store; where a flush gives
 * `sync`, it stays, and is read from the tiers. */
void limits(const std::string &directory, int sync) {
    forebay::hints hints;
    hints.directory = directory;
    hints.order = FOREBAY_ORDER_LIFO;
    hints.memory = 2 << 20;
    hints.fast = 4 << 20;
    Store store((512 << 10) / sizeof(Cell), hints);
    for (std::uint64_t id = 0; id < 40; id++) {
        fill(store, id, 0);
        EXPECT(store.write(id) == 0);
    }
    // 12 of them are within the limits.
    for (int nap = 0; nap < 30000; nap++) {
        if (info(store).spilled >= 28 || info(store).is_spill_off != 0)
            break;
        usleep(1000);
    }
    EXPECT(sync != 0 ? info(store).is_spill_off == 1 : info(store).spilled >= 28);
    EXPECT(store.sync(1) == sync);
    for (std::uint64_t id = 40; id-- > 0;) {
        EXPECT(store.read(id) == 0);
        EXPECT(is(store, id, 0));
    }
}

void bad(const std::string &directory) {
    forebay::hints hints;
    hints.directory = directory;
    hints.name = "bad";
    {
        forebay::MLBStore<double> store(10, hints);
        EXPECT(store.read(7) == FOREBAY_E_NO_RECORD);
        EXPECT(std::strstr(forebay::message(), "record 7 was never written") != nullptr);
        EXPECT(store.record_size(7) == FOREBAY_E_NO_RECORD && store.sync(7) == FOREBAY_E_NO_RECORD);
        EXPECT(store.drop(7) == FOREBAY_E_NO_RECORD);
        EXPECT(store.write(7) == 0);
        forebay::MLBStore<float> other(20, hints);
        EXPECT(other.read(7) == FOREBAY_E_ELEMENT);
        EXPECT(std::strstr(forebay::message(), "elements of 8 bytes") != nullptr);
        struct Odd {
            char bytes[3];
        };
        forebay::MLBStore<Odd> odd(1, hints);
        EXPECT(odd.record_size(7) == FOREBAY_E_ELEMENT);
        EXPECT(std::strstr(forebay::message(), "80 bytes is no whole elements of 3") != nullptr);
        EXPECT(store.close() == 0 && store.read(7) == FOREBAY_E_CLOSED && store[0] == 0.0);
        EXPECT(std::strstr(forebay::message(), "was closed") != nullptr);
        EXPECT(other.read(7) == FOREBAY_E_ELEMENT);
        EXPECT(std::strstr(forebay::message(), "elements of 8 bytes") != nullptr);
        EXPECT(store.record_size(7) == FOREBAY_E_CLOSED);
        EXPECT(std::strstr(forebay::message(), "was closed") != nullptr);
#if defined(__cpp_exceptions)
        try {
            forebay::check(store.write(1));
            EXPECT(false);
        } catch (const forebay::error &error) {
            EXPECT(error.code() == FOREBAY_E_CLOSED && std::strstr(error.what(), "was closed"));
        }
#endif
    }
    hints.memory = 0;
    forebay::MLBStore<double> none(10, hints);
    EXPECT(none.status() == -EINVAL);
    EXPECT(std::strstr(forebay::message(), "memory_bytes is 0") != nullptr);
    EXPECT(none.write(1) == -EINVAL && none.size() == 0);
    EXPECT(std::strstr(forebay::message(), "could not be made") != nullptr);
    hints.memory = 100;
    hints.fast = 0;
    EXPECT(forebay::MLBStore<double>(10, hints).status() == -EINVAL);
    hints.fast = 100;
    forebay::MLBStore<double> small(26, hints);
    EXPECT(small.write(1) == -EFBIG);
    EXPECT(std::strstr(forebay::message(), "its limits allow: 200 bytes") != nullptr);
    EXPECT(small.resize(std::size_t{1} << 62) == -ENOMEM && small.size() == 26);
    EXPECT(std::strstr(forebay::message(), "no memory for 4611686018427387904") != nullptr);
    hints.fast = FOREBAY_RECORDS_AUTO;
    hints.name = "a/b";
    EXPECT(forebay::MLBStore<double>(10, hints).status() == -EINVAL);
    hints.name = "bad";
    hints.order = static_cast<forebay_order>(3);
    EXPECT(forebay::MLBStore<double>(10, hints).status() == -EINVAL);
    hints.order = FOREBAY_ORDER_FIFO;
    hints.directory = directory + "/not there";
    EXPECT(forebay::MLBStore<double>(10, hints).status() == -ENOENT);

    // Handles.
    forebay_session *session = nullptr;
    forebay_records *records = nullptr;
    double number = 5;
    EXPECT(forebay_start(0, &session) == 0);
    EXPECT(forebay_records_open(session, directory.c_str(), "bad", nullptr, &records) == 0);
    EXPECT(forebay_records_write(records, 1, &number, 8, 3) == -EINVAL);
    EXPECT(forebay_records_write(records, 1, &number, -8, 8) == -EINVAL);
    EXPECT(forebay_records_write(records, 1, nullptr, 8, 8) == -EINVAL);
    EXPECT(forebay_records_write(records, 1, &number, 8, 0) == -EINVAL);
    EXPECT(forebay_records_write(records, UINT64_MAX, &number, 8, 8) == 0);
    EXPECT(forebay_records_size(records, UINT64_MAX) == 8);
    EXPECT(forebay_records_read(nullptr, 1, &number, 8, 8) == FOREBAY_E_HANDLE);
    EXPECT(forebay_records_read(reinterpret_cast<forebay_records *>(session), 1, &number, 8, 8) ==
           FOREBAY_E_HANDLE);
    EXPECT(forebay_records_ids(records, nullptr, 0) == 1);
    EXPECT(forebay_records_ids(records, nullptr, 1) == -EINVAL);
    EXPECT(forebay_records_will_read(records, nullptr, -1) == -EINVAL);
    // A child of fork() has to open its own.
    const pid_t child = fork();
    if (child == 0) {
        const int used = forebay_records_read(records, UINT64_MAX, &number, 8, 8);
        const int closed = forebay_records_close(records);
        _exit(used == FOREBAY_E_CLOSED && closed == 0 ? 0 : 1);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(forebay_records_read(records, UINT64_MAX, &number, 8, 8) == 0 && number == 5);
    EXPECT(forebay_end(session) == 0);
    EXPECT(forebay_records_read(records, UINT64_MAX, &number, 8, 8) == FOREBAY_E_CLOSED);
    EXPECT(forebay_records_write(records, 1, &number, 8, 8) == FOREBAY_E_CLOSED);
    EXPECT(forebay_records_close(records) == 0);
    EXPECT(forebay_records_close(records) == FOREBAY_E_CLOSED);
}

forebay::hints kept(const std::string &directory) {
    forebay::hints hints;
    hints.directory = directory;
    hints.name = "kept";
    hints.keep = true;
    hints.order = FOREBAY_ORDER_LIFO;
    if (std::getenv("PER_RECORD") != nullptr)
        hints.layout = FOREBAY_LAYOUT_PER_RECORD;
    return hints;
}

constexpr std::size_t kept_cells = 20000;

/* Writes records round after round, and says which after each, until it is killed. */
void writes(const std::string &directory, bool is_synced) {
    Store store(kept_cells, kept(directory));
    EXPECT(store.status() == 0);
    for (std::uint64_t turn = 0;; turn++) {
        fill(store, turn % 50, turn / 50);
        EXPECT(store.write(turn % 50) == 0);
        if (is_synced)
            EXPECT(store.sync(turn % 50) == 0);
        char line[32];
        const int bytes = std::snprintf(line, sizeof line, "%llu\n", static_cast<unsigned long long>(turn));
        EXPECT(write(1, line, static_cast<std::size_t>(bytes)) == bytes);
    }
}

/* What `writes` has said to have written, up to `last`, is there, or a later version. */
void finds(const std::string &directory, std::uint64_t last) {
    Store store(kept_cells, kept(directory));
    EXPECT(store.status() == 0);
    std::vector<std::uint64_t> torn;
    EXPECT(store.torn(torn) == 0);
    // The one that was under way at the end is whole, or is named.
    for (std::uint64_t id : torn)
        EXPECT(id == (last + 1) % 50);
    std::uint64_t found = 0;
    for (std::uint64_t id = 0; id < 50; id++) {
        if (id > last)
            continue;
        const std::uint64_t round = (last - id) / 50;
        const int code = store.read(id);
        if (code != 0)
            std::fprintf(stderr, "record %llu: %s\n", static_cast<unsigned long long>(id), forebay::message());
        EXPECT(code == 0);
        EXPECT(is(store, id, round) || (id == (last + 1) % 50 && is(store, id, round + 1)));
        found++;
    }
    std::printf("found %llu\n", static_cast<unsigned long long>(found));
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    const std::string part = argv[1], directory = argv[2];
    if (part == "phases") {
        for (forebay_layout layout : {FOREBAY_LAYOUT_PACKED, FOREBAY_LAYOUT_PER_RECORD}) {
            phases(directory, FOREBAY_ORDER_FIFO, layout, false);
            phases(directory, FOREBAY_ORDER_LIFO, layout, true);
            phases(directory, FOREBAY_ORDER_DETECT, layout, true);
        }
    } else if (part == "elements") {
        elements();
    } else if (part == "limits") {
        limits(directory, 0);
    } else if (part == "scratch") {
        limits(directory, -EOPNOTSUPP);
    } else if (part == "full") {
        limits(directory, -ENOSPC);
    } else if (part == "bad") {
        bad(directory);
    } else if (part == "writes" || part == "syncs") {
        writes(directory, part == "syncs");
    } else if (part == "finds" && argc == 4) {
        finds(directory, std::strtoull(argv[3], nullptr, 10));
    } else {
        return 2;
    }
    std::puts("done");
    return 0;
}
