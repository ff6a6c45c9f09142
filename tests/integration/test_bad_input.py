"""Malformed specs at the command line: readable lines, exit 2, quickly, and nothing is started."""

import pytest
from machine import cpu_seconds, import_seconds
from whole_studies import cli, cli_here

GOOD = """\
name: bad
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {delta: 1e-5, trial_epsilon: 2.0, accounting: unaccounted}
search:
  sampler: random
  num_trials: 2
  space:
    method: dp_sgd
    optim.lr: {loguniform: [0.1, 4]}
    model.name: linear
resources: {cpu: 1}
"""

# What is changed in the good spec -> words that the lines must have, one tuple per mistake.
CASES = {
    "unknown key": (("num_trials: 2", "num_trails: 2"), [("num_trails", "num_trials", ":6")]),
    "unknown section": (("resources:", "resorces:"), [("resorces", "resources", ":11")]),
    "duplicate key": (("name: bad", "name: bad\nname: worse"), [("name", "twice")]),
    "reversed bounds": (("[0.1, 4]", "[4, 0.1]"), [("optim.lr", "4", "0.1", ":9")]),
    "log of zero": (("[0.1, 4]", "[0, 4]"), [("optim.lr", "> 0")]),
    "unknown hyperparameter": (("optim.lr:", "optim.rl:"), [("optim.rl", "optim.lr")]),
    "unknown method": (("method: dp_sgd", "method: dp_sdg"), [("dp_sdg", "dp_sgd")]),
    "value out of bounds": (("[0.1, 4]", "[-1, 4]"), [("optim.lr",)]),
    "unknown choice": (("model.name: linear", "model.name: liner"), [("liner", "linear")]),
    "epsilon not a number": (("trial_epsilon: 2.0", "trial_epsilon: two"), [("trial_epsilon",)]),
    "negative epsilon": (("trial_epsilon: 2.0", "trial_epsilon: -2"), [("trial_epsilon", "-2")]),
    "delta of one": (("delta: 1e-5", "delta: 1"), [("delta", "1")]),
    "no accounting": ((", accounting: unaccounted", ""), [("accounting",)]),
    "composed without a budget": (
        ("accounting: unaccounted", "accounting: composed"),
        [("study_epsilon", "composed", ":3")],
    ),
    "composed with a filter on PLD": (
        (
            "accounting: unaccounted",
            "accounting: composed, study_epsilon: 6, accountant: pld",
        ),
        [("accountant", "pld", "rdp")],
    ),
    "select with what it cannot cover": (
        (
            "unaccounted}\nsearch:\n  sampler: random\n  num_trials: 2\n",
            "select}\nscheduler: {type: asha}\nsearch:\n  sampler: tpe\n  max_time: 2h\n",
        ),
        [("asha", "fifo", ":4"), ("tpe", "random", ":6"), ("max_time", "mean", ":7")],
    ),
    "public without public records": (
        ("accounting: unaccounted", "accounting: public"),
        [("data.public.fraction", "0.2", ":2")],
    ),
    "noisy without noise": (("visibility: public", "visibility: noisy"), [("noise_std", "0.01")]),
    "pbt": (("resources:", "scheduler: {type: pbt}\nresources:"), [("pbt", "epsilon_halving")]),
    "rung beyond the trial": (
        ("resources:", "scheduler: {type: epsilon_halving, rungs: [0.5, 3]}\nresources:"),
        [("rungs[1]", "trial_epsilon", "3")],
    ),
    "replace one": (
        ("accounting: unaccounted", "accounting: unaccounted, neighboring_relation: replace_one"),
        [("replace_one", "add_or_remove_one")],
    ),
    "user level": (("dataset: digits,", "dataset: digits, privacy_unit: user,"), [("user",)]),
    "no validation": (("fraction: 0.2", "fraction: 0"), [("validation",)]),
    "conditions in a circle": (
        (
            "    model.name: linear",
            "    model.name: {choice: [linear, tanh_cnn], when: {noise.shape: cosine}}\n"
            "    noise.shape: {choice: [constant, cosine], when: {model.name: linear}}",
        ),
        [("model.name", "noise.shape")],
    ),
    "bad yaml": (("search:", "search: ["), [("YAML",)]),
    "tab": (("  sampler", "\tsampler"), [("tab",)]),
    "more cpus than there are": (("cpu: 1", "cpu: 4096"), [("4096", "CPU")]),
    "gpus on a machine without": (("cpu: 1", "cpu: 1, gpu: 4096"), [("4096", "GPU")]),
    "file store": (("resources:", "tracking: {uri: ./mlruns}\nresources:"), [("mlruns", "sqlite")]),
    "storage is a file": (("resources:", "storage: {path: bad.yaml}\nresources:"), [("storage",)]),
    "batch norm": (
        ("model.name: linear", "model.name: timm/resnet18"),
        [("BatchNorm", "bn1", "group", "frozen")],
    ),
    "batch larger than the data": (
        ("model.name: linear", "batch.expected: 100000"),
        [("batch.expected", "100000")],
    ),
    "no plan within the budget": (
        ("model.name: linear", "noise.noise_multiplier: 0.05"),
        [("bad.yaml:7 search.space", "200", "epsilon=284.5", "1e-05", "rdp", "noise_multiplier")],
    ),
    "missing data": (
        ("dataset: digits,", "dataset: fashion_mnist, path: nowhere,"),
        [("dataset-fashion-mnist",)],
    ),
    "of a folder and of a network": (
        (
            "model.name: linear\nresources:",
            "model.name: timm/resnet18\nstorage: {path: bad.yaml}\nresources:",
        ),
        [("bad.yaml:11 storage.path",), ("search.space.model.norm", "BatchNorm")],
    ),
    "three at once": (
        ("num_trials: 2\n", "num_trials: 0\n  smapler: tpe\n  metric: validation/acuracy\n"),
        [("num_trials",), ("smapler", "sampler"), ("acuracy", "accuracy")],
    ),
}


def write(case, folder):
    (old, new), _ = CASES[case]
    assert GOOD.count(old) == 1
    (folder / "bad.yaml").write_text(GOOD.replace(old, new))


@pytest.mark.slow
# One whose text says it, one that knows the data, one that asks for the machine, one of timm.
@pytest.mark.parametrize(
    "case",
    ["unknown key"]
    + [
        pytest.param(case, marks=pytest.mark.slow)
        for case in ("batch norm", "missing data", "more cpus than there are")
    ],
)
def test_a_malformed_spec_takes_seconds(case, tmp_path):
    write(case, tmp_path)
    limit = 6 * import_seconds()
    before = cpu_seconds()
    done = cli("run", "bad.yaml", cwd=tmp_path, timeout=60)
    assert done.returncode == 2, done.stderr
    # It is 3 to 4 times that where a network of timm is built, .6 times where nothing is.
    assert cpu_seconds() - before < limit


@pytest.mark.parametrize("case", sorted(CASES))
def test_malformed_spec(case, tmp_path, monkeypatch):
    _, expected = CASES[case]
    write(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    done = cli_here("run", "bad.yaml")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    mistakes = done.stderr.split("error: ")[1:]  # before them: what was done until then
    assert len(mistakes) == len(expected), done.stderr
    for words in expected:
        assert any(all(word in line for word in words) for line in mistakes), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_the_good_spec_is_good(tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    done = cli_here("validate", tmp_path / "good.yaml")
    assert done.returncode == 0, done.stderr
    assert "valid" in done.stderr
