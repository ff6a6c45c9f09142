"""Sparse finetuning: what trains, how fast, its exact gradients, and that all else keeps its bits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from blobs import blobs
from gradients import relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpsweep.foundation.errors import ModelError
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.gradients.linear_head import LinearHeadEngine
from dpsweep.trainables.gradients.per_example import OpacusEngine
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.sparse.choice import choose_parameters
from dpsweep.trainables.methods.sparse.sparse import SparseFinetuning
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.layers import layer_kinds, set_training_mode

TRAINS = ("cls", "cls+norm", "cls+conv", "all", "full", "scratch")
LITE0 = {"model.name": "timm/tf_efficientnet_lite0", "model.norm": "frozen"}
RESNET = {"model.name": "timm/resnet10t", "model.norm": "group"}
CONTEXT = RunContext(study_seed=0, trial=0)


def images(shape: tuple[int, ...], num_private: int = 40) -> SweepData:
    return blobs(num_private, shape, 4, num_validation=20, num_test=0)


def prepared(data: SweepData, context: RunContext = CONTEXT, **given: Any) -> Any:
    named = {key.replace("__", "."): value for key, value in given.items()}
    hparams = resolve(
        SparseFinetuning.hyperparameters,
        {"batch.expected": 10, "train.max_steps": 2, "optim.lr": 0.5, **named},
    )
    plan_context = PlanContext(PrivacyBudget(3.0, 1e-5), "rdp", data.info.num_private)
    plan = SparseFinetuning.plan(hparams, plan_context)
    method = SparseFinetuning()
    method.prepare(data, hparams, plan, context)
    return method


def shake(model: nn.Module) -> None:
    """Give norms random weights and usual statistics, so that all layers have gradients."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)


def learn_statistics(model: nn.Module, x: torch.Tensor) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for module in norms:
        module.train()
        module.momentum = 1.0
    with torch.no_grad():
        model(x)
    for module in norms:
        module.eval()


def slow_sum(
    method: Any, x: torch.Tensor, y: torch.Tensor, bound: float, rule: str = "abadi"
) -> tuple[list[torch.Tensor], list[float]]:
    """The definition: one example at a time, the whole gradient, then what trains of it."""
    model = copy.deepcopy(method._model)
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        module._forward_pre_hooks_with_kwargs.clear()
    masked = [model.get_submodule(mask.name).weight for mask in method._choice.masks]
    whole = [p for p in model.parameters() if p.requires_grad]
    for weight in masked:
        weight.requires_grad_(True)
    sums: list[torch.Tensor] = []
    norms = []
    for row in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        found = torch.autograd.grad(loss, masked + whole)
        gradients = [g.flatten()[m.index].double() for g, m in zip(found, method._choice.masks)]
        gradients += [g.double() for g in found[len(masked) :]]
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        norms.append(norm)
        factor = min(1.0, bound / norm) if rule == "abadi" else bound / (norm + 0.01)
        sums = sums or [torch.zeros_like(g) for g in gradients]
        for total, gradient in zip(sums, gradients):
            total += gradient * factor
    return sums, norms


# What trains.


def test_parts_are_those_of_the_paper() -> None:
    model = build_model(LITE0["model.name"], images((3, 32, 32)).info, norm="frozen", seed=0)
    convs = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d))
    norms = {
        f"{path}.{name}"
        for path, kind in layer_kinds(model).items()
        if kind == "norm"
        for name, _ in model.get_submodule(path).named_parameters(recurse=False)
    }
    assert len(norms) > 20
    head = {name for name, _ in model.named_parameters() if name.startswith(("fc.", "classifier."))}
    expected = {
        "cls": (0, head),
        "cls+norm": (0, head | norms),
        "cls+conv": (round(0.01 * convs), head),
        "all": (round(0.01 * convs), head | norms),
    }
    for train, (masked, names) in expected.items():
        network = copy.deepcopy(model)
        masks = choose_parameters(network, train, 0.01, "global")
        assert sum(mask.nnz for mask in masks) == masked, train
        whole = {name for name, p in network.named_parameters() if p.requires_grad}
        assert whole == names, train
    assert choose_parameters(model, "full", 0.01, "global") == []
    assert all(parameter.requires_grad for parameter in model.parameters())


