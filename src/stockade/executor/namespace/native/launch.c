/*
 * The outer step: a tenant's process tree.
 *
 *   stockade-launch --parent PID --control FD --map BASE COUNT
 *                   [--bind SOURCE TARGET]... [--copy SOURCE TARGET]...
 *                   -- PROGRAM [ARGUMENT]...
 *
 * PROGRAM becomes pid 1 of fresh namespaces, root of a fresh user namespace that maps
 * COUNT ids from BASE on, in a read-only root of its own. FD, the control socket, becomes
 * its descriptor 3; nothing else is passed on. Two processes:
 *
 *   launcher   stays in the host's namespaces, does nothing but wait. The kernel kills
 *              it when PID, its parent, dies, ...
 *   pid 1      ... and pid 1 when the launcher dies, and everything below with it.
 *
 * What goes wrong is told on standard error in one line; exit code 71 (EX_OSERR), or 64.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "park.h"

enum { CONTROL = 3, MAX_BINDS = 32, MAX_COPIES = 16 };

struct bind {
    const char *source, *target;
    int tree; /* a detached copy of the source's mount */
};

/* A file whose place on the host is nobody's business inside: a mount would tell it. */
struct copy {
    const char *source, *target;
    int file;
};

struct launch {
    pid_t parent;
    int control;
    unsigned long id_base, id_count;
    struct bind binds[MAX_BINDS];
    int bind_count;
    struct copy copies[MAX_COPIES];
    int copy_count;
    char **program;
};

static _Noreturn void fail(const char *step, const char *what)
{
    fprintf(stderr, "stockade-launch: %s%s%s: %s\n", step, *what ? " " : "", what, strerror(errno));
    exit(71);
}

static _Noreturn void usage(const char *what)
{
    fprintf(stderr, "stockade-launch: %s\n", what);
    exit(64);
}

#define MUST(call, step, what)                                                                     \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail(step, what);                                                                      \
    } while (0)

static void write_file(const char *path, const char *text)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    MUST(file, "open", path);
    MUST(write(file, text, strlen(text)), "write", path);
    close(file);
}

/*
 * Property: the launcher dies with the executor, pid 1 with the launcher. The parent may
 * have died before the request was made: then the asker is not there any more.
 */
static void die_with(pid_t parent)
{
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl", "PR_SET_PDEATHSIG");
    if (parent && getppid() != parent)
        _exit(0);
}

static void write_maps(pid_t child, const struct launch *launch)
{
    char path[64], map[64];

    /* A plain user may map but his own id, and gid_map only after this: user_namespaces(7). */
    if (geteuid() != 0) {
        snprintf(path, sizeof path, "/proc/%d/setgroups", child);
        write_file(path, "deny");
    }
    snprintf(path, sizeof path, "/proc/%d/uid_map", child);
    snprintf(map, sizeof map, "0 %lu %lu", geteuid() ? geteuid() : launch->id_base,
             geteuid() ? 1 : launch->id_count);
    write_file(path, map);
    snprintf(path, sizeof path, "/proc/%d/gid_map", child);
    snprintf(map, sizeof map, "0 %lu %lu", geteuid() ? getegid() : launch->id_base,
             geteuid() ? 1 : launch->id_count);
    write_file(path, map);
}

/*
 * Copies of what is bound in, taken while this process still has its caller's id: the
 * folder of the guest's files may stand below one that only the caller can enter.
 * Property: all of it read-only, no set-id program, no device (mount_setattr(2)).
 */
