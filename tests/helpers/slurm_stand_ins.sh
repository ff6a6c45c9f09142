#!/bin/bash
# slurm_stand_ins.sh SCRIPT: run a batch script on both nodes of two_nodes.sh, without Slurm.
#
# Slurm's commands are stand-ins: srun starts a command on both nodes, scontrol notes requeues in
# $NOTES. Signals for the batch shell are taken from the file $SIGNAL as soon as it is there.
set -u
programs=$(mktemp -d)
cat > "$programs/srun" <<'END_OF_SRUN'
#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
$ON_NODE2 "$@" > "$NOTES.node2" 2>&1 &
"$@"; code=$?
wait
exit "$code"
END_OF_SRUN
cat > "$programs/scontrol" <<'END_OF_SCONTROL'
#!/bin/bash
if [ "$1" = show ]; then printf '%s\n' 10.77.0.1 10.77.0.2; else echo "$*" >> "$NOTES"; fi
END_OF_SCONTROL
chmod +x "$programs"/*
export PATH="$programs:$PATH" SLURM_JOB_NODELIST="node[1-2]" SLURM_JOB_ID=77
bash "$1" &
job=$!
while kill -0 "$job" 2> /dev/null; do
  if [ -n "${SIGNAL:-}" ] && [ -e "$SIGNAL" ]; then kill -"$(cat "$SIGNAL")" "$job"; rm "$SIGNAL"; fi
  sleep 0.1
done
wait "$job"
code=$?
rm -r "$programs"
exit "$code"
