/*
 * The operations: each does one call, or a few that belong together, and says what came of it.
 */

static char *buffer, *cliff;
/* The end of 16 readable pages, with none behind it. */
static const size_t CLIFF = 16 * PAGE;

static void make_buffers(void)
{
	int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	buffer = mmap(0, BUFFER_BYTES + PAGE, prot, flags, -1, 0);
	cliff = mmap(0, CLIFF + PAGE, prot, flags, -1, 0);
	if (buffer == MAP_FAILED || cliff == MAP_FAILED || mprotect(cliff + CLIFF, PAGE, PROT_NONE))
		_exit(2);
}

/* The words of the line that is executed. */
static __thread struct line *now;

static const char *text(int word)
{
	return word < now->words ? now->word[word] : "";
}

static long value(int word)
{
	return word < now->words ? number(now->word[word]) : 0;
}

static struct slot *slot(int word)
{
	return &S->processes[process].slots[(unsigned)value(word) % SLOTS];
}

static int fd_of(int word)
{
	return slot(word)->fd;
}

/* Puts a new descriptor into a slot; what was there is closed. */
static void keep(struct slot *slot, int fd)
{
	gave_descriptor(fd);
	if (fd < 0)
		return;
	if (slot->fd >= 0 && slot->fd != fd && close(slot->fd) != 0)
		say(" (close %s)", strerrorname_np(errno));
	slot->fd = fd;
}

static size_t bytes_of(int word)
{
	long bytes = value(word);
	return bytes < 0 ? 0 : bytes > BUFFER_BYTES ? BUFFER_BYTES : bytes;
}

/* O_DIRECT wants aligned transfers; relaxing that is a liberty Forebay takes. */
static int is_direct(int fd)
{
	int flags = S->direct ? fcntl(fd, F_GETFL) : 0;
	return flags != -1 && flags & O_DIRECT;
}

static long aligned(int direct, long number)
{
	return direct && number > 0 ? number & -PAGE : number;
}

static int split(struct iovec *pieces, char *at, size_t bytes, int count)
{
	count = count < 1 ? 1 : count > 16 ? 16 : count;
	for (int n = 0; n < count; n++) {
		size_t part = n == count - 1 ? bytes : bytes / (count - n) & (n % 3 == 1 ? ~0UL : -PAGE);
		pieces[n] = (struct iovec){ at, part };
		at += part;
		bytes -= part;
	}
	return count;
}

enum how { PLAIN, POSITION, VECTOR, VECTOR_POSITION, VECTOR_FLAGS };

/* read SLOT BYTES, pread SLOT BYTES OFFSET, readv SLOT BYTES COUNT, preadv SLOT BYTES OFFSET COUNT,
 * preadv2 SLOT BYTES OFFSET COUNT FLAGS; and writes, with the content's seed before all that. */
static void transfer(int writes, enum how how)
{
	int first = writes ? 4 : 3;
	struct slot *s = slot(2);
	int direct = is_direct(s->fd);
	size_t bytes = aligned(direct, bytes_of(first));
	long offset = aligned(direct, how == PLAIN || how == VECTOR ? 0 : value(first + 1));
	/* Odd addresses now and then. */
	char *at = buffer + (direct ? 0 : bytes % 7);
	struct iovec pieces[16];
	int count = split(pieces, at, bytes, how == VECTOR ? value(first + 1) : value(first + 2));
	if (direct)
		/* An implicit offset may be anywhere. */
		how = how == PLAIN ? POSITION : how == VECTOR ? VECTOR_POSITION : how;
	if (writes)
		fill(at, bytes, value(3));
	else
		memset(at, 0xa5, bytes + 64);
	long done = -1;
	switch (how) {
	case PLAIN:
		done = writes ? write(s->fd, at, bytes) : read(s->fd, at, bytes);
		break;
	case POSITION:
		done = writes ? pwrite(s->fd, at, bytes, offset) : pread(s->fd, at, bytes, offset);
		break;
	case VECTOR:
		done = writes ? writev(s->fd, pieces, count) : readv(s->fd, pieces, count);
		break;
	case VECTOR_POSITION:
		done = writes ? pwritev(s->fd, pieces, count, offset) : preadv(s->fd, pieces, count, offset);
		break;
	case VECTOR_FLAGS:
		done = writes ? pwritev2(s->fd, pieces, count, offset, value(first + 3))
			      : preadv2(s->fd, pieces, count, offset, value(first + 3));
	}
	if (writes) {
		gave(done);
		return;
	}
	pieces_summed(done, at);
	for (size_t n = 0; n < 64; n++)
		if (at[bytes + n] != (char)0xa5) {
			say(" OVERRUN");
			break;
		}
}

