/* gpt2_on_host.cpp - the CUDA network of gpt2 with its kernels run on the host, against the CPU
 * network: loss and all gradients. gpt2_products_on_host.cpp replaces cuBLASLt. */
#include "launch.h"
#include "device.h"

#include <cmath>
#include <vector>

/* ---- the two networks ------------------------------------------------------------------------------- */
struct scene {
    gpt2_config config;
    gpt2_options options;
    std::vector<size_t> begin;
    std::vector<float> value, want, got;
    std::vector<int32_t> tokens, targets;
};

static int failed;

static void check(bool ok, const char *what)
{
    if (ok) return;
    failed = 1;
    printf("wrong: %s\n", what);
}

static void fill(scene *s)
{
    size_t n = 0;
    for (int i = 0; i < gpt2_tensors(&s->config); i++) {
        gpt2_tensor t;
        gpt2_tensor_get(&s->config, i, &t);
        s->begin.push_back(n);
        n += gpt2_tensor_values(&t);
        s->value.resize(n);
        gpt2_start(&s->config, i, 7, s->value.data() + s->begin[i]);
        for (size_t j = s->begin[i]; j < n; j++) {
            s->value[j] += 0.05f * sinf((float)j); /* nonzero biases */
            if (t.layer >= 0 && t.ndim == 2) s->value[j] *= 4.0f;
            bf16 half;
            narrow(s->value[j], &half);
            s->value[j] = widen(half); /* the same numbers in both types */
        }
    }
    s->begin.push_back(n);
    const int rows = s->options.batch * s->options.length;
    for (int i = 0; i < rows; i++) {
        s->tokens.push_back(i * i % s->config.vocab);
        s->targets.push_back(i % 11 == 3 ? -1 : (i * 7 + 3) % s->config.vocab);
    }
}

static double on_cpu(scene *s)
{
    const char *why;
    gpt2_options o = s->options;
    o.type         = GPT2_F32;
    gpt2 *m        = gpt2_new(&s->config, &o, &why);
    s->want.assign(s->value.size(), 0.0f);
    for (int i = 0; i < gpt2_tensors(&s->config); i++)
        gpt2_place(m, i, &s->value[s->begin[i]], &s->want[s->begin[i]]);
    gpt2_embed(m, s->tokens.data(), o.batch, o.length, 0);
    for (int l = 0; l < s->config.layers; l++) gpt2_block(m, l);
    const double loss = gpt2_head(m, s->targets.data(), 3.0f);
    for (int l = s->config.layers - 1; l >= 0; l--) gpt2_block_backward(m, l);
    gpt2_embed_backward(m);
    gpt2_free(m);
    return loss;
}

/* Values and gradients in device memory, two pointers a tensor. */
template <typename T> static std::vector<void *> place(gpt2_cuda *m, const scene *s)
{
    std::vector<T> value(s->value.size());
    std::vector<void *> memory;
    for (size_t i = 0; i < value.size(); i++) narrow(s->value[i], &value[i]);
    for (int i = 0; i < gpt2_tensors(&s->config); i++) {
        const size_t n = s->begin[i + 1] - s->begin[i];
        for (int part = 0; part < 2; part++) memory.push_back(gpt2_cuda_memory(n * sizeof(T)));
        gpt2_cuda_upload(m, memory[2 * i], &value[s->begin[i]], n * sizeof(T));
        gpt2_cuda_place(m, i, memory[2 * i], memory[2 * i + 1]);
    }
    return memory;
}

template <typename T> static double on_device(scene *s, bool again)
{
    const char *why;
    gpt2_cuda *m = gpt2_cuda_new(&s->config, &s->options, NULL, &why);
    if (!m) return check(false, why), NAN;
    const std::vector<void *> memory = place<T>(m, s);
    std::vector<T> grad(s->value.size());
    double loss = 0.0;
    for (int turn = 0; turn <= again; turn++) {
        gpt2_cuda_add_gradients(m, turn > 0);
        gpt2_cuda_embed(m, s->tokens.data(), s->options.batch, s->options.length);
        for (int l = 0; l < s->config.layers; l++) gpt2_cuda_block(m, l);
        gpt2_cuda_head(m, s->targets.data(), 3.0f);
        for (int l = s->config.layers - 1; l >= 0; l--) gpt2_cuda_block_backward(m, l);
        gpt2_cuda_embed_backward(m);
        loss = gpt2_cuda_loss(m);
        why  = gpt2_cuda_wrong(m);
        check(why == NULL, why ? why : "");
    }
    s->got.resize(grad.size());
    for (int i = 0; i < gpt2_tensors(&s->config); i++) {
        const size_t first = s->begin[i], n = s->begin[i + 1] - first;
        gpt2_cuda_download(m, &grad[first], memory[2 * i + 1], n * sizeof(T));
        for (size_t j = first; j < first + n; j++) s->got[j] = widen(grad[j]) / (again ? 2 : 1);
    }
    for (void *one : memory) gpt2_cuda_memory_free(one);
    gpt2_cuda_free(m);
    return loss;
}

