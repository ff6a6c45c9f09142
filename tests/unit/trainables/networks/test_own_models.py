"""Networks of the user's own: imported, called, checked, trained, and handed on without them."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from selections import select_spec
from whole_studies import make_spec

from dpsweep.auditing.subject import Subject
from dpsweep.cli.verbs.reproduce import reproduce
from dpsweep.foundation.errors import ChangedCodeError, ModelError, ResourceError, StudyError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.preflight import preflight
from dpsweep.running.nodes import own_code
from dpsweep.running.nodes.cluster import LaunchCluster
from dpsweep.spec.study import SweepSpec
from dpsweep.study.events import TrialStarted
from dpsweep.study.files import StudyFiles
from dpsweep.study.launched import enforced_terms
from dpsweep.study.study import Study
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.execution.finished.trials import export_model
from dpsweep.trainables.methods.bitfit.bitfit import BiTFiT
from dpsweep.trainables.methods.classifier import ClassifierMethod
from dpsweep.trainables.methods.dp_sgd import DPSGD
from dpsweep.trainables.methods.non_private import NonPrivate
from dpsweep.trainables.methods.sparse.sparse import SparseFinetuning
from dpsweep.trainables.networks import own_models
from dpsweep.trainables.networks.build import build_model
from dpsweep.trainables.networks.parameter_table import parameter_table

SOURCE = '''
import threading

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """Convolution and norms; does not say which layer is its classifier."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        channels, height, width = input_shape
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.group = nn.GroupNorm(2, 4)
        self.norm = nn.LayerNorm(4 * height * width)
        self.fc = nn.Linear(4 * height * width, num_classes)

    def forward(self, x):
        return self.fc(self.norm(F.relu(self.group(self.conv(x))).flatten(1)))


class Headed(Net):
    def get_classifier(self):
        return self.fc


class Scale(nn.Module):
    """A layer that no library has a rule for."""

    def __init__(self, size):
        super().__init__()
        self.factor = nn.Parameter(torch.full((size,), 0.5))

    def forward(self, x):
        return torch.tanh(x * self.factor)


class Tokens(nn.Module):
    """Takes what it reads for ids."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.ids = nn.Embedding(2, 8)
        self.mix = nn.Linear(8 * torch.Size(input_shape).numel(), 16)
        self.scale = Scale(16)
        self.out = nn.Linear(16, num_classes)

    def forward(self, x):
        return self.out(self.scale(self.mix(self.ids((x.flatten(1) > 0).long()).flatten(1))))


def batch_norm(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, num_classes))


def three(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def nothing(input_shape, num_classes):
    return None


def positional(shape):
    return None


number = 3


class Dropping(Net):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5)


class Mixing(Net):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Undefined(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        with torch.no_grad():
            self.fc.weight[0, 0] = float("nan")


class Dividing(Net):
    def forward(self, x):
        return super().forward(x) / 0 * 0


class Growing(Net):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Unused(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.more = nn.Linear(2, 2)


class Windowed(Net):
    """Its first layer sees two rows for each example."""

    def forward(self, x):
        half = self.conv(x.reshape(2 * x.shape[0], 1, 4, 8)).reshape(x.shape[0], 4, 8, 8)
        return self.fc(self.norm(self.group(half).flatten(1)))


class Frozen(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.requires_grad_(False)


class Writing(Net):
    def forward(self, x):
        with torch.no_grad():
            self.fc.bias += 1
        return super().forward(x)


class Broken(Net):
    def forward(self, x):
        return self.head(x)


class Whimsical(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.fc.bias.data += float(np.random.rand())


class Hidden(Net):
    """Half of what it does is in no state."""

    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.factor = float(np.random.rand())

    def forward(self, x):
        return self.factor * super().forward(x)


class Named(Net):
    def get_classifier(self):
        return "fc"


class Branching(Net):
    def forward(self, x):
        return super().forward(x) if len(x) < 3 or float(x[0].sum()) < 1e9 else None


def old_weight_norm(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, num_classes)))


class Locked(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.lock = threading.Lock()


class Spectral(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        nn.utils.parametrizations.spectral_norm(self.fc)


class Late(Net):
    def forward(self, x):
        self.register_buffer("last", x.detach().mean())
        return super().forward(x)


class Doubled(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.fc.double()

    def forward(self, x):
        return self.fc(self.norm(F.relu(self.group(self.conv(x))).flatten(1)).double()).float()

    def get_classifier(self):
        return self.fc


class Steps(nn.Module):
    """Layers of several inputs, by name, without a bias, and a parameter of a single number."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.cell = nn.GRUCell(8, 6)
        self.pair = nn.Bilinear(6, 6, 5)
        self.norm = nn.LayerNorm(5, bias=False)
        self.factor = nn.Parameter(torch.tensor(1.5))
        self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(5, num_classes))

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 6)
        for step in range(8):
            state = self.cell(x[:, 0, step], hx=state)
        return self.factor * self.fc(input=self.norm(self.pair(state, state)))


