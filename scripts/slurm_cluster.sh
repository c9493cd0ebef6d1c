#!/bin/sh
# A SLURM cluster of one machine, from Debian's packages, to try jobs on: two cores, and two partitions, of which
# "high" takes machines away from "low" (SIGTERM, 20 s to save, then queued again).
#
#     apt-get install slurm-wlm munge            # once; their services need not run
#     scripts/slurm_cluster.sh start FOLDER      # as root; prints the variable that srun, sbatch and squeue need
#     scripts/slurm_cluster.sh stop FOLDER       # cancels all jobs, and ends all daemons
#
# All files are in FOLDER: keys, sockets, logs and the state of jobs.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
DAEMONS="slurmd slurmctld munged" # in the order in which they are stopped
WAIT_S=60

fail() {
    echo "slurm_cluster.sh: $*" >&2
    exit 1
}

write_config() {
    host=$(hostname -s)
    # free ones, so that several clusters can be there
    ports=$(python3 -c 'import socket; s = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in s))')
    cat >"$folder/slurm.conf" <<CONFIG
ClusterName=trial
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports% *}
SlurmdPort=${ports#* }
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.sock
CryptoType=crypto/munge
MpiDefault=none
# no control groups, which containers do not let one change
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
ReturnToService=2
# a machine may have fewer cores and less memory than the node below
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.pid
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=$host Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=60 State=UP
PartitionName=high Nodes=$host PriorityTier=10 PreemptMode=OFF MaxTime=60 State=UP
CONFIG
}

# launch NAME COMMAND…: start a daemon in the background, in a session of its own, and note its process
launch() {
    name=$1
    shift
    setsid "$@" >>"$folder/log/$name" 2>&1 </dev/null &
    echo $! >"$folder/run/$name.daemon"
}

# program NAME: Debian's own name of a daemon, which the plain one links to once the package is configured
program() {
    command -v "$1-wlm" || command -v "$1" || fail "there is no $1; apt-get install slurm-wlm munge"
}

# wait_until COMMAND…
wait_until() {
    for _ in $(seq $((WAIT_S * 5))); do
        if "$@"; then return 0; fi
        sleep 0.2
    done
    return 1
}

is_idle() { sinfo -h -o %t 2>/dev/null | grep -q idle; }
is_empty() { [ -z "$(squeue -h 2>/dev/null)" ]; }
has_ended() { ! kill -0 "$1" 2>/dev/null; }

start() {
    [ "$(id -u)" = 0 ] || fail "only root can start it"
    slurmctld=$(program slurmctld)
    slurmd=$(program slurmd)
    munged=$(program munged)
    mkdir -p "$folder/run" "$folder/log" "$folder/state" "$folder/spool"
    write_config
    (umask 077 && head -c 1024 /dev/urandom >"$folder/run/munge.key")
    launch munged "$munged" --foreground --force --key-file="$folder/run/munge.key" \
        --socket="$folder/run/munge.sock" --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged" \
        --seed-file="$folder/run/munge.seed" --origin=127.0.0.1
    wait_until test -S "$folder/run/munge.sock" || fail "munged did not start; see $folder/log/munged"
    launch slurmctld "$slurmctld" -D -f "$SLURM_CONF"
    launch slurmd "$slurmd" -D -f "$SLURM_CONF" -N "$(hostname -s)"
    if ! wait_until is_idle; then
        stop
        fail "no node is idle after $WAIT_S s; see $folder/log"
    fi
    echo "export SLURM_CONF=$SLURM_CONF"
}

stop() {
    jobs=$(squeue -h -o %i 2>/dev/null) || true
    if [ -n "$jobs" ]; then
        scancel $jobs
        wait_until is_empty || true
    fi
    for name in $DAEMONS; do
        process=$(cat "$folder/run/$name.daemon" 2>/dev/null) || continue
        kill "$process" 2>/dev/null || true
        wait_until has_ended "$process" || kill -9 "$process"
        rm "$folder/run/$name.daemon"
    done
}

[ $# = 2 ] || fail "start FOLDER, or stop FOLDER"
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export SLURM_CONF="$folder/slurm.conf"
case $1 in
start | stop) "$1" ;;
*) fail "start FOLDER, or stop FOLDER, given $1" ;;
esac
