"""_c.py - the declarations of penstock.h, for ctypes.

Written by scripts/python_declarations.py from include/penstock.h; edit the header instead.
"""
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)
from typing import Any, Dict, List, Optional, Tuple

VERSION = "1.0.0"
PEN_ALL = -1
PEN_ANY = -1
PEN_BUFFER = 4
PEN_CAP_CAPTURE = 4
PEN_CAP_CUDA = 1
PEN_CAP_ELASTIC = 16
PEN_CAP_NCCL = 8
PEN_CAP_STREAM = 2
PEN_EVERY = -1
PEN_FROZEN = 2
PEN_KEYS_ANY = 1
PEN_KEYS_RANGE = 2
PEN_NOWAIT = 1
PEN_NO_DECAY = 16
PEN_OVERWRITE = 4
PEN_SCALED = 2
PEN_STACKED = 1
PEN_STEP_MEMBERS = 2
PEN_STEP_REWOUND = 1
PEN_STEP_STOPPING = 4
PEN_VERSION_MAJOR = 1
PEN_VERSION_MINOR = 0
PEN_VERSION_PATCH = 0
PEN_ZERO_IF_UNUSED = 8

# pen_status
PEN_OK = 0
PEN_AGAIN = 1
PEN_END = 2
PEN_INVALID_ARGUMENT = -100
PEN_WRONG_STATE = -101
PEN_MISMATCH = -102
PEN_BAD_SETTING = -103
PEN_UNSUPPORTED = -104
PEN_NOT_FOUND = -105
PEN_TOO_SMALL = -106
PEN_TIMED_OUT = -200
PEN_PEER_LOST = -201
PEN_UNREACHABLE = -202
PEN_NOT_A_MEMBER = -300
PEN_DENIED = -301
PEN_NO_MEMORY = -400
PEN_CORRUPT = -401
PEN_STORE = -402
PEN_DEVICE = -403
PEN_ABORTED = -404
PEN_INTERNAL = -405
PEN_STATUS_MAX_ = 2147483647

# pen_remedy
PEN_ACT_DONE = 0
PEN_ACT_WAIT = 1
PEN_ACT_CALLER = 2
PEN_ACT_RETRY = 3
PEN_ACT_REJOIN = 4
PEN_ACT_OPERATOR = 5
PEN_ACT_STOP = 6


class pen_status_row(Structure):
    status: int
    remedy: int
    name: Optional[bytes]
    text: Optional[bytes]
    _fields_ = [
        ("status", c_int),
        ("remedy", c_int),
        ("name", c_char_p),
        ("text", c_char_p),
    ]


class pen_error(Structure):
    status: int
    role: int
    rank: int
    missing_n: int
    missing: Any
    step: int
    last_seen_s: float
    tensor: bytes
    text: bytes
    reserved: Any
    _fields_ = [
        ("status", c_int),
        ("role", c_int32),
        ("rank", c_int32),
        ("missing_n", c_int32),
        ("missing", c_int32 * 32),
        ("step", c_int64),
        ("last_seen_s", c_double),
        ("tensor", c_char * 128),
        ("text", c_char * 640),
        ("reserved", c_uint64 * 12),
    ]


class pen_req(Structure):
    ctx: Optional[int]
    id: int
    _fields_ = [
        ("ctx", c_void_p),
        ("id", c_uint64),
    ]


class pen_bytes(Structure):
    data: Optional[int]
    size: int
    _fields_ = [
        ("data", c_void_p),
        ("size", c_size_t),
    ]

# pen_role
PEN_SCHEDULER = 1
PEN_SERVER = 2
PEN_WORKER = 3


class pen_info(Structure):
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    nodes: int
    servers: int
    device: int
    live: int
    accum: int
    micro_batch: int
    global_batch: int
    step: int
    epoch: int
    seed: int
    caps: int
    reserved32: int
    mode: bytes
    precision: bytes
    job: bytes
    reserved: Any
    _fields_ = [
        ("rank", c_int32),
        ("world_size", c_int32),
        ("local_rank", c_int32),
        ("local_world_size", c_int32),
        ("node", c_int32),
        ("nodes", c_int32),
        ("servers", c_int32),
        ("device", c_int32),
        ("live", c_int32),
        ("accum", c_int32),
        ("micro_batch", c_int64),
        ("global_batch", c_int64),
        ("step", c_int64),
        ("epoch", c_uint64),
        ("seed", c_uint64),
        ("caps", c_uint32),
        ("reserved32", c_uint32),
        ("mode", c_char * 32),
        ("precision", c_char * 16),
        ("job", c_char * 48),
        ("reserved", c_uint64 * 17),
    ]