class PanicException(BaseException):
    pass


class Exiting(nn.Module):
    """Ends the program at its first call, or at the one that ``after`` says."""

    after = 0

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > self.after:
            self.end()
        return self.linear(x.flatten(1))

    def end(self):
        raise SystemExit(0)


class Panicking(Exiting):
    def end(self):
        raise PanicException("at 5")


_one = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def same(input_shape, num_classes):
    return _one
'''
INFO = DatasetInfo("x", (1, 8, 8), 10, 100, 0, 0, 0, tuple("abcdefghij"))


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of networks in the directory where dpsweep is started."""
    (tmp_path / "own_nets.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_models, "_places", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "own_nets.py"
    sys.modules.pop("own_nets", None)


def problems(
    method: type[ClassifierMethod], function: str, **values: Sequence[object]
) -> list[tuple[str, str, str]]:
    given = {key.replace("__", "."): list(value) for key, value in values.items()}
    space = {"model.name": [f"own_nets:{function}"], "batch.expected": [10], **given}
    return method.preflight(space, INFO)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("function", "key", "words"),
    [
        ("Nett", "model.name", ("has no 'Nett'", "did you mean 'Net'?")),
        ("number", "model.name", ("is no function, but a int",)),
        ("positional", "model.name", ("input_shape=(1, 8, 8), num_classes=10) raised TypeError",)),
        ("nothing", "model.name", ("returned a NoneType", "torch.nn.Module")),
        ("three", "model.name", ("one logit per class: (2, 3) for 2 records, not (2, 10)",)),
        ("Broken", "model.name", ("fails on 1x8x8 records", "has no attribute 'head'")),
        (
            "Exiting",
            "model.name",
            ("ends the program when it is run (SystemExit at own_nets.py:", "let"),
        ),
        (
            "Panicking",
            "model.name",
            ("fails when it is run (PanicException at own_nets.py:", "correct"),
        ),
        ("batch_norm", "model.norm", ("has BatchNorm: layer 1", "group")),
        ("Dropping", "model.name", ("draws random numbers", "bernoulli")),
        ("Mixing", "model.name", ("mixes the examples of a batch",)),
        ("Undefined", "model.name", ("weights that are NaN or infinite: fc.weight",)),
        ("Dividing", "model.name", ("returns NaN for random records", "division")),
        ("Writing", "model.name", ("changes its own weights when it is run",)),
        ("Frozen", "model.name", ("has nothing to train",)),
        ("Unused", "model.name", ("does not use its parameter more.weight", "remove it")),
        ("Windowed", "model.name", ("has no gradient per example",)),
        ("same", "model.name", ("weights that it had returned before", "at each call")),
        ("Whimsical", "model.name", ("other weights at each call", "torch's own generator")),
        ("Hidden", "model.name", ("other outputs from the same weights", "buffer")),
        ("Growing", "model.name", ("mixes the examples of a batch",)),
        ("Spectral", "model.name", ("changes at each call: buffer fc.parametrizations.weight",)),
        ("Late", "model.name", ("changes at each call: buffer last",)),
        ("Locked", "model.name", ("cannot be copied: cannot pickle", "copy.deepcopy refuses")),
        ("Doubled", "model.name", ("parameter fc.weight is float64", "in float32")),
        ("Named", "model.name", ("get_classifier()", "returns no layer")),
        ("Branching", "model.name", ("cannot be exported for any number of records", "shapes")),
    ],
)
def test_what_cannot_be_trained_privately_is_said_in_one_line(
    function: str, key: str, words: tuple[str, ...]
) -> None:
    (problem,) = problems(DPSGD, function)
    assert problem[0] == key
    line = f"{problem[1]} ({problem[2]})"
    assert "\n" not in line
    for word in words:
        assert word in line, line


@pytest.mark.usefixtures("nets")
def test_a_module_that_is_not_there() -> None:
    space = {"model.name": ["own_nest.deep:Net"], "batch.expected": [10]}
    ((_, what, fix),) = DPSGD.preflight(space, INFO)
    assert "cannot import own_nest.deep (ModuleNotFoundError" in what
    assert str(Path.cwd()) in fix


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("import not_there_at_all\n", "install not_there_at_all, or correct the import"),
        ("def net(:\n", "correct own_wrong"),
        ("raise SystemExit(0)\n", "it may not end the program: put what it runs under `if"),
    ],
)
def test_a_module_that_is_wrong_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fix: str
) -> None:
    (tmp_path / "own_wrong.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    ((_, what, told),) = DPSGD.preflight(
        {"model.name": ["own_wrong:net"], "batch.expected": [10]}, INFO
    )
    assert "cannot import own_wrong" in what
    assert told.startswith(fix)


def test_a_function_that_ends_the_program_is_told_and_what_it_prints_is_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_script.py").write_text(
        "import argparse\nimport sys\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--lr', default=0.1)\n"
        "print('lr', parser.parse_args().lr)\n"
        "def net(input_shape, num_classes):\n    print('building')\n    sys.exit(0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dpsweep", "plan", "spec.yaml", "-f", "json"])
    space = {"model.name": ["own_script:net"], "batch.expected": [10]}
    ((_, what, fix),) = DPSGD.preflight(space, INFO)
    assert "raised SystemExit: 0" in what
    assert "may not end the program" in fix
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lr 0.1\nbuilding\n")


def test_a_file_in_the_place_of_its_module_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_file.py").write_text("")
    monkeypatch.chdir(tmp_path)
    space = {"model.name": ["own_file.py:net"], "batch.expected": [10]}
    ((_, _, fix),) = DPSGD.preflight(space, INFO)
    assert fix == "write own_file:net, the module's name"


@pytest.mark.parametrize("method", [DPSGD, BiTFiT, SparseFinetuning, NonPrivate])
@pytest.mark.parametrize("after", range(1, 12, 2))
def test_a_network_that_ends_the_program_later_on_is_told(
    nets: Path, method: type[ClassifierMethod], after: int
) -> None:
    nets.write_text(f"{SOURCE}\nExiting.after = {after}\n")
    seen = problems(method, "Exiting")
    assert all("SystemExit" in what or "classifier" in what for _, what, _ in seen)


@pytest.mark.usefixtures("nets")
def test_good_ones_pass_and_norms_are_treated() -> None:
    for function in ("Net", "Headed", "Tokens"):
        assert problems(DPSGD, function) == []
        assert problems(NonPrivate, function) == []
    assert problems(DPSGD, "batch_norm", model__norm=["group", "frozen"]) == []
    assert problems(DPSGD, "Net", model__image_size=[12]) == []
    assert problems(NonPrivate, "Windowed") == []
    assert "does not use its parameter" in problems(NonPrivate, "Unused")[0][1]


@pytest.mark.usefixtures("nets")
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # nn.Bilinear under vmap
def test_layers_without_a_rule_pass_under_dp_sgd() -> None:
    assert problems(DPSGD, "Steps") == []


@pytest.mark.usefixtures("nets")
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("method", [DPSGD, BiTFiT, SparseFinetuning, NonPrivate])
def test_a_network_that_cannot_be_copied_is_told(method: type[ClassifierMethod]) -> None:
    ((key, what, fix),) = problems(method, "old_weight_norm")
    assert key == "model.name"
    assert "old_weight_norm cannot be copied: 1.weight is computed from other tensors" in what
    assert "use torch.nn.utils.parametrizations.weight_norm" in fix


@pytest.mark.usefixtures("nets")
def test_parameters_of_another_type_are_told_where_they_train() -> None:
    ((key, what, _),) = problems(BiTFiT, "Doubled", bitfit__variant=["last_layer"])
    assert (key, "parameter fc.weight is float64" in what) == ("bitfit.variant", True)
    ((key, what, _),) = problems(SparseFinetuning, "Doubled", sparse__train=["cls"])
    assert (key, "parameter fc.weight is float64" in what) == ("sparse.train", True)
    assert problems(NonPrivate, "Doubled") == []


@pytest.mark.slow
@pytest.mark.usefixtures("nets")
def test_the_classifier_is_what_the_network_says() -> None:
    tiny = ("bitfit", "last_layer")
    assert problems(BiTFiT, "Headed", bitfit__variant=(*tiny, "full")) == []
    assert (
        problems(SparseFinetuning, "Headed", sparse__train=("all", "cls"), sparse__density=[0.1])
        == []
    )
    for size in (None, 12):  # behind resized images too
        ((key, what, fix),) = problems(
            BiTFiT, "Net", bitfit__variant=tiny, model__image_size=[size]
        )
        assert key == "bitfit.variant"
        assert "does not say which layers are its classifier" in what
        assert "get_classifier()" in fix
    ((key, what, fix),) = problems(SparseFinetuning, "Net", sparse__train=["cls"])
    assert (key, "get_classifier()" in fix) == ("model.name", True)
    assert "does not say which layers are its classifier" in what
    assert problems(SparseFinetuning, "Net", sparse__train=["full"]) == []
    ((_, what, _),) = problems(SparseFinetuning, "Windowed", sparse__train=["full"])
    assert "has no gradient per example" in what


@pytest.mark.usefixtures("nets")
def test_the_seed_fixes_the_weights_whenever_the_module_is_imported() -> None:
    first = build_model("own_nets:Net", INFO, seed=1)  # imports it, which draws weights
    again, other = (build_model("own_nets:Net", INFO, seed=seed) for seed in (1, 2))
    state = again.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in first.state_dict().items())
    assert not torch.equal(other.state_dict()["conv.weight"], state["conv.weight"])


@pytest.mark.usefixtures("nets")
def test_its_parameters_are_counted() -> None:
    table = parameter_table("own_nets:Headed", 10, 8, BiTFiT.trains, channels=1)
    assert table.head == {"fc"}
    assert table.num_parameters == 4 * 9 + 4 + 2 * 4 + 2 * 256 + 256 * 10 + 10
    assert table.num_trainable == 256 * 10 + 10 + 4 + 4 + 256  # classifier and biases


@pytest.mark.slow
@pytest.mark.usefixtures("nets")
def test_one_trains_end_to_end_and_its_graph_loads_without_its_code(
    lab: object, tmp_path: Path, make_blobs: Callable[..., object]
) -> None:
    settings = lab.settings(report_every=None, show_test=True)  # type: ignore[attr-defined]
    given = {"train.max_steps": 60, "optim.lr": 1.0, "model.name": "own_nets:Tokens"}
    task = lab.task(settings, given)  # type: ignore[attr-defined]
    reports = lab.run(settings, task)  # type: ignore[attr-defined]
    assert reports[-1].reason == "plan complete"
    assert reports[-1].epsilon <= 2.0
    assert reports[-1].value > 0.6
    data = lab.data  # type: ignore[attr-defined]
    model, example = export_model(lab.directory(), task, study_seed=0, data=data)  # type: ignore[attr-defined]
    x, y = data.parts["validation"]
    accuracy = (model(torch.tensor(x)).argmax(1).numpy() == y).mean()
    assert accuracy == pytest.approx(reports[-1].value)
    graph = torch.export.export(
        model, (torch.zeros(2, *example.shape[1:]),), dynamic_shapes=[{0: torch.export.Dim.AUTO}]
    )
    torch.export.save(graph, tmp_path / "model.pt2")
    code = (
        "import sys, torch; m = torch.export.load('model.pt2').module(); "
        f"print(tuple(m(torch.zeros(5, {example.shape[1]})).shape)); "
        "assert not {'dpsweep', 'own_nets'} & set(sys.modules)"
    )
    (tmp_path / "own_nets.py").unlink()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == f"(5, {data.info.num_classes})", done.stderr


def test_a_process_elsewhere_looks_where_dpsweep_was_started(
    nets: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = {"own_nets:Net": own_models.fingerprint("own_nets:Net")}
    sys.modules.pop("own_nets")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(nets.parent)])
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = own_code.found_there(list(own), nets.parent)
    assert found == own
    own_code.refuse_other_code(own, {"a": found})
    sys.modules.pop("own_nets")
    nets.write_text("Net = None\n")
    other = own_code.found_there(list(own), nets.parent)
    sys.modules.pop("own_nets")
    nets.unlink()
    absent = own_code.found_there(list(own), nets.parent)
    with pytest.raises(ResourceError, match="b has another file for own_nets:Net"):
        own_code.refuse_other_code(own, {"a": found, "b": other})
    with pytest.raises(ResourceError, match="c: own_nets:Net: cannot import own_nets"):
        own_code.refuse_other_code(own, {"a": found, "c": absent})


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        ({"model.name": ["tanh_cnn"]}, "use linear"),
        (
            {"model.name": ["linear"], "model.image_size": [12]},
            "leave model.image_size, model.normalize and the weights out",
        ),
    ],
)
def test_records_that_are_no_images_are_told_what_to_use(values: dict, fix: str) -> None:
    flat = replace(INFO, input_shape=(12,))
    told = DPSGD.preflight({"batch.expected": [10], **values}, flat)
    assert [(key, advice) for key, _, advice in told] == [("model.name", fix)]


@pytest.mark.parametrize("is_same_size", [True, False])
def test_a_file_that_changes_while_a_process_lives_is_imported_anew(
    nets: Path, is_same_size: bool
) -> None:
    name = "own_nets:Tokens"
    before = own_models.fingerprint(name)
    first = build_model(name, INFO, seed=1)
    x = torch.ones(2, 1, 8, 8)
    other = SOURCE.replace("torch.tanh(x *", "torch.cosh(x *" if is_same_size else "torch.cos(x *")
    nets.write_text(other)
    assert own_models.fingerprint(name) != before
    assert not torch.equal(build_model(name, INFO, seed=1)(x), first(x))
    nets.write_text(SOURCE)
    assert own_models.fingerprint(name) == before
    assert torch.equal(build_model(name, INFO, seed=1)(x), first(x))


def test_a_trial_is_of_the_code_that_it_was_admitted_with(
    nets: Path, lab: object, make_blobs: Callable[..., object]
) -> None:
    settings = lab.settings(report_every=None)  # type: ignore[attr-defined]
    hparams = {"train.max_steps": 5, "model.name": "own_nets:Tokens"}
    task = lab.task(settings, hparams)  # type: ignore[attr-defined]
    older = replace(task, code="")
    assert TrialTask.from_json(older.to_json()) == older
    assert "code" not in json.loads(older.to_json())
    task = replace(task, code=own_models.fingerprint("own_nets:Tokens"))
    assert TrialTask.from_json(task.to_json()) == task
    lab.run(settings, task)  # type: ignore[attr-defined]
    rest = {"study_seed": 0, "data": lab.data}  # type: ignore[attr-defined]
    export_model(lab.directory(), task, **rest)  # type: ignore[attr-defined]
    nets.write_text(SOURCE.replace("torch.tanh(x *", "torch.cos(x *"))
    with pytest.raises(ModelError, match="file of own_nets:Tokens has changed since trials"):
        export_model(lab.directory(), task, **rest)  # type: ignore[attr-defined]
    export_model(lab.directory(), older, **rest)  # type: ignore[attr-defined]
    nets.write_text(SOURCE)
    export_model(lab.directory(), task, **rest)  # type: ignore[attr-defined]


def test_a_study_is_not_continued_with_other_code(
    nets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = make_spec(tmp_path, "own", tracking={"uri": None})
    raw["search"]["space"] = {"method": "dp_sgd", "model.name": "own_nets:Tokens"}
    checked = preflight(SweepSpec(**raw))
    task = checked.admit(0, {"method": "dp_sgd", "model.name": "own_nets:Tokens"})
    assert task.code == own_models.fingerprint("own_nets:Tokens")
    cluster = LaunchCluster(checked)
    cluster.refuse_early()  # nothing is there yet
    study = Study(checked.spec)
    study.write_task(task)
    study.write(TrialStarted(0, task.hparams, {"steps": 1}, {"dp.sampling": "poisson"}))
    study.close()
    cluster.refuse_early()
    nets.write_text(SOURCE.replace("torch.tanh(x *", "torch.cos(x *"))
    with pytest.raises(ModelError, match="has changed since trials of this study were admitted"):
        cluster.refuse_early()
    # A launch keeps the code that it began with; the next one has the new.
    values = {"method": "dp_sgd", "model.name": "own_nets:Tokens"}
    assert checked.admit(1, values).code == task.code
    assert preflight(SweepSpec(**raw)).admit(1, values).code != task.code


@pytest.mark.usefixtures("nets")
def test_nor_is_a_selection_whichever_network_was_drawn(tmp_path: Path, monkeypatch) -> None:
    """Which were drawn is a secret, so all that it may draw are compared."""
    names = ["own_nets:Tokens", "other_nets:Tokens"]
    (tmp_path / "other_nets.py").write_text(SOURCE)
    spec = select_spec(tmp_path, {"method": "dp_sgd", "model.name": {"choice": names}})
    checked = preflight(spec)
    Study(spec).close()
    (StudyFiles.of(spec).path / "spec.yaml").write_text(spec.to_yaml())
    target = SimpleNamespace(on_each_node=lambda f, *given: {"here": f(*given)})
    own_code.check_own_code(checked, target)  # type: ignore[arg-type]
    LaunchCluster(checked).refuse_early()
    (tmp_path / "other_nets.py").write_text(SOURCE.replace("torch.tanh(x *", "torch.cos(x *"))
    with pytest.raises(ModelError, match="file of other_nets:Tokens has changed since trials"):
        LaunchCluster(checked).refuse_early()
    (tmp_path / "other_nets.py").write_text("class (")
    with pytest.raises(ChangedCodeError, match=r"cannot import other_nets .*; it has changed"):
        LaunchCluster(checked).refuse_early()
    for damaged in ("{", "[]", '""', "3", '{"own_nets:Tokens": 3}', "[" * 100_000):
        (StudyFiles.of(spec).path / own_code.PINNED).write_text(damaged)
        with pytest.raises(StudyError, match=r"own_code\.json is damaged") as refused:
            LaunchCluster(checked).refuse_early()
        assert refused.value.exit_code == 1

    def closed(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(own_code, "read_file", closed)
    with pytest.raises(StudyError, match="cannot be read: Permission denied") as refused:
        LaunchCluster(checked).refuse_early()
    assert refused.value.exit_code == 1


def test_an_audit_and_a_trial_once_more_are_of_the_same_code(nets: Path, tmp_path: Path) -> None:
    space = {"method": "dp_sgd", "model.name": "own_nets:Tokens"}
    raw = make_spec(tmp_path, "own", tracking={"uri": None})
    raw["search"]["space"] = space
    raw["privacy"] = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "unaccounted"}
    checked = preflight(SweepSpec(**raw))
    task = checked.admit(0, space)
    terms = {"delta": 1e-5, "accountant": "rdp"}
    Subject.of_task(task, checked.info, name="own", **terms)
    nets.write_text(SOURCE.replace("torch.tanh(x *", "torch.cos(x *"))
    with pytest.raises(ChangedCodeError):
        Subject.of_task(task, checked.info, name="own", **terms)
    study = Study(checked.spec)
    study.keep_spec()
    study.write_task(task)
    study.write(TrialStarted(0, task.hparams, {"steps": 1}, {"dp.sampling": "poisson"}))
    ledger = StudyLedger(study.files.ledger, terms=enforced_terms(checked.spec))
    assert task.reserve(ledger)
    ledger.close()
    study.close()
    with pytest.raises(ChangedCodeError):
        reproduce("own", 0, dry_run=True, root=tmp_path / "studies")


@pytest.mark.usefixtures("nets")
def test_what_is_made_of_one_launch_has_one_code(nets: Path, tmp_path: Path) -> None:
    """As probes and their final run, which are planned within other budgets."""
    raw = make_spec(tmp_path, "own", tracking={"uri": None})
    space = {"method": "dp_sgd", "model.name": "own_nets:Tokens"}
    raw["search"]["space"] = space
    checked = preflight(SweepSpec(**raw))
    first = checked.admit(0, space).code
    nets.write_text(SOURCE.replace("torch.tanh(x *", "torch.cos(x *"))
    training = replace(checked.budget, target_epsilon=checked.budget.target_epsilon / 2)
    assert replace(checked, training=training).admit(1, space).code == first