static void take_trees(struct launch *launch)
{
    for (int i = 0; i < launch->bind_count; i++) {
        struct bind *bind = &launch->binds[i];
        struct mount_attr attributes = {
            .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
            .propagation = MS_PRIVATE,
        };

        /*
         * A device's own node is bound: nodev would make it useless. Read-only all the same:
         * a device can be written to, and its node, which is the host's, not be touched.
         */
        if (strncmp(bind->target, "/dev/", 5) == 0)
            attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;
        bind->tree = (int)syscall(SYS_open_tree, AT_FDCWD, bind->source,
                                  OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
        MUST(bind->tree, "open_tree", bind->source);
        MUST(syscall(SYS_mount_setattr, bind->tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes,
                     sizeof attributes),
             "mount_setattr", bind->source);
    }
}

/* Opened while this process still has its caller's id, like the trees. */
static void open_copies(struct launch *launch)
{
    for (int i = 0; i < launch->copy_count; i++) {
        launch->copies[i].file = open(launch->copies[i].source, O_RDONLY | O_CLOEXEC);
        MUST(launch->copies[i].file, "open", launch->copies[i].source);
    }
}

/* Root of the new user namespace: an id which is not root's, nor anyone's, on the host. */
static void become_namespace_root(void)
{
    /* Refused where one id only is mapped; the caller's groups then stay: setgroups(2). */
    if (setgroups(0, NULL) < 0 && errno != EPERM)
        fail("setgroups", "");
    MUST(setresgid(0, 0, 0), "setresgid", "0");
    MUST(setresuid(0, 0, 0), "setresuid", "0");
}

static void make_folder(const char *path)
{
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        fail("mkdir", path);
}

/* `target` below the new root, with every folder above it. */
static void make_parents(const char *target, char *path, size_t size)
{
    if ((size_t)snprintf(path, size, ".%s", target) >= size)
        usage("a target is too long");
    for (char *slash = strchr(path + 2, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        make_folder(path);
        *slash = '/';
    }
}

static void make_copy(const struct copy *copy)
{
    char path[512], bytes[65536];
    struct stat status;
    ssize_t count;
    int file;

    make_parents(copy->target, path, sizeof path);
    MUST(fstat(copy->file, &status), "fstat", copy->source);
    file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, status.st_mode & 0111 ? 0555 : 0444);
    MUST(file, "open", path);
    while ((count = read(copy->file, bytes, sizeof bytes)) > 0)
        MUST(write(file, bytes, (size_t)count) == count ? 0 : -1, "write", path);
    MUST(count, "read", copy->source);
    close(file);
}

/* The target as the kind of thing its source is, and the source upon it. */
static void make_target(const char *target, int tree)
{
    char path[512];
    struct stat status;

    make_parents(target, path, sizeof path);
    MUST(fstat(tree, &status), "fstat", target);
    if (S_ISDIR(status.st_mode))
        make_folder(path);
    else
        write_file(path, "");
    MUST(syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH), "move_mount",
         target);
}

/* /bin, /lib and their like: what they are on the host, a link into /usr. */
static void copy_link(const char *name)
{
    char target[256], path[32];
    ssize_t length;

    snprintf(path, sizeof path, "/%s", name);
    length = readlink(path, target, sizeof target - 1);
    if (length < 0 && (errno == ENOENT || errno == EINVAL))
        return; /* absent, or a folder, which the caller binds */
    MUST(length, "readlink", path);
    target[length] = '\0';
    MUST(symlink(target, name), "symlink", name);
}

/*
 * Property: the root holds the image and little else: no host /etc, no home, no /sys, no
 * /var. The files of /etc are made here and say nothing about the host.
 */
static void build_root(struct launch *launch)
{
    static const char *const folders[] = {"etc", "dev", "dev/pts", "proc", "run", "tmp",
                                          "var", "workspace"};
    static const char *const links[] = {"bin", "sbin", "lib", "lib32", "lib64", "libx32"};

    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "mount", "private");
    /* Any folder will do as the place: it is covered, and gone after pivot_root. */
    MUST(mount("root", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,nr_inodes=512,mode=755"),
         "mount", "the root");
    MUST(chdir("/tmp"), "chdir", "the root");
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        make_folder(folders[i]);
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
        copy_link(links[i]);
    for (int i = 0; i < launch->bind_count; i++)
        make_target(launch->binds[i].target, launch->binds[i].tree);
    for (int i = 0; i < launch->copy_count; i++)
        make_copy(&launch->copies[i]);
    write_file("etc/passwd", "guest:x:1000:1000:guest:/workspace:/bin/sh\n");
    write_file("etc/group", "guest:x:1000:\n");
    write_file("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n");
    write_file("etc/hostname", "sandbox\n");
    write_file("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n");
    MUST(symlink("/tmp", "dev/shm"), "symlink", "/dev/shm");
    MUST(symlink("/tmp", "var/tmp"), "symlink", "/var/tmp");
    MUST(symlink("pts/ptmx", "dev/ptmx"), "symlink", "/dev/ptmx");
    MUST(symlink("/proc/self/fd", "dev/fd"), "symlink", "/dev/fd");
    MUST(symlink("/proc/self/fd/0", "dev/stdin"), "symlink", "/dev/stdin");
    MUST(symlink("/proc/self/fd/1", "dev/stdout"), "symlink", "/dev/stdout");
    MUST(symlink("/proc/self/fd/2", "dev/stderr"), "symlink", "/dev/stderr");
    /* Not even beneath a sandbox's own /proc is there one that shows the kernel's settings. */
    MUST(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid"), "mount",
         "/proc");
}

