"""Starter specs for ``dpsweep init``: complete, valid, every key explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import did_you_mean, installed
from dpsweep.search_spaces.own_data import (
    OwnData,
    delta_of,
    on_own_data,
    on_own_encoder,
    on_own_records,
    own_name,
)
from dpsweep.search_spaces.presets import space_text
from dpsweep.search_spaces.recommended import LIKE, SPACES, methods_for, recommended
from dpsweep.spec.data.datasets import DATASET_GROUP

_PARTS = """\
  validation:                  # what configurations are compared on
    fraction: 0.1              # share of the records; which ones is fixed without looking at them
    visibility: public         # public: needs no protection; noisy: private, scores get noise and
                               # are charged; exact: private, no guarantee (only unaccounted)
    noise_std: null            # noisy: standard deviation of that noise on an accuracy, say 0.01
  test:                        # what the result is scored on: the test part that is there
    visibility: public         # public: scored at the end of a trial; private: never
"""

_DATA: Mapping[str, str] = {
    "digits": """\
  dataset: digits              # 1797 grey 8x8 images; or fashion_mnist, npz, image_folder, text
  task: classification
  validation:                  # what configurations are compared on
    fraction: 0.2              # share of the records; which ones is fixed without looking at them
    visibility: public         # public: needs no protection; noisy: private, scores get noise and
                               # are charged; exact: private, no guarantee (only unaccounted)
    noise_std: null            # noisy: standard deviation of that noise on an accuracy, say 0.01
  test:                        # what the result is scored on
    fraction: 0.2
    visibility: public         # public: scored at the end of a trial; private: never
""",
    "fashion_mnist": """\
  dataset: fashion_mnist       # 60000 grey 28x28 images and a test part of 10000
  task: classification
  path: null                   # directory of the idx.gz files; null: where the Debian package
                               # dataset-fashion-mnist puts them
"""
    + _PARTS,
    "npz": """\
  dataset: npz                 # arrays x_train, y_train; optional x_val, y_val, x_test, y_test
  path: data.npz               # EDIT: the file
  num_records: 10000           # EDIT: records in x_train; becomes public, may be rounded
  num_classes: 10              # EDIT: labels are 0 .. num_classes - 1
  task: classification         # or multi_label: y_train of shape (records, num_classes), 0 and 1
  validation:                  # what configurations are compared on
    fraction: 0.2              # share of the records; without effect if the file has x_val
    visibility: public         # public: needs no protection; noisy: private, scores get noise and
                               # are charged; exact: private, no guarantee (only unaccounted)
    noise_std: null            # noisy: standard deviation of that noise on an accuracy, say 0.01
  test:                        # what the result is scored on
    fraction: 0.0              # keep 0 if the file has x_test
    visibility: private        # public: scored at the end of a trial; private: never
""",
    "image_folder": """\
  dataset: image_folder        # CLASS/NAME.png or .jpg; or train/, val/, test/ above CLASS
  path: images                 # EDIT: the directory
  num_records: 10000           # EDIT: training images; becomes public, may be rounded
  image_size: 32               # images are resized to this; [height, width] if they are not square
  resize: squash               # crop keeps proportions and cuts the centre out
  channels: 3                  # 1 (grey) or 3 (colour)
  task: classification
  validation:                  # what configurations are compared on
    fraction: 0.2              # share of the images; without effect if there is a folder val/
    visibility: public         # public: needs no protection; noisy: private, scores get noise and
                               # are charged; exact: private, no guarantee (only unaccounted)
    noise_std: null            # noisy: standard deviation of that noise on an accuracy, say 0.01
  test:                        # what the result is scored on
    fraction: 0.0              # keep 0 if there is a folder test/
    visibility: private        # public: scored at the end of a trial; private: never
""",
    "text": """\
  dataset: text                # needs pip install 'dpsweep[text]'
  task: classification         # or causal_lm: the next token; then without num_classes
  path: texts.csv              # EDIT: .csv, .jsonl, .npz of token ids, or a datasets directory
  text_column: text
  label_column: label          # class numbers from 0
  tokenizer: encoder           # EDIT: directory of a transformers tokenizer; it must be public
  max_length: 128              # tokens of a record; longer ones are cut
  num_records: 10000           # EDIT: training records; becomes public, may be rounded
  num_classes: 2               # EDIT: labels are 0 .. num_classes - 1
  validation:                  # what configurations are compared on
    fraction: 0.2              # share of the records; without effect on a file with its own part
    visibility: public         # public: needs no protection; noisy: private, scores get noise and
                               # are charged; exact: private, no guarantee (only unaccounted)
    noise_std: null            # noisy: standard deviation of that noise on an accuracy, say 0.01
  test:                        # what the result is scored on
    fraction: 0.0              # keep 0 if there is a test part
    visibility: private        # public: scored at the end of a trial; private: never
