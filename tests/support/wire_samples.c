/* wire_samples.c - one message of every kind; no two fields have the same value. */
#include "tests/support/wire_samples.h"

/* ---- data ------------------------------------------------------------------------------------ */
static const uint32_t chunks[]      = {0, 7, UINT32_MAX};
static const uint64_t seqs[]        = {1, 300, UINT64_MAX};
static const uint32_t crcs[]        = {0xe3069283, 0, UINT32_MAX};
static const uint64_t versions[]    = {4, 5, 1ull << 40};
static const uint32_t stalenesses[] = {0, 1, 70000}, sizes[] = {8, 0, 81};
static const uint32_t partitions[] = {2, 255};
static const uint64_t hashes[]     = {0x0123456789abcdef, UINT64_MAX};
static const double rates[]        = {1e-3, 0.1};
static const int32_t missing[]     = {1, 3, 65535};

static const wire_vote votes[] = {
    {.partition = 1, .hash = 11, .weight_sum = 4.5, .finite = true, .bad_chunk = 0, .bad_rank = -1},
    {.partition  = 9,
     .hash       = 12,
     .weight_sum = 2.5,
     .finite     = false,
     .bad_chunk  = 77,
     .bad_rank   = 3,
     .scalars = {.n = 2, .name = {171, UINT64_MAX}, .sum = {1.25, -3e300}, .ranks = {3, 65536}}}};

static const uint64_t numbers[]   = {8, 80, 800};
static const wire_entry entries[] = {
    {.what         = WIRE_ENTRY_PREPARE,
     .object       = 3,
     .rank         = 2,
     .step         = 1235,
     .capture      = 1236,
     .bytes        = 49000,
     .version      = 1237,
     .applied      = 1238,
     .crc          = 0xdeadbeef,
     .slot         = 1,
     .is_last      = true,
     .restart      = true,
     .weight_sum   = 7.5,
     .digest       = 1ull << 63,
     .n_numbers    = 3,
     .number       = numbers,
     .has_inputs   = true,
     .inputs       = {.loss_scale = 2048,
                      .clip       = 2.5,
                      .weight     = 16,
                      .n_rates    = 2,
                      .rate       = rates,
                      .scalars    = {.n = 1, .name = {172}, .sum = {0.1}, .ranks = {1}}},
     .has_decision = true,
     .decision     = {.outcome = PEN_SKIPPED_NONFINITE,
                      .clip    = 0.75,
                      .gscale  = 0.375,
                      .norm    = 9,
                      .applied = 1239},
     .has_vote     = true,
     .vote = {.partition = 4, .hash = 13, .weight_sum = 8.5, .finite = true, .bad_rank = -1}},
    {.what = WIRE_ENTRY_VOID, .rank = -1, .bytes = 152}};

wire_data wire_sample_data(wire_kind kind)
{
    return (wire_data){.kind          = kind,
                       .shard         = 13,
                       .index         = 1ull << 41,
                       .stream        = 1ull << 42,
                       .digest        = 1ull << 43,
                       .n_entries     = 2,
                       .entry         = entries,
                       .term          = 1763690000000,
                       .epoch         = 5,
                       .from          = 1763690000000ull << 24 | 1,
                       .to            = 1763690000000ull << 24 | 2,
                       .rank          = 6,
                       .step          = 1234,
                       .acked_below   = 1230,
                       .payload_bytes = 49152,
                       .flags         = WIRE_WANT_VALUES | WIRE_REPEATED,
                       .n             = 3,
                       .chunk         = chunks,
                       .seq           = seqs,
                       .crc           = crcs,
                       .version       = versions,
                       .staleness     = stalenesses,
                       .size          = sizes,
                       .n_partitions  = 2,
                       .partition     = partitions,
                       .vote_hash     = hashes,
                       .has_inputs    = true,
                       .inputs        = {.loss_scale   = 1024,
                                         .clip         = 1.5,
                                         .weight       = 32,
                                         .skip         = true,
                                         .snapshot     = true,
                                         .is_node_sum  = true,
                                         .n_rates      = 2,
                                         .rate         = rates,
                                         .states       = "rng state",
                                         .states_bytes = 9,
                                         .scalars = {.n = 1, .name = {173}, .sum = {7}, .ranks = {2}}},
                       .has_decision  = true,
                       .decision      = {.outcome = PEN_SKIPPED_NORM,
                                         .clip    = 0.25,
                                         .gscale  = 0.125,
                                         .norm    = 6,
                                         .applied = 1233},
                       .n_votes       = 2,
                       .vote          = votes,
                       .status        = PEN_AGAIN,
                       .text          = "fc1.weight",
                       .n_missing     = 3,
                       .missing       = missing};
}

