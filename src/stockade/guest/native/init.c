/*
 * The first process of a microVM: makes the image's disk the root and becomes the agent.
 *
 *   /init [WORD]... [own-disk] machine BYTES INODES ARGUMENT...
 *                         executed by the kernel from the initramfs, with what stands behind
 *                         `--` on its command line, and before that whatever else there it
 *                         did not know
 *
 * It inserts the kernel's modules, opens the virtio port named `wire` as standard input and
 * output, and executes the agent with its own arguments from `machine` on: docs/images.md. Told
 * `own-disk`, it first makes a file system on the second disk, for scratch files. What goes wrong
 * is one line on the console, and then the machine is off.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "disk.h"

#define AGENT "/opt/stockade/stockade-agent"
#define MODULES "/modules"
#define DISK_MODULES "/disk-modules" /* for a scratch disk */
#define DISK "/dev/vda"
#define SCRATCH_DISK "/dev/vdb"
#define MAKE_FILE_SYSTEM "/usr/sbin/mke2fs"
#define PORTS "/sys/class/virtio-ports"
#define PORT "wire"
#define MODE "machine"
#define OWN_DISK "own-disk"
#define ROOT "/root" /* in every kernel's own initramfs, beneath ours */

enum {
    MOST_ARGUMENTS = 300,
    /* Under emulation, on a machine that does much else, a device may take seconds. */
    PATIENCE_S = 60,
    PAUSE_MS = 2,
};

static _Noreturn void die(const char *step, const char *what)
{
    dprintf(STDERR_FILENO, "stockade-init: %s%s%s: %s\n", step, *what ? " " : "", what,
            strerror(errno));
    tcdrain(STDERR_FILENO); /* to be off loses what the serial line has not sent */
    reboot(RB_POWER_OFF);
    reboot(RB_AUTOBOOT);
    for (;;)
        pause();
}

#define MUST(call, step, what)                                                                     \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            die(step, what);                                                                       \
    } while (0)

static void make_mount(const char *kind, const char *target, unsigned long flags,
                       const char *options)
{
    MUST(mount(kind, target, kind, MS_NOSUID | flags, options), "mount", target);
}

static time_t seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Returns at most PATIENCE_S after `since`. */
static void wait_a_little(time_t since, const char *step, const char *what)
{
    if (seconds() - since >= PATIENCE_S) {
        errno = ETIMEDOUT;
        die(step, what);
    }
    poll(NULL, 0, PAUSE_MS);
}

static void mount_kernel(void)
{
    static const char *const folders[] = {"/proc", "/sys", "/dev", ROOT};

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(folders[i], 0700) < 0 && errno != EEXIST)
            die("mkdir", folders[i]);
    make_mount("proc", "/proc", MS_NODEV | MS_NOEXEC, NULL);
    make_mount("sysfs", "/sys", MS_NODEV | MS_NOEXEC, NULL);
    make_mount("devtmpfs", "/dev", MS_NOEXEC, "mode=755");
}

/* Their names tell the order. They are removed, as all of the initramfs, which is memory. */
static void insert_modules(const char *folder, bool wanted)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, NULL, alphasort);

    MUST(count, "open", folder);
    MUST(chdir(folder), "open", folder);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;

        if (name[0] != '.') {
            const int file = open(name, O_RDONLY | O_CLOEXEC);

            MUST(file, "open", name);
            /* One may be part of this kernel, or loaded by another's need. */
            if (wanted && syscall(SYS_finit_module, file, "", 0) < 0 && errno != EEXIST)
                die("insert", name);
            close(file);
            unlink(name);
        }
        free(entries[i]);
    }
    free(entries);
    MUST(chdir("/"), "open", "/");
    rmdir(folder);
}

static void wait_for_disk(const char *disk)
{
    const time_t since = seconds();

    while (access(disk, F_OK) < 0)
        wait_a_little(since, "wait for", disk);
}

static void mount_disk(void)
{
    wait_for_disk(DISK);
    /* Nobody gains rights by a program's mode: the agent's guest is one user only. */
    MUST(mount(DISK, ROOT, "erofs", MS_RDONLY | MS_NOSUID | MS_NODEV, NULL), "mount", DISK);
}

/*
 * By the image's own program, in the image's root. No journal: nothing of it is to outlive the
 * machine; no block is kept for anybody, for the agent shares out what there is.
 */