""",
}


def _of_files(dataset: str, about: str, *lines: str) -> str:
    """Return the section ``data`` of a dataset that is read from the files its authors have."""
    head = (f"  dataset: {dataset:<20}# {about}", "  path: images                 # EDIT: where")
    return "\n".join([*head, *lines]) + "\n" + _PARTS


_SIZED = (
    "  num_records: 10000           # EDIT: training images; becomes public, may be rounded",
    "  image_size: 32               # images are resized to this; [height, width] if not square",
)
_FILES: Mapping[str, str] = {
    "mnist": _of_files("mnist", "60000 grey 28x28 images and a test part of 10000"),
    "cifar10": _of_files("cifar10", "50000 colour 32x32 images and a test part of 10000"),
    "cifar100": _of_files("cifar100", "50000 colour 32x32 images and a test part of 10000"),
    "svhn": _of_files("svhn", "73257 colour 32x32 images and a test part of 26032"),
    "celeba": _of_files(
        "celeba",
        "162770 faces, with 40 attributes and parts of their own",
        "  task: multi_label            # classification of one attribute: attributes: [Smiling]",
        "  image_size: 64               # images are resized to this",
    ),
    "image_dataset": _of_files("image_dataset", "a directory of datasets.save_to_disk", *_SIZED),
}
#: Section ``data`` of a starter by dataset.
_SECTIONS: Mapping[str, str] = {**_DATA, **_FILES}

#: Kinds of starters: many trials, probes and one run, or one run alone.
Kind = Literal["search", "probe", "single"]

_NAME = "DATASET"
#: Section ``data`` of a dataset of an installed package.
_OF_A_PACKAGE = f"""\
  dataset: {_NAME}
  path: null                   # EDIT: where it is, if it lies in files
  num_records: 10000           # EDIT: training records; becomes public, may be rounded
  task: classification
  validation:                  # what configurations are compared on
    fraction: 0.2              # share of the records; without effect on data with their own part
    visibility: public         # public: needs no protection; noisy: private, scores get noise and
                               # are charged; exact: private, no guarantee (only unaccounted)
    noise_std: null            # noisy: standard deviation of that noise on an accuracy, say 0.01
  test:                        # what the result is scored on
    fraction: 0.0              # keep 0 if there is a test part
    visibility: private        # public: scored at the end of a trial; private: never
"""

# trial_epsilon, study_epsilon and rungs where they differ: room for about seven whole trials, and
# rungs at about a tenth and two fifths of the steps.
_BUDGETS: Mapping[str, tuple[str, str, str]] = {"fashion_mnist": ("3.0", "8.0", "[1.2, 1.9]")}

#: The accounting modes that keep trials secret or off private records; no start goes with them.
_SECRET_MODES = """\
#   select       only the best trial is shown, of a random and secret number of them; costs about
#                twice trial_epsilon. Sampler random, scheduler fifo, no num_trials: how many is
#                said below privacy, `selection: {mean: 10, shape: 1}`.
#   public       the search trains on public records only (data.public.fraction > 0); then one
#                private run of the winner, at trial_epsilon. No study_epsilon.
"""
_SPEC = """\
# A sweep for dpsweep. Check it with `dpsweep plan FILE`, start it with `dpsweep run FILE`; the same
# command again continues it. One key for one run: `--set privacy.trial_epsilon=3`.

name: {name}
seed: 0                        # initial weights and suggestions; noise and batches stay secret

data:
{data}\
  public: {{fraction: {public}}}  {pad}# share of all records that is declared public
  max_private: null            # use only this many private records (for quick trials)
  privacy_unit: example        # whose data one record is
{start}
# What is claimed about the search, one of {modes}; `dpsweep plan` shows what yours costs.
#   composed     everything may be shown: all trials together stay within study_epsilon. Any sampler
#                and scheduler; trials that are stopped early leave their budget to more trials.
{secret}\
#   unaccounted  no claim: epsilon is that of one trial, the search is NOT included. No
#                study_epsilon; the only mode for exact scores and the method non_private.
privacy:
  accounting: composed
  trial_epsilon: {epsilon}           # what one trial may spend: 1 is strict, 8 is loose
  study_epsilon: {study}           # what all trials together may spend
  composition: {composition:<16}# filter (as null): any plans; declared: more trials of one plan
  delta: {delta:<22}# chance that the guarantee fails; below 1 / number of records
  accountant: {accountant:<17}# rdp (fast) or pld (tighter; with fifo, and no filter)
  neighboring_relation: add_or_remove_one
  dataset_ledger: null         # file in which all studies on these records add up; its caps are
  dataset_epsilon: null        # set by the first study that names it
  dataset_delta: null

