"""Shares of the machines by method: what is refused, and what follows from them."""

from pathlib import Path

import pytest
import yaml
from whole_studies import cli_here, make_spec

from dpsweep.cluster.early import (
    local_slots,
    most_at_once,
    node_of,
    refuse_early,
    refuse_impossible,
)
from dpsweep.foundation.errors import ResourceError, SpecError
from dpsweep.spec.cluster import ClusterSpec, ResourcesSpec, Share
from dpsweep.spec.launching import SlurmSpec
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.execution.actor import bundle_of

MIXED = ResourcesSpec(cpu=2, by_method={"bitfit": {"gpu": 0.5}, "adamix": {"cpu": 0.5}})


def test_what_a_method_does_not_name_is_that_of_all():
    assert MIXED.of("dp_sgd") == Share(2, 0)
    assert MIXED.of("bitfit") == Share(2, 0.5)
    assert MIXED.of("adamix") == Share(0.5, 0)
    assert [MIXED.of(name).device for name in ("dp_sgd", "bitfit")] == ["cpu", "cuda"]
    assert [MIXED.of(name).threads for name in ("dp_sgd", "adamix")] == [2, 1]
    on_cpu = ResourcesSpec(gpu=1, by_method={"adamix": {"gpu": 0}})
    assert on_cpu.of("adamix").device == "cpu"


def test_equal_shares_count_once():
    assert list(MIXED.shares) == [
        "resources",
        "resources.by_method.bitfit",
        "resources.by_method.adamix",
    ]
    assert list(ResourcesSpec(by_method={"bitfit": {"cpu": 1}}).shares) == ["resources"]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([{"CPU": 1, "GPU": 1}], "resources.cpu=2 and resources.gpu=0"),
        ([{"CPU": 8}], "resources.by_method.bitfit.cpu=2 and resources.by_method.bitfit.gpu=0.5"),
        ([{"CPU": 8}, {"CPU": 1, "GPU": 4}], "largest node has 8 CPUs and 4 GPUs"),
    ],
)
def test_each_share_must_fit_on_some_node(nodes, says):
    with pytest.raises(ResourceError) as caught:
        refuse_impossible(MIXED, nodes)
    assert says in str(caught.value)
    refuse_impossible(MIXED, [{"CPU": 2}, {"CPU": 2, "GPU": 1}])  # on different nodes, too


@pytest.mark.parametrize(
    ("total", "most"),
    [({"CPU": 8, "GPU": 1}, 16), ({"CPU": 0.5}, 1), ({"CPU": 2.0, "GPU": 8}, 4)],
)
def test_as_many_run_at_once_as_the_smallest_share_allows(total, most):
    assert most_at_once(MIXED, [total]) == most


@pytest.mark.parametrize(
    ("share", "node", "most"),
    [
        (Share(1, 0.6), {"CPU": 8, "GPU": 2}, 2),
        (Share(1, 0.3), {"CPU": 8, "GPU": 2}, 6),
        (Share(1, 0.3), {"CPU": 8, "GPU": 0.5}, 1),
        (Share(1, 2), {"CPU": 8, "GPU": 3}, 1),
        (Share(0.1, 0), {"CPU": 1}, 10),
        (Share(2, 0), {"CPU": 3}, 1),
    ],
)
def test_a_share_lies_on_one_gpu_and_a_trial_on_one_node(share, node, most):
    assert share.fits(node) == most
    assert most_at_once(ResourcesSpec(cpu=share.cpu, gpu=share.gpu), [node] * 3) == 3 * most


def _of_methods(tmp_path, methods, **extra):
    method = methods[0] if len(methods) == 1 else {"choice": methods}
    spec = make_spec(tmp_path, resources={"cpu": 64, "by_method": {"dp_sgd": {"cpu": 2}}})
    spec["search"]["space"] = {"method": method}
    return SweepSpec(**{**spec, **extra}).resources


def test_a_share_that_no_trial_has_does_not_count(tmp_path):
    resources = _of_methods(tmp_path, ["dp_sgd"])
    assert resources.shares == {"resources.by_method.dp_sgd": Share(2, 0)}
    refuse_impossible(resources, [{"CPU": 2}])
    assert most_at_once(resources, [{"CPU": 64}]) == 32
    assert set(_of_methods(tmp_path, ["dp_sgd", "bitfit"]).shares) == {
        "resources",
        "resources.by_method.dp_sgd",
    }


def test_the_method_of_a_start_counts(tmp_path):
    start = {"method": "bitfit", "epsilons": [1.0], "runs": 1}
    resources = _of_methods(tmp_path, ["dp_sgd"], start=start)
    assert "resources" in resources.shares
    none = {"method": "bitfit", "runs": 0}
    assert "resources" not in _of_methods(tmp_path, ["dp_sgd"], start=none).shares