/* ---- control --------------------------------------------------------------------------------- */
static const char *const addresses[] = {"tcp://10.0.0.7:40001", "tcp://10.0.0.7:40002"};
static const int64_t snapshots[]     = {100, 200};
static const wire_stat stats[]       = {{"push.bytes", 1e9}, {"pull.GBps", 2.5}};
static const char *const waits[]     = {"rank 1 waits for rank 3 at step 12",
                                        "rank 0 waits for rank 3 at step 12"};
static const char bytes[]            = {1, 0, -1, 7, 0, 0, 0, 64};
static const uint32_t shards[]       = {0, 3, 1};

static const wire_replica replicas[] = {
    {.shard = 0, .server = 5, .place = 1, .role = WIRE_PRIMARY},
    {.shard = 3, .server = 2, .place = 0, .role = WIRE_LEARNER}};
static const wire_event events[]    = {{.number = 62, .at_s = 0.25, .level = 1, .text = "first"},
                                       {.number = 63, .at_s = 1.5, .level = 3, .text = "second"}};
static const uint64_t shard_bytes[] = {(uint64_t)1 << 40, 0};
static const wire_decision decision = {
    .outcome = PEN_SKIPPED_NORM, .clip = 0.75, .gscale = 0.375, .norm = 9, .applied = 1231};
static const wire_sealed_report reports[] = {
    {.shard        = 2,
     .role         = WIRE_BACKUP,
     .index        = 1ull << 33,
     .digest       = 0xfedcba9876543210,
     .step         = 71,
     .clock        = -1,
     .all_prepared = true,
     .has_decision = true,
     .decision     = decision},
    {.shard = 255, .role = WIRE_PRIMARY, .index = 72, .digest = 73, .step = -1, .clock = 74}};

static const wire_member workers[] = {{.role        = PEN_WORKER,
                                       .rank        = 0,
                                       .incarnation = 21,
                                       .host        = "node-a",
                                       .pid         = 301,
                                       .local_rank  = 1,
                                       .node        = 2,
                                       .sharing     = 1},
                                      {.role        = PEN_WORKER,
                                       .rank        = 1,
                                       .incarnation = 22,
                                       .host        = "node-b",
                                       .pid         = 302,
                                       .local_rank  = 3,
                                       .node        = 4}};
static const wire_member servers[] = {{.role        = PEN_SERVER,
                                       .rank        = 5,
                                       .incarnation = 23,
                                       .host        = "node-c",
                                       .pid         = 303,
                                       .local_rank  = 6,
                                       .node        = 7,
                                       .n_addresses = 2,
                                       .address     = addresses}};

static const wire_tensor tensors[] = {{.name       = "fc1.weight",
                                       .dtype      = PEN_F32,
                                       .grad_dtype = PEN_BF16,
                                       .ndim       = 2,
                                       .shape      = {128, 784},
                                       .group      = 1,
                                       .flags      = PEN_ZERO_IF_UNUSED,
                                       .priority   = -3,
                                       .init       = "normal std=0.02",
                                       .handler    = "adder"},
                                      {.name       = "scale",
                                       .dtype      = PEN_F64,
                                       .grad_dtype = PEN_F64,
                                       .flags      = PEN_FROZEN,
                                       .priority   = 4,
                                       .init       = "ones",
                                       .handler    = ""}};
static const wire_group groups[]   = {
      {"no_decay", "sgd lr=0.1", "bsp", "raw", "constant"},
      {"decay", "adamw lr=3e-4", "ssp s=2", "bf16", "WarmupLR warmup_num_steps=7"}};
static const wire_pair settings[] = {{"clip", "1.0"}, {"mode", "ps-bsp"}};

static const wire_model model = {.n_tensors  = 2,
                                 .n_groups   = 2,
                                 .n_settings = 2,
                                 .tensor     = tensors,
                                 .group      = groups,
                                 .setting    = settings};

