/* wire_difference.c - compares messages field by field. */
#include "tests/support/wire_difference.h"

#include <string.h>

#define FIELD(f)                                                                                   \
    if (memcmp(&a->f, &b->f, sizeof a->f) != 0) return #f
/* The sign of a zero is not sent: proto3 leaves out what equals zero. */
#define NUMBER(f)                                                                                  \
    if (memcmp(&a->f, &b->f, sizeof a->f) != 0 && !(a->f == 0 && b->f == 0)) return #f
#define TEXT(f)                                                                                    \
    if (strcmp(a->f, b->f) != 0) return #f
#define BYTES(f, size)                                                                             \
    if (!is_same(a->f, b->f, size)) return #f
#define COLUMN(f, n) BYTES(f, (n) * sizeof *a->f)
#define LIST(f, n, difference)                                                                     \
    FIELD(n);                                                                                      \
    for (uint32_t i = 0; i < a->n; i++)                                                            \
        if (difference(&a->f[i], &b->f[i]) != NULL) return difference(&a->f[i], &b->f[i])

/* Empty is the same as NULL, anything else is not. */
static bool is_same(const void *a, const void *b, size_t size)
{
    if (size == 0) return true;
    if (a == NULL || b == NULL) return a == b;
    return memcmp(a, b, size) == 0;
}

/* ---- data ------------------------------------------------------------------------------------ */
static const char *scalars(const wire_scalars *a, const wire_scalars *b)
{
    FIELD(n);
    COLUMN(name, a->n);
    COLUMN(sum, a->n);
    COLUMN(ranks, a->n);
    return NULL;
}

static const char *vote(const wire_vote *a, const wire_vote *b)
{
    FIELD(partition);
    FIELD(hash);
    NUMBER(weight_sum);
    FIELD(finite);
    FIELD(bad_chunk);
    FIELD(bad_rank);
    return scalars(&a->scalars, &b->scalars);
}

static const char *inputs(const wire_inputs *a, const wire_inputs *b)
{
    NUMBER(loss_scale);
    NUMBER(clip);
    NUMBER(weight);
    FIELD(skip);
    FIELD(snapshot);
    FIELD(is_node_sum);
    FIELD(n_rates);
    COLUMN(rate, a->n_rates);
    FIELD(states_bytes);
    BYTES(states, a->states_bytes);
    return scalars(&a->scalars, &b->scalars);
}

static const char *decision(const wire_decision *a, const wire_decision *b)
{
    FIELD(outcome);
    NUMBER(clip);
    NUMBER(gscale);
    NUMBER(norm);
    FIELD(applied);
    return NULL;
}

static const char *entry(const wire_entry *a, const wire_entry *b)
{
    FIELD(what);
    FIELD(object);
    FIELD(rank);
    FIELD(step);
    FIELD(capture);
    FIELD(bytes);
    FIELD(version);
    FIELD(applied);
    FIELD(crc);
    FIELD(slot);
    FIELD(is_last);
    FIELD(restart);
    NUMBER(weight_sum);
    FIELD(digest);
    FIELD(n_numbers);
    COLUMN(number, a->n_numbers);
    FIELD(has_inputs);
    FIELD(has_decision);
    FIELD(has_vote);
    const char *different = NULL;
    if (a->has_inputs) different = inputs(&a->inputs, &b->inputs);
    if (different == NULL && a->has_decision) different = decision(&a->decision, &b->decision);
    if (different == NULL && a->has_vote) different = vote(&a->vote, &b->vote);
    return different;
}

static const char *columns(const wire_data *a, const wire_data *b)
{
    FIELD(n);
    FIELD(n_partitions);
    FIELD(n_missing);
    COLUMN(chunk, a->n);
    COLUMN(seq, a->n);
    COLUMN(crc, a->n);
    COLUMN(version, a->n);
    COLUMN(staleness, a->n);
    COLUMN(size, a->n);
    COLUMN(partition, a->n_partitions);
    COLUMN(vote_hash, a->n_partitions);
    COLUMN(missing, a->n_missing);
    return NULL;
}

