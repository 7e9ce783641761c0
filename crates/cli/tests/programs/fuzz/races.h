/*
 * Work of several processes and threads at the same time, whose outcome does not depend on which
 * is first: race KIND PATH PROCESSES ROUNDS SEED. An actor that finds something wrong says so.
 */

enum { THREADS = 2 };

struct racer {
	char kind;
	const char *path;
	int number, count, rounds, shared;
	uint64_t seed;
	/* What went wrong first, for all to see. */
	char *wrong;
};

static void wrong(struct racer *r, const char *format, ...)
{
	va_list list;
	char told[200];
	va_start(list, format);
	vsnprintf(told, sizeof told, format, list);
	va_end(list);
	if (!r->wrong[0])
		memcpy(r->wrong, told, sizeof told);
}

enum { HEAD = 24 };

/* A record: its writer, which, how long, and a content that follows from them. */
static size_t make_record(char *to, int who, int which, size_t bytes)
{
	char head[HEAD + 1];
	snprintf(head, sizeof head, "#%05d %07d %07zu ", who, which, bytes);
	memcpy(to, head, HEAD - 1);
	to[HEAD - 1] = ' ';
	fill(to + HEAD, bytes - HEAD, who * 1000003UL + which);
	return bytes;
}

static size_t record_bytes(struct racer *r, int who, int which)
{
	uint64_t seed = r->seed * 31 + who * 7919 + which;
	uint64_t n = mix(&seed);
	return HEAD + (n & 1 ? n >> 8 & 255 : (n >> 8) % 9000);
}

static void write_records(struct racer *r, int fd, char *room)
{
	for (int n = 0; n < r->rounds; n++) {
		size_t bytes = make_record(room, r->number, n, record_bytes(r, r->number, n));
		ssize_t done = write(fd, room, bytes);
		if (done != (ssize_t)bytes)
			wrong(r, "write of %zu gave %zd %s", bytes, done, strerror(errno));
	}
}

/* All records are whole, and those of one writer in order. */
static void check_records(struct racer *r, int fd, int in_order)
{
	struct stat stat;
	fstat(fd, &stat);
	char *all = malloc(stat.st_size + 1), *made = malloc(1 << 16);
	int *seen = calloc(r->count, sizeof *seen);
	off_t have = 0, at = 0;
	for (ssize_t got; (got = pread(fd, all + have, stat.st_size - have, have)) > 0;)
		have += got;
	if (have != stat.st_size)
		wrong(r, "read %lld of %lld", (long long)have, (long long)stat.st_size);
	long records = 0;
	while (at + HEAD <= have) {
		int who = -1, which = -1;
		size_t bytes = 0;
		if (sscanf(all + at, "#%d %d %zu", &who, &which, &bytes) != 3 || who < 0 || who >= r->count ||
		    which < 0 || which >= r->rounds || bytes != record_bytes(r, who, which) ||
		    at + (off_t)bytes > have) {
			wrong(r, "no record at %lld", (long long)at);
			break;
		}
		make_record(made, who, which, bytes);
		if (memcmp(made, all + at, bytes) != 0)
			wrong(r, "record %d of %d is torn at %lld", which, who, (long long)at);
		if (in_order && which != seen[who])
			wrong(r, "record %d of %d comes when %d was due", which, who, seen[who]);
		seen[who]++;
		at += bytes;
		records++;
	}
	if (records != (long)r->count * r->rounds)
		wrong(r, "%ld records", records);
	say(" records %ld bytes %lld", records, (long long)have);
	free(all);
	free(made);
	free(seen);
}

