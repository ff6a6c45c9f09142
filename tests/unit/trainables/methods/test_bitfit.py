"""DP-BiTFiT: what trains in each variant and phase, its gradients, and what stays as it was."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from gradients import relative_error
from timm.models.resnet import BasicBlock, ResNet
from torch import nn
from typer.testing import CliRunner

from dpsweep.cli import app as cli
from dpsweep.foundation.errors import ModelError
from dpsweep.search_spaces import SPACES, SearchSpace, bitfit
from dpsweep.trainables.data.dataset import DatasetInfo, SweepData
from dpsweep.trainables.data.source import TextInfo
from dpsweep.trainables.data.text.ids import next_tokens
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.method import RunContext
from dpsweep.trainables.methods.bitfit.bitfit import BiTFiT
from dpsweep.trainables.networks.layers import head_layers

MakePlan = Callable[..., tuple[dict[str, Any], Any]]
CONTEXT = RunContext(study_seed=0, trial=0)
VARIANTS = next(p.choices for p in BiTFiT.hyperparameters if p.name == "bitfit.variant") or ()
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "timm/vit": lambda: timm.create_model(
        "vit_tiny_patch16_224", num_classes=3, img_size=8, patch_size=4, in_chans=1,
        embed_dim=16, depth=2, num_heads=2,
    ),
    "timm/beit": lambda: timm.create_model(
        "beit_base_patch16_224", num_classes=3, img_size=8, patch_size=4, in_chans=1,
        embed_dim=16, depth=1, num_heads=2,
    ),
    # timm's ResNet as it is: activations in place, sums in place, BatchNorm.
    "timm/resnet": lambda: ResNet(
        BasicBlock, (1, 1, 1, 1), num_classes=3, in_chans=1, channels=(4, 4, 6, 8)
    ),
    "scatter_cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU6(inplace=True),
        nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(64, 3),
    ),
    "tanh_cnn": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
    ),
    "timm/front": lambda: nn.Sequential(
        nn.Conv2d(1, 1, 1).requires_grad_(False), NETWORKS["timm/vit"]()
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dpsweep.trainables.networks.build._build", lambda name, info, *_: NETWORKS[name]()
    )


@pytest.fixture
def images(make_blobs: Callable[..., SweepData]) -> SweepData:
    return make_blobs(num_private=40, shape=(1, 8, 8))


@pytest.fixture
def start(
    make_plan: MakePlan, images: SweepData
) -> Callable[..., tuple[BiTFiT, list[torch.Tensor]]]:
    def make(variant: str, model: str = "timm/vit", **given: Any) -> Any:
        """Prepare a method whose batches are all 40 records; return it and the noise it draws."""
        norm = {"model__norm": "frozen"} if model in ("timm/resnet", "scatter_cnn") else {}
        settings = {
            "batch__sample_rate": 1.0, "train__max_steps": 6, "bitfit__full_epochs": 3.0,
            "batch__physical": 16, "lora__rank": 2, "adapter__width": 3, "optim__lr": 0.05,
        }  # fmt: skip
        given = {**settings, **norm, "bitfit__variant": variant, "model__name": model, **given}
        hparams, plan = make_plan(BiTFiT, num_private=40, epsilon=50.0, **given)
        noise: list[torch.Tensor] = []
        method = BiTFiT()
        method.noise_observer = lambda tensor: noise.append(tensor.clone())
        method.prepare(images, hparams, plan, CONTEXT)
        return method, noise

    return make


def head_of(model: nn.Module) -> str:
    """The classifier of the networks above, named by hand."""
    names = {n for n, _ in model.named_parameters()}
    return next(n for n in ("1.head", "head", "fc", "6", "3") if f"{n}.weight" in names)


def should_train(variant: str, model: nn.Module) -> set[str]:
    """The definition of a variant, by the names of its parameters."""
    found = set()
    for name, _ in model.named_parameters():
        own = name.rpartition(".")[2]
        is_added = name.rpartition(".")[0].rpartition(".")[2] in ("down", "up")
        keep = {
            "last_layer": False,
            "full": True,
            "bitfit": own == "bias",
            "bitfit_add": own == "bias",
            "lora": is_added,
            "adapter": is_added,
            "lora+bitfit": is_added or own == "bias",
            "adapter+bitfit": is_added or own == "bias",
        }[variant]
        if keep or name.startswith(f"{head_of(model)}."):
            found.add(name)
    has_front = head_of(model) == "1.head"
    return {name for name in found if not (has_front and name.startswith("0."))}


def filled(model: nn.Module) -> None:
    """Move every parameter away from where it starts; zeros would hide wrong gradients."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def loop(
    method: BiTFiT, names: set[str], data: SweepData, factor: Callable[[float], float]
) -> list[torch.Tensor]:
    """The definition: one example at a time, all that trains in one vector."""
    x, y = (torch.from_numpy(array.copy()) for array in data.parts["private"])
    model = method._model
    chosen = [p.requires_grad_(True) for n, p in model.named_parameters() if n in names]
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in chosen]
    for row in range(len(x)):
        loss = method._loss(model(x[row : row + 1]), y[row : row + 1])
        found = torch.autograd.grad(loss, chosen, allow_unused=True)
        found = [torch.zeros_like(p) if g is None else g for p, g in zip(chosen, found)]
        norm = float(torch.cat([g.flatten() for g in found]).norm())
        for total, g in zip(sums, found):
            total += g.double() * factor(norm)
    return sums


