/* RabbitMQ client of the load benchmark: publishes with confirms, or consumes and acknowledges.
 *
 * Connection, declarations and all input use librabbitmq. Published messages are prebuilt frames (method, header, body),
 * written to the socket directly, so that the client uses little CPU. It shares a page of 64-bit counters (SharedCounters
 * of gauge.py) with the other processes of the run.
 *
 *   rabbit_client produce PORT COUNTERS WORKER PRODUCER EXCHANGE KEY SIZE BATCH RATE WINDOW PERSISTENT CONSUMERS SECONDS
 *   rabbit_client consume PORT COUNTERS WORKER CONSUMER EXCHANGE QUEUE DURABLE PREFETCH ACKEVERY SAMPLES LEADER
 *
 * CONSUMERS is a comma-separated list of consumer slots whose slowest member bounds the window in flight.
 * DURABLE is 0, 1, or 2 for a quorum queue, which is declared at the node at the port LEADER and led by it.
 * EXCHANGE is "" (the default exchange) or the name of a fanout exchange. The last line printed is a JSON object.
 */
#define _GNU_SOURCE
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* slots of the counters: the same numbers as in gauge.py */
enum { GO = 0, STOP = 1, READY = 8, POSTED = 136, ACKED = 200, RECEIVED = 264, DONE = 328, SLOTS = 512 };

static volatile uint64_t *board;

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + ts.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "rabbit_client: %s\n", what);
    exit(1);
}

static void check(amqp_rpc_reply_t reply, const char *what) {
    if (reply.reply_type != AMQP_RESPONSE_NORMAL) die(what);
}