class _Odd(nn.Module):
    """A front that is frozen, a conv with bias, a linear layer within, a conv as the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv2d(1, 3, 1).requires_grad_(False)
        self.conv = nn.Conv2d(3, 4, 3)
        self.mix = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.head = nn.Conv2d(4, 4, 6)

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.mix(torch.tanh(self.conv(self.front(x)))))
        return self.head(x * self.scale).flatten(1)


def test_fronts_biases_and_other_layers_are_no_candidates() -> None:
    torch.manual_seed(0)
    model = _Odd()
    with torch.no_grad():
        model.front.weight.fill_(99.0)  # the largest of all, if it were asked
        model.head.weight.fill_(50.0)
    masks = choose_parameters(model, "all", 0.25, "global")
    assert [(mask.name, mask.nnz) for mask in masks] == [("conv", 27)]
    trains = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trains == {"head.weight", "head.bias"}
    model = _Odd()
    assert choose_parameters(model, "full", 0.25, "global") == []
    rest = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert rest == {"front.weight", "front.bias"}


@given(density=st.floats(1e-6, 1.0), scope=st.sampled_from(["global", "layer"]))
@settings(max_examples=60, deadline=None)
def test_any_density_chooses_its_share_or_says_that_it_chooses_none(
    density: float, scope: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    sizes = [36, 288]
    counts = [round(density * 324)] if scope == "global" else [round(density * n) for n in sizes]
    if not any(counts):
        with pytest.raises(ModelError, match="density") as caught:
            choose_parameters(model, "all", density, scope)
        least = float(str(caught.value.fix).split()[-1])
        assert least > density
        assert choose_parameters(model.requires_grad_(True), "all", least, scope)
        return
    masks = choose_parameters(model, "all", density, scope)
    assert sum(mask.nnz for mask in masks) == sum(counts)
    assert not model[0].weight.requires_grad
    assert not model[1].weight.requires_grad


# Gradients.


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("network", "train", "rule"),
    [
        *((RESNET, train, "abadi") for train in TRAINS if train != "scratch"),
        *((LITE0, train, "abadi") for train in TRAINS if train != "full"),  # the same engine
        (RESNET, "all", "automatic"),
    ],
)
def test_gradients_agree_with_a_loop_over_examples(
    network: dict[str, str], train: str, rule: str
) -> None:
    data = images((3, 32, 32), num_private=20)
    given = {**network, "sparse.train": train, "sparse.density": 0.01, "clip.rule": rule}
    # In chunks of one: random weights amplify the rounding of larger ones.
    method = prepared(data, **given, **{"batch.physical": 1})
    shake(method._model)
    learn_statistics(method._model, torch.randn(8, 3, 32, 32))
    x, y = (torch.from_numpy(part[:3]) for part in data.parts["private"])
    _, norms = slow_sum(method, x, y, 1.0)
    bound = float(np.median(norms))  # some examples are clipped, some are not
    expected, _ = slow_sum(method, x, y, bound, rule)
    actual = method._engine.clipped_gradient_sum(x, y, np.arange(3), bound)
    assert [a.shape for a in actual] == [p.shape for p in method._parameters]
    assert [a.shape for a in actual] == [e.shape for e in expected]
    assert relative_error(actual, expected) < 1e-5
    assert len(method.gradient_layers()) == len(actual)


def test_a_linear_network_keeps_its_closed_form() -> None:
    data = images((3, 8, 8))
    assert isinstance(prepared(data, sparse__train="cls")._engine, LinearHeadEngine)


# Training.


@pytest.mark.sampled(3)
@pytest.mark.parametrize("train", ["cls", "all", "full"])
def test_what_does_not_train_keeps_its_bits(train: str) -> None:
    method = prepared(images((3, 32, 32)), **LITE0, sparse__train=train, sparse__density=0.001)
    before = {key: value.clone() for key, value in method._model.state_dict().items()}
    method.run(0, 2)
    masks = {f"{mask.name}.weight": mask.index for mask in method._choice.masks}
    whole = {name for name, p in method._model.named_parameters() if p.requires_grad}
    moved = 0
    for key, now in method._model.state_dict().items():
        changed = (now != before[key]).flatten()
        if key in masks:
            assert changed[masks[key]].any(), key
            changed[masks[key]] = False
        elif key in whole:
            assert changed.any(), key
            changed[:] = False
        assert not changed.any(), key
        moved += key in masks or key in whole
    assert moved == len(method._parameters)
    assert any("running_mean" in key for key in before)
    exported = method.export().state_dict()
    assert all(torch.equal(exported[k], v) for k, v in method._model.state_dict().items())


def test_body_and_classifier_have_learning_rates_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {**LITE0, "optim.lr": 0.5, "sparse.body_lr": 0.01, "optim.momentum": 0.0}
    method = prepared(images((3, 32, 32)), **given, **{"optim.schedule": "cosine"})
    kinds = dict(zip(map(id, method._parameters), method._choice.kinds()))
    gradients = [torch.ones_like(parameter) for parameter in method._parameters]
    monkeypatch.setattr(method, "_gradient", lambda step: [g.clone() for g in gradients])
    for rate in (1.0, 0.5):  # the cosine of two steps
        before = [parameter.detach().clone() for parameter in method._parameters]
        method.run(method._position, method._position + 1)
        for parameter, old in zip(method._parameters, before):
            peak = 0.5 if kinds[id(parameter)] == "cls" else 0.01
            moved = (old - parameter.detach()).flatten()
            torch.testing.assert_close(
                moved, torch.full_like(moved, rate * peak), atol=1e-5, rtol=1e-4
            )
    assert {"cls", "norm", "conv"} <= set(kinds.values())
    mask = method._choice.masks[0]
    assert torch.equal(mask.layer.weight.flatten()[mask.index], method._choice.values.parameters[0])


def test_without_a_rate_for_the_body_there_is_one_group() -> None:
    method = prepared(images((3, 32, 32)), **LITE0)
    assert len(method._optimizer.param_groups) == 1
    only_head = prepared(images((3, 32, 32)), **LITE0, sparse__train="cls", sparse__body_lr=0.1)
    assert len(only_head._optimizer.param_groups) == 1


def test_epsilon_depends_on_nothing_that_is_sparse() -> None:
    context = PlanContext(PrivacyBudget(2.0, 1e-5), "rdp", 500)
    names = [p for p in SparseFinetuning.hyperparameters if p.name.startswith("sparse.")]
    assert {p.name for p in names} == {
        "sparse.train", "sparse.density", "sparse.scope", "sparse.body_lr",
    }  # fmt: skip
    assert not any(parameter.changes_privacy for parameter in names)
    plans = [
        SparseFinetuning.plan(
            resolve(SparseFinetuning.hyperparameters, {"sparse.train": t, "sparse.density": d}),
            context,
        )
        for t in TRAINS
        for d in (1e-4, 0.01, 1.0)
    ]
    assert all(plan == plans[0] for plan in plans)


def test_scratch_ignores_the_checkpoint(tmp_path: Any) -> None:
    data = images((1, 8, 8))
    model = build_model("tanh_cnn", data.info, seed=99)
    path = tmp_path / "weights.pt"
    torch.save(model.state_dict(), path)
    given = {"model.name": "tanh_cnn", "model.checkpoint": str(path)}
    first = {
        train: prepared(data, **given, sparse__train=train)._model[1].weight.detach()
        for train in ("full", "scratch")
    }
    assert torch.equal(first["full"], model[1].weight)
    random = prepared(data, model__name="tanh_cnn", sparse__train="full")._model[1].weight
    assert torch.equal(first["scratch"], random)


def test_frozen_random_weights_are_noted() -> None:
    values = {"model.name": ["tanh_cnn"], "sparse.train": ["cls", "scratch", "full"]}
    (note,) = SparseFinetuning.notes(values)
    assert "sparse.train: cls never trains are random" in note
    assert SparseFinetuning.notes({**values, "model.checkpoint": ["published"]}) == []
    assert SparseFinetuning.notes({**values, "sparse.train": ["full", "scratch"]}) == []


# State.


@pytest.mark.parametrize("seed", [0, 5], ids=["same weights", "other weights"])
def test_a_restored_trial_goes_on_with_its_first_choice(seed: int) -> None:
    data = images((3, 8, 8))
    given = {"model.name": "tanh_cnn_deep", "sparse.train": "all", "sparse.density": 0.002}
    method = prepared(data, **given)
    method.run(0, 1)
    state = copy.deepcopy(method.state_dict())
    other = prepared(data, RunContext(seed, 0), **given)
    own = {mask.name: mask.index for mask in other._choice.masks}
    other.load_state_dict(state)
    now = {mask.name: mask.index for mask in other._choice.masks}
    first = {mask.name: mask.index for mask in method._choice.masks}
    assert now.keys() == first.keys()
    assert all(torch.equal(now[name], first[name]) for name in first)
    is_same = own.keys() == first.keys() and all(torch.equal(own[n], first[n]) for n in first)
    assert is_same == (seed == 0)
    for a, b in zip(other._parameters, method._parameters):
        assert torch.equal(a, b)
        assert torch.equal(
            other._optimizer.state[a]["momentum_buffer"],
            method._optimizer.state[b]["momentum_buffer"],
        )
    assert other.evaluate("validation") == method.evaluate("validation")
    before = copy.deepcopy(other._model.state_dict())
    other.run(1, 2)
    for name, index in first.items():
        changed = (
            other._model.state_dict()[f"{name}.weight"] != before[f"{name}.weight"]
        ).flatten()
        assert changed.any()
        changed[index] = False
        assert not changed.any()


# Preflight.


@pytest.mark.parametrize(
    ("values", "shape", "where", "words"),
    [
        ({"model.name": ["linear"], "sparse.train": ["cls"]}, (8,), [], ""),
        ({"model.name": ["linear"], "sparse.train": ["full"]}, (8,), [], ""),
        ({"model.name": ["linear"]}, (8,), ["sparse.train"], "no convolution weights"),
        (
            {"model.name": ["linear", "tanh_cnn"], "sparse.train": ["cls", "cls+conv"]},
            (1, 8, 8),
            ["sparse.train"],
            "cls+conv of linear",
        ),
        ({"model.name": ["tanh_cnn"], "sparse.density": [1e-3, 0.1]}, (1, 8, 8), [], ""),
        (
            {"model.name": ["tanh_cnn"], "sparse.density": [1e-5, 0.1]},
            (1, 8, 8),
            ["sparse.density"],
            "none of 9216 weights",
        ),
        (
            {"model.name": ["tanh_cnn"], "sparse.density": [1e-5], "sparse.train": ["cls", "full"]},
            (1, 8, 8),
            [],
            "",
        ),
        ({**{k: [v] for k, v in RESNET.items()}, "sparse.train": ["all"]}, (3, 32, 32), [], ""),
        ({"model.name": ["timm/resnet10t"]}, (3, 32, 32), ["model.norm"], "BatchNorm"),
    ],
)
def test_preflight(
    values: dict[str, list[Any]], shape: tuple[int, ...], where: list[str], words: str
) -> None:
    info = DatasetInfo("x", shape, 10, 1000, 0, 0, 0, tuple("abcdefghij"))
    problems = SparseFinetuning.preflight(values, info)
    assert [name for name, _, _ in problems] == where, problems
    assert all(what and fix for _, what, fix in problems)
    assert words in "".join(what for _, what, _ in problems)


def test_a_convolution_that_does_more_trains_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weight standardisation: the gradient by the weight is not that of the convolution."""
    from timm.layers import StdConv2d

    from dpsweep.trainables.methods.sparse import choice
    from dpsweep.trainables.networks import build as models

    def network(*_: Any, **__: Any) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(StdConv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(256, 4))

    data = images((1, 8, 8))
    for module in (models, choice):
        monkeypatch.setattr(module, "build_model", network)
    values: dict[str, list[Any]] = {"model.name": ["tanh_cnn"], "sparse.density": [0.5]}
    values["batch.expected"] = [20]
    ((key, what, _),) = SparseFinetuning.preflight(values, data.info)
    assert key == "sparse.train"
    assert "StdConv2d" in what
    assert (
        SparseFinetuning.preflight({**values, "sparse.train": ["cls+norm", "full"]}, data.info)
        == []
    )
    method = prepared(data, model__name="tanh_cnn", sparse__train="full")
    x, y = (torch.from_numpy(part[:5]) for part in data.parts["private"])
    expected, _ = slow_sum(method, x, y, 0.5)
    actual = method._engine.clipped_gradient_sum(x, y, np.arange(5), 0.5)
    assert relative_error(actual, expected) < 1e-5


