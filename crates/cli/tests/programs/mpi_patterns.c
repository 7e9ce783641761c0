/*
 * What parallel programs do to files, by MPI ranks of several nodes: mpi_patterns strict|commit|open PATTERN...
 * Each pattern writes files of its own in the working directory, lets other ranks read and overwrite them, and
 * compares every byte; the command AT_END, if there is one, is run by each rank then. "strict": what was written is seen by all at once. "commit": a writer syncs,
 * and then a reader does. "open": a writer syncs and closes, and a reader opens after that. Rank 0 prints "NAME ok" for each pattern; the first wrong byte ends all ranks.
 * What is left depends on the pattern and the number of ranks alone, but for the order of records in
 * files named *.anyorder (of RECORD bytes).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD 3001

static int me, ranks, is_strict, is_commit;
static const char *pattern = "start";
static char host[256];

static void fail(const char *format, ...)
{
	va_list arguments;
	int number = errno;
	va_start(arguments, format);
	fprintf(stderr, "WRONG %s, rank %d on %s: ", pattern, me, host);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, " (%s)\n", number ? strerror(number) : "no error");
	fflush(stderr);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

static void need(int code, const char *what)
{
	char text[MPI_MAX_ERROR_STRING];
	int length;
	if (code == MPI_SUCCESS)
		return;
	MPI_Error_string(code, text, &length);
	errno = 0;
	fail("%s: %s", what, text);
}

static void barrier(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
}

static int next_rank(int steps)
{
	return (me + steps) % ranks;
}

static unsigned char byte_at(uint64_t offset, unsigned seed)
{
	uint64_t word = (offset / 8 + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)seed * 0xbf58476d1ce4e5b9u;
	word ^= word >> 29;
	word *= 0x94d049bb133111ebu;
	return (unsigned char)(word >> (8 * (offset % 8)) | 1);
}

static void fill(unsigned char *to, uint64_t offset, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		to[i] = byte_at(offset + i, seed);
}

static void compare(const char *name, const unsigned char *seen, uint64_t offset, size_t bytes, unsigned seed)
{
	size_t wrong = 0, first = 0, zeros = 0, older = 0;
	for (size_t i = 0; i < bytes; i++) {
		if (seen[i] == byte_at(offset + i, seed))
			continue;
		if (!wrong++)
			first = i;
		zeros += !seen[i];
		older += seed && seen[i] == byte_at(offset + i, seed - 1);
	}
	if (!wrong)
		return;
	errno = 0;
	fail("%s: %zu of %zu bytes at %llu are wrong (%zu are zero, %zu from before), the first at %llu: %02x, not %02x", name,
	     wrong, bytes, (unsigned long long)offset, zeros, older, (unsigned long long)(offset + first), seen[first],
	     byte_at(offset + first, seed));
}

static void *room(size_t bytes)
{
	void *memory = malloc(bytes);
	if (!memory)
		fail("%zu bytes of memory", bytes);
	return memory;
}

static int opened(const char *name, int flags)
{
	int fd = open(name, flags, 0644);
	if (fd < 0)
		fail("open of %s", name);
	return fd;
}

static void put(int fd, const char *name, uint64_t offset, size_t bytes, unsigned seed)
{
	unsigned char *buffer = room(bytes);
	fill(buffer, offset, bytes, seed);
	if (pwrite(fd, buffer, bytes, offset) != (ssize_t)bytes)
		fail("%s: write of %zu at %llu", name, bytes, (unsigned long long)offset);
	free(buffer);
}

static void look(int fd, const char *name, uint64_t offset, size_t bytes, unsigned seed)
{
	unsigned char *buffer = room(bytes);
	ssize_t got = pread(fd, buffer, bytes, offset);
	if (got != (ssize_t)bytes)
		fail("%s: read of %zu at %llu gave %zd", name, bytes, (unsigned long long)offset, got);
	compare(name, buffer, offset, bytes, seed);
	free(buffer);
}

/* All ranks have written, and all see that afterwards. */
static int turn(int fd, const char *name)
{
	if (is_strict) {
		barrier();
		return fd;
	}
	if (is_commit) {
		if (fsync(fd))
			fail("%s: sync", name);
		barrier();
		if (fsync(fd))
			fail("%s: sync before reading", name);
		return fd;
	}
	if (fsync(fd) || close(fd))
		fail("%s: sync and close", name);
	barrier();
	return opened(name, O_RDWR);
}

