/* nccl.cpp - a played NCCL: collectives between processes, on the memory and the streams of the fake CUDA driver.
 *
 * DESIGN
 * The library libnccl.so.2 has the functions that Penstock looks up.  Only a process that names the folder of the fake
 * driver finds it.
 * Board      Members of a communicator share a file in memory that the process of ncclGetUniqueId() made: who has
 *            joined, which call each has begun, and the inputs of the last two calls.
 * Call       is two items of work in its stream: the member's inputs are copied to the board; then, once all members
 *            have begun the same call, results are computed from the board.  It waits for ever for a member that is dead
 *            or that begins another call; only ncclCommAbort() ends that.
 * Order      Sums run from the last member to the first, so that tests see from the bits who carried a call.  16-bit
 *            floats are added in float32 and rounded once.
 * Strict     where NCCL is, or where it leaves something open: a communicator is not ready before
 *            ncclCommGetAsyncError() has said so; a call is sometimes enqueued late, by another thread, and until then
 *            its stream must not be used; members on one device are refused; buffers are memory of the communicator's
 *            device; finalizing and destroying wait for all members.
 * Settings   NCCL_ON_HOST_FAILS=RANK: that member cannot join.  NCCL_ON_HOST_LOG=FILE: a line for each call,
 *            finalization and abort of each member.  NCCL_MULTI_RANK_GPU_ENABLE=1: members may share a device.
 */
#include "../driver.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#undef API
#define API extern "C" __attribute__((visibility("default")))

enum result { SUCCESS, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { MEMBERS = 64, OPS = MEMBERS, ID_BYTES = 128 };
enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
static const char *const kind_names[] = {"all_reduce", "reduce", "reduce_scatter", "all_gather",
                                         "broadcast"};

struct unique_id {
    char bytes[ID_BYTES];
};
struct configuration {
    size_t size;
    unsigned magic, version;
    int blocking;
};

/* ---- the board ------------------------------------------------------------------------------------- */

/* What must be equal on all members. */
struct told {
    int32_t kind, type, op, root;
    uint64_t count;
    bool operator==(const told &other) const
    {
        return memcmp(this, &other, sizeof other) == 0;
    }
};

enum stage { ABSENT, JOINED, FINALIZED };

struct member {
    std::atomic<int> stage;
    std::atomic<uint64_t> put, taken; /* newest call whose inputs are here; whose results are out */
    char uuid[16];
    uint64_t n_ops[2];
    told ops[2][OPS];
};

struct board {
    std::atomic<int> size; /* 0: nobody has joined */
    member members[MEMBERS];
};

static const off_t HEAD = (sizeof(board) + PAGE - 1) / PAGE * PAGE;
static const off_t ROOM = (off_t)1 << 32; /* of the inputs of one member to one call */

struct name {
    uint64_t magic, inode;
    int32_t pid, file;
};
static const uint64_t MAGIC = 0x6465796c706c6363;

/* ---- communicators --------------------------------------------------------------------------------- */

struct op {
    told what;
    const char *in;
    char *out;
};

struct seat {
    int size, rank;
};

struct communicator : seat {
    int device, file;
    board *all;
    std::mutex lock;
    int state; /* IN_PROGRESS until the last operation is done */
    std::atomic<bool> is_aborted;
    uint64_t calls; /* begun */
    member &own()
    {
        return all->members[rank];
    }
    ~communicator()
    {
        if (all != nullptr) munmap(all, (size_t)HEAD);
        if (file >= 0) close(file);
    }
};
typedef std::shared_ptr<communicator> comm_ref;
typedef comm_ref *handle; /* what the caller holds */

static std::mutex lock; /* of what follows */
static std::set<handle> links;
static std::mt19937 chance{(unsigned)getpid()};

static comm_ref find(void *comm)
{
    std::lock_guard<std::mutex> held(lock);
    return links.count((handle)comm) > 0 ? *(handle)comm : nullptr;
}

static unsigned drawn(unsigned below)
{
    std::lock_guard<std::mutex> held(lock);
    return chance() % below;
}

static void doze()
{
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

static void change(const comm_ref &c, int state)
{
    std::lock_guard<std::mutex> held(c->lock);
    if (c->state == IN_PROGRESS || state == IN_PROGRESS) c->state = state;
}

static int number(const char *name)
{
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? atoi(text) : -1;
}

/* ---- the driver, as a program calls it ------------------------------------------------------------- */

/* cuda.h renames functions to their newest version. */
#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)

template <typename F> static F *of_driver(const char *name)
{
    static void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return cuda != nullptr ? (F *)dlsym(cuda, name) : nullptr;
}

static int current_device()
{
    CUdevice device = -1;
    auto *ask       = of_driver<CUresult(CUdevice *)>(TEXT(cuCtxGetDevice));
    return ask != nullptr && ask(&device) == CUDA_SUCCESS ? device : -1;
}

static bool is_of(int device, const void *at)
{
    int its = -1;
    auto *ask =
        of_driver<CUresult(void *, CUpointer_attribute, CUdeviceptr)>(TEXT(cuPointerGetAttribute));
    return ask(&its, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)at) == CUDA_SUCCESS &&
           its == device;
}

/* ---- joining --------------------------------------------------------------------------------------- */

API int ncclGetUniqueId(unique_id *id)
{
    struct stat about;
    const int file = memfd_create("board of the played NCCL", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, HEAD + 2 * MEMBERS * ROOM) != 0 || fstat(file, &about) != 0)
        return SYSTEM_ERROR;
    const name n = {MAGIC, about.st_ino, (int32_t)getpid(), file};
    memset(id, 0, sizeof *id);
    memcpy(id, &n, sizeof n);
    return SUCCESS;
}

