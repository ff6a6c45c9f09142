"""Distillation is computed once for all trials that would repeat it, and nobody can tell."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import Begun
from torch import nn

from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import DataSpec
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.hashes import part_hash
from dpsweep.trainables.data.loading import load_dataset
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.execution.checkpoints import Checkpoint, CheckpointStore
from dpsweep.trainables.execution.starts import Release, Starts, release_name
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.active_learning import active_learning, distilled
from dpsweep.trainables.methods.active_learning.active_learning import ActiveLearning
from dpsweep.trainables.methods.active_learning.distillation import SoftTrainer
from dpsweep.trainables.methods.active_learning.distilled import (
    FOLDER,
    MOST_BYTES,
    state_bytes,
    weights_hash,
)
from dpsweep.trainables.methods.active_learning.start_network import build_start
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.networks.torch_process import torch_threads

EPOCHS = 3
START = Plan((EventRun(PoissonGaussian(2.0, 0.1), 20),))
MODEL = resolve(DPSGD.hyperparameters, {"model.name": "tanh_cnn"})
GIVEN = {
    "start.epsilon": 1.0,
    "select.by": "margin",
    "labels.max": 20,
    "select.candidates": 100,
    "select.components": 5,
    "select.clusters": 4,
    "finetune.distill_epochs": EPOCHS,
    "finetune.epochs": 2,
}


@pytest.fixture(scope="module")
def digits() -> SweepData:
    validation = {"fraction": 0.1, "visibility": "public"}
    public = {"fraction": 0.08, "pollution": {"records": 20, "kinds": ["noise"]}}
    return load_dataset(DataSpec(dataset="digits", validation=validation, public=public))


def started(data: SweepData, folder: Path, model: dict[str, Any] = MODEL) -> Begun:
    """Let one run release two models, in one directory."""
    releases = {}
    for index, epsilon in enumerate((1.0, 2.0)):
        state = {"model": build_start(model, data.info, seed=70 + index).state_dict()}
        digest = CheckpointStore(folder).save(
            release_name(index), Checkpoint(7, None, 0, 7, {}, state)
        )
        releases[0, epsilon] = Release(folder, release_name(index), digest)
    return Begun.of(data, Starts(model, releases))


@pytest.fixture
def shared(digits: SweepData, tmp_path: Path) -> Begun:
    """The data with a start of this test's own, beside which nothing is kept yet."""
    return started(digits, tmp_path / "shared")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shared" / FOLDER


