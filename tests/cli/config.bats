# config.bats - configuration files of DeepSpeed and accelerate: how `penstock run` reads them, and `penstock config`.

load ../support/job

setup() {
    job_setup
    cd "$BATS_TEST_DIRNAME/config"
    autos=(--hidden-size 768 --lr 3e-4 --weight-decay 0.01 --warmup-steps 10 --total-steps 100)
}
teardown() { job_teardown; }

# The exit code and the only sentence, of a run and of --print-config:  says 2 "SENTENCE" WORDS...
says() {
    local code=0
    pen "${@:3}" >"$tmp/out" 2>"$tmp/err" || code=$?
    cat "$tmp/out" "$tmp/err"
    [ "$code" = "$1" ]
    [ "$(cat "$tmp/err")" = "$2" ]
    [ "$3" != run ] || [[ " $* " == *" --print-config "* ]] || says "$1" "$2" run --print-config "${@:4}"
}

# A value of the last --print-config in $tmp/printed, with its source:  printed settings mode
printed() {
    sed -n "/^  \"$1\"/,/^  }/p" "$tmp/printed" | grep -A 3 "^    \"$2\":" |
        sed -n 's/^ *"\(source\|value\)": *"\{0,1\}\([^"]*\)"\{0,1\},\{0,1\}$/\2/p' | paste -sd' '
}

prints() {
    pen run --print-config "$@" >"$tmp/printed" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    [ ! -s "$tmp/err" ]
}

@test "both DeepSpeed files and every accelerate file load unchanged" {
    for file in *.json; do prints --ds-config "$file" --nproc-per-node 2 "${autos[@]}"; done
    for file in *.yml; do prints --config "$file" "${autos[@]}"; done
    prints --config fsdp.yml
    [ "$(printed settings mode)" = "fsdp.yml:9 full_shard" ]
    [ "$(printed launch num_processes)" = "fsdp.yml:18 2" ]
}

@test "--print-config prints each value with its source, starts nothing and ends with 0" {
    PENSTOCK_SEED=5 prints --config deepspeed_file_stage2.yml "${autos[@]}" --micro-batch 4 --lease-ms 5000 --nproc-per-node 4 \
        --shared-memory off --park-bytes-max 64m touch "$tmp/started"
    [ ! -e "$tmp/started" ]
    [ "$(printed launch num_processes)" = "flag 4" ]
    [ "$(printed launch num_machines)" = "deepspeed_file_stage2.yml:12 1" ]
    [ "$(printed launch machine_rank)" = "deepspeed_file_stage2.yml:7 0" ]
    [ "$(printed launch servers)" = "default 0" ]
    [ "$(printed settings mode)" = "zero_stage2_config.json:29 zero2" ]
    [ "$(printed settings lease_ms)" = "flag 5000" ]
    [ "$(printed settings seed)" = "environment 5" ]
    [ "$(printed settings shared_memory)" = "flag false" ]
    [ "$(printed settings park_bytes_max)" = "flag 67108864" ]
    [ "$(printed settings train_batch)" = "auto: micro-batch x accumulation x 4 workers 16" ]
    [ "$(printed settings reduce_bucket)" = "auto: the square of hidden size 768, zero_stage2_config.json:34 589824" ]
    [ "$(printed settings optim)" = "zero_stage2_config.json:11 (auto filled in) adamw lr=3e-4 weight_decay=0.01" ]
}

@test "zero3_save_16bit_model does not ask for a store: without snapshots it has no effect, and a notice says so" {
    grep -q 'zero3_save_16bit_model: true' deepspeed_plugin_stage3.yml
    pen run --standalone --config deepspeed_plugin_stage3.yml --precision fp32 "$build/bin/examples/linear" >"$tmp/out" 2>"$tmp/err" ||
        { cat "$tmp/err"; false; }
    [ "$(grep -c "gather_16bit_on_save has no effect without snapshots" "$tmp/err")" = 1 ]
}

