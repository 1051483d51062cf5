/* The compiler: a process of Python that answers requests over a socket, so that hosts need no Python of their own, and
 * those that are Python lend neither their interpreter nor its lock.
 *
 * A message is its length, 8 bytes, and fields that end with a zero each. The process ends by itself when nobody asks;
 * the next request starts another one.
 *
 * Macros: PYTHON, the interpreter, and PACKAGE_FOLDER, the folder that has the package. */
#ifndef TREADLE_COMPILER_CLIENT_H
#define TREADLE_COMPILER_CLIENT_H

#include "graph_proto.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct compiler {
    pthread_mutex_t turn;
    pid_t process, owner; /* 0: none; and the process that started it: a forked child needs its own */
    int socket;
};

static void add_word(struct bytes *b, const char *word) { add(b, word, strlen(word) + 1); }

static void add_count(struct bytes *b, size_t count) {
    char digits[32];
    snprintf(digits, sizeof digits, "%zu", count);
    add_word(b, digits);
}

/* The fields of an answer, one after another; "" beyond the last one. */
struct fields {
    const char *at, *end;
};

static const char *next_field(struct fields *f) {
    const char *field = f->at;
    if (field >= f->end) return "";
    f->at += strlen(field) + 1;
    return field;
}

static size_t next_count(struct fields *f) { return strtoull(next_field(f), NULL, 10); }

static int start_compiler(struct compiler *c) {
    static const char program[] =
        "import sys; sys.path.insert(0, sys.argv[1]); from treadle.onnxruntime.compiler_process import main; main()";
    char *arguments[] = {PYTHON, "-P", "-c", (char *)program, PACKAGE_FOLDER, NULL};
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return errno;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    int code = posix_spawn(&c->process, PYTHON, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    c->socket = ends[0];
    c->owner = getpid();
    if (!code) return 0;
    close(ends[0]);
    c->process = 0;
    return code;
}

static void end_compiler(struct compiler *c) {
    if (!c->process) return;
    close(c->socket);
    while (c->owner == getpid() && waitpid(c->process, NULL, 0) < 0 && errno == EINTR) continue;
    c->process = 0;
}

static int send_all(int socket, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(socket, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return 0;
        data += sent;
        size -= (size_t)sent;
    }
    return 1;
}

static int receive_all(int socket, char *data, size_t size) {
    while (size) {
        ssize_t got = recv(socket, data, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        data += got;
        size -= (size_t)got;
    }
    return 1;
}

/* One request and its answer, *size bytes with a zero at their end; NULL where the process has ended. */
static char *exchange(struct compiler *c, const struct bytes *request, size_t *size) {
    uint64_t length = request->size;
    if (!send_all(c->socket, (char *)&length, sizeof length)) return NULL;
    if (!send_all(c->socket, request->data, request->size)) return NULL;
    if (!receive_all(c->socket, (char *)&length, sizeof length)) return NULL;
    char *answer = malloc(length + 1);
    if (!answer) return NULL;
    answer[length] = 0;
    *size = length;
    if (receive_all(c->socket, answer, length)) return answer;
    free(answer);
    return NULL;
}

/* Asks the compiler. A process that has ended is replaced, once: it may have been idle for long. */
static OrtStatus *ask(const OrtApi *api, struct compiler *c, const struct bytes *request, char **answer, size_t *size) {
    char message[4096];
    int code = 0;
    *answer = NULL;
    if (request->failed) return no_memory(api);
    pthread_mutex_lock(&c->turn);
    for (int attempt = 0; attempt < 2 && !*answer && !code; attempt++) {
        if (attempt || c->owner != getpid()) end_compiler(c);
        if (!c->process) code = start_compiler(c);
        if (!code) *answer = exchange(c, request, size);
    }
    if (!*answer) end_compiler(c);
    pthread_mutex_unlock(&c->turn);
    if (*answer) return NULL;
    snprintf(message, sizeof message, "Treadle: the compiler, %s, %s%s", PYTHON, code ? "cannot be started: " : "has ended",
             code ? strerror(code) : "; its messages are on the standard error output");
    return api->CreateStatus(ORT_EP_FAIL, message);
}

#endif
