/* fuzz_http.c - for any request, address or token file the gate gives one of its answers, admits no client
 * without the token, and reads no further than the text.  The first byte selects: 'a' an address, 't' a token file,
 * 'l' a label of a metric, anything else the headers of a request, one on a line. */
#include "common/net/http_gate.h"
#include "common/net/metrics.h"
#include "tests/fuzz/fuzz.h"

#define TOKEN "0123456789abcdef"

static void check_address(const char *text)
{
    char host[HTTP_HOST_BYTES], port[8];
    pen_error why           = {.status = PEN_OK};
    const pen_status status = http_address_cut(text, host, port, &why);
    if (status == PEN_OK) {
        FUZZ_CHECK(host[0] != '\0' && atoi(port) >= 0 && atoi(port) <= 65535);
        FUZZ_CHECK(strlen(host) < HTTP_HOST_BYTES && strlen(port) <= 5);
    } else {
        FUZZ_CHECK(status == PEN_BAD_SETTING && why.text[0] != '\0');
    }
}

static void check_token(const char *text, size_t size)
{
    char token[HTTP_TOKEN_BYTES];
    pen_error why           = {.status = PEN_OK};
    const pen_status status = http_token_take(text, size, "file", token, &why);
    if (status == PEN_OK) {
        FUZZ_CHECK(strlen(token) >= HTTP_TOKEN_LETTERS_MIN && strlen(token) < HTTP_TOKEN_BYTES);
        FUZZ_CHECK(strlen(token) <= size && memcmp(token, text, strlen(token)) == 0);
        FUZZ_CHECK(strpbrk(token, " \t\r\n;,=&%\"") == NULL);
    } else {
        FUZZ_CHECK(status == PEN_BAD_SETTING && why.text[0] != '\0');
    }
}

/* A label stays one label: its value ends at its quote, and nothing in it ends a line. */
static void check_label(const char *text)
{
    char labels[METRICS_LABELS_BYTES] = "";
    metrics_label(labels, "name", text);
    if (labels[0] == '\0') return;
    const size_t n = strlen(labels);
    FUZZ_CHECK(n >= 7 && memcmp(labels, "name=\"", 6) == 0 && labels[n - 1] == '"');
    for (size_t i = 6; i + 1 < n; i++) {
        FUZZ_CHECK(labels[i] >= 0x20 && labels[i] < 0x7f && labels[i] != '"');
        if (labels[i] == '\\') i++;
        FUZZ_CHECK(i + 1 < n);
    }
}

static const char *next_line(char **rest)
{
    char *line = strsep(rest, "\n");
    return line != NULL && strcmp(line, "-") != 0 ? line : NULL;
}

static bool has(const char *text)
{
    return text != NULL && strstr(text, TOKEN) != NULL;
}

static void check_request(char *text)
{
    char *rest           = text;
    http_credentials c   = {.host = next_line(&rest)};
    c.authorization      = next_line(&rest);
    c.query              = next_line(&rest);
    c.cookie             = next_line(&rest);
    const bool has_token = has(c.authorization) || has(c.query) || has(c.cookie);
    for (int i = 0; i < 4; i++) {
        http_gate gate = {.is_loopback = i & 1};
        if (i & 2) memcpy(gate.token, TOKEN, sizeof TOKEN);
        const http_verdict verdict = http_gate_ask(&gate, &c);
        FUZZ_CHECK(verdict >= HTTP_IN && verdict <= HTTP_WRONG_HOST);
        const bool is_in = verdict == HTTP_IN || verdict == HTTP_IN_KEEP;
        if (i & 2) FUZZ_CHECK(!is_in || has_token);
        if (!(i & 2)) FUZZ_CHECK(is_in == ((i & 1) && http_host_is_local(c.host)));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    char *text = malloc(size);
    FUZZ_CHECK(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0]) {
    case 'a': check_address(text); break;
    case 't': check_token(text, size - 1); break;
    case 'l': check_label(text); break;
    default: check_request(text);
    }
    free(text);
    return 0;
}
