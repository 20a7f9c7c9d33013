/* Makes one call of the C library fail: the n-th of those that concern the files below one folder, or that ask for memory.

   A process gets it by LD_PRELOAD. `fault_arm` says what fails; all forks of the process share the count. It does not
   reach system calls that bypass the C library, io_uring, stores into mapped files, or small pieces of memory. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kinds of calls. MAKE opens a file that it may make, OPEN does not. */
enum { OPEN = 1, MAKE = 2, READ = 4, WRITE = 8, SIZE = 16, SYNC = 32, NAME = 64, REMOVE = 128, MAP = 256, LOOK = 512, TAKE = 1024 };
#define KINDS 11
#define LARGE 4096 /* bytes of memory for which TAKE asks at least */
enum { ONCE, ON, SHORT, KILL }; /* what happens: see fault_arm */
#define CALLS (1 << 20)

static struct {
  char folder[PATH_MAX];
  int kinds, how, error;
  pid_t owner; /* who armed: what it asks memory for does not count */
  long number;
  atomic_long count; /* calls that count */
  char what[PATH_MAX + 32]; /* the call that was made to fail */
  uint64_t calls[CALLS]; /* where none fails: the first calls that count, see fault_calls */
} *state;

static int names_fd(int fd, char *path) {
  char link[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, PATH_MAX - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return 1;
}

static int below(const char *path) {
  size_t size = strlen(state->folder);
  return !strncmp(path, state->folder, size) && (path[size] == '/' || !path[size]);
}

/* A sum of a text, by FNV-1a. */
static uint64_t sum(uint64_t before, const char *text) {
  while (*text) before = (before ^ (unsigned char)*text++) * 0x100000001b3;
  return before;
}

/* Whether this call is to fail. */
static int hit(int kind, const char *call, const char *path) {
  long number = atomic_fetch_add(&state->count, 1) + 1;
  if (!state->number && number <= CALLS) state->calls[number - 1] = sum(sum(0xcbf29ce484222325, call), path) << KINDS | kind;
  if (!state->number || number < state->number || (number > state->number && state->how != ON)) return 0;
  if (number == state->number) snprintf(state->what, sizeof state->what, "%s %s", call, path);
  if (state->how == KILL) kill(getpid(), SIGKILL);
  return 1;
}

static int on_path(int kind, const char *call, int dir, const char *name) {
  char path[PATH_MAX];
  int before = errno;
  if (!state || !(state->kinds & kind) || !name) return 0;
  if (name[0] == '/')
    snprintf(path, sizeof path, "%s", name);
  else {
    if (dir == AT_FDCWD ? !getcwd(path, sizeof path) : !names_fd(dir, path)) return errno = before, 0;
    size_t size = strlen(path);
    snprintf(path + size, sizeof path - size, "/%s", name);
  }
  errno = before;
  return below(path) && hit(kind, call, path);
}

static int on_file(int kind, const char *call, int fd) {
  char path[PATH_MAX];
  int before = errno;
  if (!state || !(state->kinds & kind)) return 0;
  int found = names_fd(fd, path);
  errno = before;
  return found && below(path) && hit(kind, call, path);
}

/* from: where the call comes from, in place of a path. */
static int on_memory(const char *call, size_t size, const void *from) {
  char path[PATH_MAX];
  Dl_info found;
  int before = errno;
  if (!state || !(state->kinds & TAKE) || size < LARGE || getpid() == state->owner) return 0;
  int known = dladdr(from, &found);
  snprintf(path, sizeof path, "%s %p", known ? found.dli_fname : "", known ? (void *)((char *)from - (char *)found.dli_fbase) : from);
  errno = before;
  return hit(TAKE, call, path);
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL return errno = state->error, -1

#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); \
    va_end(rest); \
    if (on_path(flags & O_CREAT ? MAKE : OPEN, #name, AT_FDCWD, path)) FAIL; \
    return real(path, flags, mode); \
  }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
  int name(int dir, const char *path, int flags, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); \
    va_end(rest); \
    if (on_path(flags & O_CREAT ? MAKE : OPEN, #name, dir, path)) FAIL; \
    return real(dir, path, flags, mode); \
  }
OPENS_AT(openat)
OPENS_AT(openat64)

#define STREAMS(name) \
  FILE *name(const char *path, const char *mode) { \
    REAL(name); \
    if (on_path(*mode == 'r' ? OPEN : MAKE, #name, AT_FDCWD, path)) return errno = state->error, NULL; \
    return real(path, mode); \
  }
STREAMS(fopen)
STREAMS(fopen64)

/* A short read or write does half of what it is asked for. */
#define MOVES(kind, result, name, arguments, given, fd, size) \
  result name arguments { \
    REAL(name); \
    if (on_file(kind, #name, fd)) { \
      if (state->how != SHORT) FAIL; \
      size -= size / 2; \
    } \
    return real given; \
  }
MOVES(READ, ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), fd, n)
MOVES(READ, ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), fd, n)
MOVES(READ, ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at), fd, n)
MOVES(READ, ssize_t, readv, (int fd, const struct iovec *to, int n), (fd, to, n), fd, n)
MOVES(WRITE, ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), fd, n)
MOVES(WRITE, ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at), fd, n)
MOVES(WRITE, ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at), (fd, from, n, at), fd, n)
MOVES(WRITE, ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n), fd, n)
MOVES(WRITE, ssize_t, sendfile, (int to, int from, off_t *at, size_t n), (to, from, at, n), to, n)
MOVES(WRITE, ssize_t, sendfile64, (int to, int from, off64_t *at, size_t n), (to, from, at, n), to, n)
MOVES(WRITE, ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t n, unsigned flags),
      (from, a, to, b, n, flags), to, n)

