/* Faults for LD_PRELOAD: death at the N-th change of the file system, and a wall clock that somebody sets.
 *
 *   FAULT_KILL_AT=N      SIGKILL instead of the N-th call of write, fsync, rename, link, unlink or mkdir
 *   FAULT_COUNT=FILE     how many such calls there were, written at the end
 *   FAULT_CLOCK=FILE     seconds that are added to CLOCK_REALTIME, read anew at each call
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;

static void change(void) {
    const char *at = getenv("FAULT_KILL_AT");
    if (++calls == (at ? atol(at) : -1)) kill(getpid(), SIGKILL);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t n) {
    if (fd > 2) change();
    return NEXT(write)(fd, data, n);
}
int fsync(int fd) { change(); return NEXT(fsync)(fd); }
int syncfs(int fd) { change(); return NEXT(syncfs)(fd); }
int rename(const char *from, const char *to) { change(); return NEXT(rename)(from, to); }
int link(const char *from, const char *to) { change(); return NEXT(link)(from, to); }
int unlink(const char *path) { change(); return NEXT(unlink)(path); }
int mkdir(const char *path, mode_t mode) { change(); return NEXT(mkdir)(path, mode); }

static long offset(void) {
    const char *path = getenv("FAULT_CLOCK");
    char text[32] = "";
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
    close(fd);
    return atol(text);
}

int clock_gettime(clockid_t which, struct timespec *time) {
    int result = NEXT(clock_gettime)(which, time);
    if (which == CLOCK_REALTIME) time->tv_sec += offset();
    return result;
}

__attribute__((destructor)) static void told(void) {
    const char *path = getenv("FAULT_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) { fprintf(file, "%ld", (long)calls); fclose(file); }
}
