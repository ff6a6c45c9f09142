"""Targets that ``dpsweep run`` joins by itself: nothing is rendered, but jobs can be submitted."""

from __future__ import annotations

import os
from pathlib import Path

from dpsweep.cluster.rendering.base import (
    Command,
    Rendering,
    job_name,
    nothing_to_render,
    shipped,
)
from dpsweep.cluster.rendering.places import check_places
from dpsweep.foundation.errors import BadInputError
from dpsweep.spec.study import SweepSpec


class LocalRendering(Rendering):
    """This machine: `dpsweep run` starts Ray itself."""

    name = "local"

    @classmethod
    def render(cls, spec: SweepSpec) -> dict[str, str]:
        """Refuse; see ``Rendering``."""
        raise nothing_to_render("local", "`dpsweep run SPEC` starts Ray on this machine")

    @classmethod
    def files(cls, spec: SweepSpec) -> dict[str, str]:
        """Return none; see ``Rendering``."""
        return {}

    @classmethod
    def submit(cls, study: str, folder: Path) -> list[Command]:
        """Refuse; see ``Rendering``."""
        raise BadInputError("local has no jobs", fix="dpsweep run SPEC; dpsweep status, logs NAME")

    status = logs = stop = submit


#: Where Ray's job API is, if RAY_API_SERVER_ADDRESS does not say.
LOOPBACK = "http://127.0.0.1:8265"


class RayRendering(Rendering):
    """A running Ray cluster, by its job API: where RAY_API_SERVER_ADDRESS says, else loopback."""

    name = "ray"

    @classmethod
    def render(cls, spec: SweepSpec) -> dict[str, str]:
        """Refuse; see ``Rendering``."""
        raise nothing_to_render("ray", "`cluster: {target: ray, address: ...}` joins it")

    @classmethod
    def files(cls, spec: SweepSpec) -> dict[str, str]:
        """Return the spec as the job gets it, in a folder of its own: all of it is uploaded."""
        check_places(spec, None)
        return {f"{job_name(spec.name)}/{spec.name}.yaml": shipped(spec)}

    @classmethod
    def submit(cls, study: str, folder: Path) -> list[Command]:
        """Forget an ended job of this name, and submit the study; a running one refuses."""
        job = job_name(study)
        upload = ("--submission-id", job, "--working-dir", str(folder / job), "--no-wait")
        return [
            _job("delete", job, may_fail=True),
            _job("submit", *upload, "--", "dpsweep", "run", f"{study}.yaml"),
        ]

    @classmethod
    def status(cls, study: str, folder: Path) -> list[Command]:
        """Ask Ray's job API."""
        return [_job("status", job_name(study))]

    @classmethod
    def logs(cls, study: str, folder: Path) -> list[Command]:
        """Ask Ray's job API."""
        return [_job("logs", job_name(study))]

    @classmethod
    def stop(cls, study: str, folder: Path) -> list[Command]:
        """Ask Ray's job API, which sends SIGTERM."""
        return [_job("stop", job_name(study))]


def _job(verb: str, *arguments: str, may_fail: bool = False) -> Command:
    address = os.environ.get("RAY_API_SERVER_ADDRESS") or LOOPBACK
    words = ("ray", "job", verb, "--address", address, *arguments)
    return Command(words, may_fail=may_fail, server=address)
