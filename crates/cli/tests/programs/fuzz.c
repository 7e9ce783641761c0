/*
 * Executes a script of file operations by several processes and threads: fuzz SCRIPT STATE
 *
 * One operation at a time, each by the actor that its line names, in the order of the lines. What
 * came of each is written to the log in STATE, and must be the same wherever the script runs.
 * crates/cli/tests/torture/fuzz.rs makes such scripts, and runs each plainly and under Forebay.
 */
#include "fuzz/machine.h"
#include "fuzz/calls.h"
#include "fuzz/streams.h"
#include "fuzz/races.h"

static void act(int actor);

/* The number of a process that is not used, for a new one. */
static int new_process(void)
{
	for (int p = 0; p < ACTORS; p++)
		if (S->processes[p].pid == 0)
			return p;
	return -1;
}

static void forked(void)
{
	int actor = (unsigned)value(2) % ACTORS, number = new_process();
	if (S->actors[actor].alive || number < 0) {
		say(" busy");
		return;
	}
	S->processes[number] = S->processes[process];
	S->actors[actor].process = number;
	S->actors[actor].alive = 1;
	pid_t pid = fork();
	if (pid == 0) {
		process = number;
		act(actor);
	}
	gave(pid > 0 ? 0 : pid);
	S->processes[number].pid = pid > 0 ? pid : 0;
	S->actors[actor].alive = pid > 0;
}

static void *thread_main(void *actor)
{
	act((int)(intptr_t)actor);
	return 0;
}

static void threaded(void)
{
	int actor = (unsigned)value(2) % ACTORS;
	pthread_t thread;
	if (S->actors[actor].alive) {
		say(" busy");
		return;
	}
	S->actors[actor].process = process;
	S->actors[actor].alive = 1;
	int error = pthread_create(&thread, 0, thread_main, (void *)(intptr_t)actor);
	say(" %d", error);
	if (error == 0)
		pthread_detach(thread);
	else
		S->actors[actor].alive = 0;
}

/* All actors of a process live no longer, but for one. */
static void forget_actors(uint32_t of, int except)
{
	for (int a = 0; a < ACTORS; a++)
		if (S->actors[a].process == of && a != except)
			S->actors[a].alive = 0;
}

static void executed(void)
{
	char actor[16], number[16];
	snprintf(actor, sizeof actor, "%d", me);
	snprintf(number, sizeof number, "%d", process);
	char *words[] = { self_path, (char *)script_path, (char *)state_path, actor, number, 0 };
	forget_actors(process, me);
	execv(self_path, words);
	gave(-1);
}

static int others_live(void)
{
	for (int a = 0; a < ACTORS; a++)
		if (S->actors[a].alive && S->actors[a].process != (uint32_t)process)
			return 1;
	return 0;
}

/* The supervisor passes the turn on once the process is gone. */
static void left(void)
{
	if (!others_live()) {
		say(" last");
		return;
	}
	forget_actors(process, -1);
	S->processes[process].pid = 0;
	say("\n");
	__atomic_store_n(&S->leaving, getpid(), __ATOMIC_SEQ_CST);
	futex_wake(&S->progress);
	exit(0);
}

static void await_end(pid_t pid)
{
	int fd = syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return;
	poll(&(struct pollfd){ fd, POLLIN }, 1, -1);
	close(fd);
}

/* kill ACTOR SIGNAL: its whole process. */
static void killed(void)
{
	int actor = (unsigned)value(2) % ACTORS;
	uint32_t victim = S->actors[actor].process;
	if (!S->actors[actor].alive || victim == (uint32_t)process) {
		say(" nobody");
		return;
	}
	pid_t pid = S->processes[victim].pid;
	/* Before its end, lest its number is another's. */
	int fd = syscall(SYS_pidfd_open, pid, 0);
	gave(kill(pid, value(3)));
	poll(&(struct pollfd){ fd, POLLIN }, 1, -1);
	close(fd);
	forget_actors(victim, -1);
	S->processes[victim].pid = 0;
}

static const struct operation {
	const char *name;
	void (*run)(void);
} OPERATIONS[];

#define CALL(name, ...) static void run_##name(void) { __VA_ARGS__; }