CASES = [(variant, "timm/vit", "abadi") for variant in VARIANTS if variant != "two_phase"] + [
    ("bitfit", "timm/resnet", "abadi"),
    ("bitfit_add", "timm/resnet", "abadi"),
    ("full", "timm/resnet", "abadi"),
    ("full", "scatter_cnn", "abadi"),
    ("bitfit_add", "scatter_cnn", "abadi"),
    ("bitfit_add", "tanh_cnn", "abadi"),
    ("full", "tanh_cnn", "automatic"),
    ("bitfit", "timm/front", "abadi"),
    ("bitfit", "timm/vit", "automatic"),
    ("full", "scatter_cnn", "automatic"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("variant", "model", "rule"), CASES)
def test_a_step_is_the_clipped_sum_of_what_the_variant_trains(
    start: Callable[..., Any], images: SweepData, variant: str, model: str, rule: str
) -> None:
    bound = 0.7
    options = {"clip__rule": rule, "clip__max_grad_norm": bound}
    method, noise = start(variant, model, **options)
    filled(method._model)
    found = method._gradient(0)
    names = [n for n, p in method._model.named_parameters() if p.requires_grad]
    assert set(names) == should_train(variant, method._model)
    sums = [g * 40 - drawn for g, drawn in zip(found, noise)]
    rules = {"abadi": lambda n: min(1.0, bound / n), "automatic": lambda n: bound / (n + 0.01)}
    expected = loop(method, set(names), images, rules[rule])
    assert [s.shape for s in sums] == [e.shape for e in expected]
    assert relative_error(sums, expected) < 1e-3


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("save", "variant", "task"),
    [
        ("save_encoder", "lora+bitfit", "classification"),
        ("save_gpt2", "bitfit", "causal_lm"),
        ("save_gpt2", "adapter", "causal_lm"),
    ],
)
def test_texts(make_plan: MakePlan, tmp_path: Path, save: str, variant: str, task: str) -> None:
    """Records are ids, a language model has no classifier, and its loss is of all its tokens."""
    pytest.importorskip("transformers")
    import tiny_text

    is_lm = task == "causal_lm"
    pad = 3 if is_lm else tiny_text.PAD
    vocabulary = tiny_text.VOCABULARY
    ids = torch.randint(4, vocabulary, (40, 6), generator=torch.Generator().manual_seed(0)).numpy()
    labels = next_tokens(ids, pad) if is_lm else ids.sum(axis=1) % 3
    info = DatasetInfo(
        "text", (6,), vocabulary if is_lm else 3, 40, 0, 0, 0, (), task=task,
        text=TextInfo(vocabulary, pad),
    )  # fmt: skip
    data = SweepData(info, {"private": (ids, labels)}, "0")
    name = f"text/{getattr(tiny_text, save)(tmp_path / 'network')}"
    values = {"model.name": [name], "bitfit.variant": [variant], "batch.expected": [40]}
    assert BiTFiT.preflight(values, info) == []
    hparams, plan = make_plan(
        BiTFiT, num_private=40, epsilon=50.0, model__name=name, bitfit__variant=variant,
        batch__expected=40, lora__rank=2, adapter__width=2,
    )  # fmt: skip
    noise: list[torch.Tensor] = []
    method = BiTFiT()
    method.noise_observer = lambda tensor: noise.append(tensor.clone())
    method.prepare(data, hparams, plan, CONTEXT)
    filled(method._model)
    found = method._gradient(0)
    names = {n for n, p in method._model.named_parameters() if p.requires_grad}
    wanted = ("down", "up", "classifier") if variant != "bitfit" else ()
    for full, _ in method._model.named_parameters():
        own, parts = full.rpartition(".")[2], full.split(".")
        is_bias = own == "bias" and variant != "adapter"
        assert (full in names) == (is_bias or any(part in wanted for part in parts))
    expected = loop(method, names, data, lambda norm: min(1.0, 1.0 / norm))
    assert relative_error([g * 40 - n for g, n in zip(found, noise)], expected) < 1e-3


