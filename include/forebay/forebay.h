/*
 * forebay.h - what a program asks of Forebay, in C99 and C++.
 *
 * Link with -lforebay (pkg-config: forebay), and run the program as usual: `forebay run -- PROGRAM`.
 * A program works without this header, too; it is for those that want to know when their bytes
 * are safe, where they are, or to say what they will read. Without Forebay ("plainly") the same
 * program works: functions of files are the kernel's, and those that only Forebay can answer
 * return FOREBAY_E_NOT_RUNNING. docs/api.md is the guide.
 *
 * Results: functions of type int return 0 or a count, those that say how many bytes an int64_t;
 * a negative number is an error: -errno of the kernel's, or one of FOREBAY_E_... .
 * forebay_last_message() says what happened, to which descriptor or path, and what to do. errno is
 * not used, and may change.
 *
 * Threads: all functions may be called by all threads at once, also with the same handle. None is
 * to be called by a signal handler. After fork() a child has the handles of its parent. None is a
 * cancellation point: a pthread_cancel() takes effect at a later call of another library.
 *
 * Handles are opaque. One that was closed, is NULL, or never was a handle is an error
 * (FOREBAY_E_CLOSED, FOREBAY_E_HANDLE), never a crash. Other pointers must be valid.
 *
 * Units: offsets, sizes and lengths are bytes; times are milliseconds.
 *
 * Stable: programs that were compiled with an older header of the same soname (libforebay.so.0)
 * work with a later library. Structs grow at their end: set their field `size` to sizeof of
 * them before a call.
 */
#ifndef FOREBAY_FOREBAY_H
#define FOREBAY_FOREBAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What this header describes; raised with each addition. Each function says since when it is. */
#define FOREBAY_API_VERSION 4

/* Errors beside those of errno, which are -4095 to -1. */
enum forebay_error {
    /* The process does not run under Forebay: start it with `forebay run -- PROGRAM`. */
    FOREBAY_E_NOT_RUNNING = -10001,
    /* The file is not one that Forebay buffers. */
    FOREBAY_E_NOT_BUFFERED = -10002,
    /* The handle was closed, or its session ended. */
    FOREBAY_E_CLOSED = -10003,
    /* It is NULL, or no handle of this kind. */
    FOREBAY_E_HANDLE = -10004,
    /* 65,536 files are open, or 1024 sessions, in this process. */
    FOREBAY_E_TOO_MANY = -10005,
    /* The container has no record of this number: it was never written, or was dropped. */
    FOREBAY_E_NO_RECORD = -10020,
    /* The record is not whole: its writer was killed while it wrote it, or the node lost it. */
    FOREBAY_E_TORN = -10021,
    /* The record has elements of another size, or another number of them. */
    FOREBAY_E_ELEMENT = -10022
};

/* A session: what this process has opened, and what it asks of the pool. */
typedef struct forebay_session forebay_session;
/* An open file. */
typedef struct forebay_file forebay_file;

/* ---- Versions and errors --------------------------------------------------------------------- */

/* FOREBAY_API_VERSION of the library that is loaded. Since 1. */
int forebay_api_version(void);

/* What a code means, negative as it was returned. The text of an errno is good until the next such
 * question of this thread. Since 1. */
const char *forebay_strerror(int code);

/* What happened in the last call of this thread that failed; "" if none did. Good until the next
 * one fails. Since 1. */
const char *forebay_last_message(void);

/* ---- Session --------------------------------------------------------------------------------- */

/* For forebay_start(): fails with FOREBAY_E_NOT_RUNNING where the program runs plainly. */
#define FOREBAY_REQUIRE 1u

/* Begins a session, and stores its handle in *session (NULL after an error). `flags` is 0 or
 * FOREBAY_REQUIRE. A process joins a pool once, when it starts; sessions only say which files
 * belong together, and several may be there. Since 1.
 * Errors: FOREBAY_E_NOT_RUNNING, FOREBAY_E_TOO_MANY, -EINVAL (other flags, no place for the
 * handle). */
int forebay_start(unsigned flags, forebay_session **session);

/* Closes all files that were opened in the session, as forebay_close() does, and ends it: its
 * handles are FOREBAY_E_CLOSED from now on. Where another thread is within forebay_open() of the
 * session, that call closes them at its end, its own file too. What was written stays buffered,
 * and is flushed as without this call. Returns the first error of a close. Since 1. */