CALL(open, opened("open"))
CALL(openat, opened("openat"))
CALL(creat, opened("creat"))
CALL(mkstemp, made_temporary())
CALL(close, struct slot *s = slot(2); gave(close(s->fd)); s->fd = -1)
CALL(closeslots, close_slots())
CALL(read, transfer(0, PLAIN))
CALL(pread, transfer(0, POSITION))
CALL(readv, transfer(0, VECTOR))
CALL(preadv, transfer(0, VECTOR_POSITION))
CALL(preadv2, transfer(0, VECTOR_FLAGS))
CALL(write, transfer(1, PLAIN))
CALL(pwrite, transfer(1, POSITION))
CALL(writev, transfer(1, VECTOR))
CALL(pwritev, transfer(1, VECTOR_POSITION))
CALL(pwritev2, transfer(1, VECTOR_FLAGS))
CALL(badread, bad_buffer(0))
CALL(badwrite, bad_buffer(1))
CALL(badpath, gave(open(value(2) ? (char *)8 : 0, O_RDONLY)); gave(stat((char *)8, (struct stat *)buffer));
	gave(truncate((char *)8, 0)); gave(rename((char *)8, "a")); gave(unlink((char *)8)))
CALL(badstat, gave(fstat(fd_of(2), (struct stat *)8)); gave(fstat(fd_of(2), 0)))
CALL(lseek, struct slot *s = slot(2); gave(lseek(s->fd, value(3), number(text(4)))))
CALL(hole, hole_or_data(fd_of(2), value(3), number(text(4))))
CALL(ftruncate, gave(ftruncate(fd_of(2), value(3))))
CALL(truncate, gave(truncate(text(2), value(3))))
CALL(fallocate, gave(fallocate(fd_of(2), value(3), value(4), value(5))))
CALL(posix_fallocate, say(" %s", strerrorname_np(posix_fallocate(fd_of(2), value(3), value(4)))))
CALL(fsync, gave(fsync(fd_of(2))))
CALL(fdatasync, gave(fdatasync(fd_of(2))))
CALL(sync_file_range, gave(sync_file_range(fd_of(2), value(3), value(4), value(5))))
CALL(syncfs, gave(syncfs(fd_of(2))))
CALL(sync, sync())
CALL(fstat, struct stat got; stated(fstat(fd_of(2), &got), &got))
CALL(stat, struct stat got; stated(stat(text(2), &got), &got))
CALL(lstat, struct stat got; stated(lstat(text(2), &got), &got))
CALL(fstatat, struct stat got; stated(fstatat(AT_FDCWD, text(2), &got, value(3)), &got))
CALL(statx, statx_facts(AT_FDCWD, text(2), value(3)))
CALL(fstatx, statx_facts(fd_of(2), "", AT_EMPTY_PATH))
CALL(futimens, gave(futimens(fd_of(2), times(3))))
CALL(utimensat, gave(utimensat(AT_FDCWD, text(2), times(3), value(5))))
CALL(utimes, struct timeval both[2] = { { value(3) }, { value(3) } }; gave(utimes(text(2), both)))
CALL(chmod, gave(chmod(text(2), value(3))))
CALL(fchmod, gave(fchmod(fd_of(2), value(3))))
CALL(rename, gave(rename(text(2), text(3))))
CALL(renameat2, gave(renameat2(AT_FDCWD, text(2), AT_FDCWD, text(3), value(4))))
CALL(unlink, gave(unlink(text(2))))
CALL(remove, gave(remove(text(2))))
CALL(link, gave(link(text(2), text(3))))
CALL(linkfd, link_descriptor())
CALL(symlink, gave(symlink(text(2), text(3))))
CALL(readlink, pieces_summed(readlink(text(2), buffer, PAGE), buffer))
CALL(mkdir, gave(mkdir(text(2), 0755)))
CALL(rmdir, gave(rmdir(text(2))))
CALL(readdir, listed(text(2)))
CALL(access, gave(access(text(2), value(3))))
CALL(check, checked(text(2)))
CALL(dup, keep(slot(3), dup(fd_of(2))))
CALL(dupfd, keep(slot(3), fcntl(fd_of(2), value(5) ? F_DUPFD_CLOEXEC : F_DUPFD, (int)value(4))))
CALL(dup2, duplicated(2))
CALL(dup3, duplicated(3))
CALL(getfl, int flags = fcntl(fd_of(2), F_GETFL); gave(flags))
CALL(setfl, gave(fcntl(fd_of(2), F_SETFL, value(3))))
CALL(getfd, gave(fcntl(fd_of(2), F_GETFD)))
CALL(setfd, gave(fcntl(fd_of(2), F_SETFD, value(3))))
CALL(mmap, mapped())
CALL(map, mapping('m'))
CALL(mset, mapping('s'))
CALL(mget, mapping('g'))
CALL(unmap, mapping('u'))
CALL(copy, copied())
CALL(sendfile, sent())
CALL(splice, spliced())
CALL(fadvise, say(" %d", posix_fadvise(fd_of(2), value(3), value(4), value(5))))
CALL(readahead, gave(readahead(fd_of(2), value(3), value(4))))
CALL(flock, gave(flock(fd_of(2), value(3))))
CALL(lock, locked(F_SETLK))
CALL(getlk, locked(F_GETLK))
CALL(olock, locked(F_OFD_SETLK))
CALL(send, pass_descriptor())
CALL(receive, receive_descriptor())
CALL(fopen, stream_opened('o'))
CALL(fdopen, stream_opened('d'))
CALL(freopen, stream_opened('r'))
CALL(fclose, stream_closed(stream_of(2)))
CALL(stream, stream_burst())
CALL(fork, forked())
CALL(thread, threaded())
CALL(exec, executed())
CALL(exit, left())
CALL(kill, killed())
CALL(race, race())
CALL(sleep, usleep(value(2) * 1000))

