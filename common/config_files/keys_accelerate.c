/* keys_accelerate.c - the keys of a configuration file of accelerate.
 * Names as in accelerate's ClusterConfig (commands/config/config_args.py), its questions (commands/config/cluster.py)
 * and the usage guides for FSDP and DeepSpeed of github.com/huggingface/accelerate. */
#include "common/config_files/keys_rows.h"

#define SETS(path, value, target, stage, doc)                                                      \
    {                                                                                              \
        path, KEY_##value, KEY_SETS, target, NULL, AUTO_NEVER, NULL, stage, doc                    \
    }
#define WORD(path, target, words, stage, doc)                                                      \
    {                                                                                              \
        path, KEY_WORD, KEY_SETS, target, words, AUTO_NEVER, NULL, stage, doc                      \
    }
#define STARTS(path, value, words, doc)                                                            \
    {                                                                                              \
        path, KEY_##value, KEY_STARTS, path, words, AUTO_NEVER, NULL, 0, doc                       \
    }
#define JOINS(path, value, target, words, doc)                                                     \
    {                                                                                              \
        path, KEY_##value, KEY_JOINS, target, words, AUTO_NEVER, NULL, 0, doc                      \
    }

#define KINDS "NO=NO MULTI_CPU=MULTI_CPU MULTI_GPU=MULTI_GPU DEEPSPEED=DEEPSPEED FSDP=FSDP"
#define SHARDINGS                                                                                  \
    "FULL_SHARD=full_shard SHARD_GRAD_OP=shard_grad_op NO_SHARD=no_shard "                         \
    "HYBRID_SHARD=hybrid_shard HYBRID_SHARD_ZERO2=hybrid_shard_zero2 1=full_shard "                \
    "2=shard_grad_op 3=no_shard 4=hybrid_shard 5=hybrid_shard_zero2"
#define WRAPS      "TRANSFORMER_BASED_WRAP=layer SIZE_BASED_WRAP=size NO_WRAP=none 1=layer 2=size 3=none"
#define PREFETCHES "BACKWARD_PRE=pre BACKWARD_POST=post NO_PREFETCH=none 1=pre 2=post 3=none"
#define DEVICES    "none=none cpu=cpu nvme=nvme"
#define PROGRAM    "that is the program's own business"
#define TPU        "there are no TPUs here"
#define PDSH       "start `penstock run` on each machine with its --node-rank"

