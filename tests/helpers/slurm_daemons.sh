#!/bin/bash
# slurm_daemons.sh FOLDER: Slurm itself on both nodes of two_nodes.sh, until it is killed.
#
# FOLDER gets the configuration (slurm.conf, for SLURM_CONF), state and logs; its path must be short,
# as it has sockets. A job that is queued again may start after 10 seconds instead of 120.
set -u
folder=$1
mkdir -p "$folder/state"
dd if=/dev/urandom of="$folder/key" bs=1024 count=1 status=none && chmod 600 "$folder/key"
cat > "$folder/slurm.conf" <<CONF
ClusterName=two
SlurmctldHost=node1(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge,cred_expire=10
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
NodeName=node1 NodeAddr=10.77.0.1 Port=17001 CPUs=2 RealMemory=1000
NodeName=node2 NodeAddr=10.77.0.2 Port=17002 CPUs=2 RealMemory=1000
PartitionName=all Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$folder/slurm.conf"
munged --foreground --force --key-file="$folder/key" --socket="$folder/munge" \
  --pid-file="$folder/munged.pid" --seed-file="$folder/seed" --log-file="$folder/munged.log" &
until [ -S "$folder/munge" ]; do sleep 0.05; done
slurmctld -D &
slurmd -D -N node1 &
$ON_NODE2 slurmd -D -N node2 &
wait
