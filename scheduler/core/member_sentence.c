/* member_sentence.c - the scheduler's sentences: each is written here once. */
#include "scheduler/core/member_sentence.h"
#include "common/base/why.h"
#include "proto/status_json.h"
#include <inttypes.h>
#include <string.h>

const char *sentence_member(char text[SENTENCE_MEMBER_BYTES], const member_slot *s)
{
    if (s->rank < 0)
        snprintf(text, SENTENCE_MEMBER_BYTES, "%s (%s)", status_role_name(s->role), s->host);
    else if (s->host[0])
        snprintf(text, SENTENCE_MEMBER_BYTES, "%s %d (%s)", status_role_name(s->role), (int)s->rank,
                 s->host);
    else
        snprintf(text, SENTENCE_MEMBER_BYTES, "%s %d", status_role_name(s->role), (int)s->rank);
    return text;
}

pen_status sentence_absent(char *text, size_t size, const member_slot *s)
{
    static const char *const words[MEMBER_STATE_COUNT] = {[MEMBER_DEAD]   = "is gone",
                                                          [MEMBER_LEFT]   = "has left the job",
                                                          [MEMBER_ABSENT] = "has not joined"};
    snprintf(text, size, "%s %s", MEMBER_NAME(s),
             words[s->state] ? words[s->state] : "is not connected");
    return s->state == MEMBER_DEAD ? PEN_PEER_LOST : PEN_NOT_FOUND;
}

/* ---- lost members --------------------------------------------------------------------- */
static double seen_s(const member_slot *s, uint64_t now_ms)
{
    return now_ms > s->last_seen_ms ? (double)(now_ms - s->last_seen_ms) / 1e3 : 0;
}

static void blame(pen_error *why, const sentence *text, const member_slot *s, int64_t step,
                  const char *tensor, double last_seen_s)
{
    why_set(why, PEN_PEER_LOST, "%s", text->text);
    why_culprit(why, s->role, s->rank, step, tensor);
    why->last_seen_s = last_seen_s;
}

static void add_seen(sentence *text, const member_slot *s, uint64_t now_ms)
{
    if (s->incarnation)
        sentence_add(text, "; last seen %.1f s ago", seen_s(s, now_ms));
    else
        sentence_add(text, "; it never joined");
}

static bool is_after(const char *call)
{
    return strncmp(call, "after ", 6) == 0;
}

static void add_place(sentence *text, const member_slot *s)
{
    if (s->step >= 0)
        sentence_add(text, " in step %" PRId64, s->step);
    else
        sentence_add(text, " before its first step");
    if (s->call[0]) sentence_add(text, ", %s%s", is_after(s->call) ? "" : "in ", s->call);
}

static void add_left(sentence *text, const member_slot *s)
{
    if (s->step >= 0)
        sentence_add(text, "left in the middle of step %" PRId64, s->step);
    else
        sentence_add(text, "left before pen_commit() returned");
}

void sentence_worker_gone(const member_slot *s, const sentence_owed_push *owed_push,
                          uint64_t now_ms, pen_error *why)
{
    sentence text       = {0};
    const bool is_known = owed_push && owed_push->step >= 0;
    sentence_add(&text, "%s ", MEMBER_NAME(s));
    if (s->has_left_early)
        add_left(&text, s);
    else
        sentence_add(&text, "is gone");
    if (is_known)
        sentence_add(&text, ": it has not pushed '%s' for step %" PRId64, owed_push->tensor,
                     owed_push->step);
    else if (!s->has_left_early)
        add_place(&text, s);
    add_seen(&text, s, now_ms);
    blame(why, &text, s, is_known ? owed_push->step : s->step,
          is_known ? owed_push->tensor : s->call, seen_s(s, now_ms));
}

void sentence_server_gone(const member_slot *s, const char *tensor, uint32_t n_tensors,
                          int64_t step, uint64_t now_ms, pen_error *why)
{
    sentence text = {0};
    sentence_add(&text, "%s is gone", MEMBER_NAME(s));
    if (tensor) sentence_add(&text, ": it held '%s'", tensor);
    if (tensor && n_tensors > 1)
        sentence_add(&text, " and %u more tensor%s", n_tensors - 1, n_tensors == 2 ? "" : "s");
    if (step >= 0)
        sentence_add(&text, "; step %" PRId64, step);
    else
        sentence_add(&text, "%s before the first step", tensor ? ";" : "");
    add_seen(&text, s, now_ms);
    blame(why, &text, s, step, tensor, seen_s(s, now_ms));
}

