#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "park.h"

/* How long a host may take to hear the last of a machine. */
enum { LAST_S = 10 };

enum { CHAINS = 256 };

/* By place + 1, so that 0 is none. Numbers that hash alike are chained. */
static struct channel channels[MOST_CHANNELS];
static uint16_t chains[CHAINS];
static uint16_t first_free;
static unsigned used; /* no place from here on was ever taken */
static unsigned open_channels;

static bool is_port;

static uint8_t incoming[2 * (HEADER + CHUNK)];
static size_t in_start, in_end;

/* Room for a batch of small frames and one whole DATA frame beside it. */
static uint8_t outgoing[2 * (HEADER + CHUNK)];
static size_t out_length;

static uint32_t get32(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static void put_header(uint8_t *to, size_t length, uint16_t channel, enum kind kind)
{
    to[0] = (uint8_t)(length >> 24);
    to[1] = (uint8_t)(length >> 16);
    to[2] = (uint8_t)(length >> 8);
    to[3] = (uint8_t)length;
    to[4] = (uint8_t)(channel >> 8);
    to[5] = (uint8_t)channel;
    to[6] = (uint8_t)kind;
}

static void put_frame(uint16_t channel, enum kind kind, const void *payload, size_t length)
{
    if (out_length + HEADER + length > sizeof outgoing)
        wire_flush();
    put_header(outgoing + out_length, length, channel, kind);
    if (length)
        memcpy(outgoing + out_length + HEADER, payload, length);
    out_length += HEADER + length;
}

void wire_over_port(void)
{
    is_port = true;
    fcntl(WIRE_OUT, F_SETFL, O_NONBLOCK);
}

/* Until the host has made room. False where it is gone, and so never will. */
static bool wait_for_room(void)
{
    struct pollfd port = {.fd = WIRE_OUT, .events = POLLOUT};

    return (poll(&port, 1, -1) > 0 || errno == EINTR) && !(port.revents & POLLHUP);
}

void wire_flush(void)
{
    size_t written = 0;

    while (written < out_length) {
        const ssize_t count = write(WIRE_OUT, outgoing + written, out_length - written);

        if (count < 0) {
            if (errno == EINTR || (errno == EAGAIN && wait_for_room()))
                continue;
            _exit(0); /* the host is gone, and with pid 1 everything in here */
        }
        written += (size_t)count;
    }
    out_length = 0;
}

/* Nothing tells what the host took of a port; that it hangs up tells that it took all it wants. */
static void wait_for_hang_up(void)
{
    struct pollfd port = {.fd = WIRE_IN};
    struct timespec start, now;
    int left = LAST_S;

    clock_gettime(CLOCK_MONOTONIC, &start);
    while (left > 0 && poll(&port, 1, left * 1000) >= 0 && !(port.revents & POLLHUP)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        left = LAST_S - (int)(now.tv_sec - start.tv_sec);
    }
}

_Noreturn void wire_end(int code)
{
    wire_flush();
    if (is_port)
        wait_for_hang_up();
    _exit(code);
}

_Noreturn void wire_die(const char *reason)
{
    char text[256];
    const int length = snprintf(text, sizeof text, "agent: %s", reason);

    put_frame(0, RESET, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1);
    wire_end(1);
}

struct channel *wire_channel(uint16_t number)
{
    if (number)
        for (unsigned place = chains[number % CHAINS]; place; place = channels[place - 1].next)
            if (channels[place - 1].number == number)
                return &channels[place - 1];
    return NULL;
}

static void add_channel(uint16_t number)
{
    uint16_t *const chain = &chains[number % CHAINS];
    uint16_t place = first_free;

    if (place)
        first_free = channels[place - 1].next;
    else
        place = (uint16_t)++used;
    channels[place - 1] = (struct channel){.number = number,
                                           .credit = WINDOW,
                                           .window = WINDOW,
                                           .step = WINDOW / 2,
                                           .next = *chain};
    *chain = place;
    open_channels++;
}

static void forget(struct channel *channel)
{
    const uint16_t place = (uint16_t)(channel - channels + 1);
    uint16_t *link = &chains[channel->number % CHAINS];

    while (*link != place)
        link = &channels[*link - 1].next;
    *link = channel->next;
    channel->number = 0;
    channel->next = first_free;
    first_free = place;
    open_channels--;
}

bool wire_open(uint16_t first, unsigned span)
{
    static const char reason[] = "too many channels at once";
    const bool room = open_channels + span <= MOST_CHANNELS;

    if (!first || !span || span > MOST_SPAN || first + span - 1 > UINT16_MAX)
        wire_die("OPEN of channels that there are not");
    for (unsigned i = 0; i < span; i++)
        if (wire_channel((uint16_t)(first + i)))
            wire_die("OPEN of a channel that is open");
    for (unsigned i = 0; i < span; i++) {
        if (room)
            add_channel((uint16_t)(first + i));
        else
            put_frame((uint16_t)(first + i), RESET, reason, sizeof reason - 1);
    }
    return room;
}

bool wire_read(void)
{
    size_t before;
    ssize_t count;

    if (in_start) {
        memmove(incoming, incoming + in_start, in_end - in_start);
        in_end -= in_start;
        in_start = 0;
    }
    before = in_end;
    do {
        count = read(WIRE_IN, incoming + in_end, sizeof incoming - in_end);
        if (count < 0)
            return in_end > before || errno == EINTR || errno == EAGAIN;
        in_end += (size_t)count;
    } while (is_port && count > 0 && in_end < sizeof incoming);
    return in_end > before;
}

static void take_credit(struct channel *channel, const struct frame *frame)
{
    channel->credit += get32(frame->payload);
}

static void take_data(struct channel *channel, const struct frame *frame)
{
    if (channel->peer_closed || frame->length > channel->window)
        wire_die("DATA after CLOSE or beyond credit");
    channel->window -= frame->length;
    channel->untaken += frame->length;
}

static void end_if_done(struct channel *channel)
{
    if (channel->peer_closed && channel->closed && !channel->untaken) {
        put_frame(channel->number, END, NULL, 0);
        forget(channel);
    }
}

/* Whether the frame is news for the agent. */
static bool take(const struct frame *frame)
{
    struct channel *channel = wire_channel(frame->channel);

    if (frame->kind == OPEN)
        return true;
    if (!frame->channel) {
        if (frame->kind != RESET)
            wire_die("a frame on channel 0");
        wire_flush();
        _exit(0); /* the host ends the connection, and hears no more */
    }
    if (!channel)
        return false; /* sent before the host saw how the channel ended */
    switch (frame->kind) {
    case DATA:
        take_data(channel, frame);
        return true;
    case CREDIT:
        take_credit(channel, frame);
        return !channel->closed;
    case CLOSE:
        if (channel->peer_closed)
            wire_die("a second CLOSE");
        channel->peer_closed = true;
        end_if_done(channel);
        return true;
    default: /* RESET */
        forget(channel);
        put_frame(frame->channel, RESET, NULL, 0);
        return true;
    }
}

static bool host_sends(unsigned kind, uint32_t length)
{
    switch (kind) {
    case OPEN:
        return length >= 2 && length <= CHUNK;
    case DATA:
        return length >= 1 && length <= CHUNK;
    case CREDIT:
        return length == 4;
    case CLOSE:
        return length == 0;
    case RESET:
        return length <= LONGEST_REASON;
    default:
        return false;
    }
}

bool wire_next(struct frame *frame)
{
    while (in_end - in_start >= HEADER) {
        const uint8_t *header = incoming + in_start;
        const uint32_t length = get32(header);

        if (!host_sends(header[6], length))
            wire_die("a frame of a kind or a length that the host never sends");
        if (in_end - in_start < HEADER + length)
            return false;
        *frame = (struct frame){.kind = header[6],
                                .channel = (uint16_t)(header[4] << 8 | header[5]),
                                .payload = header + HEADER,
                                .length = length};
        in_start += HEADER + length;
        if (take(frame))
            return true;
    }
    return false;
}

uint32_t wire_credit(uint16_t number)
{
    const struct channel *channel = wire_channel(number);

    return channel && !channel->closed ? channel->credit : 0;
}

void wire_send(uint16_t number, const void *data, size_t length)
{
    struct channel *channel = wire_channel(number);

    if (!channel || channel->closed)
        return;
    if (length > channel->credit || length > CHUNK)
        wire_die("more to send than there is credit");
    channel->credit -= (uint32_t)length;
    put_frame(number, DATA, data, length);
}

long wire_send_from(uint16_t number, int descriptor, size_t most)
{
    struct channel *channel = wire_channel(number);
    ssize_t count;

    if (out_length + HEADER + CHUNK > sizeof outgoing)
        wire_flush();
    if (most > CHUNK)
        most = CHUNK;
    if (most > channel->credit)
        most = channel->credit;
    count = read(descriptor, outgoing + out_length + HEADER, most);
    if (count > 0) {
        put_header(outgoing + out_length, (size_t)count, number, DATA);
        out_length += HEADER + (size_t)count;
        channel->credit -= (uint32_t)count;
    }
    return count;
}

void wire_taken(uint16_t number, uint32_t count)
{
    struct channel *channel = wire_channel(number);

    if (!channel)
        return;
    channel->untaken -= count;
    if (channel->peer_closed) {
        end_if_done(channel);
        return;
    }
    channel->owed += count;
    if (channel->owed >= channel->step) {
        uint8_t grant[4] = {(uint8_t)(channel->owed >> 24), (uint8_t)(channel->owed >> 16),
                            (uint8_t)(channel->owed >> 8), (uint8_t)channel->owed};

        put_frame(number, CREDIT, grant, sizeof grant);
        channel->window += channel->owed;
        channel->owed = 0;
    }
}

void wire_close(uint16_t number)
{
    struct channel *channel = wire_channel(number);

    if (!channel || channel->closed)
        return;
    channel->closed = true;
    put_frame(number, CLOSE, NULL, 0);
    end_if_done(channel);
}

void wire_reset(uint16_t number, const char *reason)
{
    struct channel *channel = wire_channel(number);

    if (channel) {
        forget(channel);
        put_frame(number, RESET, reason, strlen(reason));
    }
}

void wire_hello(const char *json, size_t length)
{
    put_frame(0, HELLO, json, length);
}
