/* keys_deepspeed.c - the keys of a DeepSpeed JSON file.
 * Names and defaults as in DeepSpeed's own lists: deepspeed/runtime/constants.py, runtime/zero/config.py and
 * docs/_pages/config-json.md of github.com/deepspeedai/DeepSpeed. */
#include "common/config_files/keys_rows.h"

#define SETS(path, value, target, automatic, usual, stage, doc)                                    \
    {                                                                                              \
        path, KEY_##value, KEY_SETS, target, NULL, AUTO_##automatic, usual, stage, doc             \
    }
#define WORD(path, target, words, stage, doc)                                                      \
    {                                                                                              \
        path, KEY_WORD, KEY_SETS, target, words, AUTO_NEVER, NULL, stage, doc                      \
    }
#define JOINS(path, value, target, words, automatic, usual, doc)                                   \
    {                                                                                              \
        path, KEY_##value, KEY_JOINS, target, words, AUTO_##automatic, usual, 0, doc               \
    }
#define RATE(name, automatic, usual, doc)                                                          \
    JOINS("scheduler.params." name, NUMBER, "schedule", NULL, automatic, usual, doc)

#define OPTIMIZERS                                                                                 \
    "Adam=adam AdamW=adamw Lamb=lamb Lion=lion SGD=sgd Adagrad=adagrad RMSprop=rmsprop "           \
    "Adamax=adamax Adadelta=adadelta"
#define SCHEDULES                                                                                  \
    "WarmupLR=WarmupLR WarmupDecayLR=WarmupDecayLR WarmupCosineLR=WarmupCosineLR "                 \
    "OneCycle=OneCycle LRRangeTest=LRRangeTest"
#define DEVICES "none=none cpu=cpu nvme=nvme"
#define PROGRAM "that is the program's own business"
#define DEVICE  "memory of devices is handled by the SDK itself"

