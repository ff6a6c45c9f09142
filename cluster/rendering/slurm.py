"""Slurm: one batch job that starts Ray on its nodes and queues itself again at its time limit."""

from __future__ import annotations

import shlex
from pathlib import Path

from dpsweep.cluster.rendering.base import (
    Command,
    FileRendering,
    Nodes,
    commands,
    job_name,
    nodes_of,
    shipped,
)
from dpsweep.cluster.rendering.places import check_places
from dpsweep.foundation.bucket_path import is_address
from dpsweep.foundation.errors import BadInputError, Mistake, SpecError
from dpsweep.spec.launching import UNATTENDED, SlurmSpec
from dpsweep.spec.study import SweepSpec

#: How long before the time limit the study is told to end; it needs up to 25 seconds.
_WARNING_S = 120
_END = "END_OF_SPEC"
_SCRIPT = r"""
set -u
state="$jobs/$SLURM_JOB_ID"  # of this job alone: another one of the study must not end it
mkdir -p "$state" && chmod 700 "$state" || exit 2
rm -f "$state"/driver.pid "$state"/stopping "$state"/code
cat > "$state/sweep.yaml" <<'@END@'
@SPEC@@END@

# A job that was queued again after its study began was begun by nobody: it does not go on with
# what has only failed.
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || [ ! -e "$state/begun" ] || export @UNATTENDED@=1
# Ray answers to this job's token alone; its dashboard stays on loopback.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$state/token" RAY_USAGE_STATS_ENABLED=0
(umask 077; python3 -c 'import secrets; print(secrets.token_hex(32), end="")' > "$state/token")
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# SIGTERM ends a study well: the driver charges nothing any more, saves, and ends with 143. Slurm
# sends it to all processes at once, and Ray's own must not hear it, or Ray is gone before that.
mask='import os, signal, sys
signal.pthread_sigmask(getattr(signal, sys.argv[1]), {signal.SIGTERM})
os.execvp(sys.argv[2], sys.argv[2:])'
# While Ray starts there is no driver: the file keeps it from starting. Each side writes its own
# file before it looks for the other's, so no order of the two loses a stop.
stop_driver() {
  : > "$state/stopping"
  kill -TERM "$(cat "$state/driver.pid" 2> /dev/null)" 2> /dev/null
}
requeue=no
trap 'requeue=yes; stop_driver' USR1  # from Slurm, before the time limit
trap stop_driver USR2                 # from `dpsweep cluster stop`
trap : TERM                           # from scancel, scontrol requeue or a preemption
# A job that was killed may have left its Ray on a node, which no other job uses now.
on_each_node='ray stop --force > /dev/null 2>&1; exec "$@"'
driver='
  (echo "$BASHPID" > "$0/driver.pid"
   [ ! -e "$0/stopping" ] || { echo "stopped before the study began"; exit 143; }
   : > "$0/begun"
   exec env RAY_ADDRESS="$1" python3 -c "$2" SIG_UNBLOCK dpsweep run "$0/sweep.yaml")
  code=$?; ray stop --force > /dev/null 2>&1; echo "$code" > "$0/code"; exit "$code"'
(
  trap '' TERM
  # Since Slurm 22.05 srun does not take over how many cores the job asks for.
  exec srun --ntasks-per-node=1 --cpus-per-task="$cpus" \
    python3 -c "$mask" SIG_BLOCK bash -c "$on_each_node" node \
    ray symmetric-run --address "$head:$port" --min-nodes "$nodes" \
    --num-cpus "$cpus" --num-gpus "$gpus" -- bash -c "$driver" "$state" "$head:$port" "$mask"
) &
step=$!
# The driver's end is the job's: Ray on the other nodes may look for its head for minutes more.
while [ ! -s "$state/code" ] && kill -0 "$step" 2> /dev/null; do sleep 0.5 & wait "$!"; done
code=$(cat "$state/code" 2> /dev/null || echo 1)
rm -f "$state/token"

# 0: done; 2: bad input; 3: nothing within the budget. The same command continues all others.
if [ "$requeue" = yes ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$requeues" ]; then
  case "$code" in
    0 | 2 | 3) ;;
    *) scontrol requeue "$SLURM_JOB_ID" ;;
  esac
fi
exit "$code"
"""