int forebay_end(forebay_session *session);

/* 1 if this process runs under Forebay, 0 if it runs plainly. Since 1. */
int forebay_is_active(forebay_session *session);

struct forebay_pool_info {
    size_t size;             /* sizeof(struct forebay_pool_info) */
    char path[256];          /* the file of the pool, in /dev/shm */
    char instance[32];       /* the name of the instance, as `forebay status` has it */
    uint64_t page_bytes;     /* the unit of what is valid, or ahead of the store */
    uint64_t block_bytes;    /* the unit in which files move between tiers */
    uint32_t tiers;          /* number of tiers, the fastest is 0 */
    uint32_t stores;         /* number of directories that are buffered */
    uint32_t manager;        /* process id of the node manager */
    uint32_t is_served;      /* 1 if that lives */
    uint32_t job;            /* number of the run of this process; 0 if it has none */
    uint32_t reserved;
};

/* Says which pool this process uses. Since 1.
 * Errors: FOREBAY_E_NOT_RUNNING, -EINVAL (size). */
int forebay_pool(forebay_session *session, struct forebay_pool_info *info);

struct forebay_tier_info {
    size_t size;             /* sizeof(struct forebay_tier_info) */
    char name[64];           /* as configured */
    char path[4096];         /* the file of its slots; "" for RAM */
    uint64_t capacity;       /* bytes */
    uint64_t free;           /* about how many of them are free */
    uint32_t is_lasting;     /* 1: what it holds is there when the node was started again */
    uint32_t has_failed;     /* 1: its device has failed, and nothing new goes there */
};

/* Says what tier `number` is. Since 1.
 * Errors: FOREBAY_E_NOT_RUNNING, -ENOENT (no such tier), -EINVAL (size). */
int forebay_tier(forebay_session *session, int number, struct forebay_tier_info *info);

/* ---- Files ----------------------------------------------------------------------------------- */

/* Opens `path` with `flags` and `mode` of open(2) (O_CLOEXEC is added), and stores the handle in
 * *file (NULL after an error). Whether Forebay buffers it depends on where it lies. Since 1.
 * Errors: those of open(2), FOREBAY_E_CLOSED, FOREBAY_E_HANDLE, FOREBAY_E_TOO_MANY. */
int forebay_open(forebay_session *session, const char *path, int flags, unsigned mode,
                 forebay_file **file);

/* A handle of descriptor `fd`, which the program has opened, and which it closes itself, after
 * forebay_close(). Since 1.
 * Errors: -EBADF, FOREBAY_E_CLOSED, FOREBAY_E_HANDLE, FOREBAY_E_TOO_MANY. */
int forebay_use_fd(forebay_session *session, int fd, forebay_file **file);

/* The descriptor of a file: for all other system calls. It is closed with the handle, unless it is
 * the program's. Since 1. */
int forebay_fd(forebay_file *file);

/* 1 if Forebay buffers the file, or would (another use may have turned it to the kernel), 0 if
 * not. Since 1. */
int forebay_is_buffered(forebay_file *file);

/* Gives the handle up, and closes its descriptor unless it is the program's. Waits for no flush.
 * Calls of other threads that use the handle end first; the last of them closes the descriptor,
 * and 0 is returned. Since 1.
 * Errors: FOREBAY_E_CLOSED, FOREBAY_E_HANDLE, or that of a flush which was not reported yet. The
 * handle is given up in any case. */
int forebay_close(forebay_file *file);

/* Reads up to `bytes` bytes at `offset` into `buffer`; returns how many, fewer at the end of the
 * file and where pread(2) would, too. The offset of the descriptor stays. Since 1.
 * Errors: those of pread(2). */
int64_t forebay_read(forebay_file *file, void *buffer, int64_t bytes, int64_t offset);

/* Writes `bytes` bytes of `buffer` at `offset`, or at the end of a file that was opened with
 * O_APPEND; returns how many, which may be fewer. Since 1.
 * Errors: those of pwrite(2). */
int64_t forebay_write(forebay_file *file, const void *buffer, int64_t bytes, int64_t offset);