static bool open_board(const name &n, communicator *c)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", n.pid, n.file);
    c->file = open(path, O_RDWR | O_CLOEXEC);
    if (c->file < 0 || fstat(c->file, &about) != 0 || about.st_ino != n.inode) return false;
    void *at = mmap(nullptr, (size_t)HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, c->file, 0);
    if (at == MAP_FAILED) return false;
    c->all = (board *)at;
    return true;
}

static bool share_a_device(const comm_ref &c)
{
    if (number("NCCL_MULTI_RANK_GPU_ENABLE") == 1) return false;
    for (int i = 0; i < c->size; i++)
        for (int j = 0; j < i; j++)
            if (memcmp(c->all->members[i].uuid, c->all->members[j].uuid, 16) == 0) return true;
    return false;
}

static bool all_are(const comm_ref &c, int stage)
{
    for (int i = 0; i < c->size; i++)
        if (c->all->members[i].stage < stage) return false;
    return true;
}

static void join(comm_ref c)
{
    int none = 0;
    if (number("NCCL_ON_HOST_FAILS") == c->rank) return change(c, SYSTEM_ERROR);
    if (!c->all->size.compare_exchange_strong(none, c->size) && none != c->size)
        return change(c, INVALID_ARGUMENT);
    c->own().stage = JOINED;
    while (!all_are(c, JOINED) && !c->is_aborted) doze();
    change(c, share_a_device(c) ? INVALID_USAGE : SUCCESS);
}

API int ncclCommInitRankConfig(void **comm, int size, unique_id id, int rank, configuration *config)
{
    name n;
    CUuuid uuid;
    memcpy(&n, &id, sizeof n);
    *comm = nullptr;
    if (n.magic != MAGIC || size < 1 || size > MEMBERS || rank < 0 || rank >= size ||
        config->magic != 0xcafebeef || config->blocking != 0)
        return INVALID_ARGUMENT;
    comm_ref c(
        new communicator{{size, rank}, current_device(), -1, nullptr, {}, IN_PROGRESS, {}, 0});
    auto *ask = of_driver<CUresult(CUuuid *, CUdevice)>(TEXT(cuDeviceGetUuid));
    if (c->device < 0 || ask(&uuid, c->device) != CUDA_SUCCESS || !open_board(n, c.get()))
        return SYSTEM_ERROR;
    if (c->own().stage != ABSENT) return INVALID_ARGUMENT;
    memcpy(c->own().uuid, &uuid, 16);
    std::thread(join, c).detach();
    std::lock_guard<std::mutex> held(lock);
    *comm = *links.insert(new comm_ref(c)).first;
    return IN_PROGRESS;
}

API int ncclCommGetAsyncError(void *comm, int *state)
{
    comm_ref c = find(comm);
    if (c == nullptr) return INVALID_ARGUMENT;
    std::lock_guard<std::mutex> held(c->lock);
    *state = c->state;
    return SUCCESS;
}

/* ---- arithmetic ------------------------------------------------------------------------------------ */

static float widened(uint16_t bits)
{
    const uint32_t all = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &all, sizeof f);
    return f;
}

