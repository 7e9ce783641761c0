/*
 * The workflow of an adjoint simulation that does not fit into memory (MLBS, section V.B): modelling
 * computes STEPS time steps on an array and stores it at each RATIO-th; processing computes as many
 * on another one, reads the records back, the last one first, and correlates both.
 *
 *     adjoint WAY FOLDER KERNEL EDGE STEPS RATIO PASSES [MEMORY]
 *
 * WAY: "files", one for each record, written and read where FOLDER is; "streams", the same by two
 * threads at a time; or "records", a container of
 * MLBS in FOLDER that reads MEMORY bytes ahead. KERNEL: "dense" computes PASSES times over a part of the array that a core's cache holds; "wave"
 * is a step of the acoustic wave equation, of eighth order in space, on a cube of EDGE points each
 * way (section V.D; PASSES is 1). A sum over all bits of each record shows that what is read is what was
 * written; it counts as computing.
 * One line comes out, in microseconds, END of CLOCK_REALTIME:
 *
 *     WRITE_US,READ_US,END,KERNEL_US,WALL_US,CALLS_US
 *
 * CALLS_US is what a write and a read take that nothing has held up: the medians of both.
 */
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#ifdef WITH_MLBS
#include <forebay/mlbs.hpp>
#endif

namespace {

using Clock = std::chrono::steady_clock;

/* Elements of the part that the dense kernel computes on: 64 KiB. */
constexpr std::size_t DENSE = 16384;
/* Of one call of the kernel's file system. */
constexpr std::size_t PIECE = 1 << 20;

[[noreturn]] void fail(const std::string &what, int error)
{
	std::fprintf(stderr, "adjoint: %s: %s\n", what.c_str(), std::strerror(error));
	std::exit(1);
}

std::int64_t us(Clock::duration time)
{
	return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
}

/* What calls of one kind have taken. */
class Calls {
	std::vector<Clock::duration> times;

public:
	void add(Clock::duration time) { times.push_back(time); }
	Clock::duration sum() const { return std::accumulate(times.begin(), times.end(), Clock::duration()); }
	Clock::duration median()
	{
		if (times.empty())
			return {};
		auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
		std::nth_element(times.begin(), middle, times.end());
		return *middle;
	}
};

/* Adds the time that it lives to calls. */
class Timed {
	Calls &calls;
	Clock::time_point since = Clock::now();

public:
	explicit Timed(Calls &calls) : calls(calls) {}
	~Timed() { calls.add(Clock::now() - since); }
};

/* Where the array and its records are. */
class Store {
public:
	virtual ~Store() = default;
	virtual std::span<float> array() = 0;
	virtual void write(std::size_t id) = 0;
	virtual void read(std::size_t id) = 0;
};

class Files final : public Store {
	std::string folder;
	std::vector<float> memory;
	std::size_t streams;

	int open(std::size_t id, int flags) const
	{
		std::string path = folder + "/record-" + std::to_string(id);
		int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
		if (fd < 0)
			fail(path, errno);
		return fd;
	}

	template <typename Move> void each_piece(int fd, std::size_t done, std::size_t end, Move move)
	{
		auto *bytes = reinterpret_cast<char *>(memory.data());
		while (done < end) {
			ssize_t n = move(fd, bytes + done, std::min(PIECE, end - done), done);
			if (n <= 0)
				fail("a record", n < 0 ? errno : ENODATA);
			done += static_cast<std::size_t>(n);
		}
	}