pen_log_fn = CFUNCTYPE(None, c_int, c_char_p, c_void_p)

# pen_space
PEN_HOST = 0
PEN_HOST_PINNED = 1
PEN_CUDA = 2

# pen_group_kind
PEN_GROUP_WORLD = 0
PEN_GROUP_NODE = 1
PEN_GROUP_ACROSS = 2


class pen_result(Structure):
    status: int
    source: int
    tag: int
    staleness: int
    version: int
    count: int
    step: int
    seconds: float
    reserved: Any
    _fields_ = [
        ("status", c_int),
        ("source", c_int32),
        ("tag", c_int32),
        ("staleness", c_uint32),
        ("version", c_uint64),
        ("count", c_uint64),
        ("step", c_int64),
        ("seconds", c_double),
        ("reserved", c_uint64 * 10),
    ]

pen_done_fn = CFUNCTYPE(None, POINTER(pen_result), c_void_p)


class pen_opts(Structure):
    deadline_ms: int
    priority: int
    flags: int
    scale: float
    stream: Optional[int]
    label: Optional[bytes]
    done: Any
    user: Optional[int]
    reserved: Any
    _fields_ = [
        ("deadline_ms", c_int64),
        ("priority", c_int32),
        ("flags", c_uint32),
        ("scale", c_double),
        ("stream", c_void_p),
        ("label", c_char_p),
        ("done", pen_done_fn),
        ("user", c_void_p),
        ("reserved", c_uint64 * 9),
    ]

# pen_dtype
PEN_DTYPE_DEFAULT = 0
PEN_F32 = 1
PEN_F16 = 2
PEN_BF16 = 3
PEN_F64 = 4
PEN_I8 = 5
PEN_U8 = 6
PEN_I32 = 7
PEN_U32 = 8
PEN_I64 = 9
PEN_U64 = 10
PEN_F8E4M3 = 11
PEN_F8E5M2 = 12

# pen_op
PEN_SUM = 0
PEN_AVG = 1
PEN_PROD = 2
PEN_MIN = 3
PEN_MAX = 4
PEN_LAND = 5
PEN_LOR = 6
PEN_LXOR = 7
PEN_BAND = 8
PEN_BOR = 9
PEN_BXOR = 10


class pen_params_desc(Structure):
    name: Optional[bytes]
    optim: Optional[bytes]
    schedule: Optional[bytes]
    sync: Optional[bytes]
    wire: Optional[bytes]
    reserved: Any
    _fields_ = [
        ("name", c_char_p),
        ("optim", c_char_p),
        ("schedule", c_char_p),
        ("sync", c_char_p),
        ("wire", c_char_p),
        ("reserved", c_uint64 * 11),
    ]


class pen_tensor_desc(Structure):
    name: Optional[bytes]
    dtype: int
    grad_dtype: int
    ndim: int
    flags: int
    shape: Any
    param: Optional[int]
    grad: Optional[int]
    params: Optional[int]
    unit: Optional[bytes]
    init: Optional[bytes]
    tied_to: Optional[int]
    priority: int
    reserved32: int
    reserved: Any
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("grad_dtype", c_int),
        ("ndim", c_int32),
        ("flags", c_uint32),
        ("shape", c_int64 * 8),
        ("param", c_void_p),
        ("grad", c_void_p),
        ("params", c_void_p),
        ("unit", c_char_p),
        ("init", c_char_p),
        ("tied_to", c_void_p),
        ("priority", c_int32),
        ("reserved32", c_int32),
        ("reserved", c_uint64 * 14),
    ]

# pen_what
PEN_PARAM = 0
PEN_GRAD = 1

# pen_outcome
PEN_APPLIED = 0
PEN_SKIPPED_NONFINITE = 1
PEN_SKIPPED_NORM = 2
PEN_SKIPPED_EMPTY = 3
PEN_PENDING = 4


class pen_step(Structure):
    index: int
    epoch: int
    loss_scale: float
    lr: float
    accum: int
    flags: int
    lr_scale: float
    weight: float
    lazy: int
    outcome: int
    grad_norm: float
    clip: float
    applied: int
    version: int
    staleness: int
    bad_rank: int
    bad_tensor: Optional[int]
    reserved: Any
    _fields_ = [
        ("index", c_int64),
        ("epoch", c_uint64),
        ("loss_scale", c_double),
        ("lr", c_double),
        ("accum", c_int32),
        ("flags", c_uint32),
        ("lr_scale", c_double),
        ("weight", c_double),
        ("lazy", c_int32),
        ("outcome", c_int32),
        ("grad_norm", c_double),
        ("clip", c_double),
        ("applied", c_int64),
        ("version", c_uint64),
        ("staleness", c_uint32),
        ("bad_rank", c_int32),
        ("bad_tensor", c_void_p),
        ("reserved", c_uint64 * 18),
    ]

