/*
 * One process that answers all others over a Unix socket: the custom solution that Hermes (HPDC'18,
 * Figures 5 and 6) is compared with, which uses MPI there.
 *
 *     single_server SOCKET
 *
 * Requests: G key, answered by the value; S key value, and A message (to the end of the queue),
 * answered by a dot; T (from its head), answered by the message.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { KEY = 28, VALUE = 32, PLACES = 1 << 20, QUEUE = 1 << 20, CLIENTS = 16, ROOM = 1 << 16 };

struct item {
    char is_used, key[KEY], value[VALUE];
};

struct client {
    size_t filled;
    char in[ROOM];
};

static struct item *items;
static char (*queue)[VALUE];
static uint64_t head, tail;

static void fail(const char *what)
{
    fprintf(stderr, "single_server: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct item *find(const char *key)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int i = 0; i < KEY; i++)
        hash = (hash ^ (unsigned char)key[i]) * 1099511628211u;
    for (uint64_t i = 0; i < PLACES; i++) {
        struct item *item = &items[(hash + i) % PLACES];
        if (!item->is_used || memcmp(item->key, key, KEY) == 0)
            return item;
    }
    errno = ENOSPC;
    fail("the table");
    return NULL;
}

/* Serves the request at `in`; returns its length, 0 if it is not there whole. */
static size_t serve(const char *in, size_t filled, char *out, size_t *answered)
{
    struct item *item;
    size_t length = in[0] == 'G' ? 1 + KEY : in[0] == 'S' ? 1 + KEY + VALUE : in[0] == 'A' ? 1 + VALUE : 1;
    if (filled < length)
        return 0;
    switch (in[0]) {
    case 'G':
        memcpy(out, find(in + 1)->value, VALUE);
        *answered = VALUE;
        break;
    case 'S':
        item = find(in + 1);
        item->is_used = 1;
        memcpy(item->key, in + 1, KEY);
        memcpy(item->value, in + 1 + KEY, VALUE);
        *out = '.';
        *answered = 1;
        break;
    case 'A':
        if (tail - head == QUEUE) {
            errno = ENOSPC;
            fail("the queue");
        }
        memcpy(queue[tail++ % QUEUE], in + 1, VALUE);
        *out = '.';
        *answered = 1;
        break;
    case 'T':
        if (head < tail)
            memcpy(out, queue[head++ % QUEUE], VALUE);
        else
            memset(out, 0, VALUE);
        *answered = VALUE;
        break;
    default:
        fprintf(stderr, "single_server: no such request\n");
        exit(1);
    }
    return length;
}

static int attend(int file, struct client *client)
{
    static char out[ROOM * VALUE];
    ssize_t n = read(file, client->in + client->filled, ROOM - client->filled);
    if (n <= 0)
        return 0;
    client->filled += (size_t)n;
    size_t done = 0, filled = 0;
    while (done < client->filled) {
        size_t answered, length = serve(client->in + done, client->filled - done, out + filled, &answered);
        if (length == 0)
            break;
        done += length;
        filled += answered;
    }
    memmove(client->in, client->in + done, client->filled - done);
    client->filled -= done;
    for (size_t sent = 0; sent < filled;) {
        n = write(file, out + sent, filled - sent);
        if (n <= 0)
            return 0;
        sent += (size_t)n;
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path) {
        fprintf(stderr, "usage: single_server SOCKET\n");
        return 2;
    }
    items = calloc(PLACES, sizeof *items);
    queue = calloc(QUEUE, sizeof *queue);
    struct client *clients = calloc(CLIENTS, sizeof *clients);
    if (!items || !queue || !clients)
        fail("memory");
    strcpy(address.sun_path, argv[1]);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, CLIENTS) != 0)
        fail(argv[1]);
    struct pollfd polled[CLIENTS + 1] = { { .fd = listener, .events = POLLIN } };
    for (int i = 1; i <= CLIENTS; i++)
        polled[i].fd = -1;
    for (;;) {
        if (poll(polled, CLIENTS + 1, -1) < 0)
            fail("poll");
        if (polled[0].revents) {
            int place = 1;
            while (place <= CLIENTS && polled[place].fd >= 0)
                place++;
            int file = accept(listener, NULL, NULL);
            if (file < 0)
                fail("accept");
            if (place > CLIENTS)
                close(file);
            else {
                polled[place] = (struct pollfd){ .fd = file, .events = POLLIN };
                clients[place - 1].filled = 0;
            }
        }
        for (int i = 1; i <= CLIENTS; i++)
            if (polled[i].fd >= 0 && polled[i].revents && !attend(polled[i].fd, &clients[i - 1])) {
                close(polled[i].fd);
                polled[i].fd = -1;
            }
    }
}