static _Noreturn void make_file_system(const char *inodes)
{
    static char *none[] = {NULL};
    char count[24];
    char *const command[] = {
        MAKE_FILE_SYSTEM, "-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-O",
        "none,extent,filetype,sparse_super,large_file,dir_index,dir_nlink,extra_isize,flex_bg,"
        "uninit_bg",
        "-E", "lazy_itable_init=1,nodiscard", "-N", count, SCRATCH_DISK, NULL};

    snprintf(count, sizeof count, "%llu", strtoull(inodes, NULL, 10) + OWN_INODES);
    MUST(mount("/dev", ROOT "/dev", NULL, MS_BIND, NULL), "mount", "/dev");
    MUST(chroot(ROOT), "chroot", "");
    MUST(chdir("/"), "open", "/");
    execve(MAKE_FILE_SYSTEM, command, none);
    die("execute", MAKE_FILE_SYSTEM);
}

static void mount_scratch_disk(const char *inodes)
{
    pid_t maker;
    int status;

    wait_for_disk(SCRATCH_DISK);
    maker = fork();
    MUST(maker, "fork", "");
    if (maker == 0)
        make_file_system(inodes);
    MUST(waitpid(maker, &status, 0), "wait for", MAKE_FILE_SYSTEM);
    errno = EIO;
    if (status != 0)
        die("make a file system on", SCRATCH_DISK);
    MUST(umount2(ROOT "/dev", MNT_DETACH), "unmount", "/dev");
    /* What was never written is zeros: the file behind the disk is new. */
    MUST(mount(SCRATCH_DISK, ROOT SCRATCH, "ext4", MS_NOSUID | MS_NODEV, "noinit_itable"),
         "mount", SCRATCH_DISK);
}

/* The device of the port that has our name, in `path`. */
static bool find_port(char *path, size_t size)
{
    DIR *folder = opendir(PORTS);
    const struct dirent *entry;
    bool found = false;

    while (folder && !found && (entry = readdir(folder))) {
        char name[sizeof PORT + 1] = "";
        int file;

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, size, PORTS "/%.64s/name", entry->d_name);
        file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            continue;
        if (read(file, name, sizeof name - 1) > 0)
            found = strcmp(name, PORT "\n") == 0;
        close(file);
        snprintf(path, size, "/dev/%.64s", entry->d_name);
    }
    if (folder)
        closedir(folder);
    return found;
}

/*
 * A port can be open once only: as long as the agent has it, nobody else can. Until the host's
 * side is known to be there, a read would say that the stream has ended.
 */
static int open_port(void)
{
    const time_t since = seconds();
    char path[512];
    struct pollfd port = {.events = POLLOUT};

    while (!find_port(path, sizeof path) || access(path, F_OK) < 0)
        wait_a_little(since, "wait for the port named", PORT);
    port.fd = open(path, O_RDWR | O_NOCTTY);
    MUST(port.fd, "open", path);
    while (poll(&port, 1, 0) < 0 || port.revents & POLLHUP)
        wait_a_little(since, "wait for the host on port", PORT);
    return port.fd;
}

static void set(const char *setting, const char *value)
{
    char path[128];
    int file;

    snprintf(path, sizeof path, "/proc/sys/%s", setting);
    file = open(path, O_WRONLY | O_CLOEXEC);
    /* What this kernel has not needs no setting. */
    if (file < 0 && errno == ENOENT)
        return;
    MUST(file, "open", path);
    MUST(write(file, value, strlen(value)), "write", path);
    close(file);
}

/* The image's own kernel, for one sandbox: what it never needs again is locked. */
static void lock_kernel(void)
{
    set("kernel/modules_disabled", "1");
    set("kernel/kexec_load_disabled", "1");
    set("kernel/unprivileged_bpf_disabled", "1");
    set("kernel/dmesg_restrict", "1");
    set("kernel/kptr_restrict", "2");
    set("kernel/perf_event_paranoid", "3");
    set("kernel/sysrq", "0");
    /* A kernel that went wrong must not go on: the executor then sees it gone. */
    set("kernel/panic_on_oops", "1");
}

static void bring_up_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    const int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    MUST(control, "socket", "");
    MUST(ioctl(control, SIOCSIFFLAGS, &request), "bring up", "lo");
    close(control);
}

static void make_device(const char *path, unsigned major, unsigned minor)
{
    MUST(mknod(path, S_IFCHR | 0666, makedev(major, minor)), "make", path);
    MUST(chmod(path, 0666), "make", path);
}

