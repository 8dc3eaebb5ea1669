/* members.c - members in separate processes. */
#include "members.h"

#include "common/base/clock.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int members_devices           = 1;
uint64_t members_random_state = 1;

static int run_one(member *self, unsigned limit_s, int (*fn)(member *self, const void *arg),
                   const void *arg)
{
    char note[128];
    pen_error why = {0};
    alarm(limit_s);
    if (!device_cuda.available(note, sizeof note)) {
        if (self->rank == 0) printf("no CUDA device: %s\n", note);
        return MEMBERS_SKIP;
    }
    if (device_cuda.count() < members_devices) {
        if (self->rank == 0) printf("%d CUDA devices are wanted\n", members_devices);
        return MEMBERS_SKIP;
    }
    self->device = self->rank % members_devices;
    if (device_cuda.enter(self->device, &why) != PEN_OK ||
        device_place_create(&self->place, &why) != PEN_OK) {
        fprintf(stderr, "member %d: %s\n", self->rank, why.text);
        return 1;
    }
    snprintf(self->board->address[self->rank], sizeof self->board->address[0], "%s",
             device_place_address(self->place));
    members_meet(self);
    const int result = fn(self, arg);
    device_place_destroy(self->place);
    return result;
}

int members_run(int size, unsigned limit_s, int (*fn)(member *self, const void *arg),
                const void *arg)
{
    pid_t pid[MEMBERS_MAX];
    int first = 0;
    members_board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    fflush(stdout);
    for (int i = 0; i < size; i++) {
        member self = {.rank = i, .size = size, .board = board};
        pid[i]      = fork();
        if (pid[i] == 0) {
            const int result = run_one(&self, limit_s, fn, arg);
            exit(result); /* the fake driver writes its reports then */
        }
    }
    for (int i = 0; i < size; i++) {
        int code = 0;
        waitpid(pid[i], &code, 0);
        if (first == 0 && code != 0) first = WIFEXITED(code) ? WEXITSTATUS(code) : 1;
    }
    munmap(board, sizeof *board);
    return first;
}

void members_meet(member *self)
{
    self->met++;
    atomic_fetch_add(&self->board->came, 1);
    while (atomic_load(&self->board->came) < self->met * self->size)
        sched_yield(); /* alarm() ends it */
}

device_team *members_team(member *self, uint64_t id, device_sync_choice sync,
                          uint64_t one_shot_bytes)
{
    const char *address[MEMBERS_MAX];
    int ranks[MEMBERS_MAX];
    device_team *team            = NULL;
    pen_error why                = {0};
    const device_options options = {.ops            = &device_cuda,
                                    .sync           = sync,
                                    .device         = -1,
                                    .one_shot_bytes = one_shot_bytes,
                                    .nccl           = sync == DEVICE_SYNC_NCCL ? nccl_find() : NULL,
                                    .may_reorder    = sync == DEVICE_SYNC_NCCL};
    for (int i = 0; i < self->size; i++) {
        address[i] = self->board->address[i];
        ranks[i]   = i;
    }
    if (device_team_create(self->place, id, address, ranks, self->size, self->rank, &options, &team,
                           &why) != PEN_OK)
        fprintf(stderr, "member %d: %s\n", self->rank, why.text);
    return team;
}

device_sync_choice members_sync(const char *word)
{
    static const char *const words[] = {[DEVICE_SYNC_HOSTFLAG] = "hostflag",
                                        [DEVICE_SYNC_STREAM]   = "stream",
                                        [DEVICE_SYNC_SPIN]     = "spin",
                                        [DEVICE_SYNC_NCCL]     = "nccl"};
    int choice                       = DEVICE_SYNC_NCCL;
    while (choice > DEVICE_SYNC_AUTO && strcmp(words[choice], word) != 0) choice--;
    return (device_sync_choice)choice;
}

bool members_call(device_team *team, const coll_call *call, uint64_t seq)
{
    static _Alignas(64) unsigned char op[COLL_OP_BYTES];
    pen_error why    = {0};
    coll_state state = COLL_FAILED;
    if (coll_path_device.start(team, op, call, seq, &why) == PEN_OK) {
        do {
            state = coll_path_device.advance(op, &why);
            if (state == COLL_RUNNING) sched_yield();
        } while (state == COLL_RUNNING); /* alarm() ends it */
    }
    if (state != COLL_DONE) fprintf(stderr, "%s: %s\n", coll_kind_name(call->kind), why.text);
    return state == COLL_DONE;
}

bool members_wait(device_event *event)
{
    pen_error why     = {0};
    pen_status status = PEN_AGAIN;
    while ((status = device_cuda.event_done(event, &why)) == PEN_AGAIN) sched_yield();
    if (status != PEN_OK) fprintf(stderr, "%s\n", why.text);
    return status == PEN_OK;
}

bool members_drain(void)
{
    pen_error why       = {0};
    device_event *event = device_cuda.event_new();
    pen_status status   = device_cuda.event_record(event, NULL, &why);
    if (status != PEN_OK) fprintf(stderr, "%s\n", why.text);
    const bool is_done = status == PEN_OK && members_wait(event);
    device_cuda.event_free(event);
    return is_done;
}

bool members_copy(void *to, const void *from, size_t bytes)
{
    pen_error why = {0};
    if (device_cuda.copy(to, from, bytes, NULL, &why) == PEN_OK) return members_drain();
    fprintf(stderr, "%s\n", why.text);
    return false;
}
