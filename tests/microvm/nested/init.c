/*
 * The first process of a machine that is to run microVMs by itself: inserts the kernel's modules,
 * mounts what the host of an executor has, and runs one program; then the machine is off.
 *
 *   /dev/vda   the root: the disk of a microVM's image
 *   /dev/vdb   what the test brings, on /workspace
 *   /dev/vdc   scratch, for the program to make of what it likes
 *
 * What goes wrong is one line on the console.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define ROOT "/root"
#define PROGRAM "/workspace/inside.py"

enum { TRIES = 30000, PAUSE_MS = 2 };

static _Noreturn void be_off(void)
{
    tcdrain(STDERR_FILENO); /* to be off loses what the serial line has not sent */
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

static void must(long returned, const char *step)
{
    if (returned >= 0)
        return;
    dprintf(STDERR_FILENO, "init: %s: %s\n", step, strerror(errno));
    be_off();
}

static void mount_on(const char *kind, const char *target)
{
    mkdir(target, 0755);
    must(mount(kind, target, kind, 0, NULL), target);
}

static void mount_disk(const char *device, const char *target)
{
    for (int tries = TRIES; access(device, F_OK) < 0 && tries > 0; tries--)
        poll(NULL, 0, PAUSE_MS);
    mkdir(target, 0755);
    must(mount(device, target, "erofs", MS_RDONLY, NULL), device);
}

static void insert_modules(void)
{
    struct dirent **entries;
    const int count = scandir("/modules", &entries, NULL, alphasort);

    must(count, "/modules");
    must(chdir("/modules"), "/modules");
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;

        if (name[0] != '.') {
            const int file = open(name, O_RDONLY | O_CLOEXEC);

            must(file, name);
            must(syscall(SYS_finit_module, file, "", 0), name);
            close(file);
        }
    }
    must(chdir("/"), "/");
}

int main(void)
{
    static char *const command[] = {"/usr/bin/python3", PROGRAM, NULL};
    static char *const environment[] = {"PATH=/usr/bin", "HOME=/tmp", NULL};
    pid_t child;
    int status = 0;

    insert_modules();
    mount_on("devtmpfs", "/dev");
    mount_disk("/dev/vda", ROOT);
    mount_disk("/dev/vdb", ROOT "/workspace");
    must(mount("/dev", ROOT "/dev", NULL, MS_MOVE, NULL), "move /dev");
    mount_on("proc", ROOT "/proc");
    mount_on("sysfs", ROOT "/sys");
    mount_on("cgroup2", ROOT "/sys/fs/cgroup");
    mount_on("tmpfs", ROOT "/run");
    mount_on("tmpfs", ROOT "/tmp");
    must(chdir(ROOT), ROOT);
    must(mount(".", "/", NULL, MS_MOVE, NULL), "move the root");
    must(chroot("."), "chroot");
    must(chdir("/"), "/");

    child = fork();
    must(child, "fork");
    if (child == 0) {
        setsid();
        execve(command[0], command, environment);
        must(-1, command[0]);
    }
    /* Whoever loses its parent becomes a child of this process. */
    for (pid_t ended = 0; ended != child;)
        must(ended = wait(&status), "wait");
    dprintf(STDERR_FILENO, "init: the program ended with status %#x\n", (unsigned)status);
    be_off();
}