	template <typename Move> void all(int fd, Move move)
	{
		std::size_t length = memory.size() * sizeof(float), part = (length + streams - 1) / streams;
		std::vector<std::thread> others;
		for (std::size_t at = part; at < length; at += part)
			others.emplace_back([=, this] { each_piece(fd, at, std::min(length, at + part), move); });
		each_piece(fd, 0, std::min(length, part), move);
		for (auto &other : others)
			other.join();
		if (close(fd) != 0)
			fail("close", errno);
	}

public:
	Files(std::string folder, std::size_t length, std::size_t streams)
		: folder(std::move(folder)), memory(length), streams(streams)
	{
	}
	std::span<float> array() override { return memory; }
	void write(std::size_t id) override { all(open(id, O_WRONLY | O_CREAT | O_TRUNC), pwrite); }
	void read(std::size_t id) override { all(open(id, O_RDONLY), pread); }
};

#ifdef WITH_MLBS
/* A container: the array is its elements. */
class Records final : public Store {
	forebay::MLBStore<float> store;

	static forebay::hints hints(const std::string &folder, std::uint64_t memory)
	{
		forebay::hints hints;
		hints.directory = folder;
		hints.memory = memory;
		hints.order = FOREBAY_ORDER_LIFO;
		/* While one waits for a device the request of the other is there already. */
		hints.helpers = 2;
		return hints;
	}

	static void check(int code)
	{
		if (code < 0) {
			std::fprintf(stderr, "adjoint: %s\n", forebay::message());
			std::exit(1);
		}
	}

public:
	Records(const std::string &folder, std::size_t length, std::uint64_t memory)
		: store(length, hints(folder, memory))
	{
		check(store.status());
	}
	std::span<float> array() override { return {store.data(), store.size()}; }
	void write(std::size_t id) override { check(store.write(id)); }
	void read(std::size_t id) override { check(store.read(id)); }
};
#endif

/* What the kernel computes with: a step of it changes the array. */
class Kernel {
public:
	virtual ~Kernel() = default;
	virtual void step(std::span<float> array) = 0;
};

class Dense final : public Kernel {
	long passes;

public:
	explicit Dense(long passes) : passes(passes) {}
	void step(std::span<float> array) override
	{
		std::span<float> part = array.first(std::min(array.size(), DENSE));
		for (long pass = 0; pass < passes; pass++)
			for (float &x : part)
				x = x * 0.999f + 0.001f;
	}
};

class Wave final : public Kernel {
	static constexpr int RADIUS = 4;
	/* Of the second derivative (eighth order). */
	static constexpr float WEIGHT[RADIUS + 1] = {-205.0f / 72, 8.0f / 5, -1.0f / 5, 8.0f / 315, -1.0f / 560};
	std::size_t edge;
	std::vector<float> before;

public:
	explicit Wave(std::size_t edge) : edge(edge), before(edge * edge * edge) {}
	void step(std::span<float> now) override
	{
		const std::size_t row = edge, plane = edge * edge;
		constexpr float COURANT = 0.1f;
		for (std::size_t z = RADIUS; z + RADIUS < edge; z++)
			for (std::size_t y = RADIUS; y + RADIUS < edge; y++) {
				const float *in = &now[z * plane + y * row];
				float *out = &before[z * plane + y * row];
				for (std::size_t x = RADIUS; x + RADIUS < edge; x++) {
					float sum = 3 * WEIGHT[0] * in[x];
					for (std::size_t r = 1; r <= RADIUS; r++) {
						const float *at = in + x;
						sum += WEIGHT[r] * (at[r] + *(at - r) + at[r * row] + *(at - r * row) +
								    at[r * plane] + *(at - r * plane));
					}
					out[x] = 2 * in[x] - out[x] + COURANT * sum;
				}
			}
		/* The array stays where it is: the roles of the two change by content. */
		std::swap_ranges(now.begin(), now.end(), before.begin());
	}
};

/* Sum of all bits, in order: what is kept of a record that goes. */
std::uint64_t sum_of(std::span<const float> array)
{
	std::uint64_t lanes[4] = {};
	const auto *words = reinterpret_cast<const unsigned char *>(array.data());
	std::size_t bytes = array.size_bytes(), at = 0;
	for (; at + 32 <= bytes; at += 32)
		for (int lane = 0; lane < 4; lane++) {
			std::uint64_t word;
			std::memcpy(&word, words + at + 8 * lane, 8);
			lanes[lane] = lanes[lane] * 31 + word;
		}
	std::uint64_t rest = 0;
	for (; at < bytes; at++)
		rest = rest * 31 + words[at];
	return ((lanes[0] * 31 + lanes[1]) * 31 + lanes[2]) * 31 + lanes[3] + rest;
}

struct Times {
	Calls write, read, kernel;
};

/* Both phases. Returns the correlation, so that no compiler leaves anything out. */
double simulate(Store &store, Kernel &kernel, std::size_t steps, std::size_t ratio, Times &times)
{
	std::span<float> array = store.array();
	std::uint64_t noise = 1;
	for (float &x : array) {
		noise = noise * 6364136223846793005u + 1442695040888963407u;
		x = static_cast<float>(noise >> 40) / (1 << 24) - 0.5f;
	}
	std::vector<float> adjoint(array.begin(), array.end());
	std::vector<std::uint64_t> sums;
	for (std::size_t step = 1; step <= steps; step++) {
		{
			Timed timed(times.kernel);
			kernel.step(array);
			if (step % ratio != 0)
				continue;
			sums.push_back(sum_of(array));
		}
		Timed timed(times.write);
		store.write(sums.size() - 1);
	}
	double image = 0;
	for (std::size_t step = sums.size() * ratio; step > 0; step--) {
		if (step % ratio == 0) {
			std::size_t id = step / ratio - 1;
			{
				Timed timed(times.read);
				store.read(id);
			}
			Timed timed(times.kernel);
			if (sum_of(array) != sums[id]) {
				std::fprintf(stderr, "adjoint: record %zu is not what was written\n", id);
				std::exit(1);
			}
			for (std::size_t at = 0; at < array.size(); at++)
				image += array[at] * adjoint[at];
		}
		Timed timed(times.kernel);
		kernel.step(adjoint);
	}
	return image;
}

} // namespace

