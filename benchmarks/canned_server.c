/* A canned OpenAI-compatible server for measuring load generators; it is not a model of vLLM.

   usage: canned_server PORT TOKENS FIRST_MS STEP_MS [--stamp]

   Every POST is answered with the same pre-encoded stream: a role chunk at once, then TOKENS chunks (the first FIRST_MS
   after the request, one more every STEP_MS), then a finish reason, the usage, [DONE] and the end of the body. One
   thread, epoll, a timing wheel of one millisecond, one write per chunk. With --stamp the content of every token is the
   server's CLOCK_MONOTONIC in microseconds just before the write, against which a client on this machine can be held.
   GET /stats tells how much was served since the last time it was asked, by half seconds, and how late. Loopback only. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_EVENTS = 512, HEAD_BYTES = 16384, SLOTS = 65536, LATE_US = 5000, BACKLOG = 4096,
       WINDOWS = 256, WINDOW_US = 500000 };

struct connection {
    int fd, gone, streaming, closes, is_post, in_body, sent;
    size_t have, body_left;
    uint64_t due_us;
    struct connection *next; /* in its slot of the wheel */
    char path[32], head[HEAD_BYTES];
};

static struct connection *wheel[SLOTS];
static int tokens, first_ms, step_ms, stamped;
static uint64_t chunks, streams, late_chunks, lateness_max_us, window_from_us;
static uint32_t per_window[WINDOWS]; /* chunks in each half second since the first chunk after the last GET /stats */
static char chunk[1024], opening[2048], closing[2048];
static size_t chunk_size, opening_size, closing_size;

#define EVENT "data: {\"id\":\"chatcmpl-canned\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"canned\","
#define TOKEN EVENT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s \"},\"logprobs\":null,\"finish_reason\":null," \
                    "\"token_ids\":null}]}\n\n"

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static size_t framed(char *to, const char *body) { return (size_t)sprintf(to, "%zx\r\n%s\r\n", strlen(body), body); }

static size_t token_chunk(char *to, const char *content) {
    char body[768];
    snprintf(body, sizeof body, TOKEN, content);
    return framed(to, body);
}

static void encode(void) {
    char usage[512];
    chunk_size = token_chunk(chunk, "token");
    opening_size = (size_t)sprintf(opening, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                                            "transfer-encoding: chunked\r\n\r\n");
    opening_size += framed(opening + opening_size,
                           EVENT "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                                 "\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    closing_size = framed(closing, EVENT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
                                         "\"finish_reason\":\"length\",\"stop_reason\":null}]}\n\n");
    snprintf(usage, sizeof usage,
             EVENT "\"choices\":[],\"usage\":{\"prompt_tokens\":64,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
             64 + tokens, tokens);
    closing_size += framed(closing + closing_size, usage);
    closing_size += framed(closing + closing_size, "data: [DONE]\n\n");
    closing_size += (size_t)sprintf(closing + closing_size, "0\r\n\r\n");
}

static void drop(struct connection *c) {
    if (!c->gone) {
        c->gone = 1;
        close(c->fd);
    }
    if (!c->streaming) free(c); /* else the wheel still holds it */
}

static void plan(struct connection *c) {
    size_t slot = (size_t)((c->due_us + 999u) / 1000u) % SLOTS;
    c->next = wheel[slot];
    wheel[slot] = c;
}

static void answer_json(struct connection *c, const char *body) {
    char out[6144];
    int size = snprintf(out, sizeof out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                        strlen(body), body);
    if (write(c->fd, out, (size_t)size) != size) return;
}

static void stats(char *to, size_t room) {
    size_t used = (size_t)snprintf(to, room,
                                   "{\"chunks\":%llu,\"streams\":%llu,\"late_chunks\":%llu,\"lateness_max_us\":%llu,"
                                   "\"per_half_second\":[",
                                   (unsigned long long)chunks, (unsigned long long)streams,
                                   (unsigned long long)late_chunks, (unsigned long long)lateness_max_us);
    int last = WINDOWS - 1;
    while (last > 0 && !per_window[last]) last--;
    for (int i = 0; i <= last; i++)
        used += (size_t)snprintf(to + used, room - used, i ? ",%u" : "%u", per_window[i]);
    snprintf(to + used, room - used, "]}");
    chunks = streams = late_chunks = lateness_max_us = window_from_us = 0;
    memset(per_window, 0, sizeof per_window);
}

static void serve(struct connection *c) {
    char body[4096];
    if (c->is_post) {
        if (write(c->fd, opening, opening_size) != (ssize_t)opening_size) return;
        c->sent = 0;
        c->streaming = 1;
        c->due_us = now_us() + (uint64_t)first_ms * 1000u;
        plan(c);
    } else if (!strcmp(c->path, "/stats")) {
        stats(body, sizeof body);
        answer_json(c, body);
    } else {
        answer_json(c, "{\"object\":\"list\",\"data\":[{\"id\":\"canned\",\"object\":\"model\",\"max_model_len\":8192}]}");
    }
}

/* The request's head is whole when this returns 1. */
static int head_is_whole(struct connection *c) {
    c->head[c->have] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(c->head, "\r\ncontent-length:");
    size_t wanted = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    size_t already = c->have - (size_t)(end + 4 - c->head);
    c->is_post = !strncmp(c->head, "POST", 4);
    if (sscanf(c->head, "%*s %31s", c->path) != 1) c->path[0] = 0;
    c->closes = strcasestr(c->head, "\r\nconnection: close") != NULL;
    c->body_left = wanted > already ? wanted - already : 0;
    c->in_body = 1;
    return 1;
}

static void readable(struct connection *c) {
    static char sink[65536];
    for (;;) {
        size_t room = c->in_body ? (c->body_left < sizeof sink ? c->body_left : sizeof sink) : HEAD_BYTES - 1 - c->have;
        ssize_t got = read(c->fd, c->in_body ? sink : c->head + c->have, room);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) { drop(c); return; }
        if (c->in_body) c->body_left -= (size_t)got;
        else c->have += (size_t)got;
        if (!c->in_body && !head_is_whole(c)) continue;
        if (c->in_body && c->body_left == 0) {
            c->in_body = 0;
            c->have = 0;
            serve(c);
            return;
        }
    }
}