@pytest.fixture
def alone(digits: SweepData, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What a trial ends with if there is nothing that it could share."""

    def end(**given: Any) -> dict[str, Any]:
        shutil.rmtree(tmp_path / "alone", ignore_errors=True)
        return ended(*prepared(started(digits, tmp_path / "alone"), **given))

    return end


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs of distillation that are computed, one after the other."""
    seen: list[int] = []
    original = SoftTrainer.distill_epoch

    def counting(self: SoftTrainer, targets: torch.Tensor, epoch: int) -> float:
        seen.append(epoch)
        return original(self, targets, epoch)

    monkeypatch.setattr(SoftTrainer, "distill_epoch", counting)
    return seen


def prepared(
    data: Begun, trial: int = 3, study_seed: int = 0, **given: Any
) -> tuple[ActiveLearning, Plan]:
    named = {key.replace("__", "."): value for key, value in given.items()}
    hparams = resolve(ActiveLearning.hyperparameters, {**GIVEN, **named})
    starts = {(0, 1.0): START, (0, 2.0): START}
    context = PlanContext(PrivacyBudget(4.0, 1e-5), "rdp", 500, starts=starts)
    plan = ActiveLearning.plan(hparams, context)
    instance = ActiveLearning()
    context = RunContext(study_seed, trial, supplies=Supplies(starts=data.starts))
    instance.prepare(data, hparams, plan, context)
    return instance, plan


def ended(instance: ActiveLearning, plan: Plan, start: int = 0) -> dict[str, Any]:
    """Run a trial to its end, and return its state, its scores and what it exports."""
    instance.run(start, len(plan))
    return {
        "state": instance.state_dict(),
        "scores": instance.evaluate("validation") | instance.public_scores(),
        "export": dict(instance.export().state_dict()),
    }


def one_after_another(
    data: SweepData, computed: list[int], **given: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a trial and another one; of ``computed``, the second one's epochs are left."""
    first = ended(*prepared(data))
    computed.clear()
    return first, ended(*prepared(data, trial=8, **given))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    "given",
    [
        {"select__by": "diverse_public"},
        {"select__by": "random", "labels__max": 30, "finetune__replay": 0.0},
        {"finetune__distill_epochs": EPOCHS - 1},
    ],
)
def test_a_trial_that_asks_others_takes_what_is_distilled(
    shared: Begun,
    alone: Callable[..., dict[str, Any]],
    computed: list[int],
    given: dict[str, Any],
) -> None:
    expected = alone(**given)
    first, found = one_after_another(shared, computed, **given)
    assert computed == []
    assert same(found, expected)
    assert not same(found["state"], first["state"])


def test_a_longer_distillation_goes_on_from_a_shorter_one(
    shared: Begun, alone: Callable[..., dict[str, Any]], computed: list[int]
) -> None:
    expected = alone(finetune__distill_epochs=EPOCHS + 2)
    _, found = one_after_another(shared, computed, finetune__distill_epochs=EPOCHS + 2)
    assert computed == [EPOCHS, EPOCHS + 1]
    assert same(found, expected)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "given",
    [
        {"train__repeat": 1},
        {"study_seed": 1},
        {"finetune__lr": 0.002},
        {"finetune__batch": 32},
        {"finetune__temperature": 2.0},
        {"start__epsilon": 2.0},  # released into the same directory
    ],
)
def test_a_trial_that_distils_otherwise_takes_nothing(
    shared: Begun,
    alone: Callable[..., dict[str, Any]],
    computed: list[int],
    given: dict[str, Any],
) -> None:
    expected = alone(**given)
    _, found = one_after_another(shared, computed, **given)
    assert computed == list(range(EPOCHS))
    assert same(found, expected)


def of_network(data: Begun, hparams: dict[str, Any]) -> Begun:
    assert data.starts is not None
    return replace(data, starts=Starts(hparams, data.starts.releases))


def address(data: Begun, **given: Any) -> str:
    return prepared(data, **given)[0]._distilled.address(0)


