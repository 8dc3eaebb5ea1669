// bench_gloo.cc - Gloo's allreduce of float32 sums over TCP, measured as `penstock bench all-reduce` and nccl-tests do.
//
//     bench_gloo RANKS ring|bcube|halving_doubling [MIN_BYTES MAX_BYTES FACTOR SECONDS [RANK ADDRESS FOLDER]]
//
// Contains no Penstock code. Starts RANKS processes that meet in a temporary folder; with RANK, it is that one alone,
// on the host with that address, and all meet in FOLDER, which exists and is empty. Prints one
// JSON object for each size: the time of one call is the mean over ranks of a loop of calls; algbw
// = bytes / time, busbw = algbw * 2 (n - 1) / n. Sums are checked before the measurement, and after
// it if out of place.
// ring and bcube are out of place, like ours; halving_doubling, the older interface, is in place.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

namespace {

constexpr int kWarmCalls = 5;

struct Bench {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::string algorithm;
    int rank, ranks;
    std::vector<float> in, out;
};

double now()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

float value(int rank, size_t i)
{
    return static_cast<float>(1 + (i * 7 + i / 64 + static_cast<size_t>(rank) * 3) % 5);
}

template <typename T>
void sum(const std::shared_ptr<gloo::Context> &context, const std::string &algorithm, T *in, T *out, size_t n)
{
    gloo::AllreduceOptions options(context);
    options.setInput(in, n);
    options.setOutput(out, n);
    options.setAlgorithm(algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                              : gloo::AllreduceOptions::Algorithm::RING);
    void (*add)(void *, const void *, const void *, size_t) = &gloo::sum<T>;
    options.setReduceFunction(add);
    gloo::allreduce(options);
}

void check(const Bench &b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float want = 0;
        for (int r = 0; r < b.ranks; r++) want += value(r, i);
        if (b.out[i] == want) continue;
        std::fprintf(stderr, "bench_gloo: element %zu is %g, but should be %g\n", i, b.out[i], want);
        std::exit(1);
    }
}

// The mean over ranks of the time of one call, measured over `calls` calls.
double measure(Bench &b, const std::function<void()> &call, long calls)
{
    gloo::BarrierOptions barrier(b.context);
    gloo::barrier(barrier);
    const double start = now();
    for (long i = 0; i < calls; i++) call();
    double mine = (now() - start) / static_cast<double>(calls), all = 0;
    sum<double>(b.context, "ring", &mine, &all, 1);
    return all / b.ranks;
}

void run_size(Bench &b, size_t bytes, double seconds)
{
    const size_t n      = bytes / sizeof(float);
    const bool in_place = b.algorithm == "halving_doubling";
    for (size_t i = 0; i < n; i++) {
        b.in[i]  = value(b.rank, i);
        b.out[i] = in_place ? b.in[i] : 0;
    }
    std::unique_ptr<gloo::AllreduceHalvingDoubling<float>> halving;
    if (in_place)
        halving.reset(new gloo::AllreduceHalvingDoubling<float>(b.context, {b.out.data()}, static_cast<int>(n)));
    const std::function<void()> call = [&] {
        if (in_place)
            halving->run();
        else
            sum<float>(b.context, b.algorithm, b.in.data(), b.out.data(), n);
    };
    measure(b, call, 1);
    check(b, n);
    measure(b, call, kWarmCalls);
    double wanted = b.rank == 0 ? seconds / measure(b, call, kWarmCalls) + 1 : (measure(b, call, kWarmCalls), 0.0);
    double calls  = 0;
    sum<double>(b.context, "ring", &wanted, &calls, 1); // rank 0's number
    const double time = measure(b, call, static_cast<long>(calls)), algbw = static_cast<double>(bytes) / time * 1e-9;
    if (!in_place) check(b, n);
    if (b.rank != 0) return;
    std::printf("{\"peer\":\"gloo\",\"algorithm\":\"%s\",\"bytes\":%zu,\"ranks\":%d,\"time_us\":%.3f,"
                "\"algbw_GBps\":%.4f,\"busbw_GBps\":%.4f,\"iterations\":%ld,\"verified\":true}\n",
                b.algorithm.c_str(), bytes, b.ranks, time * 1e6, algbw, algbw * 2 * (b.ranks - 1) / b.ranks,
                static_cast<long>(calls));
    std::fflush(stdout);
}

struct Sizes {
    size_t least, most, factor;
    double seconds;
};

int run_rank(const std::string &folder, const char *address, int rank, int ranks, const std::string &algorithm,
             const Sizes &sizes)
{
    gloo::transport::tcp::attr where;
    where.hostname = address;
    auto device    = gloo::transport::tcp::CreateDevice(where);
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->connectFullMesh(store, device);
    Bench b{context, algorithm, rank, ranks, std::vector<float>(sizes.most / sizeof(float)),
            std::vector<float>(sizes.most / sizeof(float))};
    for (size_t bytes = sizes.least; bytes <= sizes.most; bytes *= sizes.factor) run_size(b, bytes, sizes.seconds);
    return 0;
}

// The first failure ends the others, which would wait for it.
int wait_for_all(const std::vector<pid_t> &children)
{
    int failed = 0, status = 0;
    for (size_t ended = 0; ended < children.size(); ended++) {
        if (wait(&status) < 0) break;
        if (status == 0 || failed != 0) continue;
        failed = 1;
        for (pid_t child : children) kill(child, SIGTERM);
    }
    return failed;
}

} // namespace

int main(int argc, char **argv)
{
    const int ranks             = argc > 2 ? std::atoi(argv[1]) : 0;
    const std::string algorithm = argc > 2 ? argv[2] : "";
    const Sizes sizes           = {argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 4096,
                                   argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 16 << 20,
                                   argc > 5 ? std::strtoull(argv[5], nullptr, 10) : 4,
                                   argc > 6 ? std::strtod(argv[6], nullptr) : 0.1};
    if (ranks < 2 || sizes.least < sizeof(float) || sizes.factor < 2 ||
        (algorithm != "ring" && algorithm != "bcube" && algorithm != "halving_doubling")) {
        std::fprintf(stderr, "usage: bench_gloo RANKS ring|bcube|halving_doubling "
                             "[MIN_BYTES MAX_BYTES FACTOR SECONDS [RANK ADDRESS FOLDER]]\n");
        return 2;
    }
    if (argc == 10) return run_rank(argv[9], argv[8], std::atoi(argv[7]), ranks, algorithm, sizes);
    char folder[] = "/tmp/bench_gloo-XXXXXX";
    if (mkdtemp(folder) == nullptr) return 1;
    std::vector<pid_t> children;
    for (int r = 0; r < ranks; r++) {
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            try {
                _exit(run_rank(folder, "localhost", r, ranks, algorithm, sizes));
            } catch (const std::exception &e) {
                std::fprintf(stderr, "bench_gloo: %s\n", e.what());
                _exit(1);
            }
        }
        children.push_back(child);
    }
    const int code = wait_for_all(children);
    const std::string remove = std::string("rm -rf '") + folder + "'";
    return std::system(remove.c_str()) == 0 ? code : 1;
}