@test "--optim changes of a rule what it names, of the file and of the program, and a mistake in it ends the job at once" {
    prints --config deepspeed_file_stage2.yml "${autos[@]}" --optim "adamw lr=0.5" --nproc-per-node 2
    [ "$(printed settings optim)" = "flag over zero_stage2_config.json:11 adamw weight_decay=0.01 lr=0.5" ]
    prints --config deepspeed_file_stage2.yml "${autos[@]}" --optim "sgd lr=0.5" --nproc-per-node 2
    [ "$(printed settings optim)" = "flag sgd lr=0.5" ]
    says 2 "penstock: adamw: unknown setting 'lrr'; did you mean 'lr'?" run --optim "adamw lrr=1" true
    says 2 "penstock: optim is 'adamv'; choose one of sum, sgd, adam, adamw, adagrad, rmsprop, adadelta, adamax, ftrl, lion, lamb" \
        run --print-config --optim "adamv lr=1" true
}

@test "a job has the settings of its files, and flags and variables override them" {
    PENSTOCK_CLIP=0.5 pen run --standalone --no-prefix --nproc-per-node 1 --config deepspeed_file_stage2.yml "${autos[@]}" \
        --mode zero1 sh -c 'env | grep -E "^PENSTOCK_(MODE|CLIP|PRECISION|LOSS_SCALE_POWER|SIMD)=" | sort' >"$tmp/out" 2>"$tmp/err"
    is_text "PENSTOCK_CLIP=0.5
PENSTOCK_LOSS_SCALE_POWER=16
PENSTOCK_MODE=zero1
PENSTOCK_PRECISION=fp16
PENSTOCK_SIMD=scalar" <"$tmp/out"
    grep -qx "penstock: reduce_bucket = 589824, auto: the square of hidden size 768, zero_stage2_config.json:34" "$tmp/err"
}

@test "a job on two machines takes addresses, ranks and its share of the processes from the file" {
    sed -e 's/^num_machines: 1/num_machines: 2/; s/^machine_rank: 0/machine_rank: 1/; s/^num_processes: 2/num_processes: 8/' \
        -e 's/^main_process_ip: null/main_process_ip: 10.0.0.1/; s/^main_process_port: null/main_process_port: 29501/' \
        fsdp.yml >"$tmp/two.yml"
    prints --config "$tmp/two.yml" --encryption clear
    [ "$(printed launch num_processes)" = "$tmp/two.yml:18 8" ]
    [ "$(printed launch machine_rank)" = "$tmp/two.yml:12 1" ]
    [ "$(printed launch main_process_ip)" = "$tmp/two.yml:13 10.0.0.1" ]
    [ "$(printed launch main_process_port)" = "$tmp/two.yml:14 29501" ]
    sed -i 's/^num_processes: 8/num_processes: 7/' "$tmp/two.yml"
    says 2 "penstock: num_processes 7 is not a multiple of 2 machines; each needs the same number of workers  (from $tmp/two.yml:18)" \
        run --config "$tmp/two.yml" true
}

@test "a DeepSpeed file named by the accelerate file is found beside it, and must agree with --ds-config" {
    cd /
    prints --config "$BATS_TEST_DIRNAME/config/deepspeed_file_stage3.yml" "${autos[@]}"
    [ "$(printed settings mode)" = "$BATS_TEST_DIRNAME/config/zero_stage3_offload_config.json:27 zero3" ]
    cd "$BATS_TEST_DIRNAME/config"
    says 2 "penstock: --ds-config zero_stage3_offload_config.json and deepspeed_file_stage2.yml:3 (deepspeed_config_file: zero_stage2_config.json) contradict each other" \
        run --config deepspeed_file_stage2.yml --ds-config zero_stage3_offload_config.json true
    sed 's/"stage": 2/"stage": 3/' zero_stage2_config.json >"$tmp/ds.json"
    says 2 "penstock: deepspeed_plugin_stage2.yml:8 (deepspeed_config.zero_stage: 2) and $tmp/ds.json:29 (zero_optimization.stage: 3) contradict each other" \
        run --config deepspeed_plugin_stage2.yml --ds-config "$tmp/ds.json" "${autos[@]}" true
}

