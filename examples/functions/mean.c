/*
 * A function: the mean of each 1000 numbers (f64) of a file, for a quick look
 * at it.
 *
 *     clang --target=wasm32 -O2 -nostdlib -Wl,--no-entry -Wl,-s -I../../include -o mean.wasm mean.c
 *     forebay active run function --module mean.wasm pressure.f64 -o pressure.means
 */
#include <forebay/function.h>

#define EACH 1000

static double numbers[EACH];

void forebay_run(void)
{
    uint32_t bytes;

    while ((bytes = forebay_read(numbers, sizeof(numbers))) > 0) {
        static const char text[] = "the file is not of whole numbers";
        double sum = 0;

        if (bytes % sizeof(double) != 0)
            forebay_fail(text, sizeof(text) - 1);
        for (uint32_t at = 0; at < bytes / sizeof(double); at++)
            sum += numbers[at];
        sum /= bytes / sizeof(double);
        forebay_write(&sum, sizeof(sum));
    }
}