const char *wire_difference_data(const wire_data *a, const wire_data *b)
{
    FIELD(kind);
    FIELD(term);
    FIELD(epoch);
    FIELD(from);
    FIELD(to);
    FIELD(rank);
    FIELD(step);
    FIELD(acked_below);
    FIELD(payload_bytes);
    FIELD(flags);
    FIELD(has_inputs);
    FIELD(has_decision);
    FIELD(status);
    TEXT(text);
    FIELD(shard);
    FIELD(index);
    FIELD(stream);
    FIELD(digest);
    LIST(vote, n_votes, vote);
    LIST(entry, n_entries, entry);
    const char *different = columns(a, b);
    if (different == NULL && a->has_inputs) different = inputs(&a->inputs, &b->inputs);
    if (different == NULL && a->has_decision) different = decision(&a->decision, &b->decision);
    return different;
}

/* ---- parts of control messages --------------------------------------------------------------- */
static const char *text(const char *const *a, const char *const *b)
{
    return strcmp(*a, *b) != 0 ? "a text of a list" : NULL;
}

static const char *member(const wire_member *a, const wire_member *b)
{
    FIELD(role);
    FIELD(rank);
    FIELD(incarnation);
    FIELD(pid);
    FIELD(local_rank);
    FIELD(node);
    FIELD(sharing);
    TEXT(host);
    LIST(address, n_addresses, text);
    return NULL;
}

static const char *stat(const wire_stat *a, const wire_stat *b)
{
    NUMBER(value);
    TEXT(name);
    return NULL;
}

static const char *event(const wire_event *a, const wire_event *b)
{
    FIELD(number);
    NUMBER(at_s);
    FIELD(level);
    TEXT(text);
    return NULL;
}

static const char *tensor(const wire_tensor *a, const wire_tensor *b)
{
    FIELD(dtype);
    FIELD(grad_dtype);
    FIELD(ndim);
    FIELD(shape);
    FIELD(group);
    FIELD(flags);
    FIELD(priority);
    TEXT(name);
    TEXT(init);
    TEXT(handler);
    return NULL;
}

static const char *group(const wire_group *a, const wire_group *b)
{
    TEXT(name);
    TEXT(optim);
    TEXT(sync);
    TEXT(wire);
    TEXT(schedule);
    return NULL;
}

static const char *pair(const wire_pair *a, const wire_pair *b)
{
    TEXT(key);
    TEXT(value);
    return NULL;
}

static const char *model(const wire_model *a, const wire_model *b)
{
    LIST(tensor, n_tensors, tensor);
    LIST(group, n_groups, group);
    LIST(setting, n_settings, pair);
    return NULL;
}

static const char *verdict(const pen_error *a, const pen_error *b)
{
    FIELD(status);
    FIELD(role);
    FIELD(rank);
    FIELD(missing_n);
    FIELD(missing);
    FIELD(step);
    NUMBER(last_seen_s);
    TEXT(tensor);
    TEXT(text);
    return NULL;
}

static const char *replica(const wire_replica *a, const wire_replica *b)
{
    FIELD(shard);
    FIELD(server);
    FIELD(place);
    FIELD(role);
    return NULL;
}

static const char *sealed_report(const wire_sealed_report *a, const wire_sealed_report *b)
{
    FIELD(shard);
    FIELD(role);
    FIELD(index);
    FIELD(digest);
    FIELD(step);
    FIELD(clock);
    FIELD(all_prepared);
    FIELD(has_decision);
    return a->has_decision ? decision(&a->decision, &b->decision) : NULL;
}

static const char *member_status(const wire_member_status *a, const wire_member_status *b)
{
    NUMBER(last_seen_s);
    NUMBER(call_s);
    FIELD(step);
    TEXT(state);
    TEXT(call);
    LIST(stat, n_stats, stat);
    return member(&a->member, &b->member);
}