search:
{search}\
  space:                       # uniform, loguniform, int, logint: [low, high]; choice: [..];
                               # a plain value is fixed; names: `dpsweep describe {method}`
                               # of several methods: {{by: {{method: {{dp_sgd: .., bitfit: ..}}}}}}
{rates}{space}
{scheduler}report:
  points: 10                   # evaluations per trial, evenly spaced
  every_steps: null            # or one every so many steps; wins over points
resources:
  cpu: 1                       # cores per trial; a fraction shares one
  gpu: 0                       # GPUs per trial; 0.5 puts two trials on one
  by_method: {{}}                # of trials of a method: {{bitfit: {{gpu: 0.5}}}}
  max_failures: 3              # a crashed trial continues this often; what it spent stays spent
  hang_minutes: null           # a trial without a report for so long is ended as by a crash
tracking:
  kind: mlflow                 # or the tracker of an installed package
  uri: sqlite:///mlflow.db     # or the http address of an MLflow server; null: no tracking
  experiment: null             # null: the name of the study
  pictures: true               # drawn and logged when the study has finished
cluster:
  wait_minutes: 0              # for an autoscaler's first node with room for a trial
  wait_nodes: 1                # of those to wait for, as long
  target: local                # this machine; ray: a running cluster, with its address
  num_cpus: null               # of this machine; null: all
  num_gpus: null
  address: null                # for target ray: HOST:6379, or auto
# More sections, where they are wanted (docs/): `pretrain` trains a network on public records
# first, and `model.checkpoint: pretrain` starts trials from it; `start` trains one on the private
# records, for active_learning; `episodes` is few-shot learning.
storage:
  path: studies                # each study gets its own folder there
  database: null               # postgresql://USER@HOST/DATABASE for ledgers and journal
  features: null               # directory of frozen features; null: .features in path
  features_gb: 50              # most that is kept of them; old ones make room
"""


#: How trials are chosen by a sampler.
_SAMPLED = """\
  strategy: sampler            # or probe, with a section of that name: `dpsweep init --probe`
  sampler: tpe                 # tpe, gp, cmaes (learn from earlier trials), random, grid (needs
                               # `num: 5` on each range), nsga2 (for two objectives)
  num_trials: {trials:<17}# at most; composed ends earlier when no further trial fits
  "on": null                   # {{split: 0.1}}: on a tenth of the private records, fixed without
                               # looking; the best one is then run once on the others. composed
  max_time: null               # as in 45m or 2h: no further trial is started after it
  metric: validation/accuracy  # or validation/loss with mode: min
  mode: max
  objectives: []               # [validation/accuracy, dp/epsilon]: the best trade-offs of the two
  max_concurrent: null         # most trials at once; null: as many as the resources allow
  points_to_evaluate: []       # configurations to try first, as in [{{optim.lr: 1.0}}]
"""
#: How one number is found by probes; the score that they are compared by is said alike.
_PROBED = """\
  strategy: probe              # very noisy runs find one number, then one run gets what they leave
  probe:
    num_probes: 12             # points of the range, from bound to bound
    epsilon: {probe_epsilon:<18}# of one probe; of 50,000 records .05 is enough for a ranking
    spares: 2                  # beyond a bound that came out best; paid for, used or not
    overrides: {{}}              # what a probe has in the place of the final run's, to take less
                               # time: {{train.epochs: 3}}
  metric: validation/accuracy  # or validation/loss with mode: min
  mode: max
  max_concurrent: null         # most trials at once; null: as many as the resources allow
"""
#: Section ``scheduler`` where nothing is stopped early.
_NO_SCHEDULER = "scheduler: {type: fifo}        # every run goes to its end\n"
_SCALE = "optim.noise_scale"
#: What a probe costs on sets so small that .05 would drown them.
_PROBE_EPSILONS = {"digits": "0.3"}
#: What a study is called besides, by its kind.
_NAMES: Mapping[Kind, str] = {"search": "", "probe": "-probe", "single": "-one"}
#: Said of spaces that search a learning rate.
_RATES = """\
                               # optim.noise_lr in the place of optim.lr: a rate that follows the
                               # noise, so that the best one is much the same for every epsilon
