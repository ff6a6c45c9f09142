"""Cluster targets of other packages: named in a spec, asked what they are, never guessed by name."""

from __future__ import annotations

import pytest
from outside import install

from dpsweep.cluster import TARGETS
from dpsweep.cluster.base import ClusterTarget
from dpsweep.cluster.early import slots_early
from dpsweep.cluster.local import LocalTarget
from dpsweep.foundation.errors import SpecError
from dpsweep.planning.forecast import local_slots
from dpsweep.planning.preflight import preflight
from dpsweep.planning.reading import read_spec
from dpsweep.spec.cluster import TARGETS as BUILT_IN_NAMES
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec

TEXT = """
name: digits
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {trial_epsilon: 2.0, accounting: unaccounted}
cluster: {target: hut, address: "any that it likes", num_cpus: 4}
search:
  space: {method: dp_sgd, optim.lr: 0.1}
"""


class Hut(LocalTarget):
    """This machine under another name, open to all."""

    is_secret = False


class Cellar(LocalTarget):
    """This machine under another name."""


class Far(ClusterTarget):
    """A place that nothing is known of before it is reached."""

    def connect(self) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {name: f"{__name__}:{name.title()}" for name in ("hut", "cellar", "far")}
    install(monkeypatch, "dpsweep.cluster", TARGETS, **places, slurm="no_such_module:Slurm")


SELECT = ["privacy.accounting=select", "privacy.selection={mean: 3}", "search.sampler=random"]


def test_its_keys_are_its_own_and_it_says_how_many_trials_fit() -> None:
    assert local_slots(preflight(read_spec(TEXT))) == 4
    assert local_slots(preflight(read_spec(TEXT, overrides=["cluster.target=far"]))) is None
    assert (Far.is_secret, LocalTarget.is_secret) == (False, True)
    assert set(BUILT_IN_NAMES) == set(TARGETS) - set(TARGETS.outside())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["cluster.target=hutt"], r"cluster.target: unknown value 'hutt' \(did you mean 'hut'\?"),
        (["cluster.target=kuberay"], "cluster.target: 'kuberay' is not joined by a run"),
        (["cluster.target=slurm"], "cluster target 'slurm' of .* cannot be loaded: ModuleNotFound"),
        (SELECT, "cluster.target: does not keep traces of trials from others"),
        ([*SELECT, "cluster.target=far"], "cluster.target: does not keep traces"),
    ],
)
def test_what_cannot_run_is_told_before_anything_starts(changes: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        preflight(read_spec(TEXT, overrides=changes))


def test_select_runs_where_traces_are_kept_secret() -> None:
    assert preflight(read_spec(TEXT, overrides=[*SELECT, "cluster.target=cellar"]))


def test_slots_count_cpus_and_gpus() -> None:
    spec = ClusterSpec(num_cpus=8, num_gpus=1)
    assert LocalTarget.slots_early(spec, ResourcesSpec(cpu=2)) == 4
    assert LocalTarget.slots_early(spec, ResourcesSpec(cpu=2, gpu=0.5)) == 2
    assert LocalTarget.slots_early(spec, ResourcesSpec(cpu=16)) == 1


@pytest.mark.parametrize(("cpu", "gpu"), [(1, 0), (2, 0.5), (3, 1), (16, 0)])
def test_early_slots_of_ours_are_those_of_the_target(cpu: float, gpu: float) -> None:
    resources = ResourcesSpec(cpu=cpu, gpu=gpu)
    for here in (ClusterSpec(), ClusterSpec(num_cpus=8, num_gpus=1)):
        assert slots_early(here, resources) == LocalTarget.slots_early(here, resources)
    assert slots_early(ClusterSpec(target="ray", address="auto"), resources) is None