/* ---- attention alone: tensor cores against plain arithmetic in float32 ------------------------------ */
static void compare_parts(const char *name, const std::vector<bf16> &got,
                          const std::vector<float> &want)
{
    double apart = 0.0, square = 0.0;
    for (size_t i = 0; i < got.size(); i++) {
        apart += (widen(got[i]) - want[i]) * (widen(got[i]) - want[i]);
        square += (double)want[i] * want[i];
    }
    const double used = sqrt(apart / square) / 1e-2;
    printf("%s: %.1f %% of the tolerance\n", name, used * 100);
    check(used < 1.0, name);
}

static void check_attention(int size)
{
    const int T = 100, heads = 1, C = heads * size; /* a whole tile and a tail */
    std::vector<bf16> qkv(3 * T * C), att(T * C), datt(T * C), dqkv(3 * T * C);
    std::vector<float> wide(3 * T * C), wide_att(T * C), wide_datt(T * C), wide_dqkv(3 * T * C);
    std::vector<float> lse(T * heads), wide_lse(T * heads), dot(T * heads);
    for (size_t i = 0; i < qkv.size(); i++) {
        narrow(sinf((float)(i * i % 1009)) * (i % 5 == 0 ? 2.0f : 0.7f), &qkv[i]);
        wide[i] = widen(qkv[i]);
    }
    for (size_t i = 0; i < datt.size(); i++) {
        narrow(cosf((float)(i * i % 1013)), &datt[i]);
        wide_datt[i] = widen(datt[i]);
    }
    attention_forward<bf16>(att.data(), lse.data(), qkv.data(), 1, T, heads, C, NULL);
    attention_forward<float>(wide_att.data(), wide_lse.data(), wide.data(), 1, T, heads, C, NULL);
    compare_parts("attention", att, wide_att);
    attention_backward<bf16>(dqkv.data(), dot.data(), qkv.data(), att.data(), datt.data(),
                             lse.data(), 1, T, heads, C, NULL);
    attention_backward<float>(wide_dqkv.data(), dot.data(), wide.data(), wide_att.data(),
                              wide_datt.data(), wide_lse.data(), 1, T, heads, C, NULL);
    compare_parts("its gradient", dqkv, wide_dqkv);
    for (size_t i = 0; i < lse.size(); i++)
        check(fabsf(lse[i] - wide_lse[i]) < 1e-4f, "the log of the sum");
}

/* ---- the whole network ------------------------------------------------------------------------------ */
static void compare(const char *name, const gpt2_config &config, gpt2_type type, bool again,
                    double tolerance)
{
    scene s;
    s.config  = config;
    s.options = {.batch = 2, .length = 18, .type = type};
    fill(&s);
    const double want = on_cpu(&s);
    const double got  = type == GPT2_F32 ? on_device<float>(&s, again) : on_device<bf16>(&s, again);
    double most       = 0.0;
    char where[40]    = "";
    for (int i = 0; i < gpt2_tensors(&config); i++) {
        double apart = 0.0, square = 0.0;
        for (size_t j = s.begin[i]; j < s.begin[i + 1]; j++) {
            apart += (s.got[j] - s.want[j]) * (s.got[j] - s.want[j]);
            square += s.want[j] * s.want[j];
        }
        const double used = sqrt(apart / square) / tolerance;
        gpt2_tensor t;
        gpt2_tensor_get(&config, i, &t);
        if (!(used <= most)) most = used, memcpy(where, t.name, sizeof where);
    }
    const double loss = fabs(got - want) / (tolerance * want);
    printf("%s: loss %.1f %%, gradients %.1f %% of the tolerance, most at %s\n", name, loss * 100,
           most * 100, where);
    check(loss < 1.0 && most < 1.0, name);
}