/* --- POSIX: `count` blocks of `bytes` for each rank, one after the other, in turns, or each in a file of its own. */

enum layout { OWN, SEGMENTED, STRIDED };

static uint64_t place(enum layout layout, int owner, int number, int count, size_t bytes)
{
	switch (layout) {
	case OWN:
		return (uint64_t)number * bytes;
	case SEGMENTED:
		return ((uint64_t)owner * count + number) * bytes;
	default:
		return ((uint64_t)number * ranks + owner) * bytes;
	}
}

static void posix(enum layout layout, int count, size_t bytes)
{
	char name[64], other[64];
	int neighbour = next_rank(1), files = layout == OWN ? ranks : 1;
	snprintf(name, sizeof name, layout == OWN ? "%s.%d" : "%s", pattern, me);
	snprintf(other, sizeof other, layout == OWN ? "%s.%d" : "%s", pattern, neighbour);
	int fd = opened(name, O_RDWR | O_CREAT);
	for (int i = 0; i < count; i++)
		put(fd, name, place(layout, me, i, count, bytes), bytes, 1);
	fd = turn(fd, name);
	int there = layout == OWN ? opened(other, O_RDWR) : fd;
	for (int i = 0; i < count; i++)
		look(there, other, place(layout, neighbour, i, count, bytes), bytes, 1);
	barrier();
	/* Another node takes over. */
	for (int i = count; i-- > 0;)
		put(there, other, place(layout, neighbour, i, count, bytes), bytes, 2);
	there = turn(there, other);
	if (layout == OWN)
		close(there);
	else
		fd = there;
	for (int file = 0; file < files; file++) {
		snprintf(name, sizeof name, layout == OWN ? "%s.%d" : "%s", pattern, file);
		uint64_t size = (uint64_t)bytes * count * (layout == OWN ? 1 : ranks);
		int one = opened(name, O_RDONLY);
		struct stat found;
		if (fstat(one, &found) || (uint64_t)found.st_size != size)
			fail("%s has %llu bytes, not %llu", name, (unsigned long long)found.st_size, (unsigned long long)size);
		for (uint64_t at = 0; at < size; at += 1 << 20)
			look(one, name, at, size - at < 1 << 20 ? size - at : 1 << 20, 2);
		close(one);
	}
	close(fd);
	barrier();
}

/* Compares records of RECORD bytes that ranks have added in any order: each whole, and each once. */
static void added(const char *name, int each)
{
	size_t bytes = (size_t)each * ranks * RECORD;
	unsigned char *all = room(bytes), *seen = calloc(ranks, each);
	int fd = opened(name, O_RDONLY);
	struct stat found;
	ssize_t got = pread(fd, all, bytes, 0);
	if (fstat(fd, &found) || (size_t)found.st_size != bytes || got != (ssize_t)bytes)
		fail("%s has %lld bytes, not %zu, and a read gave %zd", name, (long long)found.st_size, bytes, got);
	errno = 0;
	for (size_t i = 0; i < bytes / RECORD; i++) {
		unsigned char *record = all + i * RECORD;
		uint32_t id;
		memcpy(&id, record, sizeof id);
		if (id >= (uint32_t)(each * ranks))
			fail("%s: record %zu is not one: %08x", name, i, id);
		if (seen[id]++)
			fail("%s: record %zu of rank %u is there twice", name, i, id / each);
		for (size_t j = sizeof id; j < RECORD; j++)
			if (record[j] != byte_at(j, id))
				fail("%s: record %zu (of rank %u), byte %zu is %02x, not %02x", name, i, id / each, j, record[j],
				     byte_at(j, id));
	}
	close(fd);
	free(all);
	free(seen);
}

