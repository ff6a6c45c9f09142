"""The cluster of a launch: one for a process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from whole_studies import make_spec

from dpsweep.foundation.errors import ResourceError
from dpsweep.planning.preflight import preflight
from dpsweep.running.nodes.cluster import LaunchCluster
from dpsweep.spec.study import SweepSpec


def test_two_sweeps_of_one_process_are_not_run_at_once(tmp_path: Path) -> None:
    """As in two threads: Ray would end under both."""
    raw = make_spec(tmp_path, "first", tracking={"uri": None})
    checked = preflight(SweepSpec(**{**raw, "cluster": {"target": "local"}}))
    first, second = LaunchCluster(checked), LaunchCluster(checked)
    assert first.starting
    with pytest.raises(ResourceError, match="another sweep, in another thread"):
        second.join(print)
    second.close()
    first.close()
    third = LaunchCluster(checked)
    assert third.starting
    third.close()