/* With `recompute` the rows of a layer are computed again: the same bits. */
static void check_recompute(const gpt2_config &config)
{
    scene s;
    s.config  = config;
    s.options = {.batch = 2, .length = 18};
    fill(&s);
    const double kept             = on_device<float>(&s, false);
    const std::vector<float> want = s.got;
    s.options.recompute           = true;
    check(on_device<float>(&s, false) == kept && s.got == want, "recompute gives other bits");
}

/* Loss and logits of a forward-only network, with fewer rows than it has room for, against the
 * CPU's. */
static void check_looking(const gpt2_config &config)
{
    scene s;
    const char *why;
    const int length = 17, V = config.vocab;
    s.config  = config;
    s.options = {.batch = 2, .length = 18, .forward_only = true};
    fill(&s);
    gpt2 *cpu       = gpt2_new(&s.config, &s.options, &why);
    gpt2_cuda *with = gpt2_cuda_new(&s.config, &s.options, NULL, &why);
    gpt2_cuda *m    = gpt2_cuda_new(&s.config, &s.options, with, &why);
    check(gpt2_cuda_stream(m) == gpt2_cuda_stream(with),
          "networks beside each other share a stream");
    const std::vector<void *> memory = place<float>(m, &s);
    for (int i = 0; i < gpt2_tensors(&config); i++) gpt2_place(cpu, i, &s.value[s.begin[i]], NULL);
    gpt2_embed(cpu, s.tokens.data(), 1, length, 0);
    gpt2_cuda_embed(m, s.tokens.data(), 1, length);
    for (int l = 0; l < config.layers; l++) gpt2_block(cpu, l), gpt2_cuda_block(m, l);
    const double want = gpt2_head_loss(cpu, s.targets.data());
    gpt2_cuda_head(m, s.targets.data(), 0.0f);
    check(fabs(gpt2_cuda_loss(m) - want) < 1e-5 * want, "the loss of a network that only looks");
    std::vector<float> right(V), got(V);
    gpt2_logits(cpu, 0, length - 1, right.data());
    gpt2_cuda_logits(m, length - 1, got.data());
    for (int i = 0; i < V; i++) check(fabsf(got[i] - right[i]) < 1e-4f, "the logits");
    check(gpt2_cuda_wrong(m) == NULL, "nothing went wrong");
    for (void *one : memory) gpt2_cuda_memory_free(one);
    gpt2_cuda_free(m);
    gpt2_cuda_free(with);
    gpt2_free(cpu);
}

/* One step of AdamW on a few values, against the formula in double. */
static void check_update()
{
    const gpt2_config c  = {.vocab = 8, .block = 8, .layers = 1, .heads = 1, .channels = 8};
    const gpt2_options o = {.batch = 1, .length = 8};
    const char *why;
    gpt2_cuda *m               = gpt2_cuda_new(&c, &o, NULL, &why);
    const gpt2_cuda_adamw rule = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.19f, 0.0975f, 0.5f};
    float value[3] = {}, master[] = {1, -2, 3}, m1[] = {0.1f, 0, -0.2f}, m2[] = {0.1f, 0, 0.2f};
    const float grad[] = {0.5f, -0.25f, 0}, first[] = {1, -2, 3}, before[] = {0.1f, 0, -0.2f};
    const float square[] = {0.1f, 0, 0.2f};
    gpt2_cuda_update(m, value, master, m1, m2, grad, 3, &rule);
    for (int i = 0; i < 3; i++) {
        const double g = grad[i] * 0.5, a = 0.9 * before[i] + 0.1 * g;
        const double b    = 0.95 * square[i] + 0.05 * g * g;
        const double want = first[i] * (1 - 1e-3) - 1e-2 * (a / 0.19) / (sqrt(b / 0.0975) + 1e-8);
        check(fabs(master[i] - want) < 1e-6 && value[i] == master[i], "adamw");
    }
    gpt2_cuda_free(m);
}

int main()
{
    /* tails everywhere: 21 tokens of 24 rows, channels that are not a multiple of a warp's */
    const gpt2_config two_layers = {21, 24, 20, 2, 5, 40}, one_layer = {21, 0, 20, 1, 1, 32};
    for (int size = 32; size <= 128; size *= 2) check_attention(size);
    compare("float32", two_layers, GPT2_F32, true, 1e-4);
    compare("bf16", one_layer, GPT2_BF16, false, 6e-2);
    check_recompute(two_layers);
    check_looking(two_layers);
    check_update();
    return failed;
}