#define FAILS(name, arguments, given, fails) \
  int name arguments { \
    REAL(name); \
    if (fails) FAIL; \
    return real given; \
  }
#define ON_FILE(kind, name, arguments, given) FAILS(name, arguments, given, on_file(kind, #name, fd))
#define ON_PATH(kind, name, arguments, given, dir, path) FAILS(name, arguments, given, on_path(kind, #name, dir, path))
ON_FILE(SYNC, fsync, (int fd), (fd))
ON_FILE(SYNC, fdatasync, (int fd), (fd))
ON_PATH(LOOK, stat, (const char *path, struct stat *to), (path, to), AT_FDCWD, path)
ON_PATH(LOOK, stat64, (const char *path, struct stat64 *to), (path, to), AT_FDCWD, path)
ON_PATH(LOOK, lstat, (const char *path, struct stat *to), (path, to), AT_FDCWD, path)
ON_PATH(LOOK, lstat64, (const char *path, struct stat64 *to), (path, to), AT_FDCWD, path)
ON_PATH(LOOK, fstatat, (int dir, const char *path, struct stat *to, int flags), (dir, path, to, flags), dir, path)
ON_PATH(LOOK, fstatat64, (int dir, const char *path, struct stat64 *to, int flags), (dir, path, to, flags), dir, path)
ON_PATH(LOOK, statx, (int dir, const char *path, int flags, unsigned mask, struct statx *to),
        (dir, path, flags, mask, to), dir, path)
