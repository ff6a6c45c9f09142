"""What a newcomer sees when a spec is wrong: every mistake at once, each on its line."""

import pytest

from dpsweep.foundation.errors import SpecError
from dpsweep.spec.study import SweepSpec

GOOD = """\
name: digits-eps2
data:
  dataset: digits
  validation: {fraction: 0.2, visibility: public}
privacy:
  delta: 1e-5
  trial_epsilon: 2.0
  accounting: unaccounted
search:
  sampler: random
  num_trials: 4
  space:
    method: dp_sgd
    optim.lr: {loguniform: [1e-2, 8]}
    noise.shape: {choice: [constant, cosine]}
    noise.end_ratio: {uniform: [0.4, 1.5], when: {noise.shape: cosine}}
"""
SECTIONS = (
    "name, seed, data, pretrain, privacy, search, episodes, start, scheduler, report, resources, "
    "tracking, cluster, storage"
)


def write(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return path


def lines_of(path, **kwargs):
    """Return the lines a user sees, with the directory cut off."""
    with pytest.raises(SpecError) as error:
        SweepSpec.from_yaml(path, **kwargs)
    assert error.value.exit_code == 2
    return str(error.value).replace(f"{path.parent}/", "").splitlines()


def test_the_good_spec_is_good(tmp_path):
    assert SweepSpec.from_yaml(write(tmp_path, GOOD)).privacy.delta == 1e-5


# (what stands in the good spec, what stands there instead, the line that is shown)
REPLACED = [
    (
        "name: digits-eps2",
        "name: Digits eps 2",
        "sweep.yaml:1 name: 'Digits eps 2' is not allowed (name the study: 1 to 64 of a-z 0-9 . _ -, "
        "first a letter or a digit)",
    ),
    ("name: digits-eps2", "name: 2024", "sweep.yaml:1 name: must be text, got 2024; put it in quotes: \"2024\""),
    ("  num_trials: 4", "  num_trials: four", "sweep.yaml:11 search.num_trials: must be a number, got 'four'"),
    ("  num_trials: 4", "  num_trials: 2.5", "sweep.yaml:11 search.num_trials: must be a whole number, got 2.5"),
    ("  num_trials: 4", "  num_trials: 0", "sweep.yaml:11 search.num_trials: must be >= 1, got 0"),
    ("  num_trials: 4", "  num_trials: true", "sweep.yaml:11 search.num_trials: must be a number, got true"),
    (
        "  num_trials: 4",
        "  num_trails: 4",
        "sweep.yaml:11 search.num_trails: unknown key (did you mean 'num_trials'? known: strategy, probe, "
        "on, sampler, num_trials, max_time, metric, mode, objectives, max_concurrent, points_to_evaluate, preset, space)",
    ),
    (
        "  num_trials: 4",
        "  trial_epsilon: 4",
        "sweep.yaml:11 search.trial_epsilon: unknown key (it belongs below `privacy:`)",
    ),
    ("  num_trials: 4", "  sampler: tpe", "sweep.yaml:11 search.sampler: stands twice, here and on line 10 (remove one of the two)"),
    ("  num_trials: 4", "  metric: test/accuracy", "sweep.yaml:11 search.metric: 'test/accuracy' cannot be searched by: its value for the winner would be too good (use validation/accuracy or validation/loss)"),
    ("  num_trials: 4", "  metric: validation/loss", "sweep.yaml:9 search.mode: mode max with validation/loss looks for the worst configuration (use mode: min)"),
    ("  num_trials: 4", "  3: 4", "sweep.yaml:11 search.3: a key must be a word"),
    ("  trial_epsilon: 2.0", "  trial_epsilon: 2,5", "sweep.yaml:7 privacy.trial_epsilon: must be a number, got '2,5'; its decimals stand behind a point"),
    ("  validation: {fraction: 0.2, visibility: public}", "  validation: {visibility: public, fraction: 0,2}", "sweep.yaml:4 data.validation.2: a key must be a word (the decimals of a number stand behind a point)"),
    ("sampler: random", "sampler: tpee", "sweep.yaml:10 search.sampler: unknown value 'tpee' (did you mean 'tpe'? known: random, grid, tpe, nsga2, cmaes, gp)"),
    ("sampler: random", "sampler: [tpe]", "sweep.yaml:10 search.sampler: unknown value ['tpe'] (did you mean 'tpe'? known: random, grid, tpe, nsga2, cmaes, gp)"),
    ("  trial_epsilon: 2.0", "  trial_epsilon: -1", "sweep.yaml:7 privacy.trial_epsilon: must be > 0, got -1"),
    ("  trial_epsilon: 2.0", "  trial_epsilon: .inf", "sweep.yaml:7 privacy.trial_epsilon: must be a finite number, got inf"),
    ("  trial_epsilon: 2.0\n", "", "sweep.yaml:5 privacy.trial_epsilon: is missing (say how much epsilon one trial may spend; 1 is strict, 8 is loose)"),
    ("  delta: 1e-5", "  delta: .nan", "sweep.yaml:6 privacy.delta: must be a finite number, got nan"),
    ("  delta: 1e-5", "  delta: 1", "sweep.yaml:6 privacy.delta: must be < 1, got 1"),
    (
        "  accounting: unaccounted\n",
        "",
        "sweep.yaml:5 privacy.accounting: is missing (it has no default, so that the choice is yours: `composed` keeps "
        "all trials together under study_epsilon; `select` draws their number and releases the best alone; `public` "
        "searches on public records; `unaccounted` says that epsilon is that of one trial and the cost of the search "
        "is not included)",
    ),
    (
        "accounting: unaccounted",
        "accounting: composed",
        "sweep.yaml:5 privacy.study_epsilon: is missing: composed keeps all trials together under it (two to four "
        "times trial_epsilon is usual; see `dpsweep plan`)",
    ),
    ("accounting: unaccounted", "accounting: compsed", "sweep.yaml:8 privacy.accounting: unknown value 'compsed' (did you mean 'composed'? known: composed, select, public, unaccounted)"),
    (
        "accounting: unaccounted",
        "accounting: composed\n  study_epsilon: 1.5",
        "sweep.yaml:9 privacy.study_epsilon: is smaller than trial_epsilon, so no trial would fit: 1.5 < 2 "
        "(raise it, or lower trial_epsilon)",
    ),
    ("accounting: unaccounted", "mean: 10\n  accounting: unaccounted", "sweep.yaml:8 privacy.mean: unknown key (it belongs below `selection:`)"),
    ("  num_trials: 4", "  max_time: soon", "sweep.yaml:11 search.max_time: must be seconds, or a time such as 90s, 45m or 2h, got 'soon'"),
    ("  num_trials: 4", "  max_time: -5m", "sweep.yaml:11 search.max_time: must be > 0, got -300"),
    ("  num_trials: 4", "  max_time: 1e308h", "sweep.yaml:11 search.max_time: must be seconds, or a time such as 90s, 45m or 2h, got '1e308h'"),
    ("  num_trials: 4", "  num_trials: 1" + "0" * 400, "sweep.yaml:11 search.num_trials: is too large for a number, got 10" + "0" * 55 + "..."),
    ("  num_trials: 4", "  objectives: [validation/accuracy]", "sweep.yaml:11 search.objectives: must be the metric and then dp/epsilon, got [validation/accuracy] (write [validation/accuracy, dp/epsilon], or [] for the metric alone)"),
    ("  num_trials: 4", "  objectives: [dp/epsilon, validation/accuracy]", "sweep.yaml:11 search.objectives: must be the metric and then dp/epsilon, got [dp/epsilon, validation/accuracy] (write [validation/accuracy, dp/epsilon], or [] for the metric alone)"),
    ("  num_trials: 4", "  objectives: [validation/acuracy, dp/epsilon]", "sweep.yaml:11 search.objectives[0]: unknown value 'validation/acuracy' (did you mean 'validation/accuracy'? known: validation/accuracy, validation/loss, validation/perplexity, dp/epsilon)"),
    ("  num_trials: 4", "  objectives: dp/epsilon", "sweep.yaml:11 search.objectives: must be a list, got 'dp/epsilon'"),
    ("sampler: random", "sampler: nsga2", "sweep.yaml:10 search.sampler: nsga2 looks for trade-offs between two objectives, and there is one (add objectives: [validation/accuracy, dp/epsilon], or use tpe)"),
    ("sampler: random", "sampler: cmaes\n  objectives: [validation/accuracy, dp/epsilon]", "sweep.yaml:10 search.sampler: cmaes has a single objective, and `objectives` names several (use nsga2, tpe or gp; or remove `objectives`)"),
    (
        "accounting: unaccounted",
        "accounting: unaccounted\n  study_epsilon: 6",
        "sweep.yaml:9 privacy.study_epsilon: an unaccounted study has no budget of its own, so this would not be kept (remove it)",
    ),
    (
        "  delta: 1e-5",
        "  neighboring_relation: replace_one",
        "sweep.yaml:6 privacy.neighboring_relation: 'replace_one' is not available yet "
        "(use add_or_remove_one; an epsilon under another relation is another number)",
    ),
    (
        "visibility: public",
        "visibility: noisy",
        "sweep.yaml:4 data.validation.noise_std: is missing: noisy scores need the standard deviation of their noise "
        "(0.01 is one point of accuracy in a hundred; `dpsweep plan` shows what it costs)",
    ),
    (
        "visibility: public",
        "visibility: exact, noise_std: 0.1",
        "sweep.yaml:4 data.validation.noise_std: has no meaning for visibility exact: these scores are exact "
        "(remove it, or use visibility: noisy)",
    ),
    ("visibility: public", "visibility: noisy, noise_std: 0", "sweep.yaml:4 data.validation.noise_std: must be > 0, got 0"),
    (
        ", visibility: public",
        "",
        "sweep.yaml:4 data.validation.visibility: is missing (say whose records these are: `public` (they need no "
        "protection), `noisy` (private; scores get noise and are charged), or `exact` (private, yet scores are exact; no "
        "guarantee covers them))",
    ),
    ("fraction: 0.2", "fraction: 0", "sweep.yaml:4 data.validation.fraction: is 0, so there is nothing to compare configurations on (0.2 is usual)"),
    ("fraction: 0.2", "fraction: 20", "sweep.yaml:4 data.validation.fraction: must be < 1, got 20"),
    (
        "  dataset: digits\n",
        "  dataset: digits\n  public: {fraction: 0.8}\n",
        "sweep.yaml:2 data: no private record is left: the fractions of validation, test and public add up to 1 (make their sum smaller than 1)",
    ),
    ("dataset: digits", "dataset: digts", "sweep.yaml:3 data.dataset: unknown value 'digts' (did you mean 'digits'? known: digits, fashion_mnist, mnist, cifar10, cifar100, svhn, celeba, npz, image_folder, image_dataset, text)"),
    ("dataset: digits", "dataset: digits\n  path: here", "sweep.yaml:4 data.path: has no meaning for digits (remove it)"),
    ("dataset: digits", "dataset: digits\n  num_records: 2000", "sweep.yaml:4 data.num_records: is 1797 for digits, got 2000 (remove it)"),
    (
        "dataset: digits",
        "dataset: digits\n  privacy_unit: user",
        "sweep.yaml:4 data.privacy_unit: 'user' is not available yet: every guarantee here is for one example "
        "(use example; of somebody with k examples epsilon is k times as large, and delta more than "
        "that)",
    ),
    ("loguniform: [1e-2, 8]", "loguniform: [8, 1e-2]", "sweep.yaml:14 search.space.optim.lr: bounds are reversed: [8, 0.01] (write [0.01, 8])"),
    ("loguniform: [1e-2, 8]", "loguniform: [8, 8]", "sweep.yaml:14 search.space.optim.lr: bounds are equal: [8, 8] (a fixed value is written 8)"),
    ("loguniform: [1e-2, 8]", "loguniform: [0, 8]", "sweep.yaml:14 search.space.optim.lr: loguniform needs bounds > 0, got [0, 8] (raise the lower bound, or use uniform)"),
    ("loguniform: [1e-2, 8]", "loguniform: [1e-2]", "sweep.yaml:14 search.space.optim.lr: loguniform needs two bounds, got [0.01] (loguniform: [low, high])"),
    ("loguniform: [1e-2, 8]", "loguniform: [a, 8]", "sweep.yaml:14 search.space.optim.lr: a bound of loguniform must be a number, got 'a'"),
    ("loguniform: [1e-2, 8]", "loguniform: [1e-2, .inf]", "sweep.yaml:14 search.space.optim.lr: a bound of loguniform must be a finite number, got inf"),
    ("loguniform: [1e-2, 8]", "int: [1, 2.5]", "sweep.yaml:14 search.space.optim.lr: a bound of int must be a whole number, got 2.5"),
    ("loguniform: [1e-2, 8]", "logunifrom: [1e-2, 8]", "sweep.yaml:14 search.space.optim.lr: unknown domain 'logunifrom' (did you mean 'loguniform'? known: uniform, loguniform, int, logint, choice)"),
    ("loguniform: [1e-2, 8]", "uniform: [1, 2], choice: [1]", "sweep.yaml:14 search.space.optim.lr: has 2 domains: uniform, choice (keep one)"),
    ("loguniform: [1e-2, 8]", "uniform: [1, 2], nun: 3", "sweep.yaml:14 search.space.optim.lr: unknown key 'nun' (did you mean 'num'?)"),
    ("loguniform: [1e-2, 8]", "num: 3", "sweep.yaml:14 search.space.optim.lr: has no domain (give one of uniform, loguniform, int, logint, choice)"),
    ("{loguniform: [1e-2, 8]}", "[0.1, 1]", "sweep.yaml:14 search.space.optim.lr: a list is not a domain (write {choice: [0.1, 1]}, or {uniform: [low, high]})"),
    ("optim.lr: {loguniform: [1e-2, 8]}", "optim: {lr: {uniform: [1, 2]}}", "sweep.yaml:14 search.space.optim: is not a parameter: 'lr' below it is another mapping (write one dotted name, `optim.lr:`)"),
    ("choice: [constant, cosine]", "choice: []", "sweep.yaml:15 search.space.noise.shape: choice is empty (list at least one value)"),
    ("choice: [constant, cosine]", "choice: [cosine, cosine]", "sweep.yaml:15 search.space.noise.shape: choice holds 'cosine' twice (remove one of the two)"),
    ("choice: [constant, cosine]", "choice: cosine", "sweep.yaml:15 search.space.noise.shape: choice must be a list, got 'cosine' (['cosine'])"),
    ("when: {noise.shape: cosine}", "when: {noise.shap: cosine}", "sweep.yaml:16 search.space.noise.end_ratio: its `when` names 'noise.shap', which is not in the space (did you mean 'noise.shape'?)"),
    ("when: {noise.shape: cosine}", "when: {noise.shape: cosin}", "sweep.yaml:16 search.space.noise.end_ratio: its `when` waits for noise.shape = 'cosin', which cannot happen (noise.shape is 'constant' or 'cosine'; remove noise.end_ratio, or --set search.space.noise.end_ratio=null)"),
    ("when: {noise.shape: cosine}", "when: {optim.lr: 1}", "sweep.yaml:16 search.space.noise.end_ratio: its `when` names 'optim.lr', which is a range (conditions work on a choice or a fixed value)"),
    ("when: {noise.shape: cosine}", "when: {noise.end_ratio: 1}", "sweep.yaml:16 search.space.noise.end_ratio: its `when` names itself (remove the condition)"),
    ("when: {noise.shape: cosine}", "when: cosine", "sweep.yaml:16 search.space.noise.end_ratio: when must be a mapping, got 'cosine' (when: {noise.shape: cosine})"),
    ("    method: dp_sgd\n", "", "sweep.yaml:12 search.space: has no method (add `method: dp_sgd`; see `dpsweep methods`)"),
    ("sampler: random", "sampler: grid", "sweep.yaml:14 search.space.optim.lr: sampler grid needs to know how many points to take from a range (add `num: 5` to it, or use a choice)"),
    ("name: digits-eps2", "name: !!python/name:os.system x", "sweep.yaml:1 name: a YAML tag (tag:yaml.org,2002:python/name:os.system) is not supported (remove it)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "line"), REPLACED, ids=[new[:30] or old[:30] for old, new, _ in REPLACED]
)
def test_one_mistake_makes_its_line(tmp_path, old, new, line):
    assert GOOD.count(old) >= 1
    found = lines_of(write(tmp_path, GOOD.replace(old, new, 1)))
    assert found[0] == line or line in found
    # Nothing else is said: a mistake does not drag others behind it. (The grid needs both ranges
    # to say how many points.)
    assert len(found) == 1 or "grid" in line or "a key must be" in line or "YAML tag" in line


ADDED = [
    ("sed: 3", "sweep.yaml:17 sed: unknown key (did you mean 'seed'? known: name, seed, data, pretrain, privacy, search, episodes, start, scheduler, report, resources, tracking, cluster, storage)"),
    ("seed: -1", "sweep.yaml:17 seed: must be >= 0, got -1"),
    ("tracking: {uri: ./mlruns}", "sweep.yaml:17 tracking.uri: './mlruns' is a directory, and MLflow no longer keeps its records in one (use sqlite:///mlflow.db, the http address of a server, or null)"),
    ("tracking: {uri: ''}", "sweep.yaml:17 tracking.uri: must not be empty"),
    ("scheduler: {type: asha}", "sweep.yaml:17 scheduler.type: 'asha' is called epsilon_halving here: successive halving with rungs in epsilon (use epsilon_halving)"),
    ("scheduler: {type: hyperband}", "sweep.yaml:17 scheduler.type: 'hyperband' is called epsilon_halving here: one bracket, with rungs in epsilon (use epsilon_halving)"),
    ("scheduler: {type: pbt}", "sweep.yaml:17 scheduler.type: 'pbt' copies weights between trials; that is not available (use epsilon_halving or fifo)"),
    ("scheduler: {type: bohb}", "sweep.yaml:17 scheduler.type: 'bohb' is halving with a sampler that learns; here the two are chosen apart (use epsilon_halving with search.sampler: tpe)"),
    ("scheduler: {type: epsilon_halvin}", "sweep.yaml:17 scheduler.type: unknown value 'epsilon_halvin' (did you mean 'epsilon_halving'? known: fifo, median, epsilon_halving, noisy_prefix)"),
    ("scheduler: {rungs: [1]}", "sweep.yaml:17 scheduler.rungs: has no meaning for fifo (remove it, or use type: median or epsilon_halving)"),
    ("scheduler: {type: median, variant: stop}", "sweep.yaml:17 scheduler.variant: has no meaning for median (remove it, or use type: epsilon_halving)"),
    ("scheduler: {type: median, reduction_factor: 3}", "sweep.yaml:17 scheduler.reduction_factor: has no meaning for median (remove it, or use type: epsilon_halving)"),
    ("scheduler: {type: median, min_trials: 0}", "sweep.yaml:17 scheduler.min_trials: must be >= 1, got 0"),
    ("scheduler: {type: epsilon_halving, min_trials: 3}", "sweep.yaml:17 scheduler.min_trials: has no meaning for epsilon_halving (remove it, or use type: median)"),
    ("scheduler: {type: epsilon_halving, reduction_factor: 1.5}", "sweep.yaml:17 scheduler.reduction_factor: must be >= 2, got 1.5"),
    ("scheduler: {type: epsilon_halving, rungs: 1}", "sweep.yaml:17 scheduler.rungs: must be a list, got 1"),
    ("scheduler: {type: epsilon_halving, rungs: [0, 1]}", "sweep.yaml:17 scheduler.rungs[0]: must be > 0, got 0"),
    ("scheduler: {type: epsilon_halving, rungs: [one, 1]}", "sweep.yaml:17 scheduler.rungs[0]: must be a number, got 'one'"),
    ("scheduler: {type: epsilon_halving, rungs: [0.5, 1, 0.7]}", "sweep.yaml:17 scheduler.rungs[2]: must be larger than the rung before it, got 0.7 after 1 (write the rungs in ascending order)"),
    ("scheduler: {type: median, rungs: [0.5, 0.5]}", "sweep.yaml:17 scheduler.rungs[1]: stands twice: 0.5 (remove one of the two)"),
    ("scheduler: {type: median, rungs: [0.5, 2]}", "sweep.yaml:17 scheduler.rungs[1]: must be smaller than trial_epsilon, got 2 >= 2 (a trial ends there anyway; remove it)"),
    ("scheduler: {type: epsilon_halving, variant: pause}", "sweep.yaml:17 scheduler.variant: unknown value 'pause' (known: stop, promote)"),
    ("scheduler:", "sweep.yaml:17 scheduler: is empty (give it keys, or leave the line out)"),
    ("scheduler: fifo", "sweep.yaml:17 scheduler: must be a mapping of keys to values, got 'fifo'"),
    ("cluster: {target: slurm}", "sweep.yaml:17 cluster.target: 'slurm' is not joined by a run (leave it out; `dpsweep cluster render slurm SPEC` starts one)"),
    ("cluster: {target: ray}", "sweep.yaml:17 cluster.address: is missing: target ray joins a running cluster (give HOST:6379, or auto, on a machine of the cluster)"),
    ("cluster: {address: 'ray://head:10001'}", "sweep.yaml:17 cluster.address: has no meaning for target local (use target: ray)"),
    ("resources: {gpu: 1.5}", "sweep.yaml:17 resources.gpu: a trial can share one GPU or have several whole ones, got 1.5 (use 1 or 2)"),
    ("resources: {cpu: 0}", "sweep.yaml:17 resources.cpu: must be > 0, got 0"),
    ("resources: [1, 2]", "sweep.yaml:17 resources: must be a mapping of keys to values, got [1, 2]"),
    ("report: {points: 0}", "sweep.yaml:17 report.points: must be >= 1, got 0"),
    ("a: &x 1\nb: *x", "sweep.yaml:18 b: a YAML alias (`*name`) is not supported (write the value out)"),
]  # fmt: skip


@pytest.mark.parametrize(("added", "line"), ADDED, ids=[added[:30] for added, _ in ADDED])
def test_a_line_at_the_end(tmp_path, added, line):
    found = lines_of(write(tmp_path, GOOD + added + "\n"))
    assert line in found
    assert len(found) == 1 or "alias" in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "sweep.yaml:1: is empty (`dpsweep init` writes a spec to start from)"),
        ("# only a comment\n", "sweep.yaml:1: is empty (`dpsweep init` writes a spec to start from)"),
        ("- name: x\n", "sweep.yaml:1: must be a mapping of keys to values, is a list (name: ...)"),
        ("hello\n", "sweep.yaml:1: must be a mapping of keys to values, is a single value (name: ...)"),
        ("name: x\ndata:\n\tdataset: digits\n", "sweep.yaml:3: a tab is used for indentation (use spaces)"),
        ("name: x\ndata: {dataset: digits\nprivacy: {}\n", "sweep.yaml:3: is not YAML: a bracket opened on line 2 is not closed here (close it with ] or }, and separate entries with commas)"),
        ("name: x: y\n", "sweep.yaml:1: is not YAML: unexpected `:` in 'name: x: y' (indent keys of one section alike, and put text that holds `: ` in quotes)"),
        ("name: x\n---\nname: y\n", "sweep.yaml:2: holds a second document after `---` (one file, one spec)"),
        ("name: *x\n", "sweep.yaml:1: is not YAML: `*` and `&` have a special meaning (put the text in quotes)"),
        ("name: 'x\nseed: 1\n", "sweep.yaml:3: is not YAML: the quote opened on line 1 is not closed (close it)"),
        ("data:\n  dataset: digits\n path: x\n", "sweep.yaml:3: is not YAML: 'path: x' does not fit what stands above (indent keys of one section alike)"),
    ],
)  # fmt: skip
def test_what_is_no_spec_at_all(tmp_path, text, line):
    assert lines_of(write(tmp_path, text)) == [line]


