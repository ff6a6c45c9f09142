#!/bin/bash
# two_nodes.sh COMMAND [ARGUMENT...]: run a command on node1 of two that share the file system alone.
#
# Each node is a set of namespaces of its own: processes, network, host name, /tmp/ray, /dev/shm. So
# `ray stop`, with which `ray symmetric-run` ends, sees no Ray of this machine. On the first node it
# also sees that of the second one, whose processes are below those of the first. Needs root.
# The nodes are node1 and node2, at 10.77.0.1 and 10.77.0.2. $ON_NODE2 before a command runs it on
# the second one.
set -u
if [ "${1:-}" = --node ]; then
  mount -t tmpfs none /dev/shm && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray
  hostname "$2" && ip link set lo up
  if [ "$2" = node1 ]; then
    hosts=$(mktemp)
    printf '127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n' > "$hosts"
    mount --bind "$hosts" /etc/hosts && rm "$hosts"  # node2 is made below it, and has it, too
    shift 2
    exec "$@"
  fi
  exec sleep infinity
fi
if [ "${1:-}" = --pair ]; then
  unshare --pid --fork --mount --net --uts --mount-proc --kill-child "$0" --node node2 &
  unshared=$!
  until node2=$(cat "/proc/$unshared/task/$unshared/children") && [ -n "$node2" ]; do sleep 0.05; done
  until [ "$(cat "/proc/${node2% }/comm")" = sleep ]; do sleep 0.05; done
  export ON_NODE2="nsenter --target ${node2% } --pid --mount --net --uts --wd=$PWD --"
  ip link add eth1 type veth peer name eth2
  ip link set eth2 netns "${node2% }"
  ip addr add 10.77.0.1/24 dev eth1 && ip link set eth1 up
  $ON_NODE2 ip addr add 10.77.0.2/24 dev eth2
  $ON_NODE2 ip link set eth2 up
  shift
  "$@"
  code=$?
  kill "$unshared"
  exit "$code"
fi
exec unshare --pid --fork --mount --net --uts --mount-proc --kill-child \
  "$0" --node node1 "$0" --pair "$@"
