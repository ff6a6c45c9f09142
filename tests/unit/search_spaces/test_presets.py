"""Presets are valid, say what the papers' tables say, and read as people write."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from typer.testing import CliRunner

from dpsweep.cli.app import app
from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.reading import read_spec
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Plan, PoissonGaussian
from dpsweep.search_spaces import SPACES, SearchSpace, preset_spec, preset_titles, starter_spec
from dpsweep.search_spaces.presets import study_name
from dpsweep.spec.data.datasets import PUBLISHED_RECORDS
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.method import PlanContext

NAMES = list(preset_titles())
ROWS = [
    f"golatkar2022/{row}_fashion_mnist"
    for row in (
        "only_public", "fully_private", "ngd", "public_pull", "private_public_gd", "adamix",
        "adamix_no_clip", "adamix_no_projection", "adamix_no_public_gradient", "adamix_no_init", "paragon",
    )
]  # fmt: skip
GLUE = {
    f"bu2024/{variant}_{task}"
    for variant in ("bitfit", "full", "lora", "adapter")
    for task in ("sst2", "qnli", "qqp", "mnli")
}
DATASETS = ("digits", "fashion_mnist", "npz", "image_folder")
METHODS = ("dp_sgd", "scatternet", "adamix", "bitfit", "sparse")


@cache
def spec_of(name):
    return SweepSpec.from_yaml(preset_spec(name))


@cache
def points_of(name):
    return SearchSpace.from_spec(spec_of(name).search.space).grid()


def grid_of(name):
    return [dict(point) for point in points_of(name)]


def values_of(name, *keys):
    """Return the values that parameters have somewhere in the grid, sorted."""
    found = [sorted({point[key] for point in grid_of(name) if key in point}) for key in keys]
    return found[0] if len(keys) == 1 else found


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", NAMES)
def test_each_preset_fits_its_methods(name):
    spec = read_spec(preset_spec(name))
    assert spec.name == study_name(name)
    for point in grid_of(name)[:: max(1, len(grid_of(name)) // 40)]:
        declared = {h.name: h for h in TRAINABLES[point.pop("method")].hyperparameters}
        problems = {key: declared[key].problem(value) for key, value in point.items()}
        assert problems == dict.fromkeys(problems)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_each_preset_is_its_whole_grid_and_claims_nothing_of_the_search(name):
    spec, text = spec_of(name), preset_spec(name)
    assert spec.search.sampler == "grid"
    assert spec.search.num_trials == len(grid_of(name)) or spec.episodes is not None
    assert (spec.privacy.accounting, spec.privacy.study_epsilon) == ("unaccounted", None)
    assert (spec.data.validation.visibility, spec.data.test.visibility) == ("exact", "public")
    is_small = name.startswith("tramer") and name != "tramer2021/fashion_mnist_pld"
    is_small = is_small or name.startswith("zhao2020/svhn") or name == "zhao2020/mnist_qmnist"
    share = 0.02 if is_small else 0.05 if name in GLUE else 0.1
    has_own_part = name.endswith("_e2e") or "_celeba_" in name
    assert spec.data.validation.fraction == share or has_own_part
    assert spec.scheduler.type == "fifo"
    methods = {TRAINABLES[point["method"]] for point in grid_of(name)}
    if any(method.is_private for method in methods):
        claim = "Not claimed: anything about the search"
    else:
        claim = "Claimed: nothing. Epsilon is infinite"
        assert "epsilon is that of one trial" not in text
    assert claim in text.replace("\n# ", " ")
    assert SweepSpec.from_yaml(spec.to_yaml()) == spec


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", NAMES)
def test_each_preset_has_a_plan_within_its_budget(name):
    """The cheapest and the dearest corner of each grid can be planned."""
    spec = spec_of(name)
    total = spec.data.num_records or PUBLISHED_RECORDS[spec.data.dataset]
    share = 1 - spec.data.validation.fraction - spec.data.public.fraction
    budget = PrivacyBudget(
        target_epsilon=spec.privacy.trial_epsilon,
        delta=spec.privacy.delta,
        neighboring_relation=spec.privacy.neighboring_relation,
    )
    start = Plan((EventRun(PoissonGaussian(2.0, 0.01), 100),))
    block = spec.start
    starts = {(run, e): start for run in range(block.runs) for e in block.epsilons} if block else {}
    context = PlanContext(budget, "rdp", round(total * share), "exact", starts)
    for point in (grid_of(name)[0], grid_of(name)[-1]):
        method = TRAINABLES[point.pop("method")]
        context = replace(context, given=frozenset(point))
        hparams = method.complete(resolve(method.hyperparameters, point), context)
        plan = method.plan(hparams, context)
        assert len(plan) > 0 or point.get("adamix.variant") == "only_public"


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_readable(name):
    text = preset_spec(name)
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 100
    assert text.isascii()
    assert text.endswith("\n")
    assert lines[0] == f"# {preset_titles()[name]}"
    assert len(lines[0]) <= 93
    assert re.search(r"https://(arxiv.org/abs/|openaccess.thecvf.com)", lines[1])
    space = lines[lines.index("  space:") + 1 : lines.index("", lines.index("  space:"))]
    assert all(line.startswith("    # ") for line in space[::2])
    assert not any(line.startswith("    # ") for line in space[1::2])


def test_the_papers_are_there():
    assert set(ROWS) < set(NAMES)
    for name in ("fashion_mnist", "fashion_mnist_cnn", "fashion_mnist_end_to_end",
                 "fashion_mnist_grid", "fashion_mnist_pld", "transfer", "batch_size",
                 "noise_or_none", "data_size", "cifar10_grid", "mnist_grid"):  # fmt: skip
        assert f"tramer2021/{name}" in NAMES
    for name in ("public_size", "noise", "percentile", "projection"):
        assert f"golatkar2022/{name}" in NAMES


@pytest.mark.parametrize(
    ("name", "model", "batch", "rate"),
    [
        ("fashion_mnist", "linear", 8192, 1),
        ("fashion_mnist_cnn", "scatter_cnn", 2048, 1),
        ("fashion_mnist_end_to_end", "tanh_cnn", 2048, 4),
    ],
)
def test_best_rows_of_table_13(name, model, batch, rate):
    name = f"tramer2021/{name}"
    points = grid_of(name)
    assert [point.pop("train.repeat") for point in points] == [0, 1, 2]
    assert points[0] == points[1] == points[2]
    point = points[0]
    assert (point["model.name"], point["batch.expected"]) == (model, batch)
    assert (point["optim.lr"], point["train.epochs"]) == (rate, 40)
    assert (point["clip.max_grad_norm"], point["optim.momentum"]) == (0.1, 0.9)
    if point["method"] == "scatternet":
        assert (point["normalize.kind"], point["normalize.groups"]) == ("group", 27)
        assert point["optim.lr_scaling"] == "batch"
        assert spec_of(name).privacy.trial_epsilon == 3
    else:
        assert point["method"] == "dp_sgd"
        assert spec_of(name).privacy.trial_epsilon == 2.7


@pytest.mark.parametrize(
    ("name", "epochs", "rates", "norms"),
    [
        ("mnist_grid", [15, 25, 40], [0.25, 0.5, 1, 2], (0.2, 0.05)),
        ("fashion_mnist_grid", [15, 25, 40], [0.25, 0.5, 1, 2], (0.3, 0.15)),
        ("cifar10_grid", [30, 60, 120], [0.125, 0.25, 0.5, 1], (1.0, 1.5)),
    ],
)
def test_the_grids_are_those_of_table_12(name, epochs, rates, norms):
    name = f"tramer2021/{name}"
    assert len(grid_of(name)) == 6 * 4 * 3 * (3 + 2)
    assert values_of(name, "batch.expected") == [512 * 2**k for k in range(6)]
    assert values_of(name, "train.epochs", "optim.lr") == [epochs, rates]
    assert values_of(name, "normalize.groups") == [9, 27, 81]
    assert values_of(name, "normalize.noise_multiplier") == [6, 8]
    assert values_of(name, "normalize.mean_norm", "normalize.square_norm") == [
        [norms[0]], [norms[1]],
    ]  # fmt: skip
    assert (spec_of(name).privacy.trial_epsilon, spec_of(name).privacy.accountant) == (3, "pld")


def test_the_focused_grid_is_inside_the_papers():
    wide = SearchSpace.from_spec(spec_of("tramer2021/fashion_mnist_grid").search.space).values()
    narrow = SearchSpace.from_spec(spec_of("tramer2021/fashion_mnist_pld").search.space).values()
    assert narrow.pop("train.repeat") == [0, 1, 2]
    assert all(set(values) <= set(wide[name]) for name, values in narrow.items())
    best = grid_of("tramer2021/fashion_mnist")[0]
    assert best in grid_of("tramer2021/fashion_mnist_pld")
    assert spec_of("tramer2021/fashion_mnist_pld").privacy.accountant == "pld"


def test_selectors_are_compared_from_the_same_releases():
    assert values_of("zhao2020/selectors", "labels.max") == [500, 1000, 4000]
    assert len(values_of("zhao2020/selectors", "select.by")) == 5
    assert len(grid_of("zhao2020/selectors")) == 3 * 3 * 5 * 3
    for name in ("selectors", "pollution"):
        start = spec_of(f"zhao2020/{name}").start
        assert (start.epsilons, start.runs) == ((2.2, 3.2), 3)
    assert spec_of("zhao2020/pollution").data.public.pollution.records == 5000
    pairs = {(p["select.clusters"], p["select.each"]) for p in grid_of("zhao2020/clusters")}
    assert max(clusters * each for clusters, each in pairs) == 4000


@pytest.mark.parametrize(
    ("setting", "fresh"),
    [("five_classes", {}), ("lite0", {"model.checkpoint": "published", "model.norm": "frozen"})],
)
def test_rows_of_sparse_finetuning_differ_in_what_trains_and_its_rates(setting, fresh):
    """A network from scratch leaves out, or has otherwise, what belongs to public weights."""
    names = [n for n in NAMES if re.match(rf"luo2021/(?!rates).*_{setting}$", n)]
    assert len(names) == 8
    first = spec_of(names[0])
    for name in names:
        spec = spec_of(name)
        assert (spec.data, spec.privacy, spec.pretrain) == (
            first.data, first.privacy, first.pretrain,
        )  # fmt: skip
        assert values_of(name, "noise.target_epsilon", "train.repeat") == [[0.5, 1, 1.5], [0, 1, 2]]
        varied = {"sparse.train", "sparse.density", "sparse.body_lr", "optim.lr"}
        same = {k: v for k, v in spec.search.space.items() if k not in varied}
        if spec.search.space["sparse.train"] == "scratch":
            assert not any(same.get(k) == v for k, v in fresh.items())
            same |= fresh
        assert same == {k: v for k, v in first.search.space.items() if k not in varied}


@pytest.mark.parametrize("setting", ["five_classes", "five_classes_vit", "lite0"])
def test_rows_of_bias_training_differ_in_the_variant_and_its_rate(setting):
    rows = {f"bu2024/{v}_{setting}": v for v in ("last_layer", "bitfit", "two_phase", "full")}
    rates = spec_of(f"bu2024/rates_{setting}")
    assert values_of(f"bu2024/rates_{setting}", "bitfit.variant") == sorted(rows.values())
    epochs = rates.search.space.get("bitfit.full_epochs")
    for name, variant in rows.items():
        spec = spec_of(name)
        assert (spec.data, spec.privacy, spec.pretrain) == (
            rates.data, rates.privacy, rates.pretrain,
        )  # fmt: skip
        assert values_of(name, "bitfit.variant", "train.repeat") == [[variant], [0, 1, 2]]
        rate = spec.search.space["optim.lr"]
        tried = values_of(f"bu2024/rates_{setting}", "optim.lr")
        assert rate in tried
        if setting == "five_classes":  # elsewhere the best at an end was searched beyond
            assert tried[0] < rate < tried[-1]
        varied = {"bitfit.variant", "optim.lr", "train.repeat"}
        if epochs is not None:  # of two_phase alone, and one value of it
            varied.add("bitfit.full_epochs")
            own = epochs["choice"][0] if variant == "two_phase" else None
            assert spec.search.space.get("bitfit.full_epochs") == own
        same = {k: v for k, v in spec.search.space.items() if k not in varied}
        assert same == {k: v for k, v in rates.search.space.items() if k not in varied}


def test_studies_of_one_knob_are_those_of_the_tables():
    assert values_of("tramer2021/batch_size", "batch.expected") == [512, 1024, 2048, 4096]
    assert values_of("tramer2021/transfer", "optim.lr") == [0.5, 1, 2, 4]
    assert spec_of("tramer2021/transfer").privacy.trial_epsilon == 2
    noise = "tramer2021/noise_or_none"
    assert values_of(noise, "method") == ["scatternet", "scatternet_non_private"]
    assert values_of(noise, "optim.lr", "clip.max_grad_norm") == [[1, 16], [0.1]]
    assert values_of(noise, "batch.expected", "normalize.groups") == [[512], [81]]
    steps = [round(epochs * 50_000 / 8192) for epochs in (15, 30, 60, 120)]
    assert values_of("tramer2021/data_size", "train.max_steps") == steps
    assert values_of("golatkar2022/noise", "noise.noise_multiplier")[0] < 20
    assert {75, 90} < set(values_of("golatkar2022/percentile", "clip.percentile"))
    assert {0.97, 1} < set(values_of("golatkar2022/projection", "projection.fraction"))


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_one_table_differ_in_the_method_alone(name):
    """Cells can be compared: same data, sizes, budgets, shots, draws and learning rates."""
    spec, first = spec_of(name), spec_of("golatkar2022/adamix_fashion_mnist")
    assert (spec.data, spec.privacy) == (first.data, first.privacy)
    assert (spec.data.public.fraction, spec.privacy.accountant) == (0.01, "pld")
    space = spec.search.space
    told = {
        "train.num_private": [500, 2000, 20_000], "noise.target_epsilon": [1, 3],
        "public.shots": [2, 5], "public.draw": [0, 1, 2], "optim.lr": [0.001, 0.002, 0.004, 0.008],
        "features.name": "efficientnet_lite0", "features.image_size": 96,
        "noise.noise_multiplier": 20,
    }  # fmt: skip
    private = {"noise.target_epsilon", "noise.noise_multiplier"}
    unread = {
        "golatkar2022/only_public_fashion_mnist": {*private, "train.num_private", "optim.lr"},
        "golatkar2022/paragon_fashion_mnist": {*private, "optim.lr"},
    }.get(name, set())
    expected = {key: values for key, values in told.items() if key not in unread}
    got = {key: space[key] for key in expected if key in space}
    assert {k: v["choice"] if isinstance(v, dict) else v for k, v in got.items()} == expected


@pytest.mark.parametrize(
    ("row", "variant", "switch"),
    [
        ("only_public", "only_public", None),
        ("fully_private", "fully_private", None),
        ("ngd", "ngd", None),
        ("public_pull", "public_pull", None),
        ("private_public_gd", "private_public_gd", None),
        ("adamix", "adamix", None),
        ("adamix_no_clip", "adamix", "adamix.adaptive_clip"),
        ("adamix_no_projection", "adamix", "adamix.projection"),
        ("adamix_no_public_gradient", "adamix", "adamix.public_gradient"),
        ("adamix_no_init", "adamix", "adamix.public_init"),
    ],
)
def test_each_row_is_its_variant(row, variant, switch):
    space = spec_of(f"golatkar2022/{row}_fashion_mnist").search.space
    assert space["adamix.variant"] == variant
    switches = ("public_init", "adaptive_clip", "projection", "public_gradient")
    switched = {f"adamix.{name}" for name in switches} & set(space)
    assert switched == ({switch} if switch else set())
    if row != "only_public":
        assert space["regularize.weight"] == ({"choice": [1, 10]} if row == "public_pull" else 0.01)
    assert all(space[name] is False for name in switched)


def test_bounds_of_the_boost_have_the_cells_of_the_study():
    for bound in ("lower", "upper"):
        for key in ("public.shots", "public.draw"):
            assert values_of(f"golatkar2022/public_size_{bound}", key) == values_of(
                "golatkar2022/public_size", key
            )
        assert study_name(f"golatkar2022/public_size_{bound}") in preset_spec(
            "golatkar2022/public_size"
        ).replace("{name}", "golatkar2022-public-size")


@pytest.mark.parametrize("name", NAMES)
def test_overrides_that_a_preset_suggests_work(name):
    text = preset_spec(name).replace("\n# ", " ")
    for part in text.split("`")[1::2]:
        if part.startswith("--set "):
            changes = part.removeprefix("--set ").split(" --set ")
            assert read_spec(preset_spec(name), overrides=changes) != spec_of(name)


def test_an_unknown_preset_has_a_hint():
    with pytest.raises(BadInputError) as error:
        preset_spec("tramer2021/fashion_mist")
    assert "did you mean 'tramer2021/fashion_mnist'?" in str(error.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_a_starter(method, dataset):
    spec = read_spec(starter_spec(dataset, method))
    space = SearchSpace.from_spec(spec.search.space)
    assert space.values()["method"] == [method]
    assert space.parameters == SearchSpace.from_spec(SPACES[method].spaces[dataset]).parameters
    assert (spec.data.public.fraction > 0) == (method == "adamix")
    assert f"`dpsweep describe {method}`" in starter_spec(dataset, method)
    assert max(len(line) for line in starter_spec(dataset, method).splitlines()) <= 100
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = space.sample(rng)
        declared = {h.name: h for h in TRAINABLES[values.pop("method")].hyperparameters}
        assert [declared[key].problem(value) for key, value in values.items()] == [None] * len(
            values
        )


def test_a_starter_without_a_space_is_refused():
    with pytest.raises(BadInputError) as error:
        starter_spec("digits", "adamx")
    assert "did you mean 'adamix'?" in str(error.value)


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["init", *words])


def test_init_writes_presets_and_lists_them(call, tmp_path):
    assert call("--preset", "tramer2021/fashion_mnist").stdout == preset_spec(
        "tramer2021/fashion_mnist"
    )
    assert call("sweep.yaml", "--preset", "golatkar2022/ngd_fashion_mnist").exit_code == 0
    assert (tmp_path / "sweep.yaml").read_text() == preset_spec("golatkar2022/ngd_fashion_mnist")
    listed = call("--presets", "-f", "csv").stdout
    assert all(name in listed for name in NAMES)
    assert call("--no-search").stdout == starter_spec(kind="single")
    assert call("--method", "scatternet", "--dataset", "fashion_mnist").stdout == starter_spec(
        "fashion_mnist", "scatternet"
    )
    assert call().stdout == starter_spec()
    assert "properties" in call("--schema").stdout


def test_init_writes_a_dash_to_stdout(call, tmp_path):
    done = call("-", "--preset", "tramer2021/fashion_mnist")
    assert done.stdout == preset_spec("tramer2021/fashion_mnist")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--preset", "tramer2021/transfer", "--dataset", "digits"], "have no meaning"),
        (["--preset", "tramer2021/transfer", "--no-search"], "--no-search has no meaning"),
        (["--preset", "tramer2021/transfer", "--schema"], "exclude each other"),
        (["--presets", "list.txt"], "writes no file"),
        (["taken.yaml"], "exists already"),
    ],
)
def test_init_refuses_what_it_would_ignore(call, tmp_path, words, told):
    (tmp_path / "taken.yaml").write_text("kept")
    result = call(*words)
    assert isinstance(result.exception, BadInputError)
    assert told in str(result.exception)
    assert (tmp_path / "taken.yaml").read_text() == "kept"
    assert not (tmp_path / "list.txt").exists()


def test_listing_presets_loads_neither_torch_nor_ray():
    code = (
        "import sys; from dpsweep.search_spaces import preset_spec, preset_titles; "
        "[preset_spec(name) for name in preset_titles()]; "
        "print([m for m in ('torch', 'ray', 'optuna', 'mlflow', 'numpy') if m in sys.modules])"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True, env=dict(os.environ))
    assert out.strip() == "[]"