def test_biases_are_new_where_there_were_none(start: Callable[..., Any]) -> None:
    method, _ = start("bitfit_add", "tanh_cnn")
    assert NETWORKS["tanh_cnn"]()[0].bias is None
    assert method._model[0].bias.tolist() == [0.0] * 4
    assert method._model[0].bias.requires_grad


def state(method: BiTFiT) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in method._model.state_dict().items()}


WITHOUT_ATTENTION = [v for v in VARIANTS if not v.startswith(("lora", "adapter"))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("variant", "model"),
    [(variant, "timm/vit") for variant in VARIANTS]
    + [(variant, "scatter_cnn") for variant in WITHOUT_ATTENTION],
)
def test_what_is_frozen_stays_to_the_last_bit(
    start: Callable[..., Any], variant: str, model: str
) -> None:
    """Weight decay and momentum move nothing either; the rest does move."""
    method, _ = start(variant, model, optim__weight_decay=0.1, optim__name="adam")
    before = state(method)
    if variant == "two_phase":
        method.run(0, 3)
        middle = state(method)
        still = {key for key in before if torch.equal(before[key], middle[key])}
        assert not still & {n for n, _ in method._model.named_parameters()}
        before, variant = middle, "bitfit"
        method.run(3, 6)
    else:
        method.run(0, 6)
    moved = {key for key, value in state(method).items() if not torch.equal(value, before[key])}
    assert moved == should_train(variant, method._model)


def test_epsilon_is_the_same_whatever_trains(make_plan: MakePlan) -> None:
    plans = [
        make_plan(BiTFiT, bitfit__variant=variant, clip__rule=rule)[1]
        for variant in VARIANTS
        for rule in ("abadi", "automatic")
    ]
    assert all(plan == plans[0] for plan in plans)
    assert len(plans[0]) > 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_exported_is_what_was_trained(
    start: Callable[..., Any], images: SweepData, variant: str
) -> None:
    method, _ = start(variant)
    method.run(0, 4)
    model = method.export()
    x = torch.from_numpy(images.parts["test"][0].copy())
    # Attention rounds otherwise where torch.func has switched its fused kernel off.
    torch.testing.assert_close(model(x), method._model.eval()(x), rtol=1e-5, atol=1e-6)
    assert method._model.state_dict().keys() == model.state_dict().keys()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert {type(m).__module__.partition(".")[0] for m in model.modules()} <= {"torch", "timm"}
    assert not any(parameter.requires_grad for parameter in model.parameters())


# Two phases.


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecretNoise, "like", lambda self, tensor, scale: torch.zeros_like(tensor))


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize(
    ("stop", "model"), [(2, "tanh_cnn"), (3, "tanh_cnn"), (4, "tanh_cnn"), (3, "timm/vit")]
)
def test_a_resumed_trial_is_the_uninterrupted_one(
    start: Callable[..., Any], stop: int, model: str
) -> None:
    """Also at the border of the phases, after step 3, where the optimizer changes."""
    whole, _ = start("two_phase", model, optim__name="adam")
    whole.run(0, 6)
    first, _ = start("two_phase", model, optim__name="adam")
    first.run(0, stop)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second, _ = start("two_phase", model, optim__name="adam")
    second.load_state_dict(torch.load(file, weights_only=True))
    second.run(stop, 6)
    other = state(second)
    assert all(torch.equal(value, other[key]) for key, value in state(whole).items())
    moments = [m.state_dict()["optimizer"]["state"] for m in (whole, second)]
    assert moments[0].keys() == moments[1].keys()
    for key, entry in moments[0].items():
        assert all(torch.equal(value, moments[1][key][name]) for name, value in entry.items())
        assert int(entry["step"]) == 3  # of the second phase: its optimizer is new