/* Property: the host's root is not hidden but gone: no mount of it is left (pivot_root(2)). */
static void enter_root(void)
{
    MUST(syscall(SYS_pivot_root, ".", "."), "pivot_root", "");
    MUST(umount2(".", MNT_DETACH), "umount", "the host's root");
    MUST(chdir("/"), "chdir", "/");
    MUST(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL),
         "remount", "the root read-only");
}

/* Property: no key of the caller's session keyring can be reached (keyrings(7)). */
static void leave_keyring(void)
{
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
        fail("keyctl", "join a new session keyring");
}

static _Noreturn void run_program(struct launch *launch, int mapped)
{
    char byte;

    if (read(mapped, &byte, 1) != 1)
        _exit(0); /* the launcher is gone */
    take_trees(launch);
    open_copies(launch);
    become_namespace_root();
    die_with(0); /* after the id change, which clears it: prctl(2) */
    if (poll(&(struct pollfd){.fd = mapped}, 1, 0) > 0)
        _exit(0); /* the launcher died before that: its end of the pipe is closed */
    build_root(launch);
    enter_root();
    MUST(sethostname("sandbox", 7), "sethostname", "");
    leave_keyring();
    if (launch->control != CONTROL)
        MUST(dup2(launch->control, CONTROL), "dup2", "the control socket");
    MUST(syscall(SYS_close_range, CONTROL + 1, ~0U, CLOSE_RANGE_CLOEXEC), "close_range", "");
    /* Property: not a variable of the caller's environment is passed on. */
    execve(launch->program[0], launch->program,
           (char *[]){GUEST_ENVIRONMENT, NULL});
    fail("exec", launch->program[0]);
}

static unsigned long number(const char *text)
{
    char *end;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (errno || end == text || *end)
        usage("a number was expected");
    return value;
}

static void parse(struct launch *launch, int count, char **arguments)
{
    memset(launch, 0, sizeof *launch);
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];

        if (strcmp(name, "--") == 0) {
            launch->program = arguments + i + 1;
            break;
        }
        if (strcmp(name, "--parent") == 0 && i + 1 < count) {
            launch->parent = (pid_t)number(arguments[++i]);
        } else if (strcmp(name, "--control") == 0 && i + 1 < count) {
            launch->control = (int)number(arguments[++i]);
        } else if (strcmp(name, "--map") == 0 && i + 2 < count) {
            launch->id_base = number(arguments[++i]);
            launch->id_count = number(arguments[++i]);
        } else if (strcmp(name, "--bind") == 0 && i + 2 < count) {
            if (launch->bind_count == MAX_BINDS)
                usage("too many binds");
            launch->binds[launch->bind_count].source = arguments[++i];
            launch->binds[launch->bind_count++].target = arguments[++i];
        } else if (strcmp(name, "--copy") == 0 && i + 2 < count) {
            if (launch->copy_count == MAX_COPIES)
                usage("too many copies");
            launch->copies[launch->copy_count].source = arguments[++i];
            launch->copies[launch->copy_count++].target = arguments[++i];
        } else {
            usage("usage: stockade-launch --parent PID --control FD --map BASE COUNT "
                  "[--bind SOURCE TARGET]... [--copy SOURCE TARGET]... -- PROGRAM [ARGUMENT]...");
        }
    }
    if (!launch->program || !launch->program[0])
        usage("no program is named");
    /* Property: host root is never mapped: root inside must be nobody outside. */
    if (geteuid() == 0 && (launch->id_base == 0 || launch->id_count == 0))
        usage("--map must not map the host's root");
}

int main(int count, char **arguments)
{
    struct launch launch;
    struct clone_args flags;
    int mapped[2], status;
    long child;

    parse(&launch, count, arguments);
    /* What the executor ignores is inherited, through exec as well: signal(7). */
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    umask(022); /* the root is for another user to read, whatever the caller's habits */
    die_with(launch.parent);
    MUST(pipe2(mapped, O_CLOEXEC), "pipe", "");
    memset(&flags, 0, sizeof flags);
    flags.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                  CLONE_NEWCGROUP | CLONE_NEWNET;
    flags.exit_signal = SIGCHLD;
    child = syscall(SYS_clone3, &flags, sizeof flags);
    if (child < 0)
        fail("clone", "into new namespaces (are user namespaces allowed here?)");
    if (child == 0) {
        close(mapped[1]);
        run_program(&launch, mapped[0]);
    }
    close(mapped[0]);
    close(launch.control);
    write_maps((pid_t)child, &launch);
    /* The maps are written. This end stays open for as long as this process lives. */
    MUST(write(mapped[1], ".", 1), "write", "to pid 1");
    while (waitpid((pid_t)child, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid", "");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