@test "invalid configurations are a sentence that names file and line, before anything starts" {
    says 2 "penstock: zero_stage2_config.json:13: these are auto: optimizer.params.lr, optimizer.params.weight_decay, scheduler.params.warmup_max_lr, scheduler.params.warmup_num_steps, scheduler.params.total_num_steps, zero_optimization.reduce_bucket_size; say --lr, --weight-decay, --warmup-steps, --total-steps, --hidden-size N" run --ds-config zero_stage2_config.json --mixed_precision fp16 true
    sed 's/"stage"/"stge"/' zero_stage2_config.json >"$tmp/ds.json"
    says 2 "penstock: $tmp/ds.json:29: unknown key 'zero_optimization.stge'; did you mean 'zero_optimization.stage'?" \
        run --ds-config "$tmp/ds.json" "${autos[@]}" true
    sed 's/"loss_scale_window": 1000/"loss_scale_window": 0/' zero_stage2_config.json >"$tmp/ds.json"
    says 2 "penstock: loss_scale_window is 0, but must be between 1 and 9000000000000000  (from $tmp/ds.json:5)" \
        run --ds-config "$tmp/ds.json" "${autos[@]}" true
    sed 's/"train_batch_size": "auto"/"train_batch_size": 7/' zero_stage2_config.json >"$tmp/ds.json"
    says 2 "penstock: train_batch=7 cannot be divided by accum=1 x 2 workers = 2: set train_batch=6 or 8  (from $tmp/ds.json:40)" \
        run --ds-config "$tmp/ds.json" "${autos[@]}" --nproc-per-node 2 true
    says 2 "penstock: cannot read none.yml: No such file or directory" run --config none.yml true
    says 2 "penstock: --hidden-size, --lr, --weight-decay, --warmup-steps and --total-steps say what auto is in --config or --ds-config, and there is neither; say --optim 'adamw lr=...' and --schedule" \
        run --lr 1 true
    says 2 "penstock run: --lr is 'x', but must be a number of at least 0" run --lr x true
}

@test "--config with another file extension is a file of settings, as before" {
    echo "lease_ms = 5000" >"$tmp/settings"
    prints --config "$tmp/settings"
    [ "$(printed settings config)" = "flag $tmp/settings" ]
}

@test "penstock config writes a file that run reads back, key by key" {
    pen config --out "$tmp/x.yml" --num-processes 4 --mixed-precision bf16 --zero-stage 3 --gradient-clipping 0.5 \
        --gradient-accumulation-steps 2 --offload_optimizer_device cpu --zero3-save-16bit-model yes --main-process-port=29501
    prints --config "$tmp/x.yml"
    [ "$(printed launch num_processes | cut -d' ' -f2)" = 4 ]
    [ "$(printed launch main_process_port | cut -d' ' -f2)" = 29501 ]
    [ "$(printed settings mode | cut -d' ' -f2)" = zero3 ]
    [ "$(printed settings precision | cut -d' ' -f2)" = bf16 ]
    [ "$(printed settings clip | cut -d' ' -f2)" = 0.5 ]
    [ "$(printed settings accum | cut -d' ' -f2)" = 2 ]
    [ "$(printed settings offload_optimizer | cut -d' ' -f2)" = cpu ]
    [ "$(printed settings gather_16bit_on_save | cut -d' ' -f2)" = true ]
    says 2 "penstock: $tmp/x.yml already exists; --force overwrites it" config --out "$tmp/x.yml"
    pen config --force --out "$tmp/x.yml" --fsdp-sharding-strategy HYBRID_SHARD --num-processes 2 --mixed-precision no
    prints --config "$tmp/x.yml"
    [ "$(printed settings mode | cut -d' ' -f2)" = hybrid_shard ]
    [ "$(printed settings precision | cut -d' ' -f2)" = fp32 ]
}