def test_a_state_is_found_by_all_that_it_depends_on(
    shared: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Besides hyperparameters: epoch, records, network, initial weights, and what computes."""
    inputs, labels = shared.parts["public"]
    changed = inputs.copy()
    changed[5, 0, 3, 3] += 0.25
    parts = {**shared.parts, "public": (changed, labels)}
    hashes = {**shared.hashes, "public": part_hash(changed)}
    one = address(shared)
    found = [
        one,
        prepared(shared)[0]._distilled.address(1),
        address(replace(shared, parts=parts, hashes=hashes)),
        address(of_network(shared, {**MODEL, "model.norm": "group"})),
    ]
    weights = tmp_path / "taught.pt"
    taught = of_network(shared, {**MODEL, "model.checkpoint": str(weights)})
    for seed in (9, 10):
        torch.save(build_start(MODEL, shared.info, seed=seed).state_dict(), weights)
        found += [address(taught), address(taught, train__repeat=1)]  # orders differ
    with torch_threads(2):
        found.append(address(shared))
    for owner, name, value in (
        (torch, "__version__", "99"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "AVX1024"),
        (distilled, "__version__", "99"),
        (distilled, "_FORMAT", 99),
        (active_learning, "_BLOCK", 64),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            found.append(address(shared))
    assert len(set(found)) == len(found) == 14
    assert address(shared, trial=4) == one
    # The hashes of an episode's records are not known, but what they would be.
    assert address(replace(shared, parts=parts, hashes={})) == found[2]


def test_a_state_of_a_timm_network_depends_on_its_version(
    shared: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    hparams = resolve(ActiveLearning.hyperparameters, GIVEN)
    assert shared.starts is not None

    def found(name: str, version: str) -> str:
        monkeypatch.setattr(distilled, "version", lambda package: version)
        data = of_network(shared, {**MODEL, "model.name": name})
        release, model = shared.starts.release((0, 1.0)), nn.Linear(2, 2, bias=False)
        nn.init.ones_(model.weight)
        states = distilled.distilled_states(
            data.starts, release, data, model, hparams, seeds={}, block=1, device="cpu"
        )
        return states.address(0)

    assert found("timm/one", "1") == found("timm/one", "1") != found("timm/one", "2")
    assert found("tanh_cnn", "1") == found("tanh_cnn", "2") != found("timm/one", "2")


def test_no_private_record_has_a_part_in_where_a_state_is_found(shared: Begun) -> None:
    """File names would tell of them otherwise, without noise."""
    inputs, labels = shared.parts["private"]
    others = {**shared.parts, "private": (inputs[3:] + 1, labels[3:])}
    hashes = {**shared.hashes, "private": "of others"}
    changed = replace(shared, parts=others, hashes=hashes, content_hash="of others")
    assert address(changed) == address(shared)


def test_nothing_is_kept_of_what_private_records_were_asked(shared: Begun, folder: Path) -> None:
    instance, plan = prepared(shared, select__by="near_private")
    instance.run(0, len(plan))
    files = sorted(folder.glob("*.ckpt"))
    assert len(files) == EPOCHS
    for file in files:
        state = torch.load(file, weights_only=True)
        assert set(state) == {"model", "optimizer"}
        assert state["model"].keys() == instance._model.state_dict().keys()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def forge(pointer: Path, tensors: Path) -> None:
    """Let the SHA-256 be that of a file which torch cannot read."""
    tensors.write_bytes(b"")
    meta = json.loads(pointer.read_text())
    pointer.write_text(json.dumps({**meta, "sha256": hashlib.sha256(b"").hexdigest()}))


#: What happens to the file that names a state and to the file that holds it.
DAMAGES: dict[str, Callable[[Path, Path], Any]] = {
    "cut": lambda pointer, tensors: cut(tensors),
    "flipped": lambda pointer, tensors: flip(tensors),
    "lost": lambda pointer, tensors: tensors.unlink(),
    "forged": forge,
    "name cut": lambda pointer, tensors: cut(pointer),
    "name unreadable": lambda pointer, tensors: pointer.write_bytes(b"\xff\xfe"),
    "name of nothing": lambda pointer, tensors: pointer.write_text("{}"),
    "name of another kind": lambda pointer, tensors: pointer.write_text("[1]"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_computed_again_and_replaced(
    shared: Begun, folder: Path, computed: list[int], damage: str
) -> None:
    first, plan = prepared(shared)
    expected = ended(first, plan)
    name = first._distilled.address(1)
    (tensors,) = folder.glob(f"{name}-*.ckpt")
    DAMAGES[damage](folder / f"{name}.json", tensors)
    computed.clear()
    assert same(ended(*prepared(shared)), expected)
    assert computed == [1]
    assert same(ended(*prepared(shared)), expected)
    assert computed == [1]


def test_one_state_is_not_taken_for_another(
    shared: Begun, folder: Path, computed: list[int]
) -> None:
    first, plan = prepared(shared)
    expected = ended(first, plan)
    zero, one = (next(folder.glob(f"{first._distilled.address(e)}-*.ckpt")) for e in (0, 1))
    shutil.copy(zero, one)
    computed.clear()
    assert same(ended(*prepared(shared)), expected)
    assert computed == [1]


def test_a_trial_goes_on_where_nothing_can_be_kept(
    shared: Begun,
    folder: Path,
    alone: Callable[..., dict[str, Any]],
    computed: list[int],
) -> None:
    expected = alone()
    folder.write_text("in the way")
    computed.clear()
    assert same(ended(*prepared(shared)), expected)
    assert computed == list(range(EPOCHS))


def test_nothing_is_kept_of_large_networks(
    shared: Begun, folder: Path, computed: list[int]
) -> None:
    size = state_bytes(prepared(shared)[0]._model)
    for epochs, num_kept in ((MOST_BYTES // size + 1, 0), (MOST_BYTES // size, 1)):
        for _ in range(2):
            instance, _ = prepared(shared, finetune__distill_epochs=epochs)
            instance.run(0, 1)
        assert len(list(folder.glob("*.ckpt"))) == num_kept
    assert computed == [0, 0, 0]


def test_what_a_state_takes_is_known_before(shared: Begun, folder: Path) -> None:
    instance, _ = prepared(shared)
    instance.run(0, 1)
    (file,) = folder.glob("*.ckpt")
    assert state_bytes(instance._model) == pytest.approx(file.stat().st_size, rel=0.1)
    frozen = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    frozen[0].requires_grad_(False)
    assert state_bytes(frozen) == 4 * (8 + 3 * 3)


def test_nothing_is_added_to_a_full_folder(
    shared: Begun, folder: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(shared)[0].run(0, 2)
    taken = sum(file.stat().st_size for file in folder.glob("*.ckpt"))
    for limit, num_kept in ((taken, 2), (taken + 1, 3)):
        monkeypatch.setattr(distilled, "MOST_BYTES_OF_FOLDER", limit)
        computed.clear()
        prepared(shared)[0].run(0, EPOCHS)
        assert computed == [2]
        assert len(list(folder.glob("*.ckpt"))) == num_kept


@pytest.mark.parametrize("recipe", ["plain", "labels_only"])
def test_nothing_is_kept_where_nothing_is_distilled(
    shared: Begun, folder: Path, recipe: str
) -> None:
    ended(*prepared(shared, finetune__recipe=recipe))
    assert not folder.exists()


def test_nothing_is_kept_where_nothing_is_released(
    shared: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is then measured, which must be that of the work."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    prepared(replace(shared, starts=Starts(MODEL, {})))[0].run(0, 2)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.sampled(6)
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("position", range(EPOCHS + 2))
def test_a_killed_trial_ends_as_one_that_was_not(
    shared: Begun,
    folder: Path,
    alone: Callable[..., dict[str, Any]],
    computed: list[int],
    position: int,
    is_kept: bool,
) -> None:
    """Its checkpoint may be an epoch behind what is kept, and what is kept may be gone."""
    expected = alone()
    computed.clear()
    first, plan = prepared(shared)
    first.run(0, position)
    state = copy.deepcopy(first.state_dict())
    first.run(position, min(position + 1, len(plan)))
    if not is_kept:
        shutil.rmtree(folder)
    second, plan = prepared(shared, trial=8)
    second.load_state_dict(state)
    assert same(ended(second, plan, position), expected)
    if is_kept:
        assert computed == list(range(EPOCHS))


def test_scores_on_the_way_are_those_of_their_epoch(
    shared: Begun, tmp_path: Path, digits: SweepData, computed: list[int]
) -> None:
    def on_the_way(data: SweepData) -> list[Any]:
        instance, _ = prepared(data)
        found = []
        for position in range(EPOCHS):
            instance.run(position, position + 1)
            found.append([instance.evaluate("validation"), instance.state_dict()])
        return found

    expected = on_the_way(started(digits, tmp_path / "alone"))
    assert same(on_the_way(shared), expected)
    computed.clear()
    assert same(on_the_way(shared), expected)
    assert computed == []
    assert len({found[0]["loss"] for found in expected}) == EPOCHS


def test_the_hash_of_weights_is_that_of_each_and_of_what_trains() -> None:
    def network() -> nn.Sequential:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))

    networks = [network() for _ in range(4)]
    with torch.no_grad():
        networks[1][0].weight[1, 2] += 1e-3
    networks[2][1].num_batches_tracked += 1
    networks[3][0].requires_grad_(False)
    assert len(set(map(weights_hash, networks))) == 4
    assert weights_hash(network()) == weights_hash(networks[0])
