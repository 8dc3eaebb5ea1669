# slurm.bash - a Slurm of four nodes on this machine: separate munged, slurmctld and four slurmd, not the system's.
#
# The nodes n1 to n4 are all this machine; the daemons' mount namespace has an /etc/hosts for them.

slurm_needs() {
    local program
    [ "$(id -u)" = 0 ] || skip "needs root: slurmd and its own /etc/hosts"
    for program in munged slurmctld slurmd srun; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null ||
            skip "needs $program: apt install munge slurmctld slurmd slurm-client"
    done
}

# A free port that stays out of the way later: below the ephemeral ones.
slurm_free_port() {
    local port
    while :; do
        port=$((10000 + RANDOM % 4900))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}

slurm_write_conf() {
    local name n
    name=$(hostname -s)
    cat >"$slurm/slurm.conf" <<END
ClusterName=fleet
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$(slurm_free_port)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$slurm/run/munge.sock,cred_expire=30
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool/%n
SlurmctldPidFile=$slurm/run/slurmctld.pid
SlurmdPidFile=$slurm/run/slurmd.%n.pid
SlurmctldLogFile=$slurm/log/slurmctld.log
SlurmdLogFile=$slurm/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmdTimeout=300
GresTypes=gpu
$(for n in 1 2 3 4; do echo "NodeName=n$n NodeHostname=$name NodeAddr=127.0.0.1 Port=$(slurm_free_port) CPUs=4 RealMemory=2000 Gres=gpu:2 State=UNKNOWN"; done)
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
END
    echo "NodeName=n[1-4] Name=gpu File=$slurm/dev/nvidia[0-1]" >"$slurm/gres.conf"
    { cat /etc/hosts; echo "127.0.0.1 n1 n2 n3 n4 $name"; } >"$slurm/hosts"
}

# Starts everything in $slurm; programs in it resolve the nodes by name.
slurm_open() {
    export PATH=$PATH:/usr/sbin SLURM_CONF=$slurm/slurm.conf
    mkdir -p "$slurm"/{run,log,state,spool,dev}
    mknod "$slurm/dev/nvidia0" c 1 3 && mknod "$slurm/dev/nvidia1" c 1 3 # fake cards
    slurm_write_conf
    head -c 1024 /dev/urandom >"$slurm/munge.key"
    chmod 600 "$slurm/munge.key"
    unshare --mount --propagation private bash -eu -c '
        mount --bind "$1/hosts" /etc/hosts
        munged --key-file="$1/munge.key" --socket="$1/run/munge.sock" --pid-file="$1/run/munged.pid" \
            --log-file="$1/log/munged.log" --seed-file="$1/run/seed" --num-threads=2 --force
        slurmctld -c -f "$1/slurm.conf"
        for n in n1 n2 n3 n4; do slurmd -N "$n" -f "$1/slurm.conf"; done
    ' open "$slurm" >"$slurm/log/open" 2>&1 3>&- || { cat "$slurm/log/open"; return 1; }
    slurm_wait 60 slurm_is_idle || { sinfo -N; tail "$slurm"/log/*; return 1; }
}

slurm_is_idle() { [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | wc -l)" = 4 ]; }

# slurm_wait SECONDS COMMAND...: waits until COMMAND succeeds.
slurm_wait() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

slurm_close() {
    local file pid
    [ -d "$slurm/run" ] || return 0
    for file in "$slurm"/run/*.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 50); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || :
    done
}

# State of a job: PENDING, RUNNING, COMPLETED...; one for each part of a heterogeneous job, unless all are equal.
slurm_state() { scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p' | sort -u; }
slurm_restarts() { scontrol show job "$1" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p'; }
slurm_is() { [ "$(slurm_state "$1")" = "$2" ]; }
slurm_is_over() { [[ $(slurm_state "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)$ ]]; }
