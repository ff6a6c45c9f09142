#!/bin/bash
# ray_on_node2.sh CPUS COMMAND...: Ray on both nodes of two_nodes.sh, with CPUs on the second alone.
#
# Prints how many bytes node1 has sent over the wire while the command ran, as "sent BYTES".
set -eu
cpus=$1
shift
ray start --head --node-ip-address=10.77.0.1 --num-cpus=0 --include-dashboard=false --disable-usage-stats
$ON_NODE2 ray start --address=10.77.0.1:6379 --node-ip-address=10.77.0.2 --num-cpus="$cpus" \
  --disable-usage-stats
sent() { awk '$1 == "eth1:" { print $10 }' /proc/net/dev; }
before=$(sent)
"$@"
echo "sent $(($(sent) - before))"
