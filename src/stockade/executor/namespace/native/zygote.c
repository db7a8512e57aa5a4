/*
 * The zygote's loop: one packet on the control socket asks for one thing, and one answers.
 *
 * In C, because each page that the interpreter would write here between two clones is one
 * more to copy. It runs no guest code, ever, and reads nothing but the executor's requests.
 */
#define _GNU_SOURCE
#include "sandbox.h"
#include "park.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 2 + MOST_DOORS }; /* wire in, wire out, the cgroups' doors */

enum { MOST_HELD = 1024 };

union ancillary {
    char space[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    struct cmsghdr align;
};

/*
 * A sandbox's mounts are taken down when nobody holds its mount namespace any more. Were that
 * the end of its pid 1, all that waits for this end would wait for the kernel's unmounting, too.
 * So the zygote holds each for a moment longer.
 */
struct held {
    int pidfd, mounts;
};

static struct held held[MOST_HELD];
static struct pollfd polled[1 + MOST_HELD]; /* the control socket, then a pidfd for each */
static int holding;

static _Noreturn void give_up(const char *reason)
{
    dprintf(STDERR_FILENO, "stockade zygote: %s\n", reason);
    _exit(1);
}

/* How many descriptors came with the request. */
static int receive(int control, struct stockade_request *request, int *descriptors)
{
    union ancillary ancillary;
    struct iovec bytes = {request, sizeof *request};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = ancillary.space,
                             .msg_controllen = sizeof ancillary.space};
    const struct cmsghdr *header;
    ssize_t length;
    size_t size;

    while ((length = recvmsg(control, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (length == 0)
        _exit(0); /* the executor is gone; this is pid 1: every sandbox goes with it */
    if (length != sizeof *request || request->size != sizeof *request ||
        message.msg_flags & (MSG_CTRUNC | MSG_TRUNC))
        give_up("a request that is none");
    header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
        return 0;
    size = header->cmsg_len - CMSG_LEN(0);
    memcpy(descriptors, CMSG_DATA(header), size);
    return (int)(size / sizeof(int));
}

static void answer(int control, int error, int pidfd)
{
    union ancillary ancillary;
    struct iovec bytes = {&error, sizeof error};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};

    if (pidfd >= 0) {
        struct cmsghdr *header;

        memset(&ancillary, 0, sizeof ancillary);
        message.msg_control = ancillary.space;
        message.msg_controllen = CMSG_SPACE(sizeof pidfd);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof pidfd);
        memcpy(CMSG_DATA(header), &pidfd, sizeof pidfd);
    }
    if (sendmsg(control, &message, MSG_NOSIGNAL) < 0 && errno != EPIPE)
        give_up("an answer that cannot be sent");
}

/*
 * Go through the doors of the zygote's own cgroups, and make them the root of all that it
 * and its sandboxes see of cgroups (cgroup_namespaces(7)): where the executor's are on the
 * host is then not told inside.
 */
static int enter_cgroups(const int *doors, int count)
{
    for (int i = 0; i < count; i++)
        if (write(doors[i], "0", 1) != 1)
            return errno;
    return unshare(CLONE_NEWCGROUP) < 0 ? errno : 0;
}

/* Whoever waits for a sandbox does so by its pidfd; the kernel reaps it. */
static void leave_children_to_the_kernel(void)
{
    const struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT};

    if (sigaction(SIGCHLD, &action, NULL) < 0)
        give_up("the children cannot be left to the kernel");
}

/* Takes the pidfd over. Where it cannot be held, pid 1's end takes the mounts down after all. */
static void hold_mounts(int pid, int pidfd)
{
    char path[32];
    int mounts = -1;

    snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
    if (holding < MOST_HELD)
        mounts = open(path, O_RDONLY | O_CLOEXEC);
    if (mounts < 0) {
        close(pidfd);
        return;
    }
    held[holding] = (struct held){pidfd, mounts};
    polled[1 + holding++] = (struct pollfd){.fd = pidfd, .events = POLLIN};
}

/* Waits for a request; lets go, meanwhile, of the mounts of whatever has ended. */
static void await_request(void)
{
    for (;;) {
        const int ready = poll(polled, 1 + (nfds_t)holding, -1);

        if (ready < 0 && errno != EINTR)
            give_up("poll");
        if (ready > 0 && polled[0].revents)
            return;
        for (int i = holding - 1; ready > 0 && i >= 0; i--) {
            if (!polled[1 + i].revents)
                continue;
            close(held[i].pidfd);
            close(held[i].mounts);
            held[i] = held[--holding];
            polled[1 + i] = polled[1 + holding];
        }
    }
}

int stockade_serve(int control)
{
    polled[0] = (struct pollfd){.fd = control, .events = POLLIN};
    leave_children_to_the_kernel();
    for (;;) {
        struct stockade_request request;
        int descriptors[MOST_DESCRIPTORS];
        int count, error = EINVAL, pid = -1, pidfd = -1;

        await_request();
        count = receive(control, &request, descriptors);
        if (request.kind == ENTER) {
            error = enter_cgroups(descriptors, count);
        } else if (request.kind == CLONE && count >= 2) {
            const struct stockade_sandbox sandbox = {
                .wanted = &request,
                .wire_in = descriptors[0],
                .wire_out = descriptors[1],
                .doors = count - 2,
                .door = descriptors + 2,
            };

            pid = sandbox_clone(&sandbox, &pidfd);
            if (pid == 0)
                return 0;
            error = pid < 0 ? -pid : 0;
        }
        for (int i = 0; i < count; i++)
            close(descriptors[i]);
        answer(control, error, pidfd);
        if (pid > 0)
            hold_mounts(pid, pidfd);
    }
}