ON_FILE(LOOK, fstat, (int fd, struct stat *to), (fd, to))
ON_FILE(LOOK, fstat64, (int fd, struct stat64 *to), (fd, to))
ON_FILE(SIZE, ftruncate, (int fd, off_t size), (fd, size))
ON_FILE(SIZE, ftruncate64, (int fd, off64_t size), (fd, size))
ON_FILE(NAME, fchmod, (int fd, mode_t mode), (fd, mode))
ON_PATH(NAME, rename, (const char *from, const char *to), (from, to), AT_FDCWD, from)
ON_PATH(NAME, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), a, from)
ON_PATH(NAME, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), a, from)
ON_PATH(NAME, link, (const char *from, const char *to), (from, to), AT_FDCWD, to)
ON_PATH(NAME, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), b, to)
ON_PATH(NAME, symlink, (const char *from, const char *to), (from, to), AT_FDCWD, to)
ON_PATH(NAME, symlinkat, (const char *from, int b, const char *to), (from, b, to), b, to)
ON_PATH(REMOVE, unlink, (const char *path), (path), AT_FDCWD, path)
ON_PATH(REMOVE, unlinkat, (int dir, const char *path, int flags), (dir, path, flags), dir, path)
ON_PATH(REMOVE, rmdir, (const char *path), (path), AT_FDCWD, path)
ON_PATH(NAME, mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
ON_PATH(NAME, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode), dir, path)
ON_PATH(NAME, chmod, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
ON_PATH(NAME, fchmodat, (int dir, const char *path, mode_t mode, int flags), (dir, path, mode, flags), dir, path)

/* Of a file that is only read it does not fail. The file is closed all the same, as the kernel does. */
int close(int fd) {
  REAL(close);
  int before = errno, mode = fcntl(fd, F_GETFL);
  errno = before;
  int fails = mode >= 0 && (mode & O_ACCMODE) != O_RDONLY && on_file(SYNC, "close", fd), result = real(fd);
  if (fails) FAIL;
  return result;
}

DIR *opendir(const char *path) {
  REAL(opendir);
  if (on_path(LOOK, "opendir", AT_FDCWD, path)) return errno = state->error, NULL;
  return real(path);
}

#define MAPS(name, offset) \
  void *name(void *at, size_t size, int rights, int flags, int fd, offset begin) { \
    REAL(name); \
    int file = fd >= 0 && !(flags & MAP_ANONYMOUS); \
    if (file ? on_file(MAP, #name, fd) : on_memory(#name, size, __builtin_return_address(0))) \
      return errno = state->error, MAP_FAILED; \
    return real(at, size, rights, flags, fd, begin); \
  }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

/* These are called before `dlsym` can be. */
#define TAKES(name, arguments, given, size) \
  extern void *__libc_##name arguments; \
  void *name arguments { \
    if (on_memory(#name, size, __builtin_return_address(0))) return errno = state->error, NULL; \
    return __libc_##name given; \
  }
TAKES(malloc, (size_t size), (size), size)
TAKES(calloc, (size_t n, size_t size), (n, size), n * size)
TAKES(realloc, (void *at, size_t size), (at, size), size)
TAKES(memalign, (size_t multiple, size_t size), (multiple, size), size)

void *aligned_alloc(size_t multiple, size_t size) {
  if (on_memory("aligned_alloc", size, __builtin_return_address(0))) return errno = state->error, NULL;
  return __libc_memalign(multiple, size);
}

int posix_memalign(void **to, size_t multiple, size_t size) {
  if (on_memory("posix_memalign", size, __builtin_return_address(0))) return state->error;
  *to = __libc_memalign(multiple, size);
  return *to ? 0 : ENOMEM;
}

__attribute__((constructor)) static void begin(void) {
  state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* Says what the next calls of `fault_count` count, and which fails. number: 0 for none. how: ONCE, ON from there on,
   SHORT for half a READ or WRITE, KILL before the call. */
void fault_arm(const char *folder, int kinds, long number, int how, int error) {
  state->kinds = 0;
  snprintf(state->folder, sizeof state->folder, "%s", folder);
  state->owner = getpid();
  state->number = number, state->how = how, state->error = error, state->what[0] = 0;
  atomic_store(&state->count, 0);
  state->kinds = kinds;
}

long fault_count(void) { return atomic_load(&state->count); }
/* How many calls are noted. */
long fault_noted(void) { long count = fault_count(); return count < CALLS ? count : CALLS; }
/* By their order: the kind of a call in the lowest bits, and above them a sum of its function and its path. */
const uint64_t *fault_calls(void) { return state->calls; }
const char *fault_what(void) { return state->what; }