/* The size of the file. Since 1. */
int64_t forebay_size(forebay_file *file);

/* ---- When is it safe? ------------------------------------------------------------------------ */

/* Where a flush brings a file. */
enum forebay_level {
    /* Where it survives a loss of power: the store, or the journal on a file tier, which is faster.
     * Forebay brings it to the store later, or after the node was started again. */
    FOREBAY_DURABLE = 2,
    /* The store: where other nodes, and programs without Forebay, see it. Survives a loss of
     * power, and of this node. */
    FOREBAY_STORE = 3
};

/* Begins to bring what was written to the file so far, by all processes of the node, to `level`,
 * and returns at once. What a rule says of durability does not matter.
 * It does the work itself, and takes as long, where there is no other to do it: plainly, of a
 * file that is not buffered, or used through the kernel (mapped), it is fsync(2); where the node
 * manager is gone, it writes what is buffered, too. Since 1.
 * Errors: -EOPNOTSUPP of a scratch file, -EINVAL (no such level), -EBADFD (the descriptor is
 * another file's by now), those of fsync(2) where this call does the work; FOREBAY_E_NOT_RUNNING
 * where the process has a preload library of another build, that does not tell what is safe. */
int forebay_flush(forebay_file *file, int level);

/* Waits until what was written to the file before the last forebay_flush() is at `level`, up to
 * `timeout_ms`, or for ever if that is negative. Begins a flush first if none is under way to
 * that level, or if a call through this handle has written since: so a wait alone, or again after
 * -ETIMEDOUT, is right. What was written by other calls, write(2) on the descriptor among them,
 * after a flush that is still under way, another flush has to cover: forebay_is_safe() is 0 then.
 * Where forebay_flush() does the work itself, so does this, and `timeout_ms` does not limit it.
 * A node manager that is stopped is waited for up to `timeout_ms`, 30 s without a limit. Since 1.
 * Errors: -ETIMEDOUT (the flush goes on; the node manager is stopped), that of the flush (-EIO,
 * -ENOSPC, -EDQUOT, ...), -EINTR (a handler without SA_RESTART ran while a process is stopped that
 * the flush waits for), or as of forebay_flush(). */
int forebay_wait(forebay_file *file, int level, int64_t timeout_ms);

/* 1 if all that processes of this node have written to the file is at `level` now, and a
 * forebay_flush() or forebay_wait() to that level (DURABLE: or to STORE) was made by this handle;
 * 0 if not, or if it is not known: a flush is under way, the file was written since by any
 * process, or another call has the file for itself. It is never 1 of bytes that are lost when
 * program and node manager are killed. Waits for some milliseconds at most, unless a
 * call of another process is changing the file's size.
 * Once writes have ended and a flush was begun after them, it becomes 1, unless the file is the
 * kernel's (plainly, not buffered, mapped) and its file system keeps times by the second. Stores
 * through a mapping it does not see. Of FOREBAY_DURABLE it begins another flush where it cannot
 * know whether the last one has covered all, and nothing was written through this handle. Since 1.
 * Errors: that of a flush of the file which has failed since, -EBADFD (the descriptor was closed,
 * or is another file's), -ECONNREFUSED (the node manager has ended before the flush was done;
 * forebay_wait() does it). */
int forebay_is_safe(forebay_file *file, int level);

/* Where bytes are: the least safe ones. */
enum forebay_where {
    /* In memory: they survive the program and the node manager, and not the node. */
    FOREBAY_WHERE_MEMORY = 0,
    /* On file tiers: they survive that the node is started again, and perhaps not a loss of power,
     * unless forebay_wait() has returned 0. */
    FOREBAY_WHERE_TIER = 1,
    /* The store's file has all of them, as the kernel shows it to other programs. That a loss of
     * power leaves them there only forebay_wait() says. */
    FOREBAY_WHERE_STORE = 2
};

struct forebay_safety_info {
    size_t size;             /* sizeof(struct forebay_safety_info) */
    uint64_t memory_bytes;   /* bytes in memory that the store lacks, in whole pages */
    uint64_t tier_bytes;     /* bytes on file tiers that the store lacks, in whole pages */
    int where;               /* FOREBAY_WHERE_... of the least safe byte, and of the size */
    int is_buffered;         /* 0: Forebay does not buffer the file, or the program runs plainly */
};

