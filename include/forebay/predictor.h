/*
 * What a predictor of reads is made of: a WebAssembly module that forebay asks
 * what a program will read next of a file. See docs/predictors.md.
 *
 *     clang --target=wasm32 -Oz -nostdlib -Wl,--no-entry -Wl,-s -Iinclude -o order.wasm order.c
 *
 * A predictor has no files, no clock, no network and no other imports. Each
 * file has an instance of its own, with up to 2 MiB of memory, and one thread
 * calls it. A call has 100,000 instructions. One that traps, takes longer, or
 * expects blocks that the file does not have is not called any more for that
 * file.
 */
#ifndef FOREBAY_PREDICTOR_H
#define FOREBAY_PREDICTOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * To be defined by the predictor: a program reads a block of the file.
 *
 * reader   which thread reads: 0, 1, 2 in the order in which threads come to the file
 * block    the block, from 0
 * blocks   blocks that the file has now
 * hit      1 if the block was in memory, else 0
 *
 * Only reads of blocks are told that are not in memory, or that were brought
 * there because they were expected and are read for the first time.
 */
__attribute__((export_name("forebay_read")))
void forebay_read(uint32_t reader, uint64_t block, uint64_t blocks, uint32_t hit);

/*
 * To be called by it: `count` blocks from `block` on will be read, after those
 * that were expected before. All of them have to be in the file, and a call of
 * forebay_read() expects 1024 at most.
 */
__attribute__((import_module("forebay"), import_name("expect")))
void forebay_expect(uint64_t block, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