# pen_phase
PEN_FORWARD = 0
PEN_BACKWARD = 1

pen_place_fn = CFUNCTYPE(c_uint32, c_uint64, c_uint32, c_void_p)


class pen_table_desc(Structure):
    name: Optional[bytes]
    dtype: int
    flags: int
    dim: int
    params: Optional[int]
    init: Optional[bytes]
    handler: Optional[bytes]
    place: Any
    user: Optional[int]
    reserved: Any
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("flags", c_uint32),
        ("dim", c_int64),
        ("params", c_void_p),
        ("init", c_char_p),
        ("handler", c_char_p),
        ("place", pen_place_fn),
        ("user", c_void_p),
        ("reserved", c_uint64 * 8),
    ]


class pen_kv(Structure):
    keys: Any
    n: int
    in_lens: Any
    out: Optional[int]
    out_cap: int
    out_lens: Any
    out_new: Any
    cmd: int
    reserved32: int
    reserved: Any
    _fields_ = [
        ("keys", POINTER(c_uint64)),
        ("n", c_size_t),
        ("in", c_void_p),
        ("in_lens", POINTER(c_uint32)),
        ("out", c_void_p),
        ("out_cap", c_size_t),
        ("out_lens", POINTER(c_uint32)),
        ("out_new", POINTER(pen_bytes)),
        ("cmd", c_int32),
        ("reserved32", c_int32),
        ("reserved", c_uint64 * 4),
    ]


class pen_node(Structure):
    role: int
    rank: int
    _fields_ = [
        ("role", c_int32),
        ("rank", c_int32),
    ]


class pen_kv_msg(Structure):
    table: Optional[bytes]
    cmd: int
    push: int
    pull: int
    reserved32: int
    request: int
    keys: Any
    n: int
    vals: Optional[int]
    lens: Any
    vals_n: int
    reserved: Any
    _fields_ = [
        ("table", c_char_p),
        ("from", pen_node),
        ("cmd", c_int32),
        ("push", c_int32),
        ("pull", c_int32),
        ("reserved32", c_int32),
        ("request", c_uint64),
        ("keys", POINTER(c_uint64)),
        ("n", c_size_t),
        ("vals", c_void_p),
        ("lens", POINTER(c_uint32)),
        ("vals_n", c_size_t),
        ("reserved", c_uint64 * 4),
    ]


class pen_handler(Structure):
    name: Optional[bytes]
    open: Any
    close: Any
    request: Any
    command: Any
    save: Any
    load: Any
    deterministic: int
    reserved32: int
    user: Optional[int]
    reserved: Any
    _fields_ = [
        ("name", c_char_p),
        ("open", CFUNCTYPE(c_void_p, c_int, c_int, c_void_p)),
        ("close", CFUNCTYPE(None, c_void_p)),
        ("request", CFUNCTYPE(None, c_void_p, c_void_p, POINTER(pen_kv_msg))),
        ("command", CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_void_p, c_size_t)),
        ("save", CFUNCTYPE(c_int, c_void_p, POINTER(pen_bytes))),
        ("load", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)),
        ("deterministic", c_int32),
        ("reserved32", c_int32),
        ("user", c_void_p),
        ("reserved", c_uint64 * 8),
    ]

pen_command_fn = CFUNCTYPE(None, c_void_p, c_void_p, c_int, c_void_p, c_size_t, c_void_p)

# pen_event_kind
PEN_EV_JOINED = 1
PEN_EV_LEFT = 2
PEN_EV_LOST = 3
PEN_EV_REWOUND = 4
PEN_EV_SNAPSHOT = 5
PEN_EV_STRAGGLER = 6
PEN_EV_STOPPING = 7


class pen_event(Structure):
    kind: int
    node: Any
    reserved32: int
    epoch: int
    step: int
    text: Optional[bytes]
    reserved: Any
    _fields_ = [
        ("kind", c_int32),
        ("node", pen_node),
        ("reserved32", c_int32),
        ("epoch", c_uint64),
        ("step", c_int64),
        ("text", c_char_p),
        ("reserved", c_uint64 * 4),
    ]


