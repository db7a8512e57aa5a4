/*
 * The service "accept" (docs/wire.md). Nothing that the guest says here is read by the agent: a
 * parser of its own would be one more thing that a guest can break.
 */
#define _GNU_SOURCE
#include "egress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

enum {
    BACKLOG = 256,
    /* Of each connection in the kernel, which would else let it grow to megabytes. */
    SOCKET_BYTES = 128 * 1024,
    /* Taken bytes are told of sooner than elsewhere: with many connections the host sends each
     * no more than it must. */
    GRANT_STEP = 32 * 1024,
};

struct connection {
    uint16_t channel; /* 0: this place is free */
    int socket;       /* -1: none yet */
    unsigned turn;    /* the oldest that waits comes first */
    uint8_t *waiting; /* what the guest has not taken; none in most of them */
    uint32_t start, length;
    bool host_ended, guest_ended;
};

static struct connection connections[MOST_CONNECTIONS];
static int most; /* no place from here on was ever used */
static int listener = -1;
static uint16_t listener_port;
static unsigned waiting, turns;
/* Of each that egress_poll() names. */
static uint16_t polled_places[MOST_EGRESS_POLLED];

static struct connection *find(uint16_t number)
{
    const struct channel *channel = wire_channel(number);

    return channel ? channel->user : NULL;
}

/* Also where the wire has forgotten the channel: with its last frame, which is then being told of. */
static struct connection *find_ended(uint16_t number)
{
    for (int i = 0; i < most; i++)
        if (connections[i].channel == number)
            return &connections[i];
    return NULL;
}

static void forget(struct connection *connection)
{
    struct channel *const channel = wire_channel(connection->channel);

    if (channel)
        channel->user = NULL;
    if (connection->socket < 0)
        waiting--;
    else
        close(connection->socket);
    free(connection->waiting);
    memset(connection, 0, sizeof *connection);
}

/*
 * The guest gets a reset for what was cut off, and not an end that looks like a whole answer. What
 * was whole it may still read.
 */