static void record(unsigned char *to, uint32_t id)
{
	fill(to, 0, RECORD, id);
	memcpy(to, &id, sizeof id);
}

static void posix_append(void)
{
	const int each = 60;
	const char *name = "posix_append.anyorder";
	unsigned char one[RECORD];
	int fd = opened(name, O_WRONLY | O_CREAT | O_APPEND);
	barrier();
	for (int i = 0; i < each; i++) {
		record(one, me * each + i);
		if (write(fd, one, RECORD) != RECORD)
			fail("append to %s", name);
	}
	barrier();
	added(name, each);
	close(fd);
	barrier();
}

/* Rank 0 writes on while its files are renamed and removed by others, on other nodes. */
static void posix_rename(void)
{
	const int pieces = 24;
	const size_t bytes = 100001;
	int moved = -1, removed = -1;
	if (me == 0) {
		moved = opened("rename_from", O_RDWR | O_CREAT);
		removed = opened("removed", O_RDWR | O_CREAT);
	}
	barrier();
	for (int i = 0; i < pieces; i++) {
		if (me == 0) {
			put(moved, "rename_from", i * bytes, bytes, 1);
			put(removed, "removed", i * bytes, bytes, 1);
		}
		if (i == pieces / 2 && me == 1 && rename("rename_from", "rename_to"))
			fail("rename");
		if (i == pieces / 2 && me == ranks - 1 && unlink("removed"))
			fail("unlink");
		if (i % 4 == 0)
			barrier();
	}
	barrier();
	if (me == 0) {
		look(removed, "removed", 0, pieces * bytes, 1);
		close(removed);
	}
	if (access("removed", F_OK) == 0 || access("rename_from", F_OK) == 0)
		fail("a name that was removed is there");
	errno = 0;
	int fd = opened("rename_to", O_RDONLY);
	look(fd, "rename_to", 0, pieces * bytes, 1);
	close(fd);
	barrier();
	if (me == 0)
		close(moved);
	/* A new file under an old name is another file. */
	if (me == next_rank(0) && me == ranks - 1) {
		fd = opened("rename_from", O_RDWR | O_CREAT | O_EXCL);
		put(fd, "rename_from", 0, 5000, 3);
		close(fd);
	}
	barrier();
	fd = opened("rename_from", O_RDONLY);
	look(fd, "rename_from", 0, 5000, 3);
	close(fd);
	barrier();
}

/* One file that is made anew by one rank after the other, shorter and longer. */
static void posix_replaced(void)
{
	for (int round = 0; round < 3 * ranks; round++) {
		size_t bytes = 300000 + (round % 3) * 77777 - round * 1000;
		if (me == round % ranks) {
			int fd = opened("posix_replaced", O_RDWR | O_CREAT | O_TRUNC);
			put(fd, "posix_replaced", 0, bytes, round);
			if (!is_strict && fsync(fd))
				fail("sync");
			close(fd);
		}
		barrier();
		int fd = opened("posix_replaced", O_RDONLY);
		struct stat found;
		if (fstat(fd, &found) || (size_t)found.st_size != bytes)
			fail("round %d: %lld bytes, not %zu", round, (long long)found.st_size, bytes);
		look(fd, "posix_replaced", 0, bytes, round);
		close(fd);
		barrier();
	}
}

/* --- MPI-IO. */

struct hints {
	const char *cb, *ds;
};

static MPI_File file_of(MPI_Comm comm, const char *name, int mode, struct hints hints)
{
	MPI_Info info;
	MPI_File file;
	MPI_Info_create(&info);
	if (hints.cb) {
		MPI_Info_set(info, "romio_cb_write", hints.cb);
		MPI_Info_set(info, "romio_cb_read", hints.cb);
	}
	if (hints.ds) {
		MPI_Info_set(info, "romio_ds_write", hints.ds);
		MPI_Info_set(info, "romio_ds_read", hints.ds);
	}
	need(MPI_File_open(comm, name, mode, info, &file), "MPI_File_open");
	MPI_Info_free(&info);
	return file;
}