/* Says where the file's bytes are now. Since 1.
 * Errors: -EINVAL (size). */
int forebay_safety(forebay_file *file, struct forebay_safety_info *info);

/* forebay_flush() of all files that are buffered in the pool, of all programs, but for scratch
 * files. Since 1.
 * Errors: FOREBAY_E_NOT_RUNNING, -EINVAL (no such level), -ECONNREFUSED (the node manager is gone,
 * and only it has the files of other programs; forebay_flush() works for each of this one). */
int forebay_flush_all(forebay_session *session, int level);

/* The same, and waits until it is done, up to `timeout_ms`, or for ever if that is negative (30 s
 * for a node manager that is stopped). Since 1.
 * Errors: as of forebay_flush_all(), -ETIMEDOUT (the flush goes on), that of a file that cannot be
 * flushed. */
int forebay_wait_all(forebay_session *session, int level, int64_t timeout_ms);

/* ---- What will be read ----------------------------------------------------------------------- */

enum forebay_hint_kind {
    FOREBAY_HINT_NORMAL = 0,     /* nothing in particular */
    FOREBAY_HINT_RANDOM = 1,     /* read here and there: nothing is read ahead */
    FOREBAY_HINT_SEQUENTIAL = 2, /* read from front to back */
    FOREBAY_HINT_WILLNEED = 3,   /* read soon: is brought to RAM while there is room */
    FOREBAY_HINT_DONTNEED = 4    /* not used soon: leaves the tiers, once it is on the store */
};

/* Says how `bytes` bytes from `offset` on will be used; all up to the end if `bytes` is 0. The first
 * three hold for the whole file, as it was opened here, until another of them is given. Returns
 * at once; a hint may be forgotten when the node is busy. Plainly: posix_fadvise(2). Since 1.
 * Errors: -EINVAL (no such hint, a negative number), -ESPIPE (a pipe). */
int forebay_hint(forebay_file *file, int hint, int64_t offset, int64_t bytes);

struct forebay_range {
    int64_t offset;
    int64_t bytes;
};

/* Says that `count` ranges (at most 64) will be read next, in this order: they are brought to RAM
 * one after the other, behind those of earlier calls, while there is room. The node manager keeps
 * 64 ranges of all programs of the node, and forgets what comes beyond. Since 1.
 * Errors: -EINVAL (too many, a negative number; nothing was done then). */
int forebay_will_read(forebay_file *file, const struct forebay_range *ranges, int count);

/* ---- Where are the bytes? -------------------------------------------------------------------- */

/* The tier of bytes that the store alone has; they may be a hole. */
#define FOREBAY_TIER_STORE (-1)

struct forebay_extent {
    int64_t offset;
    int64_t bytes;
    int32_t tier;            /* number of the tier, or FOREBAY_TIER_STORE */
    uint32_t is_ahead;       /* 1: the store lacks them */
    uint64_t reserved;
};

/* Says where `bytes` bytes from `offset` on are, as far as the file goes: without gaps, in ascending
 * order, neighbours differ. Fills in the first `room` of them, and returns how many there are. All
 * of it may be elsewhere a moment later. Since 1.
 * Errors: FOREBAY_E_NOT_RUNNING, FOREBAY_E_NOT_BUFFERED, -EINVAL (a negative number). */
int64_t forebay_placement(forebay_file *file, int64_t offset, int64_t bytes,
                          struct forebay_extent *extents, int room);

/* ---- Containers of records -------------------------------------------------------------------- */

/* A container keeps records under numbers: a program writes them at once and reads them later, in
 * an order that is known. docs/container.md is the guide; mlbs.hpp and mlbs.py are over these
 * functions.
 *
 * Its files are in the folder NAME.records of a directory. Processes that open the same container
 * share its records; each writes files of its own. It has threads, which forebay_records_open()
 * starts and forebay_records_close() ends. A child of fork() cannot use one that its parent has
 * opened: its calls are FOREBAY_E_CLOSED. */
typedef struct forebay_records forebay_records;