class pen_slot(Structure):
    tensor: Optional[int]
    slot: Optional[bytes]
    data: Any
    reserved: Any
    _fields_ = [
        ("tensor", c_void_p),
        ("slot", c_char_p),
        ("data", POINTER(c_float)),
        ("reserved", c_uint64 * 5),
    ]


class pen_sampler_desc(Structure):
    n: int
    world: int
    rank: int
    seed: int
    keep_order: int
    drop_last: int
    exact: int
    reserved32: int
    reserved: Any
    _fields_ = [
        ("n", c_int64),
        ("world", c_int32),
        ("rank", c_int32),
        ("seed", c_uint64),
        ("keep_order", c_int32),
        ("drop_last", c_int32),
        ("exact", c_int32),
        ("reserved32", c_int32),
        ("reserved", c_uint64 * 4),
    ]

# name: result, arguments
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "pen_version": (c_uint32, []),
    "pen_status_info": (POINTER(pen_status_row), [c_int]),
    "pen_last_error": (c_char_p, [POINTER(pen_error)]),
    "pen_init": (c_int, [POINTER(c_char_p), POINTER(c_void_p)]),
    "pen_finalize": (c_int, [c_void_p]),
    "pen_abort": (None, [c_void_p, c_char_p]),
    "pen_info_get": (c_int, [c_void_p, POINTER(pen_info)]),
    "pen_setting_set": (c_int, [c_void_p, c_char_p, c_char_p]),
    "pen_spawn": (c_int, [c_int, CFUNCTYPE(c_int, c_void_p, c_void_p), c_void_p]),
    "pen_log_set": (None, [pen_log_fn, c_void_p, c_int]),
    "pen_alloc": (c_void_p, [c_void_p, c_size_t, c_int]),
    "pen_keep": (c_int, [c_void_p]),
    "pen_free": (None, [c_void_p]),
    "pen_group_get": (c_void_p, [c_void_p, c_int]),
    "pen_rank": (c_int, [c_void_p]),
    "pen_size": (c_int, [c_void_p]),
    "pen_group_ranks": (c_int, [c_void_p, POINTER(c_int), c_int]),
    "pen_group_new": (c_int, [c_void_p, POINTER(c_int), c_int, POINTER(c_void_p)]),
    "pen_group_split": (c_int, [c_void_p, c_int, c_int, POINTER(c_void_p)]),
    "pen_group_shrink": (c_int, [c_void_p, POINTER(c_void_p)]),
    "pen_group_free": (None, [c_void_p]),
    "pen_wait": (c_int, [POINTER(pen_req), POINTER(pen_result)]),
    "pen_wait_any": (c_int, [POINTER(pen_req), c_size_t, c_int64, POINTER(c_size_t), POINTER(pen_result)]),
    "pen_wait_stream": (c_int, [POINTER(pen_req), c_void_p]),
    "pen_broadcast": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_reduce": (c_int, [
        c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_all_reduce": (c_int, [
        c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_int, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_gather": (c_int, [
        c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_size_t), c_int, c_int, POINTER(pen_opts),
        POINTER(pen_req)]),
    "pen_all_gather": (c_int, [
        c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_size_t), c_int, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_scatter": (c_int, [
        c_void_p, c_void_p, POINTER(c_size_t), c_void_p, c_size_t, c_int, c_int, POINTER(pen_opts),
        POINTER(pen_req)]),
    "pen_reduce_scatter": (c_int, [
        c_void_p, c_void_p, POINTER(c_size_t), c_void_p, c_size_t, c_int, c_int, POINTER(pen_opts),
        POINTER(pen_req)]),
    "pen_all_to_all": (c_int, [
        c_void_p, c_void_p, POINTER(c_size_t), c_void_p, POINTER(c_size_t), c_size_t, c_int, POINTER(pen_opts),
        POINTER(pen_req)]),
    "pen_barrier": (c_int, [c_void_p, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_send": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_recv": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_batch_begin": (c_int, [c_void_p]),
    "pen_batch_end": (c_int, [c_void_p, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_broadcast_bytes": (c_int, [c_void_p, POINTER(pen_bytes), c_int, POINTER(pen_opts)]),
    "pen_gather_bytes": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(pen_bytes), c_int, POINTER(pen_opts)]),
    "pen_params_new": (c_int, [c_void_p, POINTER(pen_params_desc), POINTER(c_void_p)]),
    "pen_params_lr": (c_int, [c_void_p, c_double]),
    "pen_register": (c_int, [c_void_p, POINTER(pen_tensor_desc), POINTER(c_void_p)]),
    "pen_commit": (c_int, [c_void_p]),
    "pen_bind": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "pen_view": (c_void_p, [c_void_p, c_void_p, c_int64, c_int]),
    "pen_step_begin": (c_int, [c_void_p, POINTER(pen_step)]),
    "pen_step_micro": (c_int, [c_void_p, c_int]),
    "pen_step_scalar": (c_int, [c_void_p, c_char_p, c_double]),
    "pen_ready": (c_int, [c_void_p, c_void_p, c_int64]),
    "pen_ready_on": (c_int, [c_void_p, c_void_p, c_int64, c_void_p]),
    "pen_step_end": (c_int, [c_void_p, POINTER(pen_step)]),
    "pen_step_decided": (c_int, [c_void_p, POINTER(pen_step)]),
    "pen_step_total": (c_int, [c_void_p, c_char_p, c_int, POINTER(c_double)]),
    "pen_unit_get": (c_void_p, [c_void_p, c_char_p, c_int64]),
    "pen_use": (c_int, [c_void_p, c_void_p, c_int, c_void_p]),
    "pen_release": (c_int, [c_void_p, c_void_p, c_int, c_void_p]),
    "pen_push": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_pull": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_push_pull": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, c_void_p, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_table_new": (c_int, [c_void_p, POINTER(pen_table_desc), POINTER(c_void_p)]),
    "pen_kv_push": (c_int, [c_void_p, POINTER(pen_kv), POINTER(pen_opts), POINTER(pen_req)]),
    "pen_kv_pull": (c_int, [c_void_p, POINTER(pen_kv), POINTER(pen_opts), POINTER(pen_req)]),
    "pen_kv_push_pull": (c_int, [c_void_p, POINTER(pen_kv), POINTER(pen_opts), POINTER(pen_req)]),
    "pen_serve": (c_int, [POINTER(c_char_p), POINTER(pen_handler), c_int]),
    "pen_reply": (c_int, [c_void_p, c_int, c_void_p, c_size_t, POINTER(c_uint32)]),
    "pen_command": (c_int, [
        c_void_p, pen_node, c_int, c_void_p, c_size_t, POINTER(pen_bytes), c_int, POINTER(pen_opts),
        POINTER(pen_req)]),
    "pen_on_command": (c_int, [c_void_p, pen_command_fn, c_void_p]),
    "pen_on_event": (c_int, [c_void_p, CFUNCTYPE(None, c_void_p, POINTER(pen_event), c_void_p), c_void_p]),
    "pen_state_add": (c_int, [c_void_p, c_char_p, c_void_p, c_size_t, c_int]),
    "pen_snapshot": (c_int, [c_void_p, POINTER(pen_opts), POINTER(pen_req)]),
    "pen_restore": (c_int, [c_void_p, c_int64, POINTER(pen_opts)]),
    "pen_slots_get": (c_int, [c_void_p, POINTER(pen_slot), c_size_t, POINTER(c_int64), POINTER(pen_opts)]),
    "pen_slots_set": (c_int, [c_void_p, POINTER(pen_slot), c_size_t, c_int64, POINTER(pen_opts)]),
    "pen_export": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(pen_opts)]),
    "pen_import": (c_int, [c_void_p, c_char_p, POINTER(pen_opts)]),
    "pen_digest": (c_int, [c_void_p, POINTER(c_uint32)]),
    "pen_sampler_new": (c_int, [c_void_p, POINTER(pen_sampler_desc), POINTER(c_void_p)]),
    "pen_sampler_next": (c_int, [c_void_p, POINTER(c_int64), c_size_t, POINTER(c_size_t)]),
    "pen_sampler_seek": (c_int, [c_void_p, c_int64, c_int64]),
    "pen_sampler_tell": (c_int, [c_void_p, POINTER(c_int64), POINTER(c_int64)]),
    "pen_sampler_free": (None, [c_void_p]),
    "pen_lr": (c_int, [c_char_p, c_int64, POINTER(c_double)]),
    "pen_metric": (c_int, [c_void_p, c_char_p, c_double]),
    "pen_mark": (c_int, [c_void_p, c_char_p, c_int]),
    "pen_stat": (c_int, [c_void_p, c_char_p, POINTER(c_double)]),
    "pen_store_set": (c_int, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "pen_store_get": (c_int, [c_void_p, c_char_p, POINTER(pen_bytes), POINTER(pen_opts)]),
    "pen_store_add": (c_int, [c_void_p, c_char_p, c_int64, POINTER(c_int64)]),
}