/* badread/badwrite SLOT KIND BYTES OFFSET: buffers that are not there, or not wholly. */
static void bad_buffer(int writes)
{
	long kind = value(3), offset = value(5);
	size_t bytes = bytes_of(4);
	char *at = kind == 0 ? 0 : kind == 1 ? cliff + CLIFF : kind == 2 ? (char *)(1L << 62) : 0;
	struct iovec pieces[2] = { { buffer, 0 }, { at, bytes } };
	struct stat stat;
	memset(buffer, 7, PAGE);
	long done, where = kind >= 3 && kind <= 5 ? lseek(fd_of(2), 0, SEEK_CUR) : offset;
	if (is_direct(fd_of(2))) {
		say(" direct");
		return;
	}
	if (writes && fstat(fd_of(2), &stat) == 0 && where + (long)bytes > stat.st_size) {
		/* The kernel lets such a write extend the file or allocate blocks, though it fails. */
		say(" beyond");
		return;
	}
	if (kind < 3)
		done = writes ? pwrite(fd_of(2), at, bytes, offset) : pread(fd_of(2), at, bytes, offset);
	else if (kind == 3)
		done = writes ? writev(fd_of(2), pieces, 2) : readv(fd_of(2), pieces, 2);
	else if (kind == 4)
		done = writes ? writev(fd_of(2), 0, 2) : readv(fd_of(2), 0, 2);
	else if (kind == 5)
		done = writes ? writev(fd_of(2), pieces, -1) : readv(fd_of(2), pieces, 2000);
	else {
		/* The second piece begins in the last readable page, and ends behind it. */
		size_t part = bytes < CLIFF ? bytes : CLIFF;
		fill(cliff + CLIFF - part, part, bytes);
		pieces[0] = (struct iovec){ cliff + CLIFF - part, part + 1000 };
		done = writes ? pwritev(fd_of(2), pieces, 1, offset) : preadv(fd_of(2), pieces, 1, offset);
	}
	gave(done);
}

static void facts(const struct stat *stat)
{
	long seconds = stat->st_mtim.tv_sec;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	say(" mode %o nlink %d", stat->st_mode, S_ISDIR(stat->st_mode) ? 0 : (int)stat->st_nlink);
	if (!S_ISREG(stat->st_mode))
		return;
	say(" size %lld blocks %s mtime ", (long long)stat->st_size, stat->st_blocks ? "some" : "none");
	if (seconds >= S->start.tv_sec - 1 && seconds <= now.tv_sec + 1)
		say("now");
	else
		say("%ld.%09ld", seconds, stat->st_mtim.tv_nsec);
}

static void stated(int result, const struct stat *stat)
{
	gave(result);
	if (result == 0)
		facts(stat);
}

static void statx_facts(int folder, const char *path, int flags)
{
	struct statx got;
	struct stat stat = { 0 };
	int result = statx(folder, path, flags, STATX_BASIC_STATS, &got);
	stat.st_mode = got.stx_mode;
	stat.st_nlink = got.stx_nlink;
	stat.st_size = got.stx_size;
	stat.st_blocks = got.stx_blocks;
	stat.st_mtim = (struct timespec){ got.stx_mtime.tv_sec, got.stx_mtime.tv_nsec };
	stated(result, &stat);
}

/* Times in words N and N+1: seconds, and nanoseconds or NOW or OMIT. */
static struct timespec *times(int word)
{
	static struct timespec both[2];
	both[0] = both[1] = (struct timespec){ value(word), value(word + 1) };
	return both;
}

static void opened(const char *how)
{
	struct slot *s = slot(2);
	int flags = value(4), mode = value(5);
	int fd = *how == 'c' ? creat(text(3), mode)
		 : how[4] == 'a' ? openat(AT_FDCWD, text(3), flags, mode)
				 : open(text(3), flags, mode);
	S->direct |= flags & O_DIRECT;
	keep(s, fd);
}

/* Whence DATA or HOLE, loosely: the answer must be possible, not the kernel's own. */
static void hole_or_data(int fd, long offset, int whence)
{
	struct stat stat;
	long place = lseek(fd, 0, SEEK_CUR), found = lseek(fd, offset, whence);
	int error = errno;
	if (found < 0 && error == ENXIO && whence == SEEK_DATA && fstat(fd, &stat) == 0 && offset < stat.st_size)
		found = stat.st_size;
	if (found < 0)
		say(" -1 %s", strerrorname_np(error));
	else if (fstat(fd, &stat) == 0)
		say(" %s", found >= offset && found <= stat.st_size ? "possible" : "IMPOSSIBLE");
	lseek(fd, place < 0 ? 0 : place, SEEK_SET);
}