@test "penstock config refuses what run would refuse" {
    says 2 "penstock: unknown key 'zero_stge'; did you mean 'zero_stage'?  (penstock config --help)" config --zero-stge 2
    says 2 "penstock: --zero_stage: deepspeed_config.zero_stage is '7', but must be one of 0, 1, 2, 3" config --zero-stage 7
    says 2 "penstock: --offload_param_device: deepspeed_config.offload_param_device nvme needs ZeRO stage 3, but this is stage 2" \
        config --out "$tmp/x.yml" --offload-param-device nvme
    [ ! -e "$tmp/x.yml" ]
    says 2 "penstock: --zero_stage needs a value" config --zero-stage
    says 2 "penstock: unexpected argument 'now'" config now
}

@test "steps_per_print and wall_clock_breakdown print a line of rank 0 every few steps, whose times add up" {
    echo '{"steps_per_print": 5, "wall_clock_breakdown": true}' >"$tmp/ds.json"
    pen run --standalone --nproc-per-node 2 --ds-config "$tmp/ds.json" "$programs/stepper" steps=20 pause_ms=4 >"$tmp/out" 2>"$tmp/err"
    grep -oE "step [0-9]+: rate .*" "$tmp/err" >"$tmp/lines"
    cat "$tmp/err"
    [ "$(cut -d: -f1 "$tmp/lines" | paste -sd,)" = "step 5,step 10,step 15,step 20" ]
    [ "$(grep -c "^\[1\].*: rate" "$tmp/err")" = 0 ]
    # step N: rate R, norm X, S steps/s, K skipped; ms a step: forward A, backward B, exchange C, other D
    awk -F '[ ,;]+' '{sum = $15 + $17 + $19 + $21; step = 1000 / $7; off = (sum - step) / step; if (off < 0) off = -off
        printf "%s ms in phases, %s ms a step: %.2f %% apart of 5 %%\n", sum, step, 100 * off
        if (off > 0.05) exit 1}' "$tmp/lines"
}

@test "the article's files mean the same under torchrun's variables, Slurm's, mpirun's, in bare shells and with penstock run" {
    local way r p j port
    port=$(free_port)
    export PENSTOCK_LR=0.01 PENSTOCK_WEIGHT_DECAY=0.02 PENSTOCK_WARMUP_STEPS=2
    pen run --standalone --no-prefix --config zero2_bf16.yml "$programs/stepper" steps=4 >"$tmp/run.out" 2>"$tmp/run.err"
    # two of each launcher, under its own names
    local torchrun='RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$p TORCHELASTIC_RUN_ID=x'
    local slurm='SLURM_JOB_ID=$j SLURM_STEP_ID=0 SLURM_PROCID=$r SLURM_LOCALID=$r SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=0'
    slurm+=' SLURM_STEP_TASKS_PER_NODE=2 SLURM_JOB_NODELIST=localhost'
    local mpirun='OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$r OMPI_COMM_WORLD_LOCAL_SIZE=2'
    mpirun+=' MASTER_PORT=$p'
    local shell='RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$p'
    for way in torchrun slurm mpirun shell; do
        p=$((++port)) j=$((RANDOM % 9000 + 1000))
        for r in 1 0; do
            # shellcheck disable=SC2046
            MARK=$mark PENSTOCK_CONFIG=zero2_bf16.yml env $(eval "echo ${!way}") "$programs/stepper" steps=4 \
                >"$tmp/$way.$r.out" 2>"$tmp/$way.$r.err" 3>&- &
        done
    done
    wait
    [ "$(wc -l <"$tmp/run.out")" = 8 ] || { cat "$tmp/run.err"; false; }
    for way in torchrun slurm mpirun shell; do
        diff <(sort "$tmp/run.out") <(sort "$tmp/$way".?.out) || { cat "$tmp/$way".?.err; false; }
        # rate and norm of each step, and once, on rank 0, the keys without effect
        diff <(grep -o "step [1-4]: rate .*, norm [0-9.]*" "$tmp/run.err") <(grep -oh "step [1-4]: rate .*, norm [0-9.]*" "$tmp/$way.0.err")
        [ "$(cat "$tmp/$way".?.err | grep -c "no effect here: .*pin_memory (zero2_bf16.json:26), .*dataloader_drop_last")" = 1 ]
        ! grep -q "no effect" "$tmp/$way.1.err" || return 1
    done
    [ "$(grep -c "no effect here: .*pin_memory (zero2_bf16.json:26), .*dataloader_drop_last" "$tmp/run.err")" = 1 ]
    (unset PENSTOCK_LR; PENSTOCK_CONFIG=zero2_bf16.yml "$programs/stepper" "optim=sgd lr=1" 2>&1 || :) |
        is_text "stepper: zero2_bf16.json:8: optimizer.params.lr is auto: set PENSTOCK_LR, or say it to pen_init()"
    nothing_is_left
}