static const char *without_scheme(const char *address)
{
    return strncmp(address, "tcp://", 6) == 0 ? address + 6 : address;
}

void sentence_add_silence(const member_slot *s, const sentence_silence *silence, pen_error *why)
{
    sentence text = {0};
    if (strcmp(s->host, silence->host) == 0) return; /* no network between them */
    sentence_add(&text, "%s by the scheduler at %.100s", why->text, silence->scheduler);
    if (silence->from)
        sentence_add(&text, "; %.120s cannot reach it at %.100s: %.95s", MEMBER_NAME(silence->from),
                     without_scheme(silence->address), silence->words);
    sentence_add(&text, "; `penstock doctor --master-addr %.100s` on %.64s tests the connection",
                 silence->master, s->host);
    memcpy(why->text, text.text, sizeof why->text);
}

void sentence_missed(const member_slot *s, const sentence_silence *silence, uint64_t waits_ms,
                     uint64_t now_ms, pen_error *why)
{
    sentence text = {0};
    sentence_add(&text, "%s is gone before the job began", MEMBER_NAME(s));
    add_seen(&text, s, now_ms);
    blame(why, &text, s, -1, NULL, seen_s(s, now_ms));
    sentence_add_silence(s, silence, why);
    const size_t used = strlen(why->text);
    snprintf(why->text + used, sizeof why->text - used, "; the job waits %s for it to come back",
             SPAN_NAME(waits_ms));
}

void sentence_scheduler_gone(const char *address, const char *host, const member_slot *ahead,
                             pen_error *why)
{
    sentence text = {0};
    sentence_add(
        &text, "the scheduler at %.100s is gone: it ran on %.100s; at its last message the job was",
        address, host);
    if (ahead == NULL)
        sentence_add(&text, " before its first step");
    else
        sentence_add(&text, " in step %" PRId64, ahead->step);
    if (ahead != NULL && ahead->call[0])
        sentence_add(&text, ", worker %d %s%s", (int)ahead->rank,
                     is_after(ahead->call) ? "" : "in ", ahead->call);
    why_set(why, PEN_UNREACHABLE, "%s", text.text);
    why_culprit(why, PEN_SCHEDULER, -1, ahead ? ahead->step : -1, ahead ? ahead->call : NULL);
}

/* ---- unreachable ------------------------------------------------------------------- */
static void add_remedy(sentence *text, const sentence_gap *g)
{
    const bool is_name = strstr(g->words, "resolve") != NULL;
    if (strstr(g->words, "secret") || strstr(g->words, "encrypt") || strstr(g->words, " key ")) {
        sentence_add(text, "; use the same secret and the same encryption everywhere");
        return;
    }
    sentence_add(text, is_name ? "; make the name known on both hosts"
                               : "; open the TCP ports between these hosts");
    if (g->to->role == PEN_SERVER)
        sentence_add(text, ", or start server %d with a --host ADDRESS that all hosts reach",
                     (int)g->to->rank);
}

void sentence_unreached(const sentence_gap *g, pen_error *why)
{
    const char *address        = without_scheme(g->address);
    const member_slot *culprit = g->common ? g->common : g->to;
    sentence text              = {0};
    sentence_add(&text, "%.120s cannot reach %.120s at %.200s: %.95s", MEMBER_NAME(g->from),
                 MEMBER_NAME(g->to), address, g->words);
    if (g->n_more > 0)
        sentence_add(&text, "; %u more connection%s fail%s", g->n_more, g->n_more == 1 ? "" : "s",
                     g->n_more == 1 ? "s" : "");
    if (g->n_more > 0 && g->common)
        sentence_add(&text, ", %s of %.120s", g->n_more == 1 ? "also" : "all",
                     MEMBER_NAME(g->common));
    add_remedy(&text, g);
    why_set(why, PEN_UNREACHABLE, "%s", text.text);
    why_culprit(why, culprit->role, culprit->rank, -1, NULL);
}

/* ---- not joined ------------------------------------------------------------------------ */
enum { LIST_TAIL_BYTES = 220 }; /* reserved for the text after a list */

typedef bool is_one(const member_slot *s);

static bool has_joined(const member_slot *s)
{
    return s->state != MEMBER_ABSENT;
}

static bool has_passed(const member_slot *s)
{
    return s->state == MEMBER_ABSENT && s->has_passed;
}