/* ---- control --------------------------------------------------------------------------------- */
static const char *joining(const wire_control *a, const wire_control *b)
{
    switch (a->kind) {
    case WIRE_HELLO:
        FIELD(u.hello.role);
        FIELD(u.hello.rank);
        FIELD(u.hello.world_size);
        FIELD(u.hello.servers);
        FIELD(u.hello.pid);
        FIELD(u.hello.local_rank);
        FIELD(u.hello.node);
        FIELD(u.hello.local_world_size);
        FIELD(u.hello.number);
        TEXT(u.hello.machine);
        FIELD(u.hello.nonce);
        TEXT(u.hello.host);
        TEXT(u.hello.job);
        TEXT(u.hello.store);
        FIELD(u.hello.n_snapshots);
        COLUMN(u.hello.snapshot, a->u.hello.n_snapshots);
        LIST(u.hello.address, u.hello.n_addresses, text);
        return NULL;
    case WIRE_WELCOME:
        FIELD(u.welcome.incarnation);
        FIELD(u.welcome.rank);
        FIELD(u.welcome.term);
        FIELD(u.welcome.lease_ms);
        FIELD(u.welcome.grace_ms);
        FIELD(u.welcome.local_rank);
        FIELD(u.welcome.node);
        TEXT(u.welcome.job);
        return NULL;
    case WIRE_EPOCH:
        FIELD(u.epoch.term);
        FIELD(u.epoch.epoch);
        TEXT(u.epoch.job);
        LIST(u.epoch.worker, u.epoch.n_workers, member);
        LIST(u.epoch.server, u.epoch.n_servers, member);
        LIST(u.epoch.replica, u.epoch.n_replicas, replica);
        FIELD(u.epoch.step);
        FIELD(u.epoch.members_changed);
        FIELD(u.epoch.has_decision);
        return a->u.epoch.has_decision ? decision(&a->u.epoch.decision, &b->u.epoch.decision)
                                       : NULL;
    case WIRE_REGISTER: return model(&a->u.register_, &b->u.register_);
    case WIRE_PLAN:
        FIELD(u.plan.n_partitions);
        FIELD(u.plan.restore);
        COLUMN(u.plan.shard, a->u.plan.n_partitions);
        FIELD(u.plan.n_shards);
        FIELD(u.plan.ranks_max);
        FIELD(u.plan.epoch);
        FIELD(u.plan.term);
        LIST(u.plan.replica, u.plan.n_replicas, replica);
        return model(&a->u.plan.model, &b->u.plan.model);
    case WIRE_READY:
        FIELD(u.ready.restored);
        FIELD(u.ready.applied);
        FIELD(u.ready.states_bytes);
        BYTES(u.ready.states, a->u.ready.states_bytes);
        return NULL;
    case WIRE_COMMITTED:
        FIELD(u.committed.step);
        FIELD(u.committed.applied);
        FIELD(u.committed.states_bytes);
        BYTES(u.committed.states, a->u.committed.states_bytes);
        return NULL;
    default: return NULL;
    }
}

static const char *living(const wire_control *a, const wire_control *b)
{
    switch (a->kind) {
    case WIRE_BEAT:
        FIELD(u.beat.seq);
        FIELD(u.beat.step);
        FIELD(u.beat.call_ms);
        TEXT(u.beat.call);
        LIST(u.beat.stat, u.beat.n_stats, stat);
        return NULL;
    case WIRE_BEAT_ACK: FIELD(u.beat_ack); return NULL;
    case WIRE_NOTICE: TEXT(u.notice.text); return NULL;
    case WIRE_VERDICT:
    case WIRE_FAILURE:
    case WIRE_WILL: return verdict(&a->u.verdict, &b->u.verdict);
    case WIRE_EXITED:
        FIELD(u.exited.role);
        FIELD(u.exited.rank);
        FIELD(u.exited.pid);
        FIELD(u.exited.code);
        FIELD(u.exited.signal);
        TEXT(u.exited.note);
        FIELD(u.exited.step);
        TEXT(u.exited.call);
        return NULL;
    default: return NULL;
    }
}