@test "what is auto is taken from the program, and what neither says is one error, alike with servers" {
    local own=(hidden_size=64 steps=20) open="zero_stage2_config.json:13: these are auto: optimizer.params.lr, optimizer.params.weight_decay, scheduler.params.warmup_num_steps; set PENSTOCK_LR, PENSTOCK_WEIGHT_DECAY, PENSTOCK_WARMUP_STEPS, or say them to pen_init()"
    local servers job
    for servers in 0 1; do
        job=("$penstock" run --servers "$servers" --nproc-per-node 2 --ds-config zero_stage2_config.json)
        MARK=$mark "${job[@]}" --warmup-steps 5 "$programs/stepper" "${own[@]}" "optim=adamw lr=1e-3 weight_decay=0.1" >"$tmp/out" 2>"$tmp/err" 3>&-
        grep -qxF "[0] penstock: optim = adamw lr=1e-3 weight_decay=0.1, zero_stage2_config.json:11 (auto filled in)" "$tmp/err"
        grep -qxF "[0] penstock: schedule = WarmupDecayLR warmup_min_lr=0 warmup_max_lr=1e-3 warmup_num_steps=5 total_num_steps=20, zero_stage2_config.json:20 (auto filled in)" "$tmp/err"
        grep -qxF "[0] penstock: reduce_bucket = 4096, auto: the square of hidden size 64, zero_stage2_config.json:34" "$tmp/err"
        ! MARK=$mark "${job[@]}" "$programs/stepper" "${own[@]}" "optim=sgd lr=1" >"$tmp/out" 2>"$tmp/err" 3>&- || return 1
        grep -qx "  verdict  worker [01] exited with code 1 before it joined" "$tmp/err"
        grep -qxF "             | stepper: $open" "$tmp/err"
    done
    nothing_is_left
}

@test "a variable names the files of penstock run and of a server, too" {
    PENSTOCK_CONFIG=fsdp_llama.yml prints
    [ "$(printed settings mode)" = "fsdp_llama.yml:11 full_shard" ]
    PENSTOCK_DS_CONFIG=zero3_bf16.json PENSTOCK_HIDDEN_SIZE=64 prints --nproc-per-node 2
    [ "$(printed settings mode)" = "zero3_bf16.json:6 zero3" ]
    sed 's/"device": "cpu"/"device": "nvme"/; s/"auto"/1000/' zero3_bf16.json >"$tmp/ds.json"
    says 2 "penstock: $tmp/ds.json:8: zero_optimization.offload_optimizer.device nvme needs a folder: say nvme_path, or --offload-path DIR" \
        run --ds-config "$tmp/ds.json" --servers 1 true
    PENSTOCK_DS_CONFIG=$tmp/ds.json says 2 "penstock: $tmp/ds.json:8: zero_optimization.offload_optimizer.device nvme needs a folder: say nvme_path, or --offload-path DIR" \
        server --master-port 1
}

