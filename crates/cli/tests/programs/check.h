/* How programs of include/forebay/forebay.h say what is not as it should be, and end. */
#include <forebay/forebay.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, forebay_last_message()); \
            exit(1); \
        } \
    } while (0)

/* The result, and that the message names what the caller has to know. */
#define GIVES(call, code, word) \
    do { \
        int64_t gave = (call); \
        if (gave != (code) || !strstr(forebay_last_message(), word)) { \
            fprintf(stderr, "line %d: %s gives %lld, \"%s\"\n", __LINE__, #call, \
                    (long long)gave, forebay_last_message()); \
            exit(1); \
        } \
    } while (0)
