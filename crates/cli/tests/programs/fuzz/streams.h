/* stdio: a line is a burst of calls on one stream, chosen by a seed; it ends with a flush. */

enum { STREAMS = 4 };

static struct {
	FILE *file;
	char *room;
	/* 'r' or 'w' was last; between the two a stream has to be positioned. */
	char last;
	/* Whether it was opened to append. */
	char appends;
	/* Whether it has no buffer: each byte of a line is a call then, of which an emulated store takes as long as a
	   real one does that has no page cache. */
	char unbuffered;
} streams[STREAMS];

static unsigned stream_of(int word)
{
	return (unsigned)value(word) % STREAMS;
}

static void stream_closed(unsigned n)
{
	if (streams[n].file)
		gave(fclose(streams[n].file));
	else
		say(" none");
	free(streams[n].room);
	memset(&streams[n], 0, sizeof streams[n]);
}

/* Buffering: 0 the library's own, 1 none, 2 lines, others a size. */
static void stream_kept(unsigned n, FILE *file, long buffering)
{
	if (!file) {
		gave(-1);
		return;
	}
	streams[n].file = file;
	streams[n].appends = text(4)[0] == 'a';
	streams[n].room = buffering > 2 ? malloc(buffering) : 0;
	streams[n].unbuffered = buffering == 1;
	if (buffering > 0)
		gave(setvbuf(file, streams[n].room, buffering == 1 ? _IONBF : buffering == 2 ? _IOLBF : _IOFBF,
			     buffering > 2 ? buffering : 0));
	say(" at %ld", ftell(file));
}

/* fopen F PATH MODE BUFFERING; fdopen F SLOT MODE BUFFERING; freopen F PATH MODE */
static void stream_opened(char how)
{
	unsigned n = stream_of(2);
	if (how == 'r') {
		if (!streams[n].file) {
			say(" none");
			return;
		}
		FILE *file = freopen(text(3), text(4), streams[n].file);
		gave(file ? 0 : -1);
		streams[n].file = file;
		streams[n].last = 0;
		streams[n].appends = text(4)[0] == 'a';
		return;
	}
	if (streams[n].file)
		stream_closed(n);
	if (how == 'd') {
		/* Streams know nothing of alignment. */
		if (is_direct(fd_of(3))) {
			say(" direct");
			return;
		}
		/* The stream owns its descriptor. */
		int fd = dup(fd_of(3));
		FILE *file = fd < 0 ? 0 : fdopen(fd, text(4));
		stream_kept(n, file, value(5));
		if (!file && fd >= 0)
			close(fd);
		return;
	}
	stream_kept(n, fopen(text(3), text(4)), value(5));
}

static void stream_turned(unsigned n, char to)
{
	if (streams[n].last && streams[n].last != to)
		say(" turn %d", fseek(streams[n].file, 0, SEEK_CUR));
	streams[n].last = to;
}

/* What a stream may not do gives errors, after which its position is undefined. */
static int stream_may(unsigned n, unsigned step)
{
	static const char WRITES[] = "ww   w       w  ", READS[] = "  rrr rr    r   ";
	FILE *file = streams[n].file;
	return (WRITES[step] != 'w' || __fwritable(file)) && (READS[step] != 'r' || __freadable(file));
}