static void open_board(const char *path) {
    int fd = open(path, O_RDWR);
    if (fd < 0) die("cannot open the board");
    board = mmap(NULL, SLOTS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (board == MAP_FAILED) die("cannot map the board");
    close(fd);
}

static amqp_connection_state_t dial(int port) {
    amqp_connection_state_t conn = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(conn);
    if (!socket || amqp_socket_open(socket, "127.0.0.1", port)) die("cannot connect");
    check(amqp_login(conn, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"), "login");
    amqp_channel_open(conn, 1);
    check(amqp_get_rpc_reply(conn), "channel");
    return conn;
}

static uint8_t *put(uint8_t *p, uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; i--) *p++ = value >> (8 * i);
    return p;
}

/* Build the frames of one message; *body is the offset of the payload. */
static uint8_t *frames(uint8_t *p, const char *exchange, const char *key, int size, int persistent, uint8_t **body) {
    size_t exchange_len = strlen(exchange), key_len = strlen(key);
    p = put(p, 1, 1), p = put(p, 1, 2), p = put(p, 2 + 2 + 2 + 1 + exchange_len + 1 + key_len + 1, 4);
    p = put(p, 60, 2), p = put(p, 40, 2), p = put(p, 0, 2);
    p = put(p, exchange_len, 1), memcpy(p, exchange, exchange_len), p += exchange_len;
    p = put(p, key_len, 1), memcpy(p, key, key_len), p += key_len;
    p = put(p, 0, 1), p = put(p, 0xCE, 1);
    p = put(p, 2, 1), p = put(p, 1, 2), p = put(p, 2 + 2 + 8 + 2 + 1, 4);
    p = put(p, 60, 2), p = put(p, 0, 2), p = put(p, size, 8), p = put(p, 0x1000, 2), p = put(p, persistent ? 2 : 1, 1);
    p = put(p, 0xCE, 1);
    p = put(p, 3, 1), p = put(p, 1, 2), p = put(p, size, 4);
    *body = p, memset(p, 'x', size), p += size;
    return put(p, 0xCE, 1);
}

/* Count each confirmed tag once: confirms are for single tags, out of order, or for all tags up to one. */
#define RING 65536
static uint8_t seen[RING];
static uint64_t base, acked, nacked;

static void confirmed(uint64_t tag, int multiple) {
    if (!multiple && tag > base && !seen[tag % RING]) seen[tag % RING] = 1, acked++;
    while (multiple ? base < tag : seen[(base + 1) % RING]) {
        base++;
        if (!seen[base % RING]) acked++;
        seen[base % RING] = 0;
    }
}

/* Read one frame if one arrives within wait_us. The library rounds the wait down to milliseconds and then spins. */
static int next_frame(amqp_connection_state_t conn, amqp_frame_t *frame, long wait_us) {
    struct timeval none = {0, 0};
    if (wait_us && !amqp_frames_enqueued(conn) && !amqp_data_in_buffer(conn)) {
        struct pollfd pfd = {amqp_get_sockfd(conn), POLLIN, 0};
        struct timespec ts = {wait_us / 1000000, wait_us % 1000000 * 1000};
        if (ppoll(&pfd, 1, &ts, NULL) == 0) return AMQP_STATUS_TIMEOUT;
    }
    return amqp_simple_wait_frame_noblock(conn, frame, &none);
}

/* Handle all received confirms; wait up to wait_us for the first. */
static void read_confirms(amqp_connection_state_t conn, long wait_us) {
    for (;;) {
        amqp_frame_t frame;
        int status = next_frame(conn, &frame, wait_us);
        if (status == AMQP_STATUS_TIMEOUT) return;
        if (status != AMQP_STATUS_OK) die("reading confirms");
        wait_us = 0;
        if (frame.frame_type != AMQP_FRAME_METHOD) die("unexpected frame");
        if (frame.payload.method.id == AMQP_BASIC_ACK_METHOD) {
            amqp_basic_ack_t *ack = frame.payload.method.decoded;
            confirmed(ack->delivery_tag, ack->multiple);
        } else if (frame.payload.method.id == AMQP_BASIC_NACK_METHOD) {
            nacked++;
        } else die("unexpected method while publishing");
        amqp_maybe_release_buffers(conn);
    }
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void produce(char **a) {
    amqp_connection_state_t conn = dial(atoi(a[0]));
    open_board(a[1]);
    int worker = atoi(a[2]), producer = atoi(a[3]), size = atoi(a[6]), batch = atoi(a[7]), persistent = atoi(a[10]);
    double rate = atof(a[8]), seconds = atof(a[12]);
    uint64_t window = strtoull(a[9], NULL, 10), posted = 0;
    int slots[64], n_slots = 0;
    for (char *s = strtok(a[11], ","); s && n_slots < 64; s = strtok(NULL, ",")) slots[n_slots++] = atoi(s);
    amqp_confirm_select(conn, 1);
    check(amqp_get_rpc_reply(conn), "confirm.select");
    uint8_t *buffer = malloc((size_t)batch * (size + 512)), *end = buffer, **bodies = malloc(batch * sizeof *bodies);
    for (int i = 0; i < batch; i++) end = frames(end, a[4], a[5], size, persistent, &bodies[i]);
    int fd = amqp_get_sockfd(conn);
    board[READY + worker] = 1;
    while (!board[GO]) usleep(500);
    uint64_t start = now_ns(), deadline = start + (uint64_t)(seconds * 1e9), stalled = 0;
    for (;;) {
        uint64_t now = now_ns();
        if (now >= deadline || board[STOP]) break;
        uint64_t slowest = UINT64_MAX;
        for (int i = 0; i < n_slots; i++) {
            uint64_t seen = board[RECEIVED + slots[i]];
            if (seen < slowest) slowest = seen;
        }
        if (posted + batch > slowest + window || posted + batch > acked + window) {
            read_confirms(conn, 100), stalled++;
            continue;
        }
        if (rate > 0) {
            uint64_t due = start + (uint64_t)(posted / rate * 1e9);
            if (due > now) {
                uint64_t left = (due - now) / 1000;
                read_confirms(conn, left > 1000 ? 1000 : (left ? left : 1));
                continue;
            }
        }
        for (int i = 0; i < batch; i++) memcpy(bodies[i], &now, 8);
        for (uint8_t *p = buffer; p < end;) {
            ssize_t n = write(fd, p, end - p);
            if (n > 0) p += n;
            else if (n < 0 && errno == EAGAIN) {
                struct pollfd pfd = {fd, POLLOUT, 0};
                poll(&pfd, 1, 1);
                read_confirms(conn, 0);
            } else if (n < 0 && errno != EINTR) die("write");
        }
        posted += batch;
        board[POSTED + producer] = posted;
        read_confirms(conn, 0);
    }
    board[DONE + producer] = posted;
    uint64_t give_up = now_ns() + 30000000000u;
    while (acked + nacked < posted && now_ns() < give_up) read_confirms(conn, 1000);
    board[ACKED + producer] = acked;
    while (!board[STOP]) usleep(1000);
    printf("{\"posted\": %lu, \"acked\": %lu, \"nacked\": %lu, \"stalls\": %lu, \"cpu_seconds\": %f}\n", posted, acked, nacked,
           stalled, cpu_seconds());
}

static void declare(amqp_connection_state_t conn, amqp_bytes_t queue, int durable) {
    amqp_table_entry_t quorum = {amqp_cstring_bytes("x-queue-type"),
                                 {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes("quorum")}}};
    amqp_table_t arguments = {durable == 2, &quorum};
    amqp_queue_declare(conn, 1, queue, 0, durable != 0, !durable, !durable, arguments);
    check(amqp_get_rpc_reply(conn), "queue.declare");
}

static void consume(char **a) {
    amqp_connection_state_t conn = dial(atoi(a[0]));
    open_board(a[1]);
    int worker = atoi(a[2]), consumer = atoi(a[3]), durable = atoi(a[6]), ack_every = atoi(a[8]);
    amqp_bytes_t queue = amqp_cstring_bytes(a[5]);
    if (durable == 2) {
        amqp_connection_state_t leader = dial(atoi(a[10]));
        declare(leader, queue, durable);
        amqp_connection_close(leader, AMQP_REPLY_SUCCESS);
        amqp_destroy_connection(leader);
    }
    declare(conn, queue, durable);
    if (*a[4]) {
        amqp_bytes_t exchange = amqp_cstring_bytes(a[4]);
        amqp_exchange_declare(conn, 1, exchange, amqp_cstring_bytes("fanout"), 0, 1, 0, 0, amqp_empty_table);
        check(amqp_get_rpc_reply(conn), "exchange.declare");
        amqp_queue_bind(conn, 1, queue, exchange, amqp_empty_bytes, amqp_empty_table);
        check(amqp_get_rpc_reply(conn), "queue.bind");
    }
    amqp_basic_qos(conn, 1, 0, atoi(a[7]), 0);
    check(amqp_get_rpc_reply(conn), "basic.qos");
    amqp_basic_consume(conn, 1, queue, amqp_empty_bytes, 0, ack_every == 0, 0, amqp_empty_table);
    check(amqp_get_rpc_reply(conn), "basic.consume");
    size_t room = 1 << 20, taken = 0;
    uint64_t *samples = malloc(room * 16), received = 0, tag = 0, unacked = 0, left = 0, sent = 0, last = 0;
    board[READY + worker] = 1;
    while (!board[STOP]) {
        amqp_frame_t frame;
        int status = next_frame(conn, &frame, 2000);
        if (status == AMQP_STATUS_TIMEOUT) continue;
        if (status != AMQP_STATUS_OK) die("reading deliveries");
        if (frame.frame_type == AMQP_FRAME_METHOD) {
            if (frame.payload.method.id != AMQP_BASIC_DELIVER_METHOD) die("unexpected method while consuming");
            tag = ((amqp_basic_deliver_t *)frame.payload.method.decoded)->delivery_tag;
        } else if (frame.frame_type == AMQP_FRAME_HEADER) {
            left = frame.payload.properties.body_size;
            sent = 0;
        } else {
            if (!sent) memcpy(&sent, frame.payload.body_fragment.bytes, 8);
            left -= frame.payload.body_fragment.len;
            if (!left) {
                last = now_ns();
                if (taken == room) samples = realloc(samples, (room *= 2) * 16);
                samples[2 * taken] = sent, samples[2 * taken + 1] = last, taken++;
                if (ack_every && ++unacked >= (uint64_t)ack_every) {
                    amqp_basic_ack(conn, 1, tag, ack_every > 1);
                    unacked = 0;
                }
                board[RECEIVED + consumer] = ++received;
                amqp_maybe_release_buffers(conn);
            }
        }
    }
    if (ack_every && unacked) amqp_basic_ack(conn, 1, tag, 1);
    FILE *out = fopen(a[9], "wb");
    if (!out || fwrite(samples, 16, taken, out) != taken || fclose(out)) die("cannot write the samples");
    printf("{\"received\": %lu, \"last\": %lu, \"cpu_seconds\": %f}\n", received, last, cpu_seconds());
}

int main(int argc, char **argv) {
    if (argc == 15 && !strcmp(argv[1], "produce")) produce(argv + 2);
    else if (argc == 13 && !strcmp(argv[1], "consume")) consume(argv + 2);
    else die("usage: see the head of rabbit_client.c");
    return 0;
}
