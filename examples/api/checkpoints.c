/*
 * checkpoints DIR: a computation that writes its state to DIR/state.N every few steps, and removes the older one once the
 * newer one is on the store, for which it waits at the next checkpoint at the latest.
 */
#include <fcntl.h>
#include <forebay/forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CELLS (1 << 20)
#define STEPS 40
#define EVERY 10 /* steps from one checkpoint to the next */

static double state[CELLS];

static void need(int64_t code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, forebay_last_message());
	exit(1);
}

static const char *path_of(const char *folder, int step)
{
	static char path[4096];
	snprintf(path, sizeof path, "%s/state.%d", folder, step);
	return path;
}

/* Removes the checkpoint of a step, if there is one. */
static void drop(const char *folder, int *step)
{
	if (*step > 0 && unlink(path_of(folder, *step)) != 0)
		perror(path_of(folder, *step));
	*step = 0;
}

static void write_all(forebay_file *file)
{
	int64_t bytes = sizeof state, done = 0;
	while (done < bytes) {
		int64_t now = forebay_write(file, (char *)state + done, bytes - done, done);
		need(now, "write");
		done += now;
	}
}

int main(int count, char **words)
{
	forebay_session *session;
	forebay_file *newest = NULL;
	int older = 0; /* the step of the checkpoint before the newest */
	if (count != 2) {
		fprintf(stderr, "usage: checkpoints DIR\n");
		return 2;
	}
	const char *folder = words[1];
	need(forebay_start(0, &session), "start");
	for (int step = 1; step <= STEPS; step++) {
		for (int cell = 1; cell < CELLS; cell++)
			state[cell] = 0.5 * (state[cell] + state[cell - 1]) + step;
		if (newest != NULL && forebay_is_safe(newest, FOREBAY_STORE) == 1)
			drop(folder, &older);
		if (step % EVERY != 0)
			continue;
		if (newest != NULL) {
			need(forebay_wait(newest, FOREBAY_STORE, -1), "wait");
			drop(folder, &older);
			need(forebay_close(newest), "close");
			older = step - EVERY;
		}
		need(forebay_open(session, path_of(folder, step), O_CREAT | O_TRUNC | O_RDWR, 0644, &newest), "open");
		write_all(newest);
		need(forebay_flush(newest, FOREBAY_STORE), "flush"); /* begins, and returns */
	}
	need(forebay_wait(newest, FOREBAY_STORE, -1), "wait");
	drop(folder, &older);
	need(forebay_end(session), "end"); /* closes the file */
	printf("the latest state is %s\n", path_of(folder, STEPS));
	return 0;
}