"""


def starter_spec(
    dataset: str = "digits",
    method: str | None = None,
    *,
    kind: Kind = "search",
    own: OwnData | None = None,
) -> str:
    """Return a commented YAML spec for a dataset, ready to run (or to edit where it says so).

    Args:
        dataset: Value of ``data.dataset``.
        method: A method with recommended spaces; None: bitfit for text, dp_sgd for the others.
        kind: ``search``: trials that a sampler chooses; ``probe``: noisy probes of one number and
            one run; ``single``: one run of a configuration that needs no search.
        own: Data of one's own, of this dataset; the study is called by them.

    Raises:
        BadInputError: There is no such dataset, or nothing is recommended for the method.
    """
    method = method or ("bitfit" if dataset == "text" else "dp_sgd")
    datasets = [*_SECTIONS, *(n for n in installed(DATASET_GROUP) if n not in _SECTIONS)]
    for kind_of, word, names in (("dataset", dataset, datasets), ("method", method, list(SPACES))):
        if word not in names:
            hint = did_you_mean(word, names)
            raise BadInputError(
                f"no starter spec for {kind_of} {word!r}",
                fix=(hint + " " if hint else "") + f"known: {', '.join(names)}",
            )
    ours = recommended(method)
    space = ours.space(dataset) if kind == "search" else ours.single(dataset)
    if space is None or (kind == "probe" and _SCALE not in space):
        raise _nothing_for(dataset, method, kind)
    if kind == "probe":
        space = {**space, _SCALE: _around(space[_SCALE])}
    epsilon, study, rungs = budget_for(dataset)
    if ours.budget is not None:
        epsilon, study = ours.budget
    if kind != "search":
        study = epsilon
    public = f"{ours.public_share(dataset):g}"
    public = public if "." in public else public + ".0"
    of_method = "" if method == "dp_sgd" else f"-{method.replace('_', '-')}"
    search = (_PROBED if kind == "probe" else _SAMPLED).format(
        trials=24 if kind == "search" else 1, probe_epsilon=_PROBE_EPSILONS.get(dataset, "0.05")
    )
    data, subject = data_section(dataset, own)
    if own is not None:
        share = ours.public_share(dataset)
        space = on_own_records(on_own_encoder(space, own), ours.of_public, own, share)
    return _SPEC.format(
        name=f"{subject}{of_method}{_NAMES[kind]}-eps{epsilon[0]}",
        data=data,
        public=public,
        pad=" " * (7 - len(public)),
        epsilon=epsilon,
        study=study,
        delta=delta_of(dataset, data),
        start="\n" + ours.start_section(dataset) if ours.start else "",
        modes="two with a start" if ours.start else "four",
        secret="" if ours.start else _SECRET_MODES,
        scheduler=ours.scheduler.format(rungs=rungs) if kind == "search" else _NO_SCHEDULER,
        composition="declared" if kind == "probe" else "null",
        accountant="pld" if kind == "probe" else "rdp",
        search=search,
        rates=_RATES if "optim.lr" in space and "optim.name" not in space else "",
        method=method,
        space=space_text(space, ours.why),
    )


def data_section(dataset: str, own: OwnData | None) -> tuple[str, str]:
    """Return the section ``data`` of a starter, less ``public``, and what a study of it is called.

    Args:
        dataset: Value of ``data.dataset``.
        own: Data of one's own, of this dataset.
    """
    data = _SECTIONS.get(dataset, _OF_A_PACKAGE).replace(_NAME, dataset)
    if own is None:
        return data, dataset.replace("_", "-")
    return on_own_data(data, own), own_name("", own.path)


def budget_for(dataset: str) -> tuple[str, str, str]:
    """Return ``trial_epsilon``, ``study_epsilon`` and rungs of a starter."""
    return _BUDGETS.get(LIKE.get(dataset, dataset), ("2.0", "6.0", "[0.8, 1.3]"))


def _around(start: float) -> dict[str, list[float]]:
    """Return the range that probes try: two decades to either side of what needs no search."""
    return {"loguniform": [start / 100, start * 100]}


def _nothing_for(dataset: str, method: str, kind: Kind) -> BadInputError:
    """Return why there is no starter spec of a method for a dataset."""
    if kind != "search":
        option = "--no-search" if kind == "single" else "--probe"
        fixed = {name: recommended(name).single(dataset) or {} for name in methods_for(dataset)}
        needed = _SCALE if kind == "probe" else "method"
        others = [name for name, space in fixed.items() if needed in space]
        return BadInputError(
            f"nothing is recommended for one run of {method} on {dataset}",
            fix=f"leave {option} out"
            + (f", or use --method {' or '.join(others)}" if others else ""),
        )
    able = methods_for(dataset)
    return BadInputError(
        f"no starter spec for {method} on {dataset}",
        fix=f"use --method {' or '.join(able)}"
        if able
        else "write search.space yourself: `dpsweep describe METHOD` lists what it may vary",
    )