def test_missing_file_names_its_neighbours(tmp_path):
    (tmp_path / "other.yaml").write_text("name: x\n")
    (line,) = lines_of(tmp_path / "sweep.yaml")
    assert line.startswith(
        "sweep.yaml: no such file (YAML files there: other.yaml; or write a first one with `dpsweep init "
    )


def test_directory_and_binary_file(tmp_path):
    assert lines_of(tmp_path) == [f"{tmp_path.name}: is a directory (give the YAML file)"]
    path = tmp_path / "sweep.yaml"
    path.write_bytes(b"\x80\x81\x82")
    assert lines_of(path) == [
        "sweep.yaml: is not a text file (UTF-8) (save it as UTF-8; editors and shells of Windows "
        "may write UTF-16)"
    ]


def test_every_mistake_at_once_in_the_order_of_the_lines(tmp_path):
    text = """\
name: x
data:
  dataset: npz
  valdation: {fraction: 0.2, visibility: public}
privacy: {delta: 2, accounting: select}
search:
  num_trials: 0
  space:
    optim.lr: {loguniform: [8, 0.1]}
    a: {uniform: [0, 1], when: {b: 1}}
    b: {choice: [1, 2], when: {c: 1}}
    c: {choice: [1, 2], when: {b: 1}}
tracking: {uri: mlruns}
"""
    places = [line.split(": ")[0] for line in lines_of(write(tmp_path, text))]
    assert places == [
        "sweep.yaml:2 data.path",
        "sweep.yaml:2 data.num_records",
        "sweep.yaml:2 data.num_classes",
        "sweep.yaml:4 data.valdation",
        "sweep.yaml:5 privacy.delta",
        "sweep.yaml:5 privacy.trial_epsilon",
        "sweep.yaml:7 search.num_trials",
        "sweep.yaml:8 search.space",
        "sweep.yaml:9 search.space.optim.lr",
        "sweep.yaml:11 search.space.b",
        "sweep.yaml:13 tracking.uri",
    ]