static void drop(struct connection *connection)
{
    static const struct linger at_once = {.l_onoff = 1, .l_linger = 0};

    if (connection->socket >= 0 && (connection->length || !connection->host_ended))
        setsockopt(connection->socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    forget(connection);
}

static void abort_connection(struct connection *connection, const char *reason)
{
    const uint16_t channel = connection->channel;

    drop(connection);
    wire_reset(channel, reason);
}

static void end_if_done(struct connection *connection)
{
    if (connection->host_ended && connection->guest_ended && !connection->length)
        forget(connection);
}

/* --- a connection comes --- */

static const char *listen_at(uint16_t port)
{
    const struct sockaddr_in here = {.sin_family = AF_INET,
                                     .sin_port = htons(port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int size = SOCKET_BYTES;

    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (listener < 0)
        return strerrordesc_np(errno);
    /* Inherited by what it accepts. Not SO_REUSEPORT: nobody in here may listen beside it. */
    setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (bind(listener, (const struct sockaddr *)&here, sizeof here) < 0 ||
        listen(listener, BACKLOG) < 0) {
        const char *const reason = strerrordesc_np(errno);

        close(listener);
        listener = -1;
        return reason;
    }
    listener_port = port;
    return NULL;
}

void egress_open(uint16_t channel, uint16_t port)
{
    const char *failed = listener < 0 ? listen_at(port) : NULL;
    int place = 0;

    if (!failed && port != listener_port)
        failed = "another port is listened at";
    while (place < MOST_CONNECTIONS && connections[place].channel)
        place++;
    if (!failed && place == MOST_CONNECTIONS)
        failed = "too many connections at once";
    if (failed) {
        wire_reset(channel, failed);
        return;
    }
    connections[place] = (struct connection){.channel = channel, .socket = -1, .turn = turns++};
    wire_channel(channel)->user = &connections[place];
    wire_channel(channel)->step = GRANT_STEP;
    if (place >= most)
        most = place + 1;
    waiting++;
}

static struct connection *oldest_that_waits(void)
{
    struct connection *oldest = NULL;

    for (int i = 0; i < most; i++)
        if (connections[i].channel && connections[i].socket < 0 &&
            (!oldest || (int)(connections[i].turn - oldest->turn) < 0))
            oldest = &connections[i];
    return oldest;
}

static void accept_connections(void)
{
    static const int on = 1;

    while (waiting) {
        struct connection *const connection = oldest_that_waits();
        const int accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (accepted < 0) {
            if (errno == ECONNABORTED || errno == EINTR)
                continue;
            /* No descriptor is left, say. To look again at once would be without end. */
            if (errno != EAGAIN)
                abort_connection(connection, strerrordesc_np(errno));
            return;
        }
        setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection->socket = accepted;
        waiting--;
        wire_send(connection->channel, "+", 1);
    }
}

/* --- from the host to the guest --- */

/* What it took, which may be nothing; -1 where it takes no more for ever. */
static ssize_t give(struct connection *connection, const uint8_t *bytes, uint32_t length)
{
    const ssize_t count = send(connection->socket, bytes, length, MSG_NOSIGNAL);

    if (count < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS))
        return 0;
    return count;
}

static void end_writing(struct connection *connection)
{
    shutdown(connection->socket, SHUT_WR);
    end_if_done(connection);
}

static void go_on_writing(struct connection *connection)
{
    const ssize_t count =
        give(connection, connection->waiting + connection->start, connection->length);

    if (count < 0) {
        abort_connection(connection, "the guest reads no more");
        return;
    }
    connection->start += (uint32_t)count;
    connection->length -= (uint32_t)count;
    if (!connection->length) {
        free(connection->waiting);
        connection->waiting = NULL;
        connection->start = 0;
    }
    if (count)
        wire_taken(connection->channel, (uint32_t)count);
    if (!connection->length && connection->host_ended)
        end_writing(connection);
}

/* Behind what waits already; together no more than a window. */
static void keep(struct connection *connection, const uint8_t *bytes, uint32_t length)
{
    uint8_t *const grown = malloc(connection->length + length);

    if (!grown)
        wire_die("out of memory");
    if (connection->length)
        memcpy(grown, connection->waiting + connection->start, connection->length);
    memcpy(grown + connection->length, bytes, length);
    free(connection->waiting);
    connection->waiting = grown;
    connection->start = 0;
    connection->length += length;
}

bool egress_data(uint16_t channel, const void *bytes, uint32_t length)
{
    struct connection *const connection = find(channel);
    ssize_t count = 0;

    if (!connection)
        return false;
    if (connection->socket < 0) { /* nobody is there: the host was to wait */
        abort_connection(connection, "DATA before there was a connection");
        return true;
    }
    if (!connection->length)
        count = give(connection, bytes, length);
    if (count < 0) {
        abort_connection(connection, "the guest reads no more");
        return true;
    }
    if ((uint32_t)count < length)
        keep(connection, (const uint8_t *)bytes + count, length - (uint32_t)count);
    if (count)
        wire_taken(channel, (uint32_t)count);
    return true;
}

bool egress_close(uint16_t channel)
{
    struct connection *const connection = find_ended(channel);

    if (!connection)
        return false;
    connection->host_ended = true;
    if (connection->socket < 0) {
        forget(connection);
        wire_close(channel);
    } else if (!connection->length) {
        end_writing(connection);
    }
    return true;
}

bool egress_reset(uint16_t channel)
{
    struct connection *const connection = find_ended(channel);

    if (connection)
        drop(connection);
    return connection;
}

/* --- from the guest to the host --- */

static void read_some(struct connection *connection)
{
    const uint16_t channel = connection->channel;
    const long count = wire_send_from(channel, connection->socket, CHUNK);

    if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    if (count < 0) {
        abort_connection(connection, "the guest reset the connection");
        return;
    }
    connection->guest_ended = true;
    wire_close(channel);
    end_if_done(connection);
}

/* --- the loop --- */

int egress_poll(struct pollfd *polled)
{
    int count = 0;

    /* While nobody waits for a connection the kernel keeps those that come. */
    if (waiting) {
        polled_places[count] = MOST_CONNECTIONS;
        polled[count++] = (struct pollfd){.fd = listener, .events = POLLIN};
    }
    for (int i = 0; i < most; i++) {
        const struct connection *const connection = &connections[i];
        short events = 0;

        if (!connection->channel || connection->socket < 0)
            continue;
        if (!connection->guest_ended && wire_credit(connection->channel))
            events |= POLLIN;
        if (connection->length)
            events |= POLLOUT;
        /* poll(2) tells of errors unasked, and would so again and again. */
        if (!events)
            continue;
        polled_places[count] = (uint16_t)i;
        polled[count++] = (struct pollfd){.fd = connection->socket, .events = events};
    }
    return count;
}

void egress_serve(const struct pollfd *polled, int count)
{
    for (int i = 0; i < count; i++) {
        struct connection *const connection = &connections[polled_places[i]];

        if (!polled[i].revents)
            continue;
        if (polled_places[i] == MOST_CONNECTIONS) {
            accept_connections();
            continue;
        }
        if (connection->socket != polled[i].fd || !connection->channel)
            continue; /* ended meanwhile */
        if (polled[i].revents & ~POLLIN && connection->length)
            go_on_writing(connection);
        if (connection->channel && polled[i].revents & ~POLLOUT && !connection->guest_ended &&
            wire_credit(connection->channel))
            read_some(connection);
    }
}

void egress_end_connections(void)
{
    int accepted;

    for (int i = 0; i < most; i++)
        if (connections[i].channel && connections[i].socket >= 0)
            abort_connection(&connections[i], "the program has ended");
    /* What nobody accepted yet is nobody's, and not the next program's. */
    while (listener >= 0 && (accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        close(accepted);
}