/* The devices that every tier has, and no other: the disk and the port have no name inside. */
static void make_devices(void)
{
    make_mount("tmpfs", "dev", MS_NOEXEC, "mode=755,size=64k,nr_inodes=64");
    make_device("dev/null", 1, 3);
    make_device("dev/zero", 1, 5);
    make_device("dev/full", 1, 7);
    make_device("dev/random", 1, 8);
    make_device("dev/urandom", 1, 9);
    make_device("dev/tty", 5, 0);
    MUST(mkdir("dev/pts", 0755), "mkdir", "/dev/pts");
    make_mount("devpts", "dev/pts", MS_NOEXEC, "newinstance,ptmxmode=0666,mode=600,max=64");
    MUST(symlink("pts/ptmx", "dev/ptmx"), "symlink", "/dev/ptmx");
    MUST(mkdir("dev/shm", 0755), "mkdir", "/dev/shm");
    MUST(symlink("/proc/self/fd", "dev/fd"), "symlink", "/dev/fd");
    MUST(symlink("/proc/self/fd/0", "dev/stdin"), "symlink", "/dev/stdin");
    MUST(symlink("/proc/self/fd/1", "dev/stdout"), "symlink", "/dev/stdout");
    MUST(symlink("/proc/self/fd/2", "dev/stderr"), "symlink", "/dev/stderr");
}

/* The disk's root becomes the only one there is: the initramfs stays beneath it, empty. */
static void switch_root(void)
{
    MUST(chdir(ROOT), "open", ROOT);
    make_devices();
    MUST(mount("/proc", "proc", NULL, MS_MOVE, NULL), "move", "/proc");
    MUST(mount("/sys", "sys", NULL, MS_MOVE, NULL), "move", "/sys");
    /* Beneath /sys, which the agent takes away once it holds what it needs of it. */
    make_mount("cgroup2", "sys/fs/cgroup", MS_NODEV | MS_NOEXEC, NULL);
    MUST(umount2("/dev", MNT_DETACH), "unmount", "/dev");
    MUST(mount(".", "/", NULL, MS_MOVE, NULL), "move", "the root");
    MUST(chroot("."), "chroot", "");
    MUST(chdir("/"), "open", "/");
}

/* Those of the agent, from its mode on. Whether a disk of its own is to be made comes before. */
static bool take_arguments(char **agent, char **arguments)
{
    bool own_disk = false;
    int count = 0;

    for (; *arguments && strcmp(*arguments, MODE) != 0; arguments++)
        own_disk = own_disk || strcmp(*arguments, OWN_DISK) == 0;
    errno = EINVAL;
    if (!*arguments)
        die("find among the arguments", MODE);
    errno = E2BIG;
    for (; *arguments; arguments++) {
        if (count == MOST_ARGUMENTS)
            die("take", "the arguments");
        agent[count++] = *arguments;
    }
    errno = EINVAL;
    if (own_disk && count < 3)
        die("find among the arguments", "the sizes of the disk");
    return own_disk;
}

int main(int count, char **arguments)
{
    static char *none[] = {NULL};
    static char *agent[MOST_ARGUMENTS + 2] = {AGENT};
    int port, console;
    bool own_disk;

    if (count < 1 || getpid() != 1) {
        fputs("stockade-init: runs as the first process of a microVM only\n", stderr);
        return 64;
    }
    umask(0);
    mount_kernel();
    console = open("/dev/console", O_WRONLY | O_NOCTTY);
    MUST(console, "open", "/dev/console");
    MUST(dup2(console, STDERR_FILENO), "open", "/dev/console");
    own_disk = take_arguments(agent + 1, arguments + 1);
    insert_modules(MODULES, true);
    insert_modules(DISK_MODULES, own_disk);
    unlink("/init");
    lock_kernel();
    mount_disk();
    if (own_disk)
        mount_scratch_disk(agent[3]);
    port = open_port();
    bring_up_loopback();
    MUST(sethostname("sandbox", 7), "name", "the host");
    switch_root();
    umask(022);

    MUST(dup2(port, STDIN_FILENO), "open", "the port");
    MUST(dup2(port, STDOUT_FILENO), "open", "the port");
    close_range(STDERR_FILENO + 1, ~0U, 0);
    execve(AGENT, agent, none);
    die("execute", AGENT);
}