static void emit(struct connection *c) {
    char own[1024], at[32];
    const char *out = chunk;
    size_t size = chunk_size;
    uint64_t now = now_us(), late = now > c->due_us ? now - c->due_us : 0;
    c->streaming = 0;
    if (c->gone) { free(c); return; }
    if (late > lateness_max_us) lateness_max_us = late;
    late_chunks += late > LATE_US;
    if (stamped) {
        snprintf(at, sizeof at, "%llu", (unsigned long long)now);
        size = token_chunk(own, at);
        out = own;
    }
    chunks++;
    if (!window_from_us) window_from_us = now;
    size_t window = (size_t)((now - window_from_us) / WINDOW_US);
    if (window < WINDOWS) per_window[window]++;
    if (write(c->fd, out, size) != (ssize_t)size) { drop(c); return; }
    if (++c->sent < tokens) {
        c->streaming = 1;
        c->due_us += (uint64_t)step_ms * 1000u;
        plan(c);
        return;
    }
    streams++;
    if (write(c->fd, closing, closing_size) != (ssize_t)closing_size || c->closes) drop(c);
}

static void turn_wheel(uint64_t *turned_ms) {
    for (uint64_t now_ms = now_us() / 1000u; *turned_ms < now_ms;) {
        size_t slot = (size_t)(++*turned_ms) % SLOTS;
        struct connection *c = wheel[slot];
        wheel[slot] = NULL;
        while (c) {
            struct connection *next = c->next;
            emit(c);
            c = next;
        }
    }
}

static void accept_all(int listener, int poller) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct connection *c = calloc(1, sizeof *c);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        c->fd = fd;
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: canned_server PORT TOKENS FIRST_MS STEP_MS [--stamp]\n");
        return 4;
    }
    tokens = atoi(argv[2]), first_ms = atoi(argv[3]), step_ms = atoi(argv[4]);
    stamped = argc > 5 && !strcmp(argv[5], "--stamp");
    encode();
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poller = epoll_create1(0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, BACKLOG)) {
        perror("canned_server");
        return 1;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[MAX_EVENTS];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    uint64_t turned_ms = now_us() / 1000u;
    puts("ready");
    fflush(stdout);
    for (;;) {
        int found = epoll_wait(poller, events, MAX_EVENTS, 1);
        for (int i = 0; i < found; i++) {
            if (events[i].data.ptr) readable(events[i].data.ptr);
            else accept_all(listener, poller);
        }
        turn_wheel(&turned_ms);
    }
}