@pytest.mark.usefixtures("no_noise")
def test_a_finished_first_phase_goes_back_to_an_earlier_state(start: Callable[..., Any]) -> None:
    method, _ = start("two_phase", "tanh_cnn", optim__name="adam")
    method.run(0, 2)
    early = copy.deepcopy(method.state_dict())
    method.run(2, 6)
    done = state(method)
    method.load_state_dict(early)
    method.run(2, 6)
    again = state(method)
    assert all(torch.equal(value, again[key]) for key, value in done.items())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [0.005, 0.005, 0.005, 0.05, 0.05, 0.05]),
        ({"bitfit__full_lr": 0.3}, [0.3, 0.3, 0.3, 0.05, 0.05, 0.05]),
        ({"optim__schedule": "cosine"}, [0.005, 0.005, 0.005, 0.05, 0.0375, 0.0125]),
        ({"bitfit__full_epochs": 0.1}, [0.005, 0.05, 0.05, 0.05, 0.05, 0.05]),
        ({"bitfit__full_epochs": 9.0}, [0.005] * 6),
        ({"bitfit__variant": "full"}, [0.05] * 6),
    ],
)
def test_learning_rates_of_both_phases(
    start: Callable[..., Any], given: dict[str, Any], expected: list[float]
) -> None:
    method, _ = start(given.pop("bitfit__variant", "two_phase"), "tanh_cnn", **given)
    used, trained = [], []
    step = method._optimizer.__class__.step

    def noted(optimizer: torch.optim.Optimizer, *args: Any) -> None:
        used.append(optimizer.param_groups[0]["lr"])
        trained.append(sum(p.numel() for group in optimizer.param_groups for p in group["params"]))
        step(optimizer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method._optimizer.__class__, "step", noted)
        method.run(0, 6)
    assert used == pytest.approx(expected)
    border = expected.count(expected[0]) if used[0] != used[-1] else 6
    assert len(set(trained)) == (1 if border == 6 else 2)
    assert trained == sorted(trained, reverse=True)
    assert trained.count(trained[0]) == border


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("holds", [False, True])
def test_the_head_is_held_in_the_second_phase_if_asked(
    start: Callable[..., Any], holds: bool
) -> None:
    """As in appendix E.3 of the paper; by default the head goes on."""
    given = {"bitfit__head_in_second_phase": False} if holds else {}
    method, _ = start("two_phase", "timm/vit", optim__name="adam", **given)
    head = head_layers(method._model)
    early = copy.deepcopy(state(method))
    method.run(0, 3)
    middle = copy.deepcopy(state(method))
    method.run(3, 6)
    late = state(method)
    for name, value in middle.items():
        assert not torch.equal(value, early[name]), name  # everything trained
        is_head, is_bias = name.rpartition(".")[0] in head, name.endswith("bias")
        trains = not holds if is_head else is_bias
        assert torch.equal(value, late[name]) != trains, name


# What the platform asks before anything starts.


def info_of(shape: tuple[int, ...] = (1, 8, 8)) -> DatasetInfo:
    return DatasetInfo("x", shape, 3, 1000, 0, 0, 0, tuple("abc"))


TWO = {"bitfit.variant": ["two_phase"], "bitfit.full_epochs": [2.0, 3.0]}
HELD = {"bitfit.head_in_second_phase": [False], "train.epochs": [3]}
ATTENTION = "lora, adapter cannot train tanh_cnn: this network has no linear layer in an attention"