static const pen_error verdict = {.status      = PEN_PEER_LOST,
                                  .role        = PEN_WORKER,
                                  .rank        = 3,
                                  .missing_n   = 2,
                                  .missing     = {3, 8},
                                  .step        = 77,
                                  .last_seen_s = 1.5,
                                  .tensor      = "fc2.bias",
                                  .text        = "rank 3 (node-d) was killed by signal 9"};

static wire_member_status members[2];

static const wire_member_status *make_members(void)
{
    members[0] = (wire_member_status){.member      = workers[0],
                                      .state       = "active",
                                      .call        = "pen_step_end",
                                      .last_seen_s = 0.5,
                                      .call_s      = 2.25,
                                      .step        = 11,
                                      .n_stats     = 2,
                                      .stat        = stats};
    members[1] = (wire_member_status){
        .member = servers[0], .state = "lost", .call = "", .last_seen_s = 30, .step = 10};
    return members;
}

wire_control wire_sample_control(wire_control_kind kind)
{
    wire_control c = {.kind = kind, .from = 1763690000000ull << 24 | 3};
    switch (kind) {
    case WIRE_HELLO:
        c.u.hello.role             = WIRE_LAUNCHER;
        c.u.hello.rank             = -1;
        c.u.hello.world_size       = 8;
        c.u.hello.servers          = 2;
        c.u.hello.pid              = 4711;
        c.u.hello.local_rank       = 3;
        c.u.hello.node             = 1;
        c.u.hello.number           = 0xbadc0ffee0ddf00d;
        c.u.hello.holds_state      = true;
        c.u.hello.machine          = "boot:0e5f:devbox";
        c.u.hello.local_world_size = 4;
        c.u.hello.nonce            = 0xfeedfacecafebeef;
        c.u.hello.host             = "devbox";
        c.u.hello.job              = "fashion_mnist-5f2a";
        c.u.hello.store            = "/var/lib/penstock/5f2a";
        c.u.hello.n_addresses      = 2;
        c.u.hello.address          = addresses;
        c.u.hello.n_snapshots      = 2;
        c.u.hello.snapshot         = snapshots;
        break;
    case WIRE_WELCOME:
        c.u.welcome.incarnation = 31;
        c.u.welcome.rank        = 2;
        c.u.welcome.term        = 32;
        c.u.welcome.job         = "fashion_mnist-5f2a";
        c.u.welcome.lease_ms    = 10000;
        c.u.welcome.grace_ms    = 60000;
        c.u.welcome.local_rank  = 1;
        c.u.welcome.node        = 2;
        break;
    case WIRE_EPOCH:
        c.u.epoch.term      = 33;
        c.u.epoch.epoch     = 34;
        c.u.epoch.job       = "fashion_mnist-5f2a";
        c.u.epoch.n_workers = 2;
        c.u.epoch.worker    = workers;
        c.u.epoch.n_servers = 1;
        c.u.epoch.server    = servers;

        c.u.epoch.n_replicas      = 2;
        c.u.epoch.replica         = replicas;
        c.u.epoch.step            = 35;
        c.u.epoch.members_changed = true;
        c.u.epoch.has_decision    = true;
        c.u.epoch.decision        = decision;
        break;
    case WIRE_REGISTER: c.u.register_ = model; break;
    case WIRE_PLAN:
        c.u.plan.model        = model;
        c.u.plan.n_partitions = 3;
        c.u.plan.shard        = shards;
        c.u.plan.restore      = -1;
        c.u.plan.n_shards     = 4;
        c.u.plan.n_replicas   = 2;
        c.u.plan.replica      = replicas;
        c.u.plan.ranks_max    = 36;
        c.u.plan.epoch        = 37;
        c.u.plan.term         = 38;
        break;
    case WIRE_READY:
        c.u.ready.restored     = -1;
        c.u.ready.applied      = 41;
        c.u.ready.states       = "rng";
        c.u.ready.states_bytes = 3;
        break;
    case WIRE_COMMITTED:
        c.u.committed.step         = 42;
        c.u.committed.applied      = 40;
        c.u.committed.states       = "position";
        c.u.committed.states_bytes = 8;
        break;
    case WIRE_BEAT:
        c.u.beat.seq     = 43;
        c.u.beat.step    = 44;
        c.u.beat.call    = "pen_wait";
        c.u.beat.call_ms = 45;
        c.u.beat.n_stats = 2;
        c.u.beat.stat    = stats;
        break;
    case WIRE_BEAT_ACK:
        c.u.beat_ack.seq      = 46;
        c.u.beat_ack.job_step = 47;
        c.u.beat_ack.clock_ns = 1763800000000000001u;
        break;
    case WIRE_NOTICE: c.u.notice.text = "rank 3 has not come to the barrier"; break;
    case WIRE_VERDICT:
    case WIRE_FAILURE:
    case WIRE_WILL: c.u.verdict = verdict; break;
    case WIRE_EXITED:
        c.u.exited.role   = PEN_WORKER;
        c.u.exited.rank   = 4;
        c.u.exited.pid    = 999;
        c.u.exited.code   = 137;
        c.u.exited.signal = 9;
        c.u.exited.step   = 20;
        c.u.exited.call   = "after pen_step_begin";
        c.u.exited.note   = "killed by the kernel: out of memory";
        break;
    case WIRE_SNAPSHOT_PLEASE: c.u.snapshot_please.id = 50; break;
    case WIRE_SNAPSHOT_PART:
        c.u.snapshot_part.step   = 51;
        c.u.snapshot_part.status = PEN_STORE;
        c.u.snapshot_part.text   = "the disk is full";
        c.u.snapshot_part.bytes  = 52;

        c.u.snapshot_part.n_shards   = 3;
        c.u.snapshot_part.shard      = shards;
        c.u.snapshot_part.lacks_room = true;
        c.u.snapshot_part.spare      = 41;
        break;
    case WIRE_SNAPSHOT_DONE:
        c.u.snapshot_done.step       = 53;
        c.u.snapshot_done.status     = PEN_TIMED_OUT;
        c.u.snapshot_done.text       = "server 1 did not answer";
        c.u.snapshot_done.makes_room = true;
        c.u.snapshot_done.gone       = 42;
        break;
    case WIRE_ENQUIRE: c.u.enquire.rank = 5; break;
    case WIRE_MISSING:
        c.u.missing.rank         = 6;
        c.u.missing.step         = 54;
        c.u.missing.tensor       = "fc3.weight";
        c.u.missing.known        = true;
        c.u.missing.lacks_values = true;
        break;
    case WIRE_STATUS:
        c.u.status.job         = "fashion_mnist-5f2a";
        c.u.status.phase       = "training";
        c.u.status.mode        = "ps-bsp";
        c.u.status.term        = 55;
        c.u.status.epoch       = 56;
        c.u.status.refused     = 57;
        c.u.status.step        = 58;
        c.u.status.steps       = 580;
        c.u.status.steps_per_s = 5.8;
        c.u.status.snapshot    = 59;
        c.u.status.uptime_s    = 60.5;
        c.u.status.n_members   = 2;
        c.u.status.member      = make_members();
        c.u.status.n_waiting   = 2;
        c.u.status.waiting     = waits;

        c.u.status.n_replicas  = 2;
        c.u.status.replica     = replicas;
        c.u.status.n_events    = 2;
        c.u.status.event       = events;
        c.u.status.n_shards    = 2;
        c.u.status.shard_bytes = shard_bytes;
        c.u.status.scheduler   = (wire_member){.role        = PEN_SCHEDULER,
                                               .rank        = -1,
                                               .host        = "devbox",
                                               .n_addresses = 2,
                                               .address     = waits};
        break;
    case WIRE_COMMAND:
        c.u.command.id         = 61;
        c.u.command.role       = PEN_WORKER;
        c.u.command.rank       = -1;
        c.u.command.asker      = 62;
        c.u.command.head       = -7;
        c.u.command.body       = bytes;
        c.u.command.body_size  = sizeof bytes;
        c.u.command.done_below = 60;
        break;
    case WIRE_REPLY:
        c.u.reply.id        = 61;
        c.u.reply.role      = PEN_SERVER;
        c.u.reply.rank      = 3;
        c.u.reply.asker     = 62;
        c.u.reply.status    = PEN_NOT_FOUND;
        c.u.reply.text      = "server 3 has no handler for command -7";
        c.u.reply.data      = bytes;
        c.u.reply.data_size = sizeof bytes;
        break;
    case WIRE_LOST:
        c.u.lost.rank        = 1;
        c.u.lost.incarnation = 63;
        c.u.lost.why         = verdict;
        break;
    case WIRE_FAULT:
    case WIRE_FAULTED:
        c.u.fault.group = 64;
        c.u.fault.call  = 418;
        c.u.fault.why   = verdict;
        break;
    case WIRE_OVERDUE:
        c.u.overdue.what      = "barrier 'epoch end' (call 212)";
        c.u.overdue.waited_ms = 30000;
        c.u.overdue.n_missing = 3;
        c.u.overdue.missing   = missing;
        c.u.overdue.quiet     = true;
        break;
    case WIRE_SHRINK:
        c.u.shrink.group   = 65;
        c.u.shrink.n_ranks = 3;
        c.u.shrink.rank    = missing;
        break;
    case WIRE_SHRUNK:
        c.u.shrunk.group     = 65;
        c.u.shrunk.new_group = 66;
        c.u.shrunk.n_ranks   = 3;
        c.u.shrunk.rank      = missing;
        c.u.shrunk.status    = PEN_MISMATCH;
        c.u.shrunk.text      = "rank 1 and rank 0 mean different groups";
        break;
    case WIRE_STORE:
        c.u.store.id         = 67;
        c.u.store.done_below = 60;
        c.u.store.op         = WIRE_STORE_ADD;
        c.u.store.key        = "tickets";
        c.u.store.data       = bytes;
        c.u.store.data_size  = sizeof bytes;
        c.u.store.delta      = -3;
        break;
    case WIRE_STORED:
        c.u.stored.id        = 67;
        c.u.stored.status    = PEN_MISMATCH;
        c.u.stored.text      = "'tickets' holds 5 bytes, and a counter is 8";
        c.u.stored.data      = bytes;
        c.u.stored.data_size = sizeof bytes;
        c.u.stored.value     = -68;
        break;
    case WIRE_RECORD_ASK:
        c.u.record_ask.id    = 69;
        c.u.record_ask.asker = 70;
        break;
    case WIRE_RECORD:
        c.u.record.id        = 69;
        c.u.record.asker     = 70;
        c.u.record.rank      = 2;
        c.u.record.status    = PEN_PEER_LOST;
        c.u.record.text      = "worker 2 (devbox) is gone";
        c.u.record.data      = bytes;
        c.u.record.data_size = sizeof bytes;
        break;
    case WIRE_SEAL:
        c.u.seal.term  = 75;
        c.u.seal.epoch = 76;
        break;
    case WIRE_SEALED:
        c.u.sealed.term      = 75;
        c.u.sealed.epoch     = 76;
        c.u.sealed.n_reports = 2;
        c.u.sealed.report    = reports;
        break;
    case WIRE_CAUGHT_UP:
        c.u.caught_up.shard  = 77;
        c.u.caught_up.server = 78;
        break;
    case WIRE_SUSPECT:
        c.u.suspect.shard     = 79;
        c.u.suspect.server    = 80;
        c.u.suspect.waited_ms = 81;
        break;
    case WIRE_SCALE:
        c.u.scale.workers = -1;
        c.u.scale.servers = 82;
        break;
    case WIRE_DRAIN: c.u.drain.server = 83; break;
    case WIRE_PROVE:
        c.u.prove.round     = 68;
        c.u.prove.n_workers = 2;
        c.u.prove.worker    = workers;
        break;
    case WIRE_PROVEN:
        c.u.proven.round     = 68;
        c.u.proven.n_ranks   = 3;
        c.u.proven.rank      = missing;
        c.u.proven.n_numbers = 2;
        c.u.proven.number    = shard_bytes;
        break;
    case WIRE_RESIZED:
        c.u.resized.status = PEN_UNSUPPORTED;
        c.u.resized.text   = "the job has a fixed number of workers";
        break;
    case WIRE_UNREACHED:
        c.u.unreached.role    = PEN_SERVER;
        c.u.unreached.rank    = 84;
        c.u.unreached.address = "tcp://10.0.0.7:4711";
        c.u.unreached.words   = "connection refused";
        break;
    case WIRE_BYE:
    case WIRE_BYED:
    case WIRE_STOP:
    case WIRE_STATUS_ASK:
    case WIRE_CONTROL_END: break;
    }
    return c;
}