/* clang-format off */
const key_row accelerate_keys[] = {
    {"compute_environment", KEY_WORD, KEY_IDLE, NULL, "LOCAL_MACHINE=LOCAL_MACHINE", AUTO_NEVER, "LOCAL_MACHINE", 0, "The machines that `penstock run` is started on."},
    STARTS("distributed_type", WORD, KINDS, "Which sections count: DEEPSPEED or FSDP; MULTI_CPU and MULTI_GPU leave the mode to --mode; NO is one process."),
    STARTS("num_processes", WHOLE, NULL, "Workers of the whole job, over all machines."),
    STARTS("num_machines", WHOLE, NULL, "Machines: --nnodes."),
    STARTS("machine_rank", WHOLE, NULL, "Rank of this machine: --node-rank."),
    STARTS("main_process_ip", TEXT, NULL, "Address of machine 0: --master-addr."),
    STARTS("main_process_port", WHOLE, NULL, "Port of the scheduler there: --master-port."),
    STARTS("use_cpu", SWITCH, NULL, "true hides the GPUs from the workers (CUDA_VISIBLE_DEVICES)."),
    STARTS("gpu_ids", TEXT, NULL, "GPUs the workers see (CUDA_VISIBLE_DEVICES); all is all."),
    JOINS("mixed_precision", WORD, "precision", "no=fp32 false=fp32 fp16=fp16 bf16=bf16", "Type the workers compute in; masters and updates are float32."),
    IDLE("main_training_function", "main", "a C program begins in main()"),
    IDLE("downcast_bf16", "no", TPU),
    IDLE("debug", "false", "every call of a group is always checked against those of the other ranks"),
    IDLE("enable_cpu_affinity", "false", "say it with taskset or numactl before PROG"),
    IDLE("rdzv_backend", "static", "the scheduler of the job is the meeting point"), IDLE("same_network", "true", "the scheduler of the job is the meeting point"),
    IDLE("dynamo_config.*", NULL, PROGRAM), IDLE("dynamo_backend", "NO", PROGRAM), IDLE("fp16", NULL, "say mixed_precision"), IDLE("fp8_config.*", NULL, "there is no fp8 here"),
    IDLE("ipex_config.*", NULL, PROGRAM), IDLE("megatron_lm_config.*", NULL, "tensors and layers are not split over workers"), IDLE("mpirun_config.*", NULL, "`penstock run` starts the workers"),
    IDLE("tp_config.*", NULL, "tensors are not split for computing"), IDLE("parallelism_config.*", NULL, "tensors and layers are not split over workers"),
    IDLE("tpu_env", "", TPU), IDLE("tpu_use_cluster", "false", TPU), IDLE("tpu_use_sudo", "false", TPU), IDLE("tpu_name", NULL, TPU), IDLE("tpu_zone", NULL, TPU), IDLE("tpu_vm", NULL, TPU),
    IDLE("command_file", NULL, TPU), IDLE("commands", NULL, TPU),

    /* DeepSpeed's plug-in */
    STARTS("deepspeed_config.deepspeed_config_file", TEXT, NULL, "A DeepSpeed JSON file, as --ds-config; looked up here and beside this file."),
    WORD("deepspeed_config.zero_stage", "mode", "0=ddp 1=zero1 2=zero2 3=zero3", 0, "As zero_optimization.stage; absent, with no JSON file, it is 2."),
    SETS("deepspeed_config.gradient_accumulation_steps", WHOLE, "accum", 0, "Micro-batches per step."),
    SETS("deepspeed_config.gradient_clipping", NUMBER, "clip", 0, "Largest norm of all gradients together; absent it is 1."),
    WORD("deepspeed_config.offload_optimizer_device", "offload_optimizer", DEVICES, 0, "Where optimizer state lies; nvme needs stage 1 or more."),
    SETS("deepspeed_config.offload_optimizer_nvme_path", TEXT, "offload_path", 0, "Folder of what is offloaded to nvme."),
    WORD("deepspeed_config.offload_param_device", "offload_param", DEVICES, 3, "Where parameters lie; nvme needs stage 3."),
    SETS("deepspeed_config.offload_param_nvme_path", TEXT, "offload_path", 0, "Folder of what is offloaded to nvme; one for all of it."),
    ALWAYS("deepspeed_config.zero3_init_flag", "yes", 3, "tensors registered without memory are initialised on their owner"),
    SETS("deepspeed_config.zero3_save_16bit_model", SWITCH, "gather_16bit_on_save", 3, "Saving also writes one file of all parameters in 16 bits."),
    IDLE("deepspeed_config.deepspeed_hostfile", NULL, PDSH), IDLE("deepspeed_config.deepspeed_multinode_launcher", "standard", PDSH),
    IDLE("deepspeed_config.deepspeed_exclusion_filter", NULL, PDSH), IDLE("deepspeed_config.deepspeed_inclusion_filter", NULL, PDSH),
    IDLE("deepspeed_config.deepspeed_moe_layer_cls_names", NULL, "units are those of wrap"),

    /* FSDP */
    WORD("fsdp_config.fsdp_sharding_strategy", "mode", SHARDINGS, 0, "Who holds optimizer state, gradients and parameters; absent it is FULL_SHARD."),
    WORD("fsdp_config.fsdp_reshard_after_forward", "mode", "true=full_shard false=shard_grad_op " SHARDINGS, 0, "Of FSDP 2: true is FULL_SHARD, false SHARD_GRAD_OP."),
    WORD("fsdp_config.fsdp_auto_wrap_policy", "wrap", WRAPS, 0, "What is gathered together: a layer, at least so many parameters, or all."),
    JOINS("fsdp_config.fsdp_transformer_layer_cls_to_wrap", TEXT, "wrap_match", NULL, "Classes that are known become the names of their tensors; others are taken as globs of names."),
    SETS("fsdp_config.fsdp_min_num_params", WHOLE, "wrap_min_params", 0, "Elements of a unit with SIZE_BASED_WRAP."),
    WORD("fsdp_config.fsdp_backward_prefetch_policy", "prefetch_backward", PREFETCHES, 0, "When the next unit is gathered in the backward pass."),
    WORD("fsdp_config.fsdp_backward_prefetch", "prefetch_backward", PREFETCHES, 0, "The later name of fsdp_backward_prefetch_policy."),
    SETS("fsdp_config.fsdp_forward_prefetch", SWITCH, "prefetch_forward", 0, "Whether the next unit is gathered early in the forward pass."),
    JOINS("fsdp_config.fsdp_offload_params", SWITCH, "offload_param", NULL, "true keeps parameters, gradients and optimizer state in host memory."),
    JOINS("fsdp_config.fsdp_cpu_offload", SWITCH, "offload_param", NULL, "Another name of fsdp_offload_params."),
    {"fsdp_config.fsdp_state_dict_type", KEY_WORD, KEY_IDLE, NULL, "FULL_STATE_DICT=FULL LOCAL_STATE_DICT=LOCAL SHARDED_STATE_DICT=SHARDED 1=FULL 2=LOCAL 3=SHARDED", AUTO_NEVER, NULL, 0,
     "one snapshot serves for all: whole, by ranges, and on another number of workers"},
    ALWAYS("fsdp_config.fsdp_use_orig_params", "yes", 0, "tensors keep their names, and some may be frozen"),
    ALWAYS("fsdp_config.fsdp_sync_module_states", "yes", 0, "all workers begin with the values of rank 0"),
    ALWAYS("fsdp_config.fsdp_cpu_ram_efficient_loading", "yes", 0, "a snapshot is read once, by those who hold it"),
    IDLE("fsdp_config.fsdp_activation_checkpointing", "false", PROGRAM), IDLE("fsdp_config.fsdp_version", NULL, "FSDP 1 and 2 mean the same here"),
    {0},
};
/* clang-format on */