/* In which order records are read. */
enum forebay_order {
    FOREBAY_ORDER_FIFO = 0,  /* as they were written */
    FOREBAY_ORDER_LIFO = 1,  /* from the last written to the first */
    FOREBAY_ORDER_DETECT = 2 /* what the first reads show: one of these, or that of the last pass */
};

enum forebay_layout {
    FOREBAY_LAYOUT_PACKED = 0,    /* one file for each process, with all of its records */
    FOREBAY_LAYOUT_PER_RECORD = 1 /* a file for each record */
};

/* Of bytes: what suits the node. */
#define FOREBAY_RECORDS_AUTO UINT64_MAX

struct forebay_records_options {
    size_t size;             /* sizeof(struct forebay_records_options) */
    uint64_t memory_bytes;   /* bytes of records that are read ahead into memory of the process;
                                AUTO: a quarter of the RAM tier, plainly 256 MiB */
    uint64_t fast_bytes;     /* beyond these, bytes of this process' records that the tiers hold;
                                what is more is flushed and leaves them. AUTO: no limit */
    uint32_t helpers;        /* threads that read ahead, 0 to 64 */
    int order;               /* FOREBAY_ORDER_... */
    int layout;              /* FOREBAY_LAYOUT_... */
    int is_kept;             /* 1: the files stay, until they are removed by other means. 0: the last
                                process that closes the container removes them, unless it was ever
                                opened with 1 */
};

/* The options that hold where none are given. */
#define FOREBAY_RECORDS_OPTIONS                                                                    \
    {sizeof(struct forebay_records_options), FOREBAY_RECORDS_AUTO, FOREBAY_RECORDS_AUTO, 1,        \
     FOREBAY_ORDER_FIFO, FOREBAY_LAYOUT_PACKED, 0}

/* Opens the container `name` in `directory`, and makes it if it is not there: a relative path is one
 * from where the process is now, and stays that. `options` may be NULL. Records that are there already can be read. Since 2.
 * Errors: -EINVAL (limits of zero, no such order or layout, a name with '/'), those of open(2)
 * (-ELOOP: its folder, or a file in it, is a symbolic link), -EPERM (the folder is of another user),
 * FOREBAY_E_CLOSED, FOREBAY_E_HANDLE, FOREBAY_E_TOO_MANY (1024 are open), -EAGAIN (no thread). */
int forebay_records_open(forebay_session *session, const char *directory, const char *name,
                         const struct forebay_records_options *options, forebay_records **records);

/* Gives the container up. Calls of other threads end first, and the last of them closes it. Waits
 * for its threads. The records of a container that is not kept are gone with its last user. It
 * may be called after the end of the session. Since 2.
 * Errors: FOREBAY_E_CLOSED, FOREBAY_E_HANDLE. */
int forebay_records_close(forebay_records *records);

/* Writes record `id`: `bytes` bytes at `from`, in elements of `element` bytes. When it returns, the
 * record is whole for all processes, and survives this one and the node manager. One that was
 * there is replaced. `from` must not be changed during the call. Since 2.
 * Errors: -EINVAL (no whole elements), -EFBIG (larger than the tiers, or than the limits of the
 * options), those of pwrite(2), FOREBAY_E_CLOSED (or its session has ended). */
int forebay_records_write(forebay_records *records, uint64_t id, const void *from, int64_t bytes,
                          int64_t element);

/* Reads record `id`, which has `bytes` bytes in elements of `element` bytes, to `to`. It waits for a
 * write of the record that is under way in this process, and for no flush. Of a record whose last
 * write was lost it gives the last version that is whole: forebay_records_check() names it. After an
 * error `to` may have been written. Since 2.
 * Errors: FOREBAY_E_NO_RECORD, FOREBAY_E_TORN, FOREBAY_E_ELEMENT, those of pread(2), FOREBAY_E_CLOSED. */
int forebay_records_read(forebay_records *records, uint64_t id, void *to, int64_t bytes,
                         int64_t element);

/* The bytes of record `id`. Since 2.
 * Errors: FOREBAY_E_NO_RECORD, FOREBAY_E_TORN, FOREBAY_E_CLOSED. */
int64_t forebay_records_size(forebay_records *records, uint64_t id);

/* Waits until record `id` is where it survives a loss of power (FOREBAY_DURABLE), up to
 * `timeout_ms`, or for ever if that is negative. Since 2.
 * Errors: FOREBAY_E_NO_RECORD, FOREBAY_E_TORN, those of forebay_wait(). */