class SlurmRendering(FileRendering):
    """A batch script for whole nodes that share ``storage.path``; it holds the spec, too."""

    name, suffix = "slurm", "sbatch"

    @classmethod
    def content(cls, spec: SweepSpec) -> str:
        """Return one script; `sbatch` takes it."""
        settings = spec.cluster.slurm or SlurmSpec()
        check_places(spec, None)
        if settings.state is None and is_address(spec.storage.path):
            problem = "is missing: storage.path is in a bucket, and the job has files of its own"
            mistake = Mistake("cluster.slurm.state", problem, "name a directory that nodes share")
            raise SpecError([mistake.at(spec.where)])
        nodes = nodes_of(spec, cls.name, settings)
        text = shipped(spec)
        if _END in text.splitlines():
            raise BadInputError(f"a line of the spec is {_END}", fix="write something else there")
        body = _SCRIPT.replace("@END@", _END).replace("@UNATTENDED@", UNATTENDED)
        body = body.replace("@SPEC@", text)
        return _header(spec, settings, nodes) + body

    @classmethod
    def submit(cls, study: str, folder: Path) -> list[Command]:
        """Queue the script; what it prints goes beside it."""
        output = f"--output={folder / _log(study)}"
        return commands(["sbatch", output, str(folder / cls.file_of(study))])

    @classmethod
    def status(cls, study: str, folder: Path) -> list[Command]:
        """Show the job in the queue."""
        return commands(["squeue", "--me", f"--name={job_name(study)}", "--long"])

    @classmethod
    def logs(cls, study: str, folder: Path) -> list[Command]:
        """Show the end of what it has printed."""
        file = folder / _log(study)
        return [Command(("tail", "-n", "200", str(file)), file=file, is_written_late=True)]

    @classmethod
    def stop(cls, study: str, folder: Path) -> list[Command]:
        """Take a waiting job out of the queue; let a running one save and end."""
        which = ["scancel", "--me", f"--name={job_name(study)}"]
        return commands([*which, "--state=PENDING"], [*which, "--batch", "--signal=USR2"])


def _log(study: str) -> str:
    return f"{study}.slurm.log"


def _header(spec: SweepSpec, settings: SlurmSpec, nodes: Nodes) -> str:
    options: dict[str, object] = {
        "job-name": job_name(spec.name),
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "nodes": nodes.number,
        "ntasks-per-node": 1,
        "cpus-per-task": nodes.cpus,
        "gpus-per-node": nodes.gpus or None,
        "mem": 0,
        "time": settings.minutes,
        "dependency": "singleton",  # one job of a study at a time, in the order of submission
        "signal": f"B:USR1@{_WARNING_S}",
        "output": _log(spec.name),
        "open-mode": "append",
    }
    # `ray symmetric-run` ends all of a user's Ray on its nodes.
    lines = [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
    lines += ["#SBATCH --exclusive", "#SBATCH --requeue"]
    variables = {
        "jobs": f"{settings.state or spec.storage.path.rstrip('/') + '/.slurm'}/{spec.name}",
        "port": settings.port,
        "nodes": nodes.number,
        "cpus": nodes.cpus,
        "gpus": nodes.gpus,
        "requeues": settings.requeues,
    }
    settle = [f"{key}={shlex.quote(str(value))}" for key, value in variables.items()]
    secrets = [
        f': "${{{name}:?set it where you call sbatch; it is passed on}}"'
        for name in settings.secrets
    ]
    python = [] if settings.venv is None else [f". {shlex.quote(settings.venv)}/bin/activate"]
    origin = "# Rendered by `dpsweep cluster render slurm`."
    return "\n".join(["#!/bin/bash", *lines, origin, *secrets, *python, *settle])