#undef CALL
#define CALL(name) { #name, run_##name }
static const struct operation OPERATIONS[] = {
	CALL(open), CALL(openat), CALL(creat), CALL(mkstemp), CALL(close), CALL(closeslots), CALL(read),
	CALL(pread), CALL(readv), CALL(preadv), CALL(preadv2), CALL(write), CALL(pwrite), CALL(writev),
	CALL(pwritev), CALL(pwritev2), CALL(badread), CALL(badwrite), CALL(badpath), CALL(badstat),
	CALL(lseek), CALL(hole), CALL(ftruncate), CALL(truncate), CALL(fallocate), CALL(posix_fallocate),
	CALL(fsync), CALL(fdatasync), CALL(sync_file_range), CALL(syncfs), CALL(sync), CALL(fstat),
	CALL(stat), CALL(lstat), CALL(fstatat), CALL(statx), CALL(fstatx), CALL(futimens), CALL(utimensat),
	CALL(utimes), CALL(chmod), CALL(fchmod), CALL(rename), CALL(renameat2), CALL(unlink), CALL(remove),
	CALL(link), CALL(linkfd), CALL(symlink), CALL(readlink), CALL(mkdir), CALL(rmdir), CALL(readdir),
	CALL(access), CALL(check), CALL(dup), CALL(dupfd), CALL(dup2), CALL(dup3), CALL(getfl), CALL(setfl),
	CALL(getfd), CALL(setfd), CALL(mmap), CALL(map), CALL(mset), CALL(mget), CALL(unmap), CALL(copy),
	CALL(sendfile), CALL(splice), CALL(fadvise), CALL(readahead), CALL(flock), CALL(lock), CALL(getlk),
	CALL(olock), CALL(send), CALL(receive), CALL(fopen), CALL(fdopen), CALL(freopen), CALL(fclose),
	CALL(stream), CALL(fork), CALL(thread), CALL(exec), CALL(exit), CALL(kill), CALL(race), CALL(sleep),
	{ 0 },
};

static void execute(uint32_t number)
{
	now = &script[number];
	say("%u", number);
	for (const struct operation *o = OPERATIONS; o->name; o++)
		if (strcmp(o->name, now->word[1]) == 0) {
			errno = 0;
			o->run();
			say("\n");
			return;
		}
	fprintf(stderr, "no such operation: %s\n", now->word[1]);
	_exit(2);
}