int forebay_records_sync(forebay_records *records, uint64_t id, int64_t timeout_ms);

/* Forgets record `id`, whichever process has written it. What it took is used again. Since 2.
 * Errors: FOREBAY_E_NO_RECORD, those of pwrite(2). */
int forebay_records_drop(forebay_records *records, uint64_t id);

/* Says that these records will be read next, in this order, behind those of earlier calls. It is
 * believed until a record is read that is none of them. Since 2.
 * Errors: -EINVAL (a negative number). */
int forebay_records_will_read(forebay_records *records, const uint64_t *ids, int64_t count);

/* The records that are there, in ascending order: fills in the first `room` of them, and returns how
 * many there are. Since 2. */
int64_t forebay_records_ids(forebay_records *records, uint64_t *ids, int64_t room);

/* Reads all records that were not written since this process has opened the container, and names
 * those whose last write is not whole, as forebay_records_ids() does. If an earlier, whole version
 * of such a record is there, read gives that, without an error; else it is FOREBAY_E_TORN. Since 2.
 * Errors: those of pread(2). */
int64_t forebay_records_check(forebay_records *records, uint64_t *torn, int64_t room);

struct forebay_records_info {
    size_t size;             /* sizeof(struct forebay_records_info) */
    uint64_t records;        /* in the container */
    uint64_t bytes;          /* of these */
    uint64_t writes;         /* by this process; so are all that follow */
    uint64_t reads;
    uint64_t hits;           /* reads that found all of their record in memory */
    uint64_t late;           /* reads that waited for a helper which had begun */
    uint64_t loaded;         /* records that helpers have read ahead */
    uint64_t wasted;         /* of them, given up unread */
    uint64_t spilled;        /* records that were left to the store, see fast_bytes */
    uint64_t window_bytes;   /* memory_bytes, as it was decided */
    uint64_t window_used;    /* bytes of it that are in use */
    uint64_t is_spill_off;   /* 1: a flush has failed, and fast_bytes does not hold any more */
};

/* Says what happened so far. Since 2.
 * Errors: -EINVAL (size). */
int forebay_records_status(forebay_records *records, struct forebay_records_info *info);
/* ---- What the time goes to ------------------------------------------------------------------- */

/* Says that a phase of the program begins in the calling thread, within those that the thread is
 * in: computing a step, for instance. `forebay trace` shows phases beside reads and writes; without
 * it, and plainly, a mark costs a few nanoseconds and returns 0, so that a program keeps its marks.
 * `name` is copied, its first 63 bytes are kept; 16 phases within each other, and 1024 names, are
 * told apart. No lock, and no system call but in a thread's first mark. Phases of a thread end in
 * the reverse order of their begins; those that an exec, or the end of a thread, leaves open end
 * with it. C++ has forebay/phase.hpp. Since 2.
 * Errors: -EINVAL (name is NULL); none where the trace has no room, which it says. */
int forebay_phase_begin(forebay_session *session, const char *name);

/* Says that the innermost phase of the calling thread ends. One without a begin is counted by the
 * trace, and nothing else happens. Since 2. */
int forebay_phase_end(forebay_session *session);
/* ---- What is to stay ------------------------------------------------------------------------- */

/* The tier that is memory. */
#define FOREBAY_TIER_RAM 0

/* Pins `bytes` bytes from `offset` on, all up to the end of now if `bytes` is 0: the blocks that
 * they lie in stay in tier `tier` (FOREBAY_TIER_RAM, or another number of forebay_tier()) or a
 * faster one. Blocks that are elsewhere are brought to RAM before the call returns, which may take
 * as long as reading them; bytes that were never written have none, and stay once they are.
 * What is ahead of the store is flushed as ever, and stays.
 *
 * It holds whatever else wants the room, until forebay_unpin(), until the handle is closed, or until
 * the process ends in any way, or executes another program. A child of fork() has its parent's
 * pins, as its handles, and each ends when parent and child have let go of it. Pins add up: a block
 * stays as long as one has it, in the fastest tier of any.
 * It does not hold what has no blocks any more: what is cut off or punched out, what another node
 * takes for itself or another program changes on the store, or a file that is used through the
 * kernel from now on (mapped). What is read again after that stays again.
 *
 * All processes of a run together pin at most half of a tier (placement.pin_limit of the
 * configuration), all runs three quarters. Counted is each pin, in whole blocks. Since 2.
 * Errors: FOREBAY_E_NOT_RUNNING, FOREBAY_E_NOT_BUFFERED (also of a file that is used through the
 * kernel), -EDQUOT (the run's limit), -ENOSPC (that of all), -ENOENT (no such tier), -EAGAIN (not
 * all could be brought up), -EBADF (the store has some, and the file is not open for reading),
 * -EINVAL (a negative number, or a range of more than 128 TiB), -ENFILE (all open-file
 * descriptions of the pool are in use), -EINTR. Nothing is pinned by this call then. */
