/* A canned OpenAI-compatible server for measuring load generators; it is not a model of vLLM.

   usage: canned_server PORT TOKENS FIRST_MS STEP_MS

   Every POST to a completions path is answered with the same pre-encoded stream: the head at once, then TOKENS chunks
   (the first FIRST_MS after the request, one more every STEP_MS), then a finish reason, the usage, [DONE] and the end of
   the body. As with vLLM, the role comes with the first token. One thread, epoll, a timing wheel of one millisecond, one
   write per chunk. Loopback only; port 0 takes a free one, and the first line printed tells which.

   At SIGTERM it prints, as one JSON object, what truly happened by CLOCK_MONOTONIC in microseconds: of every stream when
   its request was read whole, and when its first and its last token were written; the gaps between the tokens of a
   stream in a histogram of GAP_US; the chunks of each half second since the first one; and how late it was itself. */
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
       WINDOWS = 256, WINDOW_US = 500000, GAP_US = 100, GAPS = 2000 };

struct connection {
    int fd, gone, streaming, closes, completes, in_body, sent;
    size_t have, body_left, story;
    uint64_t due_us, wrote_us;
    struct connection *next; /* in its slot of the wheel */
    char head[HEAD_BYTES];
};

static struct connection *wheel[SLOTS];
static struct story { uint64_t asked_us, first_us, last_us; } *stories; /* of the streams, in the order they were asked for */
static size_t told, room_for;
static volatile sig_atomic_t ending;
static int tokens, first_ms, step_ms;
static uint64_t chunks, late_chunks, lateness_max_us, window_from_us;
static uint32_t per_window[WINDOWS], gaps[GAPS]; /* the last gap is that and longer */
static char chunk[1024], opening[256], first[2048], closing[2048];
static size_t chunk_size, opening_size, first_size, closing_size;

#define EVENT "data: {\"id\":\"chatcmpl-canned\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"canned\","
#define TOKEN EVENT "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" the\"},\"logprobs\":null,\"finish_reason\":null," \
                    "\"token_ids\":null}]}\n\n"

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static size_t framed(char *to, const char *body) { return (size_t)sprintf(to, "%zx\r\n%s\r\n", strlen(body), body); }

static void encode(void) {
    char usage[512];
    chunk_size = framed(chunk, TOKEN);
    opening_size = (size_t)sprintf(opening, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                                            "transfer-encoding: chunked\r\n\r\n");
    first_size = framed(first, EVENT "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                                     "\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    first_size += framed(first + first_size, TOKEN);
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

static void answer_json(struct connection *c, const char *status, const char *body) {
    char out[1024];
    int size = snprintf(out, sizeof out, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                        status, strlen(body), body);
    if (write(c->fd, out, (size_t)size) != size) return;
}

static size_t new_story(void) {
    if (told == room_for) {
        room_for = room_for ? 2 * room_for : 65536;
        stories = realloc(stories, room_for * sizeof *stories);
        if (!stories) abort();
    }
    stories[told] = (struct story){.asked_us = now_us()};
    return told++;
}

static void tell(void) {
    printf("{\"chunks\":%llu,\"late_chunks\":%llu,\"lateness_max_us\":%llu,\"per_half_second\":[",
           (unsigned long long)chunks, (unsigned long long)late_chunks, (unsigned long long)lateness_max_us);
    for (int i = 0; i < WINDOWS; i++) printf(i ? ",%u" : "%u", per_window[i]);
    printf("],\"gap_us\":%d,\"gaps\":[", GAP_US);
    for (int i = 0; i < GAPS; i++) printf(i ? ",%u" : "%u", gaps[i]);
    printf("],\"streams\":[");
    for (size_t i = 0; i < told; i++)
        printf("%s[%llu,%llu,%llu]", i ? "," : "", (unsigned long long)stories[i].asked_us,
               (unsigned long long)stories[i].first_us, (unsigned long long)stories[i].last_us);
    puts("]}");
}

static void serve(struct connection *c) {
    if (c->completes) {
        if (write(c->fd, opening, opening_size) != (ssize_t)opening_size) return;
        c->story = new_story();
        c->sent = 0;
        c->streaming = 1;
        c->due_us = stories[c->story].asked_us + (uint64_t)first_ms * 1000u;
        plan(c);
    } else if (!strncmp(c->head, "GET", 3)) {
        answer_json(c, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"canned\",\"object\":\"model\",\"max_model_len\":8192}]}");
    } else {
        answer_json(c, "404 Not Found", "{\"detail\":\"Not Found\"}");
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
    char *line_end = strstr(c->head, "\r\n"), *path = strstr(c->head, "completions ");
    c->completes = !strncmp(c->head, "POST ", 5) && path && path < line_end;
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
    const char *out = c->sent ? chunk : first;
    size_t size = c->sent ? chunk_size : first_size;
    uint64_t now = now_us(), late = now > c->due_us ? now - c->due_us : 0;
    c->streaming = 0;
    if (c->gone) { free(c); return; }
    if (late > lateness_max_us) lateness_max_us = late;
    late_chunks += late > LATE_US;
    chunks++;
    if (!window_from_us) window_from_us = now;
    size_t window = (size_t)((now - window_from_us) / WINDOW_US);
    if (window < WINDOWS) per_window[window]++;
    if (c->sent) {
        size_t gap = (size_t)((now - c->wrote_us) / GAP_US);
        gaps[gap < GAPS ? gap : GAPS - 1]++;
    } else {
        stories[c->story].first_us = now;
    }
    c->wrote_us = now;
    if (write(c->fd, out, size) != (ssize_t)size) { drop(c); return; }
    if (++c->sent < tokens) {
        c->streaming = 1;
        c->due_us += (uint64_t)step_ms * 1000u;
        plan(c);
        return;
    }
    stories[c->story].last_us = now;
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

static void end(int signal_number) { ending = signal_number; }

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: canned_server PORT TOKENS FIRST_MS STEP_MS\n");
        return 4;
    }
    tokens = atoi(argv[2]), first_ms = atoi(argv[3]), step_ms = atoi(argv[4]);
    encode();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, end);
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
    socklen_t at_size = sizeof at;
    getsockname(listener, (struct sockaddr *)&at, &at_size);
    printf("listening on %d\n", ntohs(at.sin_port));
    fflush(stdout);
    while (!ending) {
        int found = epoll_wait(poller, events, MAX_EVENTS, 1);
        for (int i = 0; i < found; i++) {
            if (events[i].data.ptr) readable(events[i].data.ptr);
            else accept_all(listener, poller);
        }
        turn_wheel(&turned_ms);
    }
    tell();
    return 0;
}
