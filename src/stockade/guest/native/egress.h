/* Connections that the guest makes to a port of its own loopback device, for the host to serve. */
#ifndef STOCKADE_EGRESS_H
#define STOCKADE_EGRESS_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    MOST_CONNECTIONS = 384, /* the channels that wait for one included */
    MOST_EGRESS_POLLED = MOST_CONNECTIONS + 1,
};

/* The channel is given one connection to 127.0.0.1:port. The first makes the listener, for good. */
void egress_open(uint16_t channel, uint16_t port);

/* Frames of the host's. False where the channel is none of these. */
bool egress_data(uint16_t channel, const void *bytes, uint32_t length);
bool egress_close(uint16_t channel);
bool egress_reset(uint16_t channel);

/* What to wait for now, at most MOST_EGRESS_POLLED; then what came of it. */
int egress_poll(struct pollfd *polled);
void egress_serve(const struct pollfd *polled, int count);

/* Every process of the guest's is dead: so is every connection, accepted or not. */
void egress_end_connections(void);

#endif
