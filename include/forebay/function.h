/*
 * What a function on a file's bytes is made of: a WebAssembly module that
 * forebay runs over a file while it is buffered. See docs/active.md.
 *
 *     clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -Wl,-s -Iinclude -o mean.wasm mean.c
 *
 * A function has no files, no clock, no network and no other imports. It runs
 * once for a file, in a process of its own, with up to 64 MiB of memory, and
 * 2000 instructions for each byte that it reads. Where one traps, takes longer
 * or writes more than it may, its result is thrown away, and the file is as it
 * was.
 */
#ifndef FOREBAY_FUNCTION_H
#define FOREBAY_FUNCTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * To be defined by the function: reads the file from its beginning to its end,
 * and writes the result.
 */
__attribute__((export_name("forebay_run")))
void forebay_run(void);

/*
 * To be called by it: brings the next bytes of the file to `buffer`, up to
 * `length` or 1 MiB. Returns how many there are; 0 at the end of the file, and
 * fewer than asked for only there or with more than 1 MiB.
 */
__attribute__((import_module("forebay"), import_name("read")))
uint32_t forebay_read(void *buffer, uint32_t length);

/* To be called by it: these are the next bytes of the result. */
__attribute__((import_module("forebay"), import_name("write")))
void forebay_write(const void *bytes, uint32_t length);

/*
 * To be called by it: the file does not fit, for the reason of this text. Does
 * not return.
 */
__attribute__((import_module("forebay"), import_name("fail")))
__attribute__((noreturn)) void forebay_fail(const char *text, uint32_t length);

#ifdef __cplusplus
}
#endif

#endif
