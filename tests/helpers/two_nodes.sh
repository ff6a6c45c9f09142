#!/bin/bash
# two_nodes.sh SCRIPT: run a batch script on two nodes that share the file system and nothing else.
#
# Each node is a set of namespaces of its own: processes, network, host name, /tmp/ray, /dev/shm. So
# `ray stop`, with which `ray symmetric-run` ends, sees Ray's processes of one node alone. Needs root.
# Slurm's commands are stand-ins: srun starts a command on both nodes, scontrol notes requeues in
# $NOTES. Signals for the batch shell are taken from the file $SIGNAL as soon as it is there.
set -u
if [ "${1:-}" = --node ]; then
  mount -t tmpfs none /dev/shm && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray
  hostname "$2" && ip link set lo up
  if [ "$2" = node1 ]; then
    shift 2
    exec "$@"
  fi
  exec sleep infinity
fi
if [ "${1:-}" = --job ]; then
  unshare --pid --fork --mount --net --uts --mount-proc --kill-child "$0" --node node2 &
  unshared=$!
  until node2=$(cat "/proc/$unshared/task/$unshared/children") && [ -n "$node2" ]; do sleep 0.05; done
  until [ "$(readlink "/proc/${node2% }/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
  ip link add eth1 type veth peer name eth2
  ip link set eth2 netns "${node2% }"
  ip addr add 10.77.0.1/24 dev eth1 && ip link set eth1 up
  nsenter --target "${node2% }" --net ip addr add 10.77.0.2/24 dev eth2
  nsenter --target "${node2% }" --net ip link set eth2 up
  programs=$(mktemp -d)
  cat > "$programs/srun" <<END
#!/bin/bash
while [ "\${1#--}" != "\$1" ]; do shift; done
nsenter --target ${node2% } --pid --mount --net --uts --wd="\$PWD" -- "\$@" > "\$NOTES.node2" 2>&1 &
"\$@"; code=\$?
wait
exit "\$code"
END
  cat > "$programs/scontrol" <<'END'
#!/bin/bash
if [ "$1" = show ]; then printf '%s\n' 10.77.0.1 10.77.0.2; else echo "$*" >> "$NOTES"; fi
END
  chmod +x "$programs"/*
  export PATH="$programs:$PATH" SLURM_JOB_NODELIST="node[1-2]" SLURM_JOB_ID=77
  bash "$2" &
  job=$!
  while kill -0 "$job" 2> /dev/null; do
    if [ -n "${SIGNAL:-}" ] && [ -e "$SIGNAL" ]; then kill -"$(cat "$SIGNAL")" "$job"; rm "$SIGNAL"; fi
    sleep 0.1
  done
  wait "$job"
  code=$?
  kill "$unshared"
  rm -r "$programs"
  exit "$code"
fi
exec unshare --pid --fork --mount --net --uts --mount-proc --kill-child \
  "$0" --node node1 "$0" --job "$1"