static uint16_t narrowed(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (f != f) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct brain_float {
    uint16_t bits;
    operator float() const
    {
        return widened(bits);
    }
    brain_float &operator=(float f)
    {
        bits = narrowed(f);
        return *this;
    }
};

template <typename T> static T combined(int op, T a, T b)
{
    switch (op) {
    case 0: return (T)(a + b);
    case 1: return (T)(a * b);
    case 2: return b > a ? b : a;
    default: return b < a ? b : a;
    }
}

template <typename T, typename A>
static void fold(int op, const std::vector<std::string> &inputs, uint64_t count, char *out)
{
    for (uint64_t i = 0; i < count; i++) {
        A sum{};
        for (size_t m = inputs.size(); m-- > 0;) {
            T x;
            memcpy(&x, inputs[m].data() + i * sizeof x, sizeof x);
            sum = m + 1 == inputs.size() ? (A)x : combined<A>(op, sum, (A)x);
        }
        T result;
        result = sum;
        memcpy(out + i * sizeof result, &result, sizeof result);
    }
}

typedef void (*fold_fn)(int op, const std::vector<std::string> &inputs, uint64_t count, char *out);
static const struct {
    size_t width;
    fold_fn fold;
} types[] = {
    {1, fold<int8_t, int8_t>},     {1, fold<uint8_t, uint8_t>},  {4, fold<int32_t, uint32_t>},
    {4, fold<uint32_t, uint32_t>}, {8, fold<int64_t, uint64_t>}, {8, fold<uint64_t, uint64_t>},
    {2, fold<_Float16, float>},    {4, fold<float, float>},      {8, fold<double, double>},
    {2, fold<brain_float, float>},
};
enum { TYPES = sizeof types / sizeof *types };

/* ---- calls ----------------------------------------------------------------------------------------- */

static uint64_t bytes_in(const seat &c, const told &t)
{
    const uint64_t part = t.count * types[t.type].width;
    if (t.kind == BROADCAST && t.root != c.rank) return 0;
    return t.kind == REDUCE_SCATTER ? part * (uint64_t)c.size : part;
}

static uint64_t bytes_out(const seat &c, const told &t)
{
    const uint64_t part = t.count * types[t.type].width;
    if (t.kind == REDUCE && t.root != c.rank) return 0;
    return t.kind == ALL_GATHER ? part * (uint64_t)c.size : part;
}

static off_t place(int who, uint64_t seq)
{
    return HEAD + (2 * who + (off_t)(seq % 2)) * ROOM;
}

static void put(communicator &c, const std::vector<op> &ops, uint64_t seq)
{
    off_t at = place(c.rank, seq);
    for (const op &o : ops) {
        const uint64_t bytes = bytes_in(c, o.what);
        for (uint64_t done = 0; done < bytes;) {
            const ssize_t n = pwrite(c.file, o.in + done, bytes - done, at + (off_t)done);
            if (n <= 0) abort();
            done += (uint64_t)n;
        }
        at += (off_t)bytes;
    }
    c.own().n_ops[seq % 2] = ops.size();
    for (size_t i = 0; i < ops.size(); i++) c.own().ops[seq % 2][i] = ops[i].what;
    c.own().put = seq;
}

/* The input of a member to the op `which`; its offset follows from the ops before. */
static std::string input(const communicator &c, int who, const std::vector<op> &ops, size_t which,
                         uint64_t seq, uint64_t skip, uint64_t bytes)
{
    off_t at = place(who, seq) + (off_t)skip;
    for (size_t i = 0; i < which; i++) at += (off_t)bytes_in({c.size, who}, ops[i].what);
    std::string data(bytes, '\0');
    for (uint64_t done = 0; done < bytes;) {
        const ssize_t n = pread(c.file, &data[done], bytes - done, at + (off_t)done);
        if (n <= 0) abort();
        done += (uint64_t)n;
    }
    return data;
}

static void take_one(const communicator &c, const std::vector<op> &ops, size_t which, uint64_t seq)
{
    const op &o         = ops[which];
    const told &t       = o.what;
    const uint64_t part = t.count * types[t.type].width;
    if (bytes_out(c, t) == 0) return;
    if (t.kind == BROADCAST) {
        const std::string data = input(c, t.root, ops, which, seq, 0, part);
        memcpy(o.out, data.data(), part);
        return;
    }
    std::vector<std::string> inputs;
    const uint64_t skip = t.kind == REDUCE_SCATTER ? part * (uint64_t)c.rank : 0;
    for (int i = 0; i < c.size; i++) inputs.push_back(input(c, i, ops, which, seq, skip, part));
    if (t.kind != ALL_GATHER) return types[t.type].fold(t.op, inputs, t.count, o.out);
    for (int i = 0; i < c.size; i++)
        memcpy(o.out + (uint64_t)i * part, inputs[(size_t)i].data(), part);
}

/* All have begun the same call; one that begins another is waited for, as in NCCL. */
static bool all_have_put(communicator &c, uint64_t seq)
{
    const member &own = c.own();
    for (int i = 0; i < c.size; i++) {
        const member &m = c.all->members[i];
        if (m.put < seq || m.n_ops[seq % 2] != own.n_ops[seq % 2]) return false;
        for (uint64_t j = 0; j < own.n_ops[seq % 2]; j++)
            if (!(m.ops[seq % 2][j] == own.ops[seq % 2][j])) return false;
    }
    return true;
}

typedef CUresult enqueue_fn(CUstream, const extents &, std::function<void()>,
                            std::function<bool()>);

static int enqueue_both(const comm_ref &c, const std::vector<op> &ops, uint64_t seq,
                        CUstream stream)
{
    extents ins, outs;
    for (const op &o : ops) {
        if (bytes_in(*c, o.what) > 0) ins.push_back({(uintptr_t)o.in, bytes_in(*c, o.what)});
        if (bytes_out(*c, o.what) > 0) outs.push_back({(uintptr_t)o.out, bytes_out(*c, o.what)});
    }
    auto *enqueue = of_driver<enqueue_fn>("played_enqueue");
    CUresult done = enqueue(
        stream, ins,
        [=] {
            if (!c->is_aborted) put(*c, ops, seq);
        },
        [=] { return c->is_aborted || c->own().taken == seq - 1; });
    if (done == CUDA_SUCCESS)
        done = enqueue(
            stream, outs,
            [=] {
                for (size_t i = 0; i < ops.size() && !c->is_aborted; i++) take_one(*c, ops, i, seq);
                if (!c->is_aborted) c->own().taken = seq;
            },
            [=] { return c->is_aborted || all_have_put(*c, seq); });
    return done == CUDA_SUCCESS ? SUCCESS : INVALID_ARGUMENT;
}

static void write_line(const communicator &c, const std::string &line)
{
    const char *path = getenv("NCCL_ON_HOST_LOG");
    const int to =
        path != nullptr ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (to < 0) return;
    dprintf(to, "%s rank %d of %d\n", line.c_str(), c.rank, c.size);
    close(to);
}

static void note(const communicator &c, const std::vector<op> &ops)
{
    for (const op &o : ops)
        write_line(c, std::string(ops.size() > 1 ? "grouped " : "") + kind_names[o.what.kind] +
                          " " + std::to_string(o.what.count));
}

/* Every second call is enqueued by another thread, later. */
static int begin(const comm_ref &c, const std::vector<op> &ops, CUstream stream)
{
    uint64_t bytes = 0;
    for (const op &o : ops) bytes += bytes_in(*c, o.what);
    if (bytes > (uint64_t)ROOM) return INVALID_ARGUMENT;
    {
        std::lock_guard<std::mutex> held(c->lock);
        if (c->state != SUCCESS) return INVALID_ARGUMENT; /* the previous operation is not done */
        c->state = IN_PROGRESS;
    }
    const uint64_t seq   = ++c->calls;
    const unsigned pause = drawn(400);
    note(*c, ops);
    if (pause < 200) {
        change(c, enqueue_both(c, ops, seq, stream));
        std::lock_guard<std::mutex> held(c->lock);
        return c->state;
    }
    CUcontext context = nullptr; /* stream 0 is the context's */
    of_driver<CUresult(CUcontext *)>(TEXT(cuCtxGetCurrent))(&context);
    std::thread([=] {
        std::this_thread::sleep_for(std::chrono::microseconds(pause));
        of_driver<CUresult(CUcontext)>(TEXT(cuCtxPushCurrent))(context);
        change(c, c->is_aborted ? SUCCESS : enqueue_both(c, ops, seq, stream));
    }).detach();
    return IN_PROGRESS;
}

/* ---- groups ---------------------------------------------------------------------------------------- */

static thread_local struct {
    int depth;
    comm_ref of;
    CUstream stream;
    std::vector<op> ops;
} group;

API int ncclGroupStart()
{
    group.depth++;
    return SUCCESS;
}

API int ncclGroupEnd()
{
    if (group.depth == 0) return INVALID_USAGE;
    if (--group.depth > 0 || group.of == nullptr) return SUCCESS;
    const comm_ref c = group.of;
    group.of         = nullptr;
    return begin(c, std::exchange(group.ops, {}), group.stream);
}

static int call(void *comm, void *stream, const op &o)
{
    const comm_ref c = find(comm);
    if (c == nullptr || o.what.type < 0 || o.what.type >= TYPES || o.what.op < 0 || o.what.op > 3 ||
        o.what.root < 0 || o.what.root >= c->size || current_device() != c->device)
        return INVALID_ARGUMENT;
    if ((bytes_in(*c, o.what) > 0 && !is_of(c->device, o.in)) ||
        (bytes_out(*c, o.what) > 0 && !is_of(c->device, o.out)))
        return INVALID_ARGUMENT;
    if (group.depth == 0) return begin(c, {o}, (CUstream)stream);
    if (group.of != nullptr && (group.of != c || group.stream != stream)) return INVALID_USAGE;
    if (group.ops.size() == OPS) return INVALID_USAGE;
    group.of     = c;
    group.stream = (CUstream)stream;
    group.ops.push_back(o);
    return SUCCESS;
}

API int ncclAllReduce(const void *in, void *out, size_t n, int type, int op, void *comm,
                      void *stream)
{
    return call(comm, stream, {{ALL_REDUCE, type, op, 0, n}, (const char *)in, (char *)out});
}

API int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root, void *comm,
                   void *stream)
{
    return call(comm, stream, {{REDUCE, type, op, root, n}, (const char *)in, (char *)out});
}