static void stream_step(unsigned n, uint64_t *seed)
{
	static const size_t SIZES[] = { 1, 2, 7, 100, 1000, 4095, 4096, 4097, 20000, 65536, 262145 };
	FILE *file = streams[n].file;
	uint64_t what = mix(seed), extra = mix(seed);
	size_t bytes = SIZES[extra % (what >> 32 & 1 ? 11 : 6)];
	long at = (extra >> 8) % (what >> 33 & 1 ? 600000 : 5000);
	if (!stream_may(n, what % 16))
		return;
	switch (what % 16) {
	case 0: case 1: {
		stream_turned(n, 'w');
		fill(buffer, bytes, extra);
		say(" w%zu", fwrite(buffer, 1, bytes, file));
		break;
	}
	case 2: case 3: case 4: {
		stream_turned(n, 'r');
		size_t got = fread(buffer, 1, bytes, file);
		say(" r%zu:%016llx", got, (unsigned long long)sum(buffer, got));
		break;
	}
	case 5:
		stream_turned(n, 'w');
		say(" f%d", fprintf(file, "%ld %s %05d\n", at, "text", (int)(extra % 1000)));
		break;
	case 6: {
		stream_turned(n, 'r');
		long number = -1;
		char word[20] = "";
		int fields = fscanf(file, "%ld %19s", &number, word);
		say(" s%d:%ld:%016llx", fields, number, (unsigned long long)sum(word, strlen(word)));
		break;
	}
	case 7: {
		stream_turned(n, 'r');
		if (streams[n].unbuffered) {
			char some[4096] = "";
			char *read = fgets(some, sizeof some, file);
			say(" l%d:%016llx", read != 0, (unsigned long long)sum(some, strlen(some)));
			break;
		}
		char *line = 0;
		size_t room = 0;
		long got = getline(&line, &room, file);
		say(" l%ld:%016llx", got, (unsigned long long)(got > 0 ? sum(line, got) : 0));
		free(line);
		break;
	}
	case 8: case 9:
		say(" set%d", fseek(file, at, SEEK_SET));
		streams[n].last = 0;
		break;
	case 10:
		say(" cur%d", fseek(file, (long)(extra % 9000) - 4500, SEEK_CUR));
		streams[n].last = 0;
		break;
	case 11:
		say(" end%d", fseek(file, -(long)(extra % 100), SEEK_END));
		streams[n].last = 0;
		break;
	case 12: {
		stream_turned(n, 'r');
		int byte = fgetc(file);
		say(" c%d", byte);
		if (byte != EOF) {
			say(" u%d", ungetc(extra & 1 ? byte : 'U', file));
			say(" c%d", fgetc(file));
		}
		break;
	}
	case 13:
		stream_turned(n, 'w');
		say(" p%d", fputc(extra & 127, file));
		break;
	case 14:
		say(" flush%d", fflush(file));
		streams[n].last = 0;
		break;
	case 15:
		rewind(file);
		say(" rewind");
		streams[n].last = 0;
	}
	say("@%ld", ftell(file));
	if (ferror(file) || feof(file)) {
		say("%s%s", ferror(file) ? " error" : "", feof(file) ? " eof" : "");
		clearerr(file);
	}
}

/* stream F SEED STEPS */
static void stream_burst(void)
{
	unsigned n = stream_of(2);
	uint64_t seed = value(3);
	if (!streams[n].file) {
		say(" none");
		return;
	}
	if (fcntl(fileno(streams[n].file), F_GETFL) & O_APPEND && !streams[n].appends) {
		/* The library does not know where its bytes go. */
		say(" appends");
		return;
	}
	for (long step = value(4); step > 0; step--)
		stream_step(n, &seed);
	say(" flush%d", fflush(streams[n].file));
	streams[n].last = 0;
}

/* closeslots SLOT SLOT FLAGS: the range from one's descriptor to the other's, but no stream's. */
static void close_slots(void)
{
	int a = fd_of(2), b = fd_of(3), low = a < b ? a : b, high = a < b ? b : a, flags = value(4);
	int possible = low >= 0 && high <= 120 && !S->locked;
	for (int n = 0; n < STREAMS; n++) {
		int fd = streams[n].file ? fileno(streams[n].file) : -1;
		possible = possible && (fd < low || fd > high);
	}
	if (!possible) {
		say(" none");
		return;
	}
	gave(close_range(low, high, flags));
	for (struct slot *s = S->processes[process].slots; !flags && s < S->processes[process].slots + SLOTS; s++)
		if (s->fd >= low && s->fd <= high)
			s->fd = -1;
}