/* clang-format off */
const key_row deepspeed_keys[] = {
    /* batch */
    SETS("train_batch_size", WHOLE, "train_batch", OTHERS, NULL, 0, "Samples per step over all workers: micro-batch times accumulation times workers."),
    SETS("train_micro_batch_size_per_gpu", WHOLE, "micro_batch", OTHERS, NULL, 0, "Samples per worker and micro-batch."),
    SETS("gradient_accumulation_steps", WHOLE, "accum", OTHERS, NULL, 0, "Micro-batches per step."),
    SETS("gradient_clipping", NUMBER, "clip", CONSTANT, "1", 0, "Largest norm of all gradients together; 0 does not clip."),

    /* precision */
    JOINS("fp16.enabled", SWITCH, "precision", NULL, OTHERS, NULL, "Workers compute in fp16; the update keeps float32."),
    SETS("fp16.loss_scale", NUMBER, "loss_scale", NEVER, NULL, 0, "0 adapts the scale; another number fixes it."),
    SETS("fp16.loss_scale_window", WHOLE, "loss_scale_window", NEVER, NULL, 0, "Clean steps before the scale doubles."),
    SETS("fp16.initial_scale_power", WHOLE, "loss_scale_power", NEVER, NULL, 0, "The scale begins with 2 to this power."),
    SETS("fp16.hysteresis", WHOLE, "loss_scale_hysteresis", NEVER, NULL, 0, "Overflows that are borne before the scale halves."),
    SETS("fp16.min_loss_scale", NUMBER, "loss_scale_min", NEVER, NULL, 0, "The scale never falls below this; an overflow there ends the job."),
    SETS("fp16.consecutive_hysteresis", SWITCH, "consecutive_hysteresis", NEVER, NULL, 0, "Each clean step gives the overflows that are borne back."),
    IDLE("fp16.auto_cast", "false", "the program chooses the type of each tensor when it registers it"),
    IDLE("fp16.fused_mode", "true", "there is one way to update fp16 tensors"),
    IDLE("fp16.fp16_master_weights_and_grads", "false", "masters are float32"),
    JOINS("bf16.enabled", SWITCH, "precision", NULL, OTHERS, NULL, "Workers compute in bf16; the update keeps float32."),
    JOINS("bfloat16.enabled", SWITCH, "precision", NULL, OTHERS, NULL, "The old name of bf16.enabled."),
    IDLE("bf16.*", NULL, "masters and sums are float32"),

    /* optimizer */
    JOINS("optimizer.type", WORD, "optim", OPTIMIZERS, NEVER, NULL, "The update rule; Adam with adam_w_mode is adamw, as in DeepSpeed."),
    JOINS("optimizer.params.lr", NUMBER, "optim", NULL, FLAG, "lr", "The learning rate before the schedule."),
    JOINS("optimizer.params.weight_decay", NUMBER, "optim", NULL, FLAG, "weight-decay", "Absent it is 0, and with torch_adam and AdamW 0.01, as there."),
    JOINS("optimizer.params.betas", TEXT, "optim", NULL, CONSTANT, "0.9,0.999", "Both decay rates of the averages."),
    JOINS("optimizer.params.eps", NUMBER, "optim", NULL, CONSTANT, "1e-8", "Added to the root of the second average."),
    JOINS("optimizer.params.momentum", NUMBER, "optim", NULL, NEVER, NULL, "Of sgd and rmsprop."),
    JOINS("optimizer.params.nesterov", SWITCH, "optim", NULL, NEVER, NULL, "Of sgd."),
    JOINS("optimizer.params.adam_w_mode", SWITCH, "optim", NULL, NEVER, NULL, "false joins weight decay to the gradient (L2): adam instead of adamw."),
    JOINS("optimizer.params.torch_adam", SWITCH, "simd", NULL, NEVER, NULL, "true takes the plain inner loops (simd=scalar) instead of the vectorised ones; both give the same bits."),
    ALWAYS("optimizer.params.bias_correction", "yes", 0, "the averages are always corrected for their start"),
    IDLE("optimizer.params.amsgrad", "false", "no rule here keeps the largest second average"),
    IDLE("optimizer.params.fused", NULL, "every rule is one pass over memory"),
    IDLE("optimizer.params.foreach", NULL, "every rule is one pass over memory"),
    IDLE("optimizer.params.max_grad_norm", "0", "say gradient_clipping"),
    IDLE("optimizer.legacy_fusion", "false", "every rule is one pass over memory"),

    /* learning rate */
    JOINS("scheduler.type", WORD, "schedule", SCHEDULES, NEVER, NULL, "The learning rate as a function of applied steps."),
    RATE("warmup_min_lr", CONSTANT, "0", "Rate before the warm-up."),
    RATE("warmup_max_lr", FLAG, "lr", "Rate after the warm-up."),
    RATE("warmup_num_steps", FLAG, "warmup-steps", "Length of the warm-up."),
    RATE("total_num_steps", FLAG, "total-steps", "Step at which the rate has decayed."),
    JOINS("scheduler.params.warmup_type", WORD, "schedule", "log=log linear=linear", NEVER, NULL, "Shape of the warm-up; log is DeepSpeed's default."),
    RATE("warmup_min_ratio", NEVER, NULL, "Of WarmupCosineLR."), RATE("cos_min_ratio", NEVER, NULL, "Of WarmupCosineLR."),
    RATE("lr_range_test_min_lr", NEVER, NULL, "Of LRRangeTest."), RATE("lr_range_test_step_size", NEVER, NULL, "Of LRRangeTest."),
    RATE("lr_range_test_step_rate", NEVER, NULL, "Of LRRangeTest."),
    JOINS("scheduler.params.lr_range_test_staircase", SWITCH, "schedule", NULL, NEVER, NULL, "Of LRRangeTest."),
    RATE("cycle_min_lr", NEVER, NULL, "Of OneCycle."), RATE("cycle_max_lr", NEVER, NULL, "Of OneCycle."), RATE("decay_lr_rate", NEVER, NULL, "Of OneCycle."),
    RATE("cycle_first_step_size", NEVER, NULL, "Of OneCycle."), RATE("cycle_second_step_size", NEVER, NULL, "Of OneCycle."),
    RATE("cycle_first_stair_count", NEVER, NULL, "Of OneCycle."), RATE("cycle_second_stair_count", NEVER, NULL, "Of OneCycle."),
    RATE("decay_step_size", NEVER, NULL, "Of OneCycle."),
    JOINS("scheduler.params.cycle_momentum", SWITCH, "schedule", NULL, NEVER, NULL, "Of OneCycle; only rates have a schedule here, so say false."),
    IDLE("scheduler.params.cycle_min_mom", NULL, "only rates have a schedule here"), IDLE("scheduler.params.cycle_max_mom", NULL, "only rates have a schedule here"),
    IDLE("scheduler.params.decay_mom_rate", NULL, "only rates have a schedule here"),
    IDLE("scheduler.params.last_batch_iteration", "-1", "resuming sets the position of the schedule"),

    /* ZeRO */
    WORD("zero_optimization.stage", "mode", "0=ddp 1=zero1 2=zero2 3=zero3", 0, "Who holds optimizer state, gradients and parameters; with servers they do."),
    SETS("zero_optimization.reduce_bucket_size", WHOLE, "reduce_bucket", H2, NULL, 0, "Elements of gradients that are reduced together."),
    SETS("zero_optimization.allgather_bucket_size", WHOLE, "prefetch_bucket", NEVER, NULL, 0, "Elements of parameters that are fetched together; at stage 3 stage3_prefetch_bucket_size says it."),
    SETS("zero_optimization.stage3_prefetch_bucket_size", WHOLE, "prefetch_bucket", H2_9, NULL, 3, "Elements of parameters that are fetched ahead of use."),
    SETS("zero_optimization.stage3_param_persistence_threshold", WHOLE, "persistence_threshold", H10, NULL, 3, "Tensors with fewer elements stay on every worker."),
    SETS("zero_optimization.stage3_max_live_parameters", WHOLE, "max_live", NEVER, NULL, 3, "Elements of parameters a worker holds at once."),
    SETS("zero_optimization.stage3_max_reuse_distance", WHOLE, "max_reuse", NEVER, NULL, 3, "What is used again within this many elements is kept."),
    SETS("zero_optimization.sub_group_size", WHOLE, "sub_group", NEVER, NULL, 0, "Elements updated at once; bounds what an offloaded update stages in memory."),
    SETS("zero_optimization.stage3_gather_16bit_weights_on_model_save", SWITCH, "gather_16bit_on_save", CONSTANT, "no", 3, "Saving also writes one file of all parameters in 16 bits."),
    SETS("zero_optimization.stage3_gather_fp16_weights_on_model_save", SWITCH, "gather_16bit_on_save", CONSTANT, "no", 3, "The old name of stage3_gather_16bit_weights_on_model_save."),
    WORD("zero_optimization.offload_optimizer.device", "offload_optimizer", DEVICES, 0, "Where optimizer state lies; nvme needs stage 1 or more."),
    SETS("zero_optimization.offload_optimizer.nvme_path", TEXT, "offload_path", NEVER, NULL, 0, "Folder of what is offloaded to nvme."),
    WORD("zero_optimization.offload_param.device", "offload_param", DEVICES, 3, "Where parameters lie; nvme needs stage 3."),
    SETS("zero_optimization.offload_param.nvme_path", TEXT, "offload_path", NEVER, NULL, 0, "Folder of what is offloaded to nvme; one for all of it."),
    WORD("zero_optimization.cpu_offload", "offload_optimizer", "true=cpu false=none", 0, "The old name of offload_optimizer.device cpu."),
    WORD("zero_optimization.cpu_offload_param", "offload_param", "true=cpu false=none", 3, "The old name of offload_param.device cpu."),
    ALWAYS("zero_optimization.allgather_partitions", "yes", 0, "ranges are gathered, never broadcast rank by rank"),
    ALWAYS("zero_optimization.overlap_comm", "yes", 0, "gradients travel while the backward pass goes on"),
    ALWAYS("zero_optimization.reduce_scatter", "yes", 0, "each range is reduced to its owner"),
    ALWAYS("zero_optimization.contiguous_gradients", "yes", 0, "gradients of a bucket lie side by side"),
    ALWAYS("zero_optimization.ignore_unused_parameters", "yes", 0, "what has no gradient in a step contributes nothing"),
    ALWAYS("zero_optimization.elastic_checkpoint", "yes", 0, "a snapshot loads at any number of workers and servers"),
    IDLE("zero_optimization.offload_optimizer.pin_memory", "false", DEVICE), IDLE("zero_optimization.offload_param.pin_memory", "false", DEVICE),
    IDLE("zero_optimization.offload_optimizer.*", NULL, "staging is bounded by sub_group_size"), IDLE("zero_optimization.offload_param.*", NULL, "staging is bounded by sub_group_size"),
    IDLE("zero_optimization.cpu_offload_use_pin_memory", NULL, DEVICE),
    IDLE("zero_optimization.round_robin_gradients", NULL, "ranges are balanced by size"), IDLE("zero_optimization.use_multi_rank_bucket_allreduce", NULL, "each range is reduced to its owner"),
    IDLE("zero_optimization.load_from_fp32_weights", "true", "masters are loaded as float32"), IDLE("zero_optimization.legacy_stage1", "false", "there is one stage 1"),
    IDLE("zero_optimization.zero_hpz_partition_size", "1", "say mode=hybrid_shard for shards inside each machine"),
    IDLE("zero_optimization.zero_quantized_weights", "false", "parameters travel in the type of their tensor"), IDLE("zero_optimization.zero_quantized_nontrainable_weights", "false", "parameters travel in the type of their tensor"),
    IDLE("zero_optimization.zero_quantized_gradients", "false", "say wire=bf16 for smaller gradients"), IDLE("zero_optimization.zeropp_loco_param.*", NULL, "say wire=bf16 for smaller gradients"),
    IDLE("zero_optimization.mics_shard_size", "-1", "say mode=hybrid_shard for shards inside each machine"), IDLE("zero_optimization.mics_hierarchical_params_gather", NULL, "say mode=hybrid_shard for shards inside each machine"),
    IDLE("zero_optimization.stage3_model_persistence_threshold", NULL, "only single tensors have a threshold"), IDLE("zero_optimization.stage3_module_granularity_threshold", NULL, "units are those of wrap"),
    IDLE("zero_optimization.stage3_use_all_reduce_for_fetch_params", NULL, "ranges are gathered"), IDLE("zero_optimization.stage3_allgather_sequential", NULL, "units are gathered one by one"),
    IDLE("zero_optimization.stage3_partition_stream_chunk_size", NULL, "first values are drawn range by range"), IDLE("zero_optimization.memory_efficient_linear", NULL, PROGRAM),
    IDLE("zero_optimization.pipeline_loading_checkpoint", NULL, PROGRAM), IDLE("zero_optimization.override_module_apply", NULL, PROGRAM), IDLE("zero_optimization.log_trace_cache_warnings", NULL, PROGRAM),
    IDLE("zero_optimization.enable_sanity_checks", NULL, "checks are always on"), IDLE("zero_optimization.zenflow.*", NULL, "updates are never partial"), IDLE("zero_optimization.leaf_module.*", NULL, "units are those of wrap"),
    IDLE("zero_optimization.save_muon_momentum_buffer_in_memory", NULL, "there is no such rule here"),

    /* reports */
    SETS("steps_per_print", WHOLE, "report_every", NEVER, NULL, 0, "Steps between lines about rate, norm, speed and skipped steps."),
    SETS("wall_clock_breakdown", SWITCH, "report_times", NEVER, NULL, 0, "These lines also say where the time went."),
    IDLE("memory_breakdown", "false", "memory is always counted: docs/stats.md"), IDLE("dump_state", "false", "say --print-config"),
    IDLE("tensorboard.*", NULL, "counters are read with `penstock status --json`"), IDLE("wandb.*", NULL, "counters are read with `penstock status --json`"),
    IDLE("csv_monitor.*", NULL, "counters are read with `penstock status --json`"), IDLE("comet.*", NULL, "counters are read with `penstock status --json`"),
    IDLE("monitor_config.*", NULL, "counters are read with `penstock status --json`"), IDLE("comms_logger.*", NULL, "counters are read with `penstock status --json`"),
    IDLE("flops_profiler.*", NULL, PROGRAM),

    /* the rest */
    IDLE("zero_allow_untested_optimizer", NULL, "every rule works at every stage"), IDLE("zero_force_ds_cpu_optimizer", NULL, "every rule runs where the state lies"),
    IDLE("prescale_gradients", "false", "sums are float32 and divided once"), IDLE("gradient_predivide_factor", "1", "sums are float32 and divided once"),
    IDLE("communication_data_type", NULL, "say wire=bf16 for smaller gradients"), IDLE("seq_parallel_comm_data_type", NULL, "sequences are not split"),
    IDLE("data_types.*", NULL, "gradients are added up in float32"), IDLE("sparse_gradients", "false", "gradients are dense"), IDLE("disable_allgather", "false", "ranges are gathered"),
    IDLE("managed_gradient_accumulation", "true", "the SDK counts micro-batches"), IDLE("dataloader_drop_last", NULL, "say it to pen_sampler_new()"),
    IDLE("activation_checkpointing.*", NULL, PROGRAM), IDLE("sparse_attention.*", NULL, PROGRAM), IDLE("amp.*", NULL, "say bf16 or fp16"), IDLE("torch_autocast.*", NULL, "say bf16 or fp16"),
    IDLE("aio.*", NULL, "files are read and written in pieces of sub_group_size"), IDLE("checkpoint.*", NULL, "snapshots load at any number of workers and servers"), IDLE("nebula.*", NULL, "snapshots go to --store"),
    IDLE("load_universal_checkpoint", NULL, "every snapshot is universal"), IDLE("use_node_local_storage", NULL, "all processes share one store"), IDLE("elasticity.*", NULL, "say --nproc-per-node MIN:MAX"),
    IDLE("autotuning.*", NULL, "say `penstock bench tune`"), IDLE("compression_training.*", NULL, PROGRAM), IDLE("data_efficiency.*", NULL, PROGRAM), IDLE("curriculum_learning.*", NULL, PROGRAM),
    IDLE("progressive_layer_drop.*", NULL, PROGRAM), IDLE("eigenvalue.*", NULL, PROGRAM), IDLE("quantize_training.*", NULL, PROGRAM), IDLE("weight_quantization.*", NULL, PROGRAM),
    IDLE("pipeline.*", NULL, "layers are not split over workers"), IDLE("tensor_parallel.*", NULL, "tensors are not split for computing"), IDLE("hybrid_engine.*", NULL, PROGRAM), IDLE("compile.*", NULL, PROGRAM),
    IDLE("graph_harvesting", "false", PROGRAM), IDLE("timers.*", NULL, "say wall_clock_breakdown"), IDLE("vocabulary_size", NULL, PROGRAM), IDLE("use_data_before_expert_parallelism", NULL, PROGRAM),
    {0},
};
/* clang-format on */