static sigjmp_buf escape;
static volatile sig_atomic_t guarded;

/* mmap SLOT OFFSET BYTES KIND WRITES: maps, reads or writes, and unmaps. */
static void mapped(void)
{
	struct stat stat;
	long offset = value(3) & -PAGE;
	size_t bytes = bytes_of(4);
	int kind = value(5), writes = value(6), prot = PROT_READ | (writes ? PROT_WRITE : 0);
	if (fstat(fd_of(2), &stat) != 0 || !S_ISREG(stat.st_mode)) {
		say(" no file");
		return;
	}
	char *at = mmap(0, bytes, prot, kind, fd_of(2), offset);
	if (at == MAP_FAILED) {
		gave(-1);
		return;
	}
	/* Behind the last page is nothing; behind the end in the last page are zeros. */
	long there = ((stat.st_size + PAGE - 1) & -PAGE) - offset;
	size_t usable = there < 0 ? 0 : (size_t)there < bytes ? there : bytes;
	guarded = 1;
	if (sigsetjmp(escape, 1) == 0) {
		say(" sum %016llx", (unsigned long long)sum(at, usable));
		if (writes) {
			long inside = stat.st_size - offset;
			fill(at, inside < 0 ? 0 : (size_t)inside < usable ? inside : usable, value(7));
			if (kind == MAP_SHARED)
				gave(msync(at, bytes, value(7) & 1 ? MS_SYNC : MS_ASYNC));
		}
	} else {
		say(" SIGBUS");
	}
	guarded = 0;
	gave(munmap(at, bytes));
}

/* Mappings that stay: map M SLOT OFFSET BYTES; mset M AT BYTES SEED; mget M AT BYTES; unmap M. */
static struct {
	char *at;
	size_t bytes;
} mappings[4];

static void mapping(char what)
{
	unsigned m = (unsigned)value(2) % 4;
	char *at = mappings[m].at;
	if (what == 'm') {
		size_t bytes = bytes_of(5);
		if (at)
			munmap(at, mappings[m].bytes);
		mappings[m].at = 0;
		at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_of(3), value(4) & -PAGE);
		if (at == MAP_FAILED) {
			gave(-1);
			return;
		}
		mappings[m].at = at;
		mappings[m].bytes = bytes;
		return;
	}
	if (!at) {
		say(" none");
		return;
	}
	if (what == 'u') {
		gave(munmap(at, mappings[m].bytes));
		mappings[m].at = 0;
		return;
	}
	size_t from = (size_t)value(3), bytes = bytes_of(4), end = mappings[m].bytes;
	from = from < end ? from : end;
	bytes = bytes < end - from ? bytes : end - from;
	guarded = 1;
	if (sigsetjmp(escape, 1) != 0)
		say(" SIGBUS");
	else if (what == 's')
		fill(at + from, bytes, value(5));
	else
		say(" sum %016llx", (unsigned long long)sum(at + from, bytes));
	guarded = 0;
}

/* An offset variable, or none for -2. */
static off_t *offset_or_null(off_t *variable, long given)
{
	*variable = given;
	return given == -2 ? 0 : variable;
}

/* Whether a copy may be compared: O_DIRECT wants what Forebay does not, and how far a copy within
 * one file gets before it meets its own writes depends on how much is moved at once. */
static int comparable(int within)
{
	struct stat from, to;
	if (is_direct(fd_of(2)) || is_direct(fd_of(3))) {
		say(" direct");
		return 0;
	}
	if (!within && fstat(fd_of(2), &from) == 0 && fstat(fd_of(3), &to) == 0 && from.st_ino == to.st_ino) {
		say(" one file");
		return 0;
	}
	return 1;
}

/* copy FROM TO OFFSET OFFSET BYTES FLAGS */
static void copied(void)
{
	if (!comparable(1))
		return;
	off_t from, to;
	off_t *from_at = offset_or_null(&from, value(4)), *to_at = offset_or_null(&to, value(5));
	gave(copy_file_range(fd_of(2), from_at, fd_of(3), to_at, bytes_of(6), value(7)));
	say(" %ld %ld", (long)from, (long)to);
}

/* sendfile TO FROM OFFSET BYTES */
static void sent(void)
{
	if (!comparable(0))
		return;
	off_t from;
	off_t *at = offset_or_null(&from, value(4));
	gave(sendfile(fd_of(2), fd_of(3), at, bytes_of(5)));
	say(" %ld", (long)from);
}