def test_a_misspelt_required_key_is_one_mistake(tmp_path):
    found = lines_of(write(tmp_path, GOOD.replace("accounting:", "acounting:")))
    assert len(found) == 1
    assert "did you mean 'accounting'?" in found[0]


def test_a_circle_is_told_once(tmp_path):
    text = GOOD + "    a: {choice: [1, 2], when: {b: 1}}\n    b: {choice: [1, 2], when: {a: 1}}\n"
    assert lines_of(write(tmp_path, text)) == [
        "sweep.yaml:17 search.space.a: its `when` goes in a circle: a -> b -> a (break the circle)"
    ]


POINTS = [
    ("{optim.lr: 100}", "search.points_to_evaluate[0].optim.lr: must be within [0.01, 8], got 100"),
    ("{optim.lr: fast}", "search.points_to_evaluate[0].optim.lr: must be a number, got 'fast'"),
    ("{optim.rl: 1}", "search.points_to_evaluate[0].optim.rl: is not in the space (did you mean 'optim.lr'?)"),
    ("{method: non_private}", "search.points_to_evaluate[0].method: is fixed to 'dp_sgd', got 'non_private'"),
    ("{noise.shape: step}", "search.points_to_evaluate[0].noise.shape: must be one of 'constant', 'cosine', got 'step'"),
    (
        "{noise.shape: constant, noise.end_ratio: 1}",
        "search.points_to_evaluate[0].noise.end_ratio: has no meaning at this point, by its `when` (remove it from the point)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("point", "line"), POINTS)
def test_points_to_evaluate_fit_the_space(tmp_path, point, line):
    text = GOOD.replace("  num_trials: 4", f"  points_to_evaluate: [{point}]")
    assert lines_of(write(tmp_path, text)) == [f"sweep.yaml:11 {line}"]


def test_fitting_points_are_taken(tmp_path):
    text = GOOD.replace(
        "  num_trials: 4",
        "  points_to_evaluate: [{optim.lr: 1e-1, noise.shape: cosine, noise.end_ratio: 1}, {}]",
    )
    spec = SweepSpec.from_yaml(write(tmp_path, text))
    assert spec.search.points_to_evaluate[0]["optim.lr"] == 0.1


class TestOverrides:
    def test_they_win_over_the_file(self, tmp_path):
        spec = SweepSpec.from_yaml(
            write(tmp_path, GOOD),
            overrides=[
                "privacy.trial_epsilon=3",
                "search.space.optim.lr=0.5",
                "search.space.noise.shape={choice: [linear, cosine]}",
                "resources.gpu=0.5",
                "data.validation.fraction=1e-1",
            ],
        )
        assert spec.privacy.trial_epsilon == 3
        assert spec.search.space["optim.lr"] == 0.5
        assert spec.search.space["noise.shape"] == {"choice": ["linear", "cosine"]}
        assert spec.resources.gpu == 0.5
        assert spec.data.validation.fraction == 0.1

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("privacy.trial_epsilon=-3", "--set privacy.trial_epsilon: must be > 0, got -3"),
            ("privacy.trial_epsilo=3", "--set privacy.trial_epsilo: unknown key (did you mean 'trial_epsilon'? known: delta, trial_epsilon, accounting, study_epsilon, composition, selection, accountant, neighboring_relation, dataset_ledger, dataset_epsilon, dataset_delta)"),
            ("search.space.optim.lr={uniform: [2, 1]}", "--set search.space.optim.lr: bounds are reversed: [2, 1] (write [1, 2])"),
            ("optim.lr=3", f"--set optim.lr: unknown key (hyperparameters stand below search.space; known: {SECTIONS} here)"),
            ("scheduller.rungs=[]", f"--set scheduller.rungs: unknown key (did you mean 'scheduler'? known: {SECTIONS})"),
            ("privacy.trial_epsilon", "--set privacy.trial_epsilon: is not KEY=VALUE (for instance --set privacy.trial_epsilon=3)"),
            ("=3", "--set =3: is not KEY=VALUE (for instance --set privacy.trial_epsilon=3)"),
            ("name.first=x", "--set name.first=x: name is a value, it has no keys below it"),
            ("seed=[1", "--set seed=[1: the value '[1' is not YAML: a bracket opened on line 1 is not closed here"),
        ],
    )  # fmt: skip
    def test_their_mistakes_say_where_they_were_made(self, tmp_path, text, line):
        assert lines_of(write(tmp_path, GOOD), overrides=[text]) == [line]


def test_the_space_check_is_told_together_with_the_rest(tmp_path):
    from dpsweep.foundation.errors import Mistake

    text = GOOD.replace("num_trials: 4", "num_trials: 0").replace("[1e-2, 8]", "[8, 1e-2]")
    seen = []

    def check(parameters):
        seen.extend(p.name for p in parameters)
        return [
            Mistake("search.space.method", "unknown method 'dp_sgd'"),
            Mistake("search.space.optim.lr", "is told already"),
        ]

    found = lines_of(write(tmp_path, text), check_space=check)
    assert seen == ["method", "noise.shape", "noise.end_ratio"]  # without the one that is wrong
    assert found == [
        "sweep.yaml:11 search.num_trials: must be >= 1, got 0",
        "sweep.yaml:13 search.space.method: unknown method 'dp_sgd'",
        "sweep.yaml:14 search.space.optim.lr: bounds are reversed: [8, 0.01] (write [0.01, 8])",
    ]