# BatchNorm with frozen statistics under the engine of whole networks.


def unfrozen_sum(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float
) -> tuple[list[torch.Tensor], list[float]]:
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    norms = []
    for row in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        gradients = [g.double() for g in torch.autograd.grad(loss, parameters)]
        norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        for total, gradient in zip(sums, gradients):
            total += gradient * min(1.0, bound / norms[-1])
    return sums, norms


def assert_whole_agrees(model: nn.Module, x: torch.Tensor, physical: int) -> None:
    y = torch.arange(len(x)) % 4
    bound = float(np.median(unfrozen_sum(model, x, y, 1.0)[1]))
    expected, _ = unfrozen_sum(model, x, y, bound)
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    engine = OpacusEngine(model, physical)
    actual = engine.clipped_gradient_sum(x, y, np.arange(len(x)), bound)
    assert relative_error(actual, expected) < 1e-5
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())


@pytest.mark.slow
def test_opacus_engine_trains_batch_norm_of_a_whole_efficientnet() -> None:
    model = build_model(LITE0["model.name"], images((3, 32, 32)).info, norm="frozen", seed=0)
    shake(model)
    learn_statistics(model, torch.randn(8, 3, 32, 32))
    assert_whole_agrees(model.requires_grad_(True), torch.randn(2, 3, 32, 32), physical=1)


@given(act=st.sampled_from(["relu", "silu", "tanh"]), inplace=st.booleans())
@settings(max_examples=6, deadline=None)
def test_opacus_engine_trains_batch_norm_and_what_it_activates(act: str, inplace: bool) -> None:
    from timm.layers import BatchNormAct2d

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        BatchNormAct2d(6, act_layer=act, inplace=inplace),
        nn.Conv2d(6, 6, 3),
        nn.BatchNorm2d(6),
        nn.Flatten(),
        nn.Linear(96, 5),
        nn.BatchNorm1d(5),
        nn.Linear(5, 4),
    )
    shake(model)
    with torch.no_grad():
        for norm in (model[1], model[3], model[6]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    set_training_mode(model)
    assert_whole_agrees(model, torch.randn(7, 3, 8, 8), physical=3)


def test_opacus_engine_refuses_dropout_within_batch_norm() -> None:
    from timm.layers import BatchNormAct2d

    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), BatchNormAct2d(6, drop_layer=nn.Dropout), nn.Flatten(), nn.Linear(6, 2)
    )
    with pytest.raises(ModelError, match="drops out"):
        OpacusEngine(model, 4)