static const char *watching(const wire_control *a, const wire_control *b)
{
    switch (a->kind) {
    case WIRE_SNAPSHOT_PLEASE: FIELD(u.snapshot_please); return NULL;
    case WIRE_SNAPSHOT_PART:
        FIELD(u.snapshot_part.step);
        FIELD(u.snapshot_part.status);
        FIELD(u.snapshot_part.bytes);
        TEXT(u.snapshot_part.text);
        FIELD(u.snapshot_part.lacks_room);
        FIELD(u.snapshot_part.spare);
        FIELD(u.snapshot_part.n_shards);
        COLUMN(u.snapshot_part.shard, a->u.snapshot_part.n_shards);
        return NULL;
    case WIRE_SNAPSHOT_DONE:
        FIELD(u.snapshot_done.step);
        FIELD(u.snapshot_done.status);
        FIELD(u.snapshot_done.makes_room);
        FIELD(u.snapshot_done.gone);
        TEXT(u.snapshot_done.text);
        return NULL;
    case WIRE_COMMAND:
        FIELD(u.command.id);
        FIELD(u.command.asker);
        FIELD(u.command.done_below);
        FIELD(u.command.role);
        FIELD(u.command.rank);
        FIELD(u.command.head);
        FIELD(u.command.body_size);
        BYTES(u.command.body, a->u.command.body_size);
        return NULL;
    case WIRE_REPLY:
        FIELD(u.reply.id);
        FIELD(u.reply.asker);
        FIELD(u.reply.role);
        FIELD(u.reply.rank);
        FIELD(u.reply.status);
        FIELD(u.reply.data_size);
        TEXT(u.reply.text);
        BYTES(u.reply.data, a->u.reply.data_size);
        return NULL;
    case WIRE_ENQUIRE: FIELD(u.enquire); return NULL;
    case WIRE_MISSING:
        FIELD(u.missing.rank);
        FIELD(u.missing.step);
        FIELD(u.missing.known);
        FIELD(u.missing.lacks_values);
        TEXT(u.missing.tensor);
        return NULL;
    case WIRE_STATUS:
        FIELD(u.status.term);
        FIELD(u.status.epoch);
        FIELD(u.status.refused);
        FIELD(u.status.step);
        FIELD(u.status.snapshot);
        NUMBER(u.status.uptime_s);
        NUMBER(u.status.steps_per_s);
        NUMBER(u.status.steps);
        TEXT(u.status.job);
        TEXT(u.status.phase);
        TEXT(u.status.mode);
        LIST(u.status.member, u.status.n_members, member_status);
        LIST(u.status.waiting, u.status.n_waiting, text);
        LIST(u.status.replica, u.status.n_replicas, replica);
        LIST(u.status.event, u.status.n_events, event);
        FIELD(u.status.n_shards);
        COLUMN(u.status.shard_bytes, a->u.status.n_shards);
        return member(&a->u.status.scheduler, &b->u.status.scheduler);
    default: return NULL;
    }
}