int forebay_pin(forebay_file *file, int64_t offset, int64_t bytes, int tier);

/* Ends the pins of this handle whose blocks all lie in those of `bytes` bytes from `offset` on; of
 * all from there on if `bytes` is 0. One that has others, too, stays whole. Returns how many it has
 * ended. Since 2.
 * Errors: FOREBAY_E_NOT_RUNNING, -EINVAL (a negative number). */
int forebay_unpin(forebay_file *file, int64_t offset, int64_t bytes);

/* ---- What runs on files ----------------------------------------------------------------------- */

/* Says that a step of what the program writes to the file is finished: analyses that run after each
 * step (`forebay analyse --on step`) are started, as fsync() does, and no byte is made safe. Since 3.
 * Errors: FOREBAY_E_NOT_RUNNING, FOREBAY_E_NOT_BUFFERED. */
int forebay_step(forebay_file *file);

/* Actions: commands and operations that run on files of the node while these are in the tiers, so
 * that they read at their speed. docs/analyse.md and docs/active.md say what they get, when they
 * run and where results go.
 *
 * An action belongs to the node manager that serves this process, and holds for what all programs
 * under it write, from the call on: until it is removed, or until that node manager ends, which one
 * that `forebay run` has started does behind its last run. It outlives this process, its session
 * and its children; a node manager that is killed leaves it to its successor. Children of fork(),
 * and other processes, list and remove the actions of each other. All that is passed is copied.
 *
 * These functions ask the node manager and wait for its answer: up to 10 s where there is none, for
 * another one, and 30 s where it is stopped. They may allocate.
 * Errors of all of them: FOREBAY_E_NOT_RUNNING, FOREBAY_E_CLOSED, FOREBAY_E_HANDLE, -ECONNREFUSED
 * (there is no node manager any more), -ETIMEDOUT (it is stopped), -EINTR (a handler without
 * SA_RESTART ran meanwhile: it may have been done, and may be asked again), -EINVAL (NULL where a
 * text has to be, a text that is not UTF-8), -EPROTO (the node manager is of another build), and
 * -EMFILE and others of a file in memory. */

/* Bytes of the name of an action, with its zero: up to 63 of a-z, A-Z, 0-9, '-', '_' and '.'. */
#define FOREBAY_NAME 64

/* What starts an analysis. */
enum forebay_on {
    FOREBAY_ON_CLOSE = 0, /* the last close of a file that was written */
    FOREBAY_ON_STEP = 1   /* that, and each step of a file: fsync(2), forebay_step() */
};

/* When a staged file is drained. Others are always drained meanwhile. */
enum forebay_drain {
    FOREBAY_DRAIN_WITH = 0, /* meanwhile */
    FOREBAY_DRAIN_AFTER = 1 /* when the action has ended */
};

struct forebay_analysis {
    size_t size;                /* sizeof(struct forebay_analysis) */
    const char *match;          /* pattern of the files, beneath the buffered directory or from / */
    const char *const *command; /* its words, NULL behind the last. The first is the program: in
                                   PATH, or from the working directory on if it has a '/'. In the
                                   others {file}, {step} and {name} stand for what they say */
    const char *name;           /* what messages and results call it. NULL: the program's name */
    const char *results;        /* directory of results. NULL: that of the file */
    int64_t timeout_ms;         /* after which it is killed. 0: 10 minutes */
    uint64_t result_max;        /* most bytes of a result. 0: 1 GiB */
    int on;                     /* FOREBAY_ON_... */
    int drain;                  /* FOREBAY_DRAIN_... */
    int may_drop;               /* 1: it may say that a file is removed and not drained */
    int reserved;
};