int main(int count, char **word)
{
	if (count != 8 && count != 9) {
		std::fprintf(stderr, "adjoint: WAY FOLDER KERNEL EDGE STEPS RATIO PASSES [MEMORY]\n");
		return 2;
	}
	std::string way = word[1], folder = word[2], name = word[3];
	std::size_t edge = std::strtoul(word[4], nullptr, 10), length = edge * edge * edge;
	std::size_t steps = std::strtoul(word[5], nullptr, 10), ratio = std::strtoul(word[6], nullptr, 10);
	std::unique_ptr<Store> store;
	if (way == "files" || way == "streams")
		store = std::make_unique<Files>(folder, length, way == "files" ? 1 : 2);
#ifdef WITH_MLBS
	else if (way == "records")
		store = std::make_unique<Records>(folder, length,
						  count == 9 ? std::strtoull(word[8], nullptr, 10) : FOREBAY_RECORDS_AUTO);
#endif
	std::unique_ptr<Kernel> kernel;
	if (name == "dense")
		kernel = std::make_unique<Dense>(std::strtol(word[7], nullptr, 10));
	else if (name == "wave")
		kernel = std::make_unique<Wave>(edge);
	if (!store || !kernel || ratio == 0) {
		std::fprintf(stderr, "adjoint: no such way, kernel or ratio\n");
		return 2;
	}
	Times times;
	Clock::time_point since = Clock::now();
	double image = simulate(*store, *kernel, steps, ratio, times);
	Clock::duration wall = Clock::now() - since;
	if (!std::isfinite(image)) {
		std::fprintf(stderr, "adjoint: the image is no number\n");
		return 1;
	}
	auto end = std::chrono::system_clock::now().time_since_epoch();
	std::printf("%lld,%lld,%lld,%lld,%lld,%lld\n", (long long)us(times.write.sum()),
		    (long long)us(times.read.sum()),
		    (long long)std::chrono::duration_cast<std::chrono::microseconds>(end).count(),
		    (long long)us(times.kernel.sum()), (long long)us(wall),
		    (long long)us(times.write.median() + times.read.median()));
	return 0;
}