@test "the flags of accelerate launch are keys of its file, and override it" {
    prints --config_file fsdp_llama.yml --num_processes 4 --mixed_precision no --main_process_port 29777
    [ "$(printed launch num_processes)" = "--num_processes 4" ]
    [ "$(printed launch main_process_port)" = "--main_process_port 29777" ]
    [ "$(printed settings precision)" = "--mixed_precision fp32" ]
    [ "$(printed settings mode)" = "fsdp_llama.yml:11 full_shard" ]
    prints --use_deepspeed --zero_stage=3 --num-machines 2 --machine_rank 1 --main_process_ip 10.0.0.1 --num_processes 4 \
        --gradient_clipping 0.5 --encryption clear
    [ "$(printed settings mode)" = "--zero_stage zero3" ]
    [ "$(printed settings clip)" = "--gradient_clipping 0.5" ]
    [ "$(printed launch machine_rank)" = "--machine_rank 1" ]
    [ "$(printed launch main_process_ip)" = "--main_process_ip 10.0.0.1" ]
    prints --use_fsdp --fsdp_sharding_strategy HYBRID_SHARD --fsdp_transformer_layer_cls_to_wrap GPT2Block --num_processes 2 \
        --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP
    [ "$(printed settings mode)" = "--fsdp_sharding_strategy hybrid_shard" ]
    [ "$(printed settings wrap_match)" = "--fsdp_transformer_layer_cls_to_wrap **.h.*" ]
    says 2 "penstock: --zero_stage: deepspeed_config.zero_stage is '7', but must be one of 0, 1, 2, 3" run --zero_stage 7 true
    says 2 "penstock: --distributed_type (distributed_type: FSDP) and zero2_bf16.json, a configuration of DeepSpeed, contradict each other: say DEEPSPEED, or leave the file out" \
        run --use_fsdp --ds-config zero2_bf16.json true
    pen config --config_file "$tmp/x.yml" --num_processes 2 --mixed_precision bf16 --use_fsdp
    prints --config "$tmp/x.yml"
    [ "$(printed settings mode | cut -d' ' -f2)" = full_shard ]
    [ "$(printed settings precision | cut -d' ' -f2)" = bf16 ]
}

@test "a class that matches no layer of the program is an error that lists the existing names" {
    local code=0
    pen run --standalone --config fsdp.yml --nproc-per-node 1 "$programs/units" >"$tmp/out" 2>"$tmp/err" || code=$?
    [ "$code" = 1 ]
    grep -qxF "[0] units: wrap_match: no layer of this model is named '**.encoder.layer.*'; it has h, h.*" "$tmp/err" ||
        { cat "$tmp/err"; false; }
    pen run --standalone --config fsdp.yml --wrap-match 'h.*' "$programs/units" >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; false; }
}

@test "penstock config without flags asks on a terminal, repeats a question until its answer is one, and writes the file" {
    cd "$tmp"
    printf '1\n2\nhello\nbf16\nzero\n3\n\n' >"$tmp/answers"
    script -qec "$penstock config" /dev/null <"$tmp/answers" >"$tmp/asked"
    grep -q "mixed_precision is 'hello', but must be one of" "$tmp/asked"
    grep -q 'penstock: wrote accelerate.yml; penstock run --config accelerate.yml PROG uses it' "$tmp/asked"
    prints --config "$tmp/accelerate.yml"
    [ "$(printed settings mode | cut -d' ' -f2)" = zero3 ]
    [ "$(printed settings precision | cut -d' ' -f2)" = bf16 ]
    [ "$(printed launch num_processes | cut -d' ' -f2)" = 2 ]
}

@test "a DeepSpeed file with the absolute path of another machine is found beside the YAML file that names it" {
    cp "$BATS_TEST_DIRNAME/config/zero2_bf16.json" "$tmp/ds.json"
    printf 'distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: /elsewhere/project/ds.json\nnum_machines: 1\nnum_processes: 2\n' >"$tmp/x.yml"
    prints --config "$tmp/x.yml" "${autos[@]}"
    [ "$(printed settings mode | cut -d' ' -f2)" = zero2 ]
}
