#define _GNU_SOURCE
#include "park.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { READ, WRITE, PIPES = 6 };

static _Noreturn void refuse(int status, const char *step)
{
    char text[128];
    const int length = snprintf(text, sizeof text, "-%s: %s", step, strerrordesc_np(errno));

    if (write(status, text, (size_t)length) < 0)
        _exit(2);
    _exit(1);
}

/* Everything from here on that is allocated is charged to the guest. */
static void enter_cgroups(int doors, int status)
{
    for (int door = FIRST_DOOR; door < FIRST_DOOR + doors; door++)
        if (write(door, "0", 1) != 1)
            refuse(status, "enter the cgroup");
}

/* Property: the program has 0 to 3; the other two are closed before its first instruction. */
static void lay_out(int pipes[PIPES][2])
{
    static const int targets[PIPES] = {SPECIFICATION, STATUS, 0, 1, 2, RESULT};
    int lifted[PIPES];

    for (int i = 0; i < PIPES; i++)
        lifted[i] = fcntl(pipes[i][i == 0 || i == 2 ? READ : WRITE], F_DUPFD, ABOVE_ALL);
    for (int i = 0; i < PIPES; i++)
        if (lifted[i] < 0 || dup2(lifted[i], targets[i]) < 0)
            _exit(2);
    if (syscall(SYS_close_range, RESULT + 1, SPECIFICATION - 1, 0) < 0 ||
        syscall(SYS_close_range, STATUS + 1, INT_MAX, 0) < 0)
        _exit(2);
}

static void become_parked(int pipes[PIPES][2], int doors)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGCHLD, SIG_DFL);
    setsid();
    enter_cgroups(doors, pipes[1][WRITE]);
    lay_out(pipes);
    /* The agent is undumpable, and this a copy of it: a program can read its own /proc. */
    prctl(PR_SET_DUMPABLE, 1);
}

int park(struct parked *parked, int doors)
{
    int pipes[PIPES][2]; /* specification, status, input, output, error, result */
    int *const ends[PIPES] = {&parked->specification, &parked->status, &parked->input,
                              &parked->output,        &parked->error,  &parked->result};
    int made = 0;

    while (made < PIPES && pipe2(pipes[made], O_CLOEXEC) == 0)
        made++;
    parked->pid = made == PIPES ? fork() : -1;
    if (parked->pid == 0) {
        become_parked(pipes, doors);
        return 1;
    }
    for (int i = 0; i < made; i++) {
        const int ours = i == 0 || i == 2 ? WRITE : READ;

        close(pipes[i][!ours]);
        *ends[i] = pipes[i][ours];
        if (parked->pid < 0)
            close(pipes[i][ours]);
        else
            fcntl(pipes[i][ours], F_SETFL, O_NONBLOCK);
    }
    return parked->pid < 0 ? -1 : 0;
}
