/* The guest's end of the wire: docs/wire.md. Frames in and out, credit, channels. */
#ifndef STOCKADE_WIRE_H
#define STOCKADE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HEADER = 7,
    CHUNK = 65536,
    WINDOW = 262144,
    MOST_CHANNELS = 512,
    MOST_SPAN = 8,
    LONGEST_REASON = 1024,
};

enum kind { HELLO = 1, OPEN, DATA, CREDIT, CLOSE, RESET, END };

struct channel {
    uint16_t number;   /* 0: this place is free */
    uint32_t credit;   /* bytes that may be sent */
    uint32_t window;   /* bytes that may still come */
    uint32_t untaken;  /* came, and not yet taken */
    uint32_t owed;     /* taken, and not yet granted again */
    uint32_t step;     /* as much is owed before it is granted */
    uint16_t next;     /* of those that hash alike, or of the free ones: its place + 1 */
    void *user;        /* whose it is, where that is not looked for elsewhere */
    bool peer_closed, closed;
};

/* One frame from the host; the payload is valid until the next is read. */
struct frame {
    enum kind kind;
    uint16_t channel;
    const uint8_t *payload;
    uint32_t length;
};

/*
 * The wire is one port of a machine, both ways: it takes and gives a page at a time, and what
 * the host has not yet taken of it is lost with the machine.
 */
void wire_over_port(void);

/* Reads what is there. False where the host is gone. */
bool wire_read(void);
/* The next whole frame of what was read, checked against channel and credit. */
bool wire_next(struct frame *frame);

struct channel *wire_channel(uint16_t number);
/* False where there is no room: then each of them was answered with RESET. */
bool wire_open(uint16_t first, unsigned span);
/* How much may be sent on the channel now; 0 where it ended. */
uint32_t wire_credit(uint16_t number);
void wire_send(uint16_t number, const void *data, size_t length);
/*
 * Reads up to `most` bytes of a descriptor straight into a DATA frame. What read(2)
 * returned, with its errno.
 */
long wire_send_from(uint16_t number, int descriptor, size_t most);
void wire_taken(uint16_t number, uint32_t count);
void wire_close(uint16_t number);
void wire_reset(uint16_t number, const char *reason);
void wire_hello(const char *json, size_t length);
/* Writes all that is queued; waits for the host to read where it must. */
void wire_flush(void);

/* Ends the sandbox; all that was said will have been heard. */
_Noreturn void wire_end(int code);
/* A fault of the agent or of the host: tells the host, ends the sandbox. */
_Noreturn void wire_die(const char *reason);

#endif
