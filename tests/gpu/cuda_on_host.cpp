/* cuda_on_host.cpp - the fibers behind cuda_on_host.h. */
#include "cuda_on_host.h"

#include <csetjmp>
#include <deque>
#include <ucontext.h>
#include <vector>

enum { STACK = 128 << 10, LANES = 32, SLOT_WORDS = 16 };

/* Opens when all live threads have arrived. */
struct barrier {
    int live, arrived;
    unsigned turn;
    void look()
    {
        if (arrived == 0 || arrived < live) return;
        arrived = 0;
        turn++;
    }
};

/* A context starts a fiber, once; later, longjmp enters it: unlike swapcontext, it makes no system
 * call. */
struct fiber {
    ucontext_t context;
    jmp_buf here;
    bool has_begun; /* it waits in run_fiber() for its next thread */
    host_thread self;
    std::vector<char> stack;
    bool ended;
    unsigned slots; /* 0 or 1: the current one */
};

static std::deque<fiber> fibers;
static std::vector<barrier> warps;
static barrier block;
static size_t running;
static jmp_buf caller;
static const std::function<void()> *body;
static uint32_t slots[2][64][LANES][SLOT_WORDS];

uint32_t *host_slot(unsigned lane)
{
    return slots[fibers[running].slots][running / LANES][lane];
}

void host_next_slots()
{
    fibers[running].slots ^= 1;
}

static void leave()
{
    if (_setjmp(fibers[running].here) == 0) _longjmp(caller, 1);
}

static void wait_at(barrier &b)
{
    const unsigned turn = b.turn;
    b.arrived++;
    b.look();
    while (b.turn == turn) leave();
}

void host_sync_block()
{
    wait_at(block);
}

void host_sync_warp()
{
    wait_at(warps[running / LANES]);
}

static void end_thread()
{
    fibers[running].ended = true;
    block.live--;
    block.look();
    barrier &warp = warps[running / LANES];
    warp.live--;
    warp.look();
    leave();
}

/* Runs one thread after another. */
static void run_fiber()
{
    for (;;) {
        (*body)();
        end_thread();
    }
}

static void enter(fiber &f)
{
    if (_setjmp(caller) != 0) return;
    host_now = f.self;
    if (f.has_begun) _longjmp(f.here, 1);
    f.has_begun = true;
    setcontext(&f.context);
}

static void make_fiber(fiber &f)
{
    f.stack.resize(STACK);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp   = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link          = NULL;
    makecontext(&f.context, run_fiber, 0);
}

static void open_block(const host_thread &of, size_t n)
{
    while (fibers.size() < n) {
        fibers.emplace_back();
        make_fiber(fibers.back());
    }
    warps.assign((n + LANES - 1) / LANES, {0, 0, 0});
    block = {(int)n, 0, 0};
    for (size_t i = 0; i < n; i++) {
        fibers[i].self          = of;
        fibers[i].self.thread.x = (unsigned)i;
        fibers[i].ended         = false;
        fibers[i].slots         = 0;
        warps[i / LANES].live++;
    }
}

static void run_block(size_t n)
{
    for (size_t left = n; left > 0;) {
        left = 0;
        for (running = 0; running < n; running++) {
            if (fibers[running].ended) continue;
            enter(fibers[running]);
            left += !fibers[running].ended;
        }
    }
}

void host_launch(dim3 grid, dim3 threads, const std::function<void()> &kernel)
{
    body = &kernel;
    for (unsigned y = 0; y < grid.y; y++)
        for (unsigned x = 0; x < grid.x; x++) {
            open_block({dim3(), dim3(x, y), threads, grid}, threads.x);
            run_block(threads.x);
        }
}