@pytest.mark.parametrize("key", ["cpu", "gpu"])
def test_less_than_ray_counts_is_refused(key):
    with pytest.raises(SpecError, match=rf"{key}: is 1e-05, and Ray counts in steps of 0.0001"):
        ResourcesSpec(**{key: 0.00001})
    with pytest.raises(SpecError, match=rf"{key}: is 5e-05"):
        ResourcesSpec(by_method={"dp_sgd": {key: 0.00005}})


def test_a_machine_without_gpus_runs_the_rest_of_its_cores():
    assert local_slots(ClusterSpec(num_cpus=4, num_gpus=1), ResourcesSpec(gpu=0.25)) == 4
    assert local_slots(ClusterSpec(num_cpus=4, num_gpus=0), ResourcesSpec(cpu=0.5)) == 8


def test_tune_tells_actors_of_other_shares_apart():
    """It goes on with an actor for trials of an equal request alone."""
    first, same, other = (
        bundle_of({"trial": number, "directory": "d", "cpu": 1, "gpu": gpu})
        for number, gpu in ((1, 0), (2, 0), (3, 0.5))
    )
    assert first == same
    assert hash(first) == hash(same)
    assert first != other


@pytest.mark.parametrize("gpu", [1.5, -1])
def test_a_share_that_ray_cannot_place_is_refused_where_it_stands(tmp_path, gpu):
    spec = make_spec(tmp_path, resources={"cpu": 1, "by_method": {"dp_sgd": {"gpu": gpu}}})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = cli_here("plan", tmp_path / "spec.yaml")
    assert done.returncode == 2
    assert "resources.by_method.dp_sgd.gpu" in done.stderr


def test_a_method_that_the_study_does_not_have_is_refused(tmp_path):
    spec = make_spec(tmp_path, resources={"cpu": 1, "by_method": {"bitfit": {"gpu": 0}}})
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    done = cli_here("plan", tmp_path / "spec.yaml")
    assert done.returncode == 2
    assert "resources.by_method.bitfit: the study has no trial of bitfit" in done.stderr
    assert "there are dp_sgd" in done.stderr


@pytest.mark.parametrize("verb", ["validate", "run"])
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cpu": 64}, "resources.cpu=64 and resources.gpu=0"),
        ({"gpu": 1}, "resources.cpu=1 and resources.gpu=1"),
    ],
)
def test_what_this_machine_lacks_is_refused_before_anything_starts(
    tmp_path, monkeypatch, asked, said, verb
):
    monkeypatch.setattr("dpsweep.cluster.early.node_of", lambda spec: {"CPU": 2, "GPU": 0})
    monkeypatch.setattr("dpsweep.cluster.local.node_of", lambda spec: {"CPU": 2, "GPU": 0})
    spec = make_spec(tmp_path, "large", resources={"cpu": 1, **asked})
    path = tmp_path / "large.yaml"
    path.write_text(yaml.safe_dump(spec))
    done = cli_here(verb, path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "the largest node has 2 CPUs and 0 GPUs" in done.stderr
    assert not (tmp_path / "studies" / "large").exists()


def test_what_another_cluster_is_to_run_may_be_checked_here(monkeypatch):
    monkeypatch.setattr("dpsweep.cluster.early.node_of", lambda spec: {"CPU": 2, "GPU": 0})
    resources = ResourcesSpec(gpu=1)
    refuse_early(ClusterSpec(target="ray", address="10.0.0.1:6379"), resources)
    slurm = SlurmSpec(partition="gpu")
    refuse_early(ClusterSpec(slurm=slurm), resources)
    with pytest.raises(ResourceError, match="no node can run a trial"):
        refuse_early(ClusterSpec(), resources)


def test_a_methods_share_of_a_gpu_is_where_the_spec_has_it():
    keys = {name: MIXED.gpu_key(name) for name in ("dp_sgd", "bitfit", "adamix")}
    assert keys == {
        "dp_sgd": "resources.gpu",
        "bitfit": "resources.by_method.bitfit.gpu",
        "adamix": "resources.gpu",
    }


@pytest.mark.parametrize(
    ("visible", "num_gpus"),
    [(None, 4), ("", 0), ("-1", 0), ("0,2", 2), ("0,-1,2", 1), ("0,1,2,3,4", 4)],
)
def test_gpus_that_are_hidden_are_not_counted(monkeypatch, visible, num_gpus):
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [self / f"nvidia{n}" for n in range(4)])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert node_of(ClusterSpec())["GPU"] == num_gpus
    assert node_of(ClusterSpec(num_gpus=3))["GPU"] == 3