static bool is_missing(const member_slot *s)
{
    return s->state == MEMBER_ABSENT && !s->has_passed;
}

static uint32_t count(const member_slots *list, is_one *is)
{
    uint32_t n = 0;
    MEMBER_SLOT_EACH(each, list) n += is(each);
    return n;
}

/* Ranks, with hosts or without; ends in " and 980 more" if they do not fit. */
static void add_ranks(sentence *text, const member_slots *list, is_one *is, bool with_host)
{
    uint32_t left = count(list, is);

    MEMBER_SLOT_EACH(s, list) {
        if (!is(s)) continue;
        if (sentence_room(text) < LIST_TAIL_BYTES) {
            sentence_add(text, " and %u more", left);
            return;
        }
        if (with_host)
            sentence_add(text, " %d (%.64s)", (int)s->rank, s->host);
        else
            sentence_add(text, " %d", (int)s->rank);
        left--;
    }
}

static void add_missing(sentence *text, const member_slots *list, const char *noun,
                        uint32_t missing, const char *after)
{
    sentence_add(text, "%u of %u %ss %s not joined%s: %s%s", missing, list->n, noun,
                 missing == 1 ? "has" : "have", after, noun[0] == 'w' ? "rank" : "server",
                 missing == 1 ? "" : "s");
    add_ranks(text, list, is_missing, false);
}

static void list_missing(pen_error *why, const member_slots *list, int32_t role)
{
    why->role = role;
    for (uint32_t i = 0; i < list->n; i++) {
        if (!is_missing(list->at[i])) continue;
        if (why->rank < 0) why->rank = (int32_t)i;
        if (why->missing_n < 32) why->missing[why->missing_n++] = (int32_t)i;
    }
}

static void add_list(sentence *text, const member_slots *list, const char *label, is_one *is)
{
    if (count(list, is) == 0) return;
    sentence_add(text, "  %s:", label);
    add_ranks(text, list, is, is == has_joined);
    sentence_add(text, ".");
}

void sentence_not_joined(const roster *r, uint32_t n_servers, uint64_t waited_ms,
                         const char *master, pen_error *why)
{
    const uint32_t workers = count(&r->workers, is_missing),
                   servers = count(&r->servers, is_missing);
    char after[SENTENCE_SPAN_BYTES + 8];
    snprintf(after, sizeof after, " after %s", SPAN_NAME(waited_ms));

    sentence text = {0};
    if (!r->workers.n)
        sentence_add(&text, "no worker has joined%s", after);
    else if (workers)
        add_missing(&text, &r->workers, "worker", workers, after);
    if (servers && n_servers) {
        if (text.used) sentence_add(&text, ", and ");
        add_missing(&text, &r->servers, "server", servers, text.used ? "" : after);
    }
    sentence_add(&text, ".");
    if (workers) add_list(&text, &r->workers, "Joined", has_joined);
    add_list(&text, &r->workers, "Ended without joining", has_passed);
    if (servers || !r->workers.n)
        add_list(&text, &r->servers, workers ? "Servers" : "Joined", has_joined);
    sentence_add(&text, "  `penstock doctor --master-addr %.100s` on %s tests the connection",
                 master, workers + servers == 1 ? "its host" : "their hosts");

    why_set(why, PEN_TIMED_OUT, "%s", text.text);
    if (workers)
        list_missing(why, &r->workers, PEN_WORKER);
    else
        list_missing(why, &r->servers, PEN_SERVER);
}

/* ---- slow ----------------------------------------------------------------------------- */
void sentence_alive(sentence *text, const member_slot *s, const char *subject, uint64_t now_ms)
{
    char span[SENTENCE_SPAN_BYTES];
    if (s->state == MEMBER_AWAY) {
        sentence_add(text, "%s connection has been down for %s",
                     strcmp(subject, "It") ? subject : "Its",
                     sentence_span(span, now_ms - s->down_ms));
        return;
    }
    if (!s->call[0]) {
        sentence_add(text, "%s is alive: last seen %.1f s ago", subject, seen_s(s, now_ms));
        return;
    }
    sentence_span(span, s->call_ms + (now_ms - s->beat_ms));
    if (is_after(s->call))
        sentence_add(text, "%s is alive: in user code for %s, last call %s", subject, span,
                     s->call + 6);
    else
        sentence_add(text, "%s is alive: in %s for %s", subject, s->call, span);
}