/* A region of its own, whose borders lie within pages that the neighbours write as well. */
static void work_in_region(struct racer *r, int fd)
{
	uint64_t seed = r->seed ^ r->number * 0x1234567;
	size_t bytes = 20000 + r->seed % 200000;
	off_t start = (off_t)r->number * bytes;
	char *mine = calloc(1, bytes), *got = malloc(bytes);
	for (int n = 0; n < r->rounds; n++) {
		size_t from = mix(&seed) % bytes, most = bytes - from;
		size_t part = mix(&seed) % (mix(&seed) & 1 ? 300 : 50000) % most + 1;
		if (mix(&seed) % 3) {
			fill(mine + from, part, mix(&seed));
			if (pwrite(fd, mine + from, part, start + from) != (ssize_t)part)
				wrong(r, "pwrite: %s", strerror(errno));
			continue;
		}
		ssize_t have = pread(fd, got, part, start + from);
		if (have < 0 || memcmp(got, mine + from, have) != 0)
			wrong(r, "actor %d reads something else at %lld+%zu", r->number,
			      (long long)(start + from), part);
	}
	/* So that the end result has every byte. */
	if (pwrite(fd, mine, bytes, start) != (ssize_t)bytes)
		wrong(r, "last pwrite: %s", strerror(errno));
	if (pread(fd, got, bytes, start) != (ssize_t)bytes || memcmp(got, mine, bytes))
		wrong(r, "last pread of actor %d", r->number);
	free(mine);
	free(got);
}

/* A counter that the holder of the lock raises. */
static void count_locked(struct racer *r, int fd)
{
	for (int n = 0; n < r->rounds; n++) {
		struct flock lock = { .l_type = F_WRLCK };
		long count = 0;
		int command = r->seed & 1 ? F_OFD_SETLKW : F_SETLKW;
		if (r->seed % 3 == 0 ? flock(fd, LOCK_EX) : fcntl(fd, command, &lock))
			wrong(r, "lock: %s", strerror(errno));
		pread(fd, &count, sizeof count, 5000);
		count++;
		if (pwrite(fd, &count, sizeof count, 5000) != sizeof count)
			wrong(r, "pwrite: %s", strerror(errno));
		lock.l_type = F_UNLCK;
		if (r->seed % 3 == 0 ? flock(fd, LOCK_UN) : fcntl(fd, command, &lock))
			wrong(r, "unlock: %s", strerror(errno));
	}
}

/* Half of the actors replace the file by renaming, the others find it whole whenever they look. */
static void replace_or_look(struct racer *r, char *room)
{
	char name[64];
	snprintf(name, sizeof name, "new-%d", r->number);
	for (int n = 0; n < r->rounds; n++) {
		if (r->number % 2 == 0) {
			int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
			size_t bytes = make_record(room, r->number, n, record_bytes(r, r->number, n));
			if (write(fd, room, bytes) != (ssize_t)bytes || close(fd) || rename(name, r->path))
				wrong(r, "replace: %s", strerror(errno));
			continue;
		}
		int fd = open(r->path, O_RDONLY | O_CLOEXEC), who, which;
		size_t bytes;
		ssize_t got = read(fd, room, 20000);
		char *made = room + 20000;
		if (got < HEAD || sscanf(room, "#%d %d %zu", &who, &which, &bytes) != 3 || (ssize_t)bytes != got ||
		    make_record(made, who, which, bytes) != bytes || memcmp(room, made, bytes) != 0)
			wrong(r, "a reader found %zd bytes: %.24s", got, got > 0 ? room : strerror(errno));
		close(fd);
	}
}

/* One cuts and grows the file, the others write their byte everywhere: no read finds another. */
static void cut_and_write(struct racer *r, int fd, char *room)
{
	uint64_t seed = r->seed ^ r->number * 99991;
	for (int n = 0; n < r->rounds; n++) {
		off_t at = mix(&seed) % 600000;
		if (r->number == 0) {
			if (ftruncate(fd, at) != 0)
				wrong(r, "ftruncate: %s", strerror(errno));
			continue;
		}
		size_t bytes = mix(&seed) % 9000 + 1;
		if (mix(&seed) & 1) {
			memset(room, 'a' + r->number, bytes);
			if (pwrite(fd, room, bytes, at) != (ssize_t)bytes)
				wrong(r, "pwrite: %s", strerror(errno));
			continue;
		}
		ssize_t got = pread(fd, room, bytes, at);
		for (ssize_t b = 0; b < got; b++)
			if (room[b] && (room[b] <= 'a' || room[b] >= 'a' + r->count)) {
				wrong(r, "byte %d at %lld", room[b], (long long)at + b);
				break;
			}
	}
}

