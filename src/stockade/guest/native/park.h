/*
 * Parking: the process that will be the program, forked ahead of need.
 *
 * It sits in the guest's cgroups, owns the program's ends of the pipes below, and waits.
 * Used twice: by the sandbox's set-up, where the fork is a warm interpreter, and by the
 * agent, which executes a new one for each further program of a session.
 */
#ifndef STOCKADE_PARK_H
#define STOCKADE_PARK_H

#include <sys/types.h>

/*
 * What every program starts with; nothing is inherited. The zygote starts with it, too, so
 * that a program's process has nothing to change.
 */
#define GUEST_ENVIRONMENT                                                                          \
    "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "HOME=/workspace",        \
        "LANG=C.UTF-8", "USER=guest", "SHELL=/bin/sh"

#define INTERPRETER "/usr/bin/python3"

enum { GUEST_ID = 1000 }; /* the only user and group id that exists inside */

/* Descriptors of the agent, fixed when it is executed. */
enum {
    WIRE_IN = 3,
    WIRE_OUT = 4,
    FIRST_DOOR = 5, /* cgroup doors follow: write "0" to enter */
    MOST_DOORS = 4,
    FIRST_PARKED = 10, /* struct parked, in its order */
    ABOVE_ALL = 20,    /* no fixed number is this high */
};

/* Descriptors of the program's process; the first four are what every program has. */
enum { RESULT = 3, SPECIFICATION = 10, STATUS = 11 };

/* The agent's ends of the pipes to a parked process. */
struct parked {
    pid_t pid;
    int specification, status, input, output, error, result;
};

/*
 * In the agent: 0, and *parked filled; or -1 with errno. In the forked process: 1, in a
 * session of its own, inside the guest's cgroups, with the program's descriptors and no
 * other. One that cannot enter a cgroup never returns; its STATUS says why.
 */
int park(struct parked *parked, int doors);

#endif