/* Executes the actor's lines, when it is their turn, to the end of the run. */
static void act(int actor)
{
	me = actor;
	for (;;) {
		uint32_t turn = load(&S->actors[me].turn), next = load(&S->next);
		if (load(&S->over))
			_exit(0);
		if (script[next].actor == me && S->actors[me].alive) {
			execute(next);
			pass();
		} else if (!S->actors[me].alive) {
			/* Its number may get a new owner, so it is not its own any more. */
			pthread_exit(0);
		} else {
			futex_wait(&S->actors[me].turn, turn, 5000);
		}
	}
}

static void fatal(int signal)
{
	if (signal == SIGBUS && guarded)
		siglongjmp(escape, 1);
	say(" DIED of signal %d\n", signal);
	finish(2);
	_exit(3);
}

static void set_signals(void)
{
	static const int FATAL[] = { SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGSYS };
	for (size_t n = 0; n < sizeof FATAL / sizeof *FATAL; n++)
		sigaction(FATAL[n], &(struct sigaction){ .sa_handler = fatal, .sa_flags = SA_NODEFER }, 0);
	signal(SIGCHLD, SIG_IGN);
	/* A write that may not go on reports an error; it does not end the process. */
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
}

/* Passes the turn on for processes that end; ends the run when nothing moves any more. */
static int supervise(void)
{
	time_t moved = time(0);
	for (uint32_t seen = 0; !load(&S->over);) {
		uint32_t progress = load(&S->progress), next = load(&S->next);
		pid_t leaving = __atomic_exchange_n(&S->leaving, 0, __ATOMIC_SEQ_CST);
		if (leaving) {
			await_end(leaving);
			pass();
			continue;
		}
		if (next != seen) {
			seen = next;
			moved = time(0);
		} else if (time(0) - moved > TIMEOUT_S) {
			say(" HANGS\n");
			finish(3);
			break;
		}
		futex_wait(&S->progress, progress, 500);
	}
	signal(SIGCHLD, SIG_DFL);
	for (int left = 100; left > 0; left--) {
		pid_t gone;
		while ((gone = waitpid(-1, 0, WNOHANG)) > 0)
			;
		if (gone < 0)
			break;
		if (S->over > 1 || left == 1)
			for (int p = 0; p < ACTORS; p++)
				if (S->processes[p].pid > 0)
					kill(S->processes[p].pid, SIGKILL);
		usleep(left > 90 ? 1000 : 50000);
	}
	char path[4096];
	snprintf(path, sizeof path, "%s.log", state_path);
	FILE *log = fopen(path, "we");
	if (!log || fwrite(S->log, 1, S->log_bytes, log) != S->log_bytes || fclose(log) != 0)
		return 2;
	return S->over == 1 ? 0 : 10 + S->over;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	script_path = argv[1];
	state_path = argv[2];
	if (readlink("/proc/self/exe", self_path, sizeof self_path - 1) < 0)
		return 2;
	map_state(argc == 3);
	load_script();
	make_buffers();
	set_signals();
	umask(022);
	if (argc > 4) {
		/* Executed by one of us. */
		process = atoi(argv[4]);
		me = atoi(argv[3]);
		say(" executed\n");
		/* Numbers of descriptors that are gone will be those of others. */
		for (int n = 0; n < SLOTS; n++)
			if (fcntl(S->processes[process].slots[n].fd, F_GETFD) < 0)
				S->processes[process].slots[n].fd = -1;
		pass();
		act(me);
	}
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) || dup2(pair[0], SOCKETS) < 0 || dup2(pair[1], SOCKETS + 1) < 0)
		return 2;
	close(pair[0]);
	close(pair[1]);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	clock_gettime(CLOCK_REALTIME, &S->start);
	for (int p = 0; p < ACTORS; p++)
		for (int s = 0; s < SLOTS; s++)
			S->processes[p].slots[s] = (struct slot){ -1 };
	/* The first process is actor 0; it makes the others. */
	S->actors[0].alive = 1;
	uint32_t first = 0;
	while (first < S->lines && script[first].actor != 0)
		first++;
	S->next = first;
	if (first == S->lines)
		return 0;
	pid_t pid = fork();
	if (pid == 0) {
		S->processes[0].pid = getpid();
		act(0);
	}
	return supervise();
}