static void *racer_run(void *given)
{
	struct racer *r = given;
	char *room = malloc(1 << 17);
	int flags = O_RDWR | O_CREAT | O_CLOEXEC | (r->kind == 'a' ? O_APPEND : 0);
	int fd = r->shared;
	if (fd < 0)
		fd = r->kind == 'r' ? -1 : open(r->path, flags, 0644);
	switch (r->kind) {
	case 'a': case 'o':
		write_records(r, fd, room);
		break;
	case 'd':
		work_in_region(r, fd);
		break;
	case 'l':
		count_locked(r, fd);
		break;
	case 'r':
		replace_or_look(r, room);
		break;
	case 't':
		cut_and_write(r, fd, room);
	}
	if (r->shared < 0 && fd >= 0 && close(fd) != 0)
		wrong(r, "close: %s", strerror(errno));
	free(room);
	return 0;
}

static void race(void)
{
	struct racer common = { .kind = text(2)[0], .path = text(3), .rounds = value(5), .seed = value(6) };
	int processes = 1 + (unsigned)value(4) % 5, flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
	/* fcntl's locks are of the process: its threads would not keep each other out. */
	int threads = common.kind == 'l' ? 1 : THREADS;
	pid_t child[5];
	common.count = processes * threads;
	common.wrong = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd = open(common.path, flags, 0644);
	if (fd < 0) {
		gave(fd);
		munmap(common.wrong, PAGE);
		return;
	}
	common.shared = common.kind == 'o' ? fd : -1;
	if (common.kind == 'r')
		write(fd, buffer, make_record(buffer, 0, 0, record_bytes(&common, 0, 0)));
	signal(SIGCHLD, SIG_DFL);
	for (int p = 0; p < processes; p++) {
		child[p] = fork();
		if (child[p] > 0)
			continue;
		if (child[p] < 0) {
			wrong(&common, "fork: %s", strerror(errno));
			continue;
		}
		struct racer racers[THREADS];
		pthread_t thread[THREADS];
		for (int t = 0; t < threads; t++) {
			racers[t] = common;
			racers[t].number = p * threads + t;
			if (t > 0)
				pthread_create(&thread[t], 0, racer_run, &racers[t]);
		}
		racer_run(&racers[0]);
		for (int t = 1; t < threads; t++)
			pthread_join(thread[t], 0);
		_exit(0);
	}
	for (int p = 0; p < processes; p++) {
		int status = -1;
		if (child[p] > 0 && (waitpid(child[p], &status, 0) != child[p] || status != 0))
			wrong(&common, "a child ended with %x", status);
	}
	signal(SIGCHLD, SIG_IGN);
	if (common.kind == 'a' || common.kind == 'o')
		check_records(&common, fd, 0 || common.kind == 'a');
	if (common.kind == 'l') {
		long count = 0;
		pread(fd, &count, sizeof count, 5000);
		say(" count %ld", count);
	}
	if (common.kind == 't' && ftruncate(fd, 0) != 0)
		wrong(&common, "ftruncate: %s", strerror(errno));
	if (close(fd) != 0)
		wrong(&common, "close: %s", strerror(errno));
	if (common.kind == 'r') {
		/* Which was last does not matter; the file does. */
		fd = open(common.path, O_RDONLY | O_CLOEXEC);
		long got = read(fd, buffer, 20000), who, which, bytes;
		close(fd);
		if (got < HEAD || sscanf(buffer, "#%ld %ld %ld", &who, &which, &bytes) != 3 || bytes != got)
			wrong(&common, "what is left is no record");
		unlink(common.path);
	} else if (common.kind != 'a' && common.kind != 'o') {
		checked(common.path);
	} else {
		unlink(common.path);
	}
	say("%s%s", common.wrong[0] ? " WRONG " : " right", common.wrong);
	munmap(common.wrong, PAGE);
}
