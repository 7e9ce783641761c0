/*
 * Blocks of a square grid in the order of Hilbert's curve, as solvers with
 * adaptive meshes visit their chunks: a file of 4^k blocks, 2^k in each row.
 * Expects the next 16. Where the curve is left it is taken up again at the
 * block that is read.
 *
 *     clang --target=wasm32 -Oz -nostdlib -Wl,--no-entry -Wl,-s -I../../include -o hilbert.wasm hilbert.c
 */
#include <forebay/predictor.h>

struct point {
    uint64_t x, y;
};

/* Turns and mirrors the quadrant of a square of `side` blocks that a point lies in. */
static struct point turned(uint64_t side, struct point at, uint64_t right, uint64_t up)
{
    if (up)
        return at;
    if (right)
        at = (struct point){side - 1 - at.x, side - 1 - at.y};
    return (struct point){at.y, at.x};
}

/* How far along the curve a block of the grid is. */
static uint64_t along(uint64_t side, struct point at)
{
    uint64_t distance = 0;
    for (uint64_t half = side / 2; half > 0; half /= 2) {
        uint64_t right = (at.x & half) != 0, up = (at.y & half) != 0;
        distance += half * half * ((3 * right) ^ up);
        at = turned(side, at, right, up);
    }
    return distance;
}

/* The block at which the curve is after a distance. */
static struct point after(uint64_t side, uint64_t distance)
{
    struct point at = {0, 0};
    for (uint64_t part = 1; part < side; part *= 2, distance /= 4) {
        uint64_t right = 1 & (distance / 2), up = 1 & (distance ^ right);
        at = turned(part, at, right, up);
        at.x += part * right;
        at.y += part * up;
    }
    return at;
}

void forebay_read(uint32_t reader, uint64_t block, uint64_t blocks, uint32_t hit)
{
    uint64_t side = 1;
    while (side < 1 << 15 && side * side < blocks)
        side *= 2;
    if (side * side != blocks)
        return;
    uint64_t at = along(side, (struct point){block % side, block / side});
    for (uint64_t next = at + 1; next <= at + 16 && next < blocks; next++) {
        struct point place = after(side, next);
        forebay_expect(place.y * side + place.x, 1);
    }
}