/* An analysis that says nothing yet; match and command have to be set. */
#define FOREBAY_ANALYSIS {sizeof(struct forebay_analysis), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Registers an analysis, as `forebay analyse` does, or changes the one of its name that was
 * registered before. The same again, by any process, changes nothing: it holds from the first call
 * on. Nothing is changed by a call that fails. Since 4.
 * Errors: -EINVAL (no pattern, no command, a name that no file could have, a time or a value out of
 * range, may_drop without FOREBAY_DRAIN_AFTER), -ENOENT (there is no such program, or it cannot be
 * executed), -EEXIST (the configuration has one of this name), -ENOSPC (there are 64), -E2BIG. */
int forebay_analyse(forebay_session *session, const struct forebay_analysis *analysis);

struct forebay_operation {
    size_t size;                /* sizeof(struct forebay_operation) */
    const char *match;          /* pattern of the files, beneath the buffered directory or from / */
    const char *operation;      /* "sort", "compress" or another one of docs/active.md */
    const char *const *options; /* its options as NAME=VALUE, NULL behind the last: "record=32",
                                   "key=f64@24:desc". Paths among them are absolute. NULL: none */
    const char *name;           /* what messages call it. NULL: the operation */
    const char *results;        /* directory of results. NULL: that of the file */
    const char *suffix;         /* what names of results end with. NULL: the operation's */
    const char *scratch;        /* where a sort makes files without a name. NULL: beside the file */
    int64_t timeout_ms;         /* after which it is killed. 0: 10 minutes */
    int64_t patience_ms;        /* how long it waits for idle CPU. 0: 60 s */
    uint64_t result_max;        /* most bytes of a result. 0: no limit; 1 GiB for a function */
    int drain;                  /* FOREBAY_DRAIN_... */
    int replace;                /* 1: what compress or dedup makes takes the file's place */
};

/* An operation that says nothing yet; match and operation have to be set. */
#define FOREBAY_OPERATION {sizeof(struct forebay_operation), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Registers an operation, as [[active]] in the configuration does, or changes the one of its name,
 * as forebay_analyse(). Since 4.
 * Errors: -EINVAL (no such operation, options that it has not or lacks, values out of range),
 * -EEXIST (the configuration has an action of this name, or another operation makes results of the
 * same names), -ENOSPC (there are 64), -E2BIG. */
int forebay_operate(forebay_session *session, const struct forebay_operation *operation);

/* Removes the action of this name that was registered, by whichever process. What it runs on now
 * ends by itself; a file that waited for it is drained. Since 4.
 * Errors: -ENOENT (there is none), -EPERM (it stands in the configuration). */
int forebay_action_remove(forebay_session *session, const char *name);

/* The names of all actions, those of the configuration first: fills in the first `room` of them,
 * and returns how many there are. Since 4. */
int forebay_actions(forebay_session *session, char (*names)[FOREBAY_NAME], int room);

enum forebay_action_kind { FOREBAY_ACTION_ANALYSIS = 0, FOREBAY_ACTION_OPERATION = 1 };

struct forebay_action_info {
    size_t size;             /* sizeof(struct forebay_action_info) */
    char name[FOREBAY_NAME];
    char match[448];         /* pattern of the files */
    uint32_t kind;           /* FOREBAY_ACTION_... */
    uint32_t is_configured;  /* 1: it stands in the configuration, and cannot be removed */
    uint64_t waiting;        /* files on which it is to run */
    uint64_t running;        /* files on which it runs */
    uint64_t done;           /* runs that ended as they should, of the last 256 of all actions */
    uint64_t failed;         /* runs that did not, of these */
    char failure[512];       /* what became of the last of these, cut off; "" if none has failed */
};

/* Says how it stands with an action. Files are looked at five times a second: one that was just
 * closed may not be counted yet. Since 4.
 * Errors: -ENOENT (there is none), -EINVAL (size). */
int forebay_action(forebay_session *session, const char *name, struct forebay_action_info *info);

#ifdef __cplusplus
}
#endif

#endif