static MPI_File mpi_turn(MPI_File file, MPI_Comm comm, const char *name, struct hints hints)
{
	if (is_strict) {
		barrier();
		return file;
	}
	need(MPI_File_sync(file), "MPI_File_sync");
	if (is_commit) {
		barrier();
		need(MPI_File_sync(file), "MPI_File_sync before reading");
		return file;
	}
	need(MPI_File_close(&file), "MPI_File_close");
	barrier();
	return file_of(comm, name, MPI_MODE_RDWR, hints);
}

/* `count` blocks of each rank, in turns, by a view of the file and one call; or by a call for each, at its offset. */
static void mpi_strided(int count, size_t bytes, int has_view, int is_collective, struct hints hints)
{
	const char *name = pattern;
	unsigned char *buffer = room(count * bytes);
	MPI_Datatype blocks, type;
	MPI_Type_vector(count, bytes, bytes * ranks, MPI_BYTE, &blocks);
	MPI_Type_create_resized(blocks, 0, (MPI_Aint)bytes * ranks * count, &type);
	MPI_Type_commit(&type);
	MPI_File file = file_of(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, hints);
	for (int round = 0; round < 2; round++) {
		for (int is_reading = 0; is_reading < 2; is_reading++) {
			int owner = next_rank(round + is_reading);
			if (has_view)
				need(MPI_File_set_view(file, (MPI_Offset)owner * bytes, MPI_BYTE, type, "native", MPI_INFO_NULL), "view");
			for (int i = 0; i < count && !is_reading; i++)
				fill(buffer + i * bytes, place(STRIDED, owner, i, count, bytes), bytes, round + 1);
			if (has_view) {
				int (*call)(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *) = MPI_File_read_at;
				if (is_reading && is_collective)
					call = MPI_File_read_at_all;
				MPI_Status status;
				int got;
				if (is_reading)
					need(call(file, 0, buffer, count * bytes, MPI_BYTE, &status), "read");
				else if (is_collective)
					need(MPI_File_write_at_all(file, 0, buffer, count * bytes, MPI_BYTE, &status), "write all");
				else
					need(MPI_File_write_at(file, 0, buffer, count * bytes, MPI_BYTE, &status), "write");
				MPI_Get_count(&status, MPI_BYTE, &got);
				if ((size_t)got != count * bytes)
					fail("%d of %zu bytes", got, count * bytes);
			}
			for (int i = 0; i < count && !has_view; i++) {
				MPI_Offset at = place(STRIDED, owner, i, count, bytes);
				if (is_reading)
					need(MPI_File_read_at(file, at, buffer + i * bytes, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "read");
				else
					need(MPI_File_write_at(file, at, buffer + i * bytes, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write");
			}
			for (int i = 0; i < count && is_reading; i++)
				compare(name, buffer + i * bytes, place(STRIDED, owner, i, count, bytes), bytes, round + 1);
			file = mpi_turn(file, MPI_COMM_WORLD, name, hints);
		}
	}
	MPI_Offset size;
	need(MPI_File_get_size(file, &size), "size");
	if ((uint64_t)size != (uint64_t)ranks * count * bytes)
		fail("%lld bytes", (long long)size);
	need(MPI_File_close(&file), "MPI_File_close");
	MPI_Type_free(&type);
	MPI_Type_free(&blocks);
	free(buffer);
	barrier();
}

static void mpi_own(void)
{
	char name[64];
	const size_t bytes = 1500001;
	const struct hints none = { 0 };
	unsigned char *buffer = room(bytes);
	snprintf(name, sizeof name, "%s.%d", pattern, me);
	MPI_File file = file_of(MPI_COMM_SELF, name, MPI_MODE_RDWR | MPI_MODE_CREATE, none);
	fill(buffer, 0, bytes, 1);
	need(MPI_File_write(file, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write");
	file = mpi_turn(file, MPI_COMM_SELF, name, none);
	snprintf(name, sizeof name, "%s.%d", pattern, next_rank(1));
	MPI_File other = file_of(MPI_COMM_SELF, name, MPI_MODE_RDONLY, none);
	memset(buffer, 0, bytes);
	need(MPI_File_read(other, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "read");
	compare(name, buffer, 0, bytes, 1);
	need(MPI_File_close(&other), "MPI_File_close");
	need(MPI_File_close(&file), "MPI_File_close");
	free(buffer);
	barrier();
}

/* Segments that begin anywhere, by a collective call; then overlapping halves read by all. */
static void mpi_segmented(void)
{
	const size_t bytes = 1048576 + 1234;
	const struct hints none = { 0 };
	unsigned char *buffer = room(bytes);
	MPI_File file = file_of(MPI_COMM_WORLD, pattern, MPI_MODE_RDWR | MPI_MODE_CREATE, none);
	fill(buffer, me * bytes, bytes, 1);
	need(MPI_File_write_at_all(file, me * bytes, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write all");
	file = mpi_turn(file, MPI_COMM_WORLD, pattern, none);
	for (int step = 1; step <= ranks; step++) {
		uint64_t at = next_rank(step) * bytes;
		need(MPI_File_read_at_all(file, at, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "read all");
		compare(pattern, buffer, at, bytes, 1);
	}
	need(MPI_File_close(&file), "MPI_File_close");
	free(buffer);
	barrier();
}

/* All ranks write the same bytes at once, and read them: each read finds what one write left, in atomic mode. */
static void mpi_atomic(void)
{
	const int rounds = 12;
	const size_t bytes = 60000;
	const struct hints none = { 0 };
	unsigned char *buffer = room(bytes);
	MPI_File file = file_of(MPI_COMM_WORLD, pattern, MPI_MODE_RDWR | MPI_MODE_CREATE, none);
	need(MPI_File_set_atomicity(file, 1), "atomicity");
	barrier();
	for (int round = 0; round < rounds; round++) {
		memset(buffer, 1 + me + round * ranks, bytes);
		need(MPI_File_write_at(file, 1000, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write");
		need(MPI_File_read_at(file, 1000, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "read");
		errno = 0;
		for (size_t i = 0; i < bytes; i++)
			if (buffer[i] != buffer[0])
				fail("round %d: byte %zu is of write %d, byte 0 of write %d", round, i, buffer[i] - 1, buffer[0] - 1);
		if ((buffer[0] - 1) % ranks == me && buffer[0] - 1 != me + round * ranks)
			fail("round %d: it is as this rank has written in round %d", round, (buffer[0] - 1) / ranks);
	}
	barrier();
	/* What is left is the same each time. */
	if (me == 0) {
		memset(buffer, 7, bytes);
		need(MPI_File_write_at(file, 1000, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "write");
	}
	barrier();
	need(MPI_File_read_at(file, 1000, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE), "read");
	for (size_t i = 0; i < bytes; i++)
		if (buffer[i] != 7)
			fail("byte %zu of the last write is %d", i, buffer[i]);
	need(MPI_File_close(&file), "MPI_File_close");
	free(buffer);
	barrier();
}

static void mpi_shared(void)
{
	const int each = 24;
	const char *name = "mpi_shared.anyorder";
	unsigned char one[RECORD];
	const struct hints none = { 0 };
	MPI_File file = file_of(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, none);
	for (int i = 0; i < each; i++) {
		record(one, me * each + i);
		need(MPI_File_write_shared(file, one, RECORD, MPI_BYTE, MPI_STATUS_IGNORE), "write shared");
	}
	barrier();
	added(name, each);
	need(MPI_File_close(&file), "MPI_File_close");
	barrier();
}

static void mpi_ordered(void)
{
	const int rounds = 4, bytes = 20011;
	const struct hints none = { 0 };
	int mine = bytes + me, all = 0, before = 0;
	for (int rank = 0; rank < ranks; rank++)
		all += bytes + rank;
	for (int rank = 0; rank < me; rank++)
		before += bytes + rank;
	unsigned char *buffer = room(mine);
	MPI_File file = file_of(MPI_COMM_WORLD, pattern, MPI_MODE_RDWR | MPI_MODE_CREATE, none);
	for (int round = 0; round < rounds; round++) {
		fill(buffer, round * all + before, mine, 1);
		need(MPI_File_write_ordered(file, buffer, mine, MPI_BYTE, MPI_STATUS_IGNORE), "write ordered");
	}
	need(MPI_File_seek_shared(file, 0, MPI_SEEK_SET), "seek shared");
	for (int round = 0; round < rounds; round++) {
		need(MPI_File_read_ordered(file, buffer, mine, MPI_BYTE, MPI_STATUS_IGNORE), "read ordered");
		compare(pattern, buffer, round * all + before, mine, 1);
	}
	MPI_Offset size;
	need(MPI_File_get_size(file, &size), "size");
	if (size != (MPI_Offset)rounds * all)
		fail("%lld bytes", (long long)size);
	need(MPI_File_close(&file), "MPI_File_close");
	free(buffer);
	barrier();
}

/* --- */

int main(int count, char **words)
{
	if (count < 3 || (strcmp(words[1], "strict") && strcmp(words[1], "commit") && strcmp(words[1], "open"))) {
		fprintf(stderr, "usage: mpi_patterns strict|commit|open PATTERN...\n");
		return 2;
	}
	is_strict = !strcmp(words[1], "strict");
	is_commit = !strcmp(words[1], "commit");
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	gethostname(host, sizeof host);
	/* Neighbours are on different nodes. */
	char there[sizeof host] = "";
	MPI_Sendrecv(host, sizeof host, MPI_CHAR, next_rank(1), 0, there, sizeof there, MPI_CHAR, next_rank(ranks - 1), 0,
		     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (!strcmp(host, there))
		fail("rank %d is on the same node", next_rank(ranks - 1));
	for (int i = 2; i < count; i++) {
		double since = MPI_Wtime();
		pattern = words[i];
#define IS(name) !strcmp(pattern, name)
		if (IS("posix_own"))
			posix(OWN, 23, 65536 + 17);
		else if (IS("posix_segmented"))
			posix(SEGMENTED, 7, 150000);
		else if (IS("posix_strided"))
			posix(STRIDED, 2, 1 << 20);
		else if (IS("posix_records"))
			posix(STRIDED, 24, 47008);
		else if (IS("posix_append"))
			posix_append();
		else if (IS("posix_rename"))
			posix_rename();
		else if (IS("posix_replaced"))
			posix_replaced();
		else if (IS("mpi_own"))
			mpi_own();
		else if (IS("mpi_segmented"))
			mpi_segmented();
		else if (IS("mpi_strided"))
			mpi_strided(2, 1 << 20, 0, 0, (struct hints){ 0 });
		else if (IS("mpi_records"))
			mpi_strided(24, 47008, 0, 0, (struct hints){ 0 });
		else if (IS("mpi_view"))
			mpi_strided(40, 9999, 1, 0, (struct hints){ "disable", "disable" });
		else if (IS("mpi_sieving"))
			mpi_strided(60, 1001, 1, 0, (struct hints){ "disable", "enable" });
		else if (IS("mpi_collective"))
			mpi_strided(60, 5003, 1, 1, (struct hints){ "enable", "disable" });
		else if (IS("mpi_collective_off"))
			mpi_strided(60, 5003, 1, 1, (struct hints){ "disable", "disable" });
		else if (IS("mpi_atomic"))
			mpi_atomic();
		else if (IS("mpi_shared"))
			mpi_shared();
		else if (IS("mpi_ordered"))
			mpi_ordered();
		else
			fail("there is no such pattern");
		if (me == 0) {
			printf("%s ok %.2f s\n", pattern, MPI_Wtime() - since);
			fflush(stdout);
		}
	}
	const char *last = getenv("AT_END");
	if (last && system(last))
		fail("%s", last);
	if (me == 0)
		printf("all ok with %d ranks\n", ranks);
	MPI_Finalize();
	return 0;
}