static const char *losing(const wire_control *a, const wire_control *b)
{
    switch (a->kind) {
    case WIRE_LOST:
        FIELD(u.lost.rank);
        FIELD(u.lost.incarnation);
        return verdict(&a->u.lost.why, &b->u.lost.why);
    case WIRE_FAULT:
    case WIRE_FAULTED:
        FIELD(u.fault.group);
        FIELD(u.fault.call);
        return verdict(&a->u.fault.why, &b->u.fault.why);
    case WIRE_OVERDUE:
        TEXT(u.overdue.what);
        FIELD(u.overdue.waited_ms);
        FIELD(u.overdue.n_missing);
        COLUMN(u.overdue.missing, a->u.overdue.n_missing);
        FIELD(u.overdue.quiet);
        return NULL;
    case WIRE_SHRINK:
        FIELD(u.shrink.group);
        FIELD(u.shrink.n_ranks);
        COLUMN(u.shrink.rank, a->u.shrink.n_ranks);
        return NULL;
    case WIRE_SHRUNK:
        FIELD(u.shrunk.group);
        FIELD(u.shrunk.new_group);
        FIELD(u.shrunk.n_ranks);
        COLUMN(u.shrunk.rank, a->u.shrunk.n_ranks);
        FIELD(u.shrunk.status);
        TEXT(u.shrunk.text);
        return NULL;
    default: return NULL;
    }
}

static const char *storing(const wire_control *a, const wire_control *b)
{
    switch (a->kind) {
    case WIRE_STORE:
        FIELD(u.store.id);
        FIELD(u.store.done_below);
        FIELD(u.store.op);
        TEXT(u.store.key);
        FIELD(u.store.data_size);
        BYTES(u.store.data, a->u.store.data_size);
        FIELD(u.store.delta);
        return NULL;
    case WIRE_STORED:
        FIELD(u.stored.id);
        FIELD(u.stored.status);
        TEXT(u.stored.text);
        FIELD(u.stored.data_size);
        BYTES(u.stored.data, a->u.stored.data_size);
        FIELD(u.stored.value);
        return NULL;
    case WIRE_RECORD_ASK: FIELD(u.record_ask); return NULL;
    case WIRE_RECORD:
        FIELD(u.record.id);
        FIELD(u.record.asker);
        FIELD(u.record.rank);
        FIELD(u.record.status);
        TEXT(u.record.text);
        FIELD(u.record.data_size);
        BYTES(u.record.data, a->u.record.data_size);
        return NULL;
    default: return NULL;
    }
}

static const char *changing(const wire_control *a, const wire_control *b)
{
    switch (a->kind) {
    case WIRE_SEAL: FIELD(u.seal); return NULL;
    case WIRE_SEALED:
        FIELD(u.sealed.term);
        FIELD(u.sealed.epoch);
        LIST(u.sealed.report, u.sealed.n_reports, sealed_report);
        return NULL;
    case WIRE_CAUGHT_UP: FIELD(u.caught_up); return NULL;
    case WIRE_SUSPECT:
        FIELD(u.suspect.shard);
        FIELD(u.suspect.server);
        FIELD(u.suspect.waited_ms);
        return NULL;
    case WIRE_SCALE: FIELD(u.scale); return NULL;
    case WIRE_DRAIN: FIELD(u.drain); return NULL;
    case WIRE_PROVE:
        FIELD(u.prove.round);
        LIST(u.prove.worker, u.prove.n_workers, member);
        return NULL;
    case WIRE_PROVEN:
        FIELD(u.proven.round);
        FIELD(u.proven.n_ranks);
        FIELD(u.proven.n_numbers);
        COLUMN(u.proven.rank, a->u.proven.n_ranks);
        COLUMN(u.proven.number, a->u.proven.n_numbers);
        return NULL;
    case WIRE_RESIZED:
        FIELD(u.resized.status);
        TEXT(u.resized.text);
        return NULL;
    case WIRE_UNREACHED:
        FIELD(u.unreached.role);
        FIELD(u.unreached.rank);
        TEXT(u.unreached.address);
        TEXT(u.unreached.words);
        return NULL;
    default: return NULL;
    }
}

const char *wire_difference_control(const wire_control *a, const wire_control *b)
{
    FIELD(kind);
    FIELD(from);
    const char *different = joining(a, b);
    if (different == NULL) different = living(a, b);
    if (different == NULL) different = losing(a, b);
    if (different == NULL) different = storing(a, b);
    if (different == NULL) different = changing(a, b);
    return different != NULL ? different : watching(a, b);
}