@pytest.mark.parametrize(
    ("values", "where", "said"),
    [
        ({"model.name": ["timm/vit"], "bitfit.variant": VARIANTS}, [], ""),
        (
            {"model.name": ["tanh_cnn"], "bitfit.variant": ["bitfit", "lora", "adapter"]},
            ["bitfit.variant"],
            ATTENTION,
        ),
        (
            {"model.name": ["timm/beit"], "bitfit.variant": ["bitfit", "full", "lora"]},
            ["bitfit.variant"] * 2,
            "lora cannot train timm/beit: an attention reads the weights",
        ),
        ({"model.name": ["timm/resnet"]}, ["model.norm"], "BatchNorm"),
        ({"model.name": ["timm/resnet"], "model.norm": ["frozen"]}, [], ""),
        ({"model.name": ["tanh_cnn"], **TWO, "train.epochs": [1, 3]}, [], ""),
        ({"model.name": ["tanh_cnn"], **TWO, "train.epochs": [1, 2]}, ["bitfit.full_epochs"],
         "2 leaves two_phase no second phase: train.epochs is 2"),
        ({"model.name": ["tanh_cnn"], **TWO, "train.epochs": [1, 2], "train.max_steps": [9]}, [],
         ""),
        ({"batch.expected": [1001], "model.name": ["tanh_cnn"]}, ["batch.expected"], "1001"),
        ({"model.name": ["tanh_cnn"], **HELD}, ["bitfit.head_in_second_phase"], "no meaning"),
        ({"model.name": ["tanh_cnn"], **HELD, "bitfit.variant": ["two_phase"]},
         ["bitfit.variant"], "no bias besides its classifier"),
        ({"model.name": ["timm/vit"], **HELD, "bitfit.variant": ["two_phase"]}, [], ""),
    ],
)  # fmt: skip
def test_preflight(values: Mapping[str, Any], where: list[str], said: str) -> None:
    problems = BiTFiT.preflight(values, info_of())
    assert [name for name, _, _ in problems] == where
    assert said in " ".join(what for _, what, _ in problems)
    assert all(what and "\n" not in what and fix for _, what, fix in problems)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"model.name": ["timm/vit"], "bitfit.variant": VARIANTS}, True),
        ({"model.name": ["timm/vit"], "model.checkpoint": ["pretrain", None]}, True),
        ({"model.name": ["timm/vit"], "model.checkpoint": ["pretrain"]}, False),
        ({"model.name": ["timm/vit"], "bitfit.variant": ["full", "two_phase"]}, False),
        ({"model.name": ["text//encoder"]}, False),  # the directory has the weights
        ({"model.name": ["linear"]}, False),  # nothing but a classifier
    ],
)
def test_frozen_random_weights_are_noted(values: Mapping[str, Any], named: bool) -> None:
    notes = BiTFiT.notes(values)
    assert len(notes) == named
    for note in notes:
        frozen = note.partition("bitfit.variant: ")[2].partition(" never")[0].split(", ")
        given = values.get("bitfit.variant", ["bitfit"])
        assert frozen == [variant for variant in given if variant not in ("full", "two_phase")]


def test_layers_without_a_rule_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a rule for its bias, and one whose rows are no examples."""

    class Star(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.bias

    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.reshape(-1, 4)).reshape(len(x), -1)

    for layer, said in (
        (nn.Sequential(nn.Flatten(), Star()), "no rule for parameter 0.1.bias"),
        (Windows(), "layer 0.inner has no gradient per example (its output has 48 rows"),
    ):
        table = {"tanh_cnn": lambda layer=layer: nn.Sequential(layer, nn.Linear(64, 3))}
        monkeypatch.setitem(NETWORKS, "tanh_cnn", table["tanh_cnn"])
        ((name, what, _),) = BiTFiT.preflight({"model.name": ["tanh_cnn"]}, info_of())
        assert name == "bitfit.variant"
        assert what.startswith("bitfit cannot train tanh_cnn: ")
        assert said in what


def test_a_network_without_a_known_classifier_is_refused() -> None:
    from dpsweep.trainables.methods.bitfit.phases import chosen_names

    with pytest.raises(ModelError, match="does not say which layers are its classifier"):
        chosen_names(nn.ModuleDict({"fc": nn.Linear(2, 2)}), "bitfit", [])


def test_describe_says_what_the_paper_says() -> None:
    """Table E.1's ResNet50 leaves the classifier out."""
    done = CliRunner().invoke(cli.app, ["describe", "bitfit", "--model", "resnet50", "--json"])
    found = json.loads(done.stdout)
    assert round(found["bias_percent"], 4) == 0.1078
    assert round(found["bias_percent_no_head"], 4) == 0.1130
    # The classifier has 2048 x 1000 weights besides its biases.
    assert found["num_trainable"] == found["num_bias"] + 2_048_000


@pytest.mark.parametrize("dataset", ["digits", "fashion_mnist", "npz", "image_folder"])
def test_recommended_spaces_suit_the_method(dataset: str) -> None:
    given = SPACES["bitfit"].spaces[dataset]
    assert given.keys() <= bitfit.WHY.keys()
    space = SearchSpace.from_spec(given)
    assert list(space.check({"bitfit": BiTFiT.hyperparameters})) == []
    assert set(space.values()["bitfit.variant"]) <= set(WITHOUT_ATTENTION)