/* splice FROM TO OFFSET OFFSET BYTES: through a pipe, as many pieces as it takes. */
static void spliced(void)
{
	if (!comparable(0))
		return;
	int ends[2];
	off_t from, to;
	off_t *from_at = offset_or_null(&from, value(4)), *to_at = offset_or_null(&to, value(5));
	size_t left = bytes_of(6);
	long in = 0, out = 0, total = 0;
	if (pipe2(ends, O_CLOEXEC) != 0) {
		gave(-1);
		return;
	}
	do {
		in = splice(fd_of(2), from_at, ends[1], 0, left, 0);
		if (in <= 0)
			break;
		for (long kept = in; kept > 0; kept -= out) {
			out = splice(ends[0], 0, fd_of(3), to_at, kept, 0);
			if (out <= 0)
				break;
			total += out;
		}
		left -= in;
	} while (left > 0 && out > 0);
	if (in < 0 || out < 0)
		gave(-1);
	/* How much a pipe took that could not be emptied depends on where its pages began. */
	say(" total %ld %ld %ld", total, out < 0 ? 0 : (long)from, (long)to);
	close(ends[0]);
	close(ends[1]);
}

static int owner_of(pid_t pid)
{
	for (int p = 0; p < ACTORS; p++)
		if (S->processes[p].pid == pid)
			return p;
	return pid;
}

/* lock SLOT TYPE START BYTES, olock (of the description), getlk */
static void locked(int command)
{
	struct flock lock = { .l_type = value(3), .l_start = value(4), .l_len = value(5) };
	S->locked = 1;
	int result = fcntl(fd_of(2), command, &lock);
	gave(result);
	if (result == 0 && command == F_GETLK) {
		say(" type %d", lock.l_type);
		if (lock.l_type != F_UNLCK)
			say(" %ld+%ld by %d", (long)lock.l_start, (long)lock.l_len,
			    lock.l_pid > 0 ? owner_of(lock.l_pid) : -1);
	}
}

/* The socket on which all processes pass descriptors. */
enum { SOCKETS = 600 };

static void pass_descriptor(void)
{
	char byte = 0;
	struct iovec piece = { &byte, 1 };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .header = { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof control.room };
	memcpy(CMSG_DATA(&control.header), &(int){ fd_of(2) }, sizeof(int));
	gave(sendmsg(SOCKETS, &message, MSG_DONTWAIT));
}

static void receive_descriptor(void)
{
	char byte;
	struct iovec piece = { &byte, 1 };
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof control.room };
	long got = recvmsg(SOCKETS + 1, &message, MSG_DONTWAIT | (value(3) ? MSG_CMSG_CLOEXEC : 0));
	struct cmsghdr *header = got == 1 ? CMSG_FIRSTHDR(&message) : 0;
	if (!header) {
		gave(got);
		return;
	}
	int fd;
	memcpy(&fd, CMSG_DATA(header), sizeof fd);
	keep(slot(2), fd);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void listed(const char *path)
{
	char *names[64];
	int count = 0;
	DIR *folder = opendir(path);
	if (!folder) {
		gave(-1);
		return;
	}
	for (struct dirent *entry; count < 64 && (entry = readdir(folder));)
		names[count++] = strdup(entry->d_name);
	closedir(folder);
	qsort(names, count, sizeof *names, by_name);
	for (int n = 0; n < count; n++) {
		say(" %s", names[n]);
		free(names[n]);
	}
}

/* The whole file through a descriptor of its own, as another process would read it. */
static void checked(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat stat;
	gave_descriptor(fd);
	if (fd < 0)
		return;
	if (fstat(fd, &stat) == 0)
		facts(&stat);
	uint64_t all = 0;
	long got, total = 0;
	while ((got = read(fd, buffer, 300000)) > 0) {
		all = all * 31 + sum(buffer, got);
		total += got;
	}
	say(" read %ld sum %016llx", total, (unsigned long long)all);
	if (got < 0)
		gave(-1);
	close(fd);
}

static void link_descriptor(void)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd_of(2));
	gave(linkat(AT_FDCWD, path, AT_FDCWD, text(3), AT_SYMLINK_FOLLOW));
}

static void made_temporary(void)
{
	char name[] = "tmpXXXXXX";
	int fd = value(3) ? mkostemp(name, O_APPEND | O_CLOEXEC) : mkstemp(name);
	if (fd >= 0)
		unlink(name);
	keep(slot(2), fd);
}

/* dup2 and dup3 replace what the slot has; an empty one gets a number of its own. */
static int target(int word)
{
	struct slot *s = slot(word);
	return s->fd >= 0 ? s->fd : 100 + (int)(s - S->processes[process].slots);
}

static void duplicated(int which)
{
	struct slot *from = slot(2), *to = slot(3);
	int fd = which == 2 ? dup2(from->fd, target(3)) : dup3(from->fd, target(3), value(4));
	gave_descriptor(fd);
	if (fd >= 0)
		to->fd = fd;
}