API int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, void *comm,
                          void *stream)
{
    return call(comm, stream, {{REDUCE_SCATTER, type, op, 0, n}, (const char *)in, (char *)out});
}

API int ncclAllGather(const void *in, void *out, size_t n, int type, void *comm, void *stream)
{
    return call(comm, stream, {{ALL_GATHER, type, 0, 0, n}, (const char *)in, (char *)out});
}

API int ncclBroadcast(const void *in, void *out, size_t n, int type, int root, void *comm,
                      void *stream)
{
    return call(comm, stream, {{BROADCAST, type, 0, root, n}, (const char *)in, (char *)out});
}

/* ---- the end --------------------------------------------------------------------------------------- */

static void finalize(const comm_ref &c)
{
    while (c->own().taken < c->calls && !c->is_aborted) doze();
    c->own().stage = FINALIZED;
    while (!all_are(c, FINALIZED) && !c->is_aborted) doze();
}

API int ncclCommFinalize(void *comm)
{
    const comm_ref c = find(comm);
    if (c == nullptr) return INVALID_ARGUMENT;
    {
        std::lock_guard<std::mutex> held(c->lock);
        if (c->state != SUCCESS || c->own().stage == FINALIZED) return INVALID_ARGUMENT;
        c->state = IN_PROGRESS;
    }
    write_line(*c, "finalize");
    std::thread([c] {
        finalize(c);
        change(c, SUCCESS);
    }).detach();
    return IN_PROGRESS;
}

static int forget(void *comm)
{
    std::lock_guard<std::mutex> held(lock);
    links.erase((handle)comm);
    delete (handle)comm;
    return SUCCESS;
}

API int ncclCommDestroy(void *comm)
{
    const comm_ref c = find(comm);
    if (c == nullptr) return INVALID_ARGUMENT;
    finalize(c);
    return forget(comm);
}

/* Its work in streams ends at once.  The other members' does not: they wait until they abort, too. */
API int ncclCommAbort(void *comm)
{
    const comm_ref c = find(comm);
    if (c == nullptr) return INVALID_ARGUMENT;
    c->is_aborted = true;
    write_line(*c, "abort");
    return forget(comm);
}

API const char *ncclGetErrorString(int result)
{
    switch (result) {
    case SUCCESS: return "no error";
    case SYSTEM_ERROR: return "unhandled system error (played on the host)";
    case INVALID_ARGUMENT: return "invalid argument (played on the host)";
    case INVALID_USAGE: return "invalid usage (played on the host)";
    case IN_PROGRESS: return "in progress";
    default: return "unknown error";
    }
}
