"""Paper presets: complete, commented specs of published studies, by name.

A preset is data (``Preset``) that ``preset_spec`` writes as the YAML that a person would write.
Rows of one table share their space in code, so that they cannot drift apart.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.registry import Registry, did_you_mean
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.search_spaces.own_data import OwnData, on_own_data, on_own_encoder, own_name

#: Paper -> its presets: a mapping from name (without the paper) to ``Preset``.
PAPERS = Registry(
    "paper",
    {
        "bu2024": "dpsweep.search_spaces.papers.tables:BU2024",
        "golatkar2022": "dpsweep.search_spaces.papers.tables:GOLATKAR2022",
        "luo2021": "dpsweep.search_spaces.papers.tables:LUO2021",
        "tramer2021": "dpsweep.search_spaces.papers.tables:TRAMER2021",
        "zhao2020": "dpsweep.search_spaces.papers.tables:ZHAO2020",
    },
    group="dpsweep.presets",
)

#: Old name of a preset -> its name now.
RENAMED: Mapping[str, str] = {
    "golatkar2022/ppgd_fashion_mnist": "golatkar2022/public_pull_fashion_mnist"
}
#: What a study with exact private validation scores does and does not claim.
CLAIMS = (
    "Claimed: the epsilon of each trial alone, for adding or removing one training record. Not "
    "claimed: anything about the search. Configurations are compared on exact scores of records "
    "that were taken out of the training source and that no guarantee covers (visibility: exact), "
    "and choosing among trials is not charged (accounting: unaccounted). The test part is declared "
    "public: it is scored once, at the end of each trial, and nothing is chosen by it."
)
#: What is said in its place where no trial is private.
NO_CLAIMS = (
    "Claimed: nothing. Epsilon is infinite: trials train without noise, on records that no "
    "guarantee covers, and configurations are compared on exact scores."
)

_SPEC = """\
{header}
name: {name}
seed: 0                        # initial weights and other public randomness; noise stays secret

data:
{data}{pretrain}{start}{episodes}
privacy:
  accounting: unaccounted      # {accounting_why}
  trial_epsilon: {epsilon:<14g}# {epsilon_why}
  delta: {delta}
  accountant: {accountant:<17}# {accountant_why}

search:
  sampler: grid
{num_trials}  metric: {metric}
  space:
{space}
scheduler: {{type: fifo}}        # every trial runs to its end, as in the paper
report: {points:<23}# {points_why}
resources: {{cpu: 1, gpu: 0}}    # of one trial
tracking: {{uri: "sqlite:///mlflow.db"}}
storage: {{path: studies}}
"""

#: With episodes every configuration of the grid runs on each of them.
_NUM_TRIALS = "  num_trials: {:<17}# the whole grid\n"
_ACCOUNTANTS = {
    "rdp": "the paper's kind; pld is tighter, so it needs less noise",
    "pld": "tight for plans that are fixed beforehand, as these are",
}
#: Comments on ``report.points``, by whether there are several.
_POINTS_WHY = {
    True: "evaluations per trial; the best of these models is delivered",
    False: "evaluated once: the model of the last step is delivered",
}
#: Comments on the accounting mode and on trial_epsilon, by ``Preset.is_private``.
_PRIVACY_WHY = {
    True: ("no claim about the search; epsilon is that of one trial", "what one trial may spend"),
    False: ("the only mode for what is not private", "binds no trial: none is private"),
}


@dataclass(frozen=True)
class Preset:
    """One published study.

    Attributes:
        title: First line: what it is, and which table or figure.
        source: Paper and address.
        about: Paragraphs: what is varied, what the paper reports, what differs here.
        data: The ``data`` section, indented by two.
        pretrain: The ``pretrain`` section, indented by two; empty without one.
        start: The ``start`` section, in the same way.
        episodes: The ``episodes`` section, in the same way.
        space: ``search.space``; varied values as choices, so that the grid is the table's.
        why: Comment for each parameter of ``space``.
        epsilon: ``privacy.trial_epsilon``.
        accountant: ``privacy.accountant``.
        points: ``report.points``; 1: the model of the last step is delivered, as papers do.
        then: Commands to run afterwards; ``{name}`` stands for the study.
        is_private: False where no trial has a finite epsilon.
        delta: ``privacy.delta``, as it is written.
        metric: ``search.metric``; a loss is minimised.
    """

    title: str
    source: str
    about: tuple[str, ...]
    data: str
    space: Mapping[str, Any]
    why: Mapping[str, str]
    epsilon: float
    accountant: Literal["rdp", "pld"] = "rdp"
    points: int = 1
    then: tuple[str, ...] = field(default=())
    is_private: bool = True
    pretrain: str = ""
    start: str = ""
    episodes: str = ""
    delta: str = "1e-5"
    metric: str = "validation/accuracy"


def preset_titles() -> dict[str, str]:
    """Return every preset's name and first line, by name."""
    return {
        f"{paper}/{name}": preset.title
        for paper, presets in sorted(PAPERS.items())
        for name, preset in sorted(presets.items())
    }


def preset_spec(name: str, own: OwnData | None = None) -> str:
    """Return a preset as a commented YAML spec, ready to run.

    >>> print(preset_spec("tramer2021/fashion_mnist").splitlines()[0])
    # Linear classifier on ScatterNet features of Fashion-MNIST: the best row of table 13.

    Args:
        name: ``PAPER/NAME``, as ``preset_titles`` lists them.
        own: Data of one's own in the place of the preset's; the study is called by them, too.
    Raises:
        BadInputError: There is no such preset, or it does not fit such data.
    """
    titles = preset_titles()
    if name in RENAMED:
        raise BadInputError(f"the preset {name} is called {RENAMED[name]} now", fix="name that one")
    if name not in titles:
        hint = did_you_mean(name, list(titles))
        raise BadInputError(
            f"no preset {name!r}",
            fix=(hint + "; " if hint else "") + "see `dpsweep init --presets`",
        )
    paper, _, short = name.partition("/")
    preset, study = PAPERS[paper][short], study_name(name)
    if own is None:
        return render(preset, study)
    return render(_on_own_data(preset, paper, own), own_name(study, own.path))


def _on_own_data(preset: Preset, paper: str, own: OwnData) -> Preset:
    """Return a preset that reads data of one's own, and names the studies beside it so."""
    note = (
        f"CHANGED by `dpsweep init`: the data are {own.path}. Sizes, figures and names of data "
        "below are those of the study as it was. See to it that image sizes, batches and numbers "
        "of records in search.space suit yours."
    )
    others = re.compile(rf"(?<![\w/]){paper}-[a-z0-9-]+")
    then = tuple(others.sub(lambda m: own_name(m[0], own.path), line) for line in preset.then)
    data = on_own_data(preset.data, own)
    space = on_own_encoder(preset.space, own)
    return replace(preset, about=(note, *preset.about), data=data, then=then, space=space)


def study_name(preset: str) -> str:
    """Return the name of the study that a preset describes.

    >>> study_name("tramer2021/fashion_mnist_cnn")
    'tramer2021-fashion-mnist-cnn'
    """
    return preset.replace("/", "-").replace("_", "-")


def render(preset: Preset, name: str) -> str:
    """Return a preset as YAML, every parameter of its space with a comment."""
    accounting_why, epsilon_why = _PRIVACY_WHY[preset.is_private]
    count = len(SearchSpace.from_spec(preset.space).grid())
    return _SPEC.format(
        header=_header(preset, name),
        name=name,
        metric=preset.metric + ("\n  mode: min" if preset.metric.endswith("/loss") else ""),
        data=preset.data,
        pretrain=f"\npretrain:\n{preset.pretrain}" if preset.pretrain else "",
        start=f"\nstart:\n{preset.start}" if preset.start else "",
        episodes=f"\nepisodes:\n{preset.episodes}" if preset.episodes else "",
        delta=preset.delta,
        accounting_why=accounting_why,
        epsilon=preset.epsilon,
        epsilon_why=epsilon_why,
        accountant=preset.accountant,
        accountant_why=_ACCOUNTANTS[preset.accountant],
        num_trials="" if preset.episodes else _NUM_TRIALS.format(count),
        space=space_text(preset.space, preset.why),
        points=f"{{points: {preset.points}}}",
        points_why=_POINTS_WHY[preset.points > 1],
    )


def _header(preset: Preset, name: str) -> str:
    lines = [f"# {preset.title}", *_comment(preset.source)]
    for paragraph in (*preset.about, CLAIMS if preset.is_private else NO_CLAIMS):
        lines += ["#", *_comment(paragraph)]
    if preset.then:
        lines += ["#", "# After `dpsweep run FILE`:"]
        for command in preset.then:
            lines += [f"#   {line}" for line in _shell_lines(command.format(name=name))]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    lines = textwrap.wrap(text, 97, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}" for line in lines]


def _shell_lines(command: str) -> list[str]:
    """Break a command before its options, so that lines stay short and it can be pasted."""
    first, *options = command.split(" --")
    words = textwrap.wrap(first, 88, break_long_words=False, break_on_hyphens=False)
    lines = [words[0], *(f"  {word}" for word in words[1:])]
    for option in options:
        if len(lines[-1]) + len(option) < 88:
            lines[-1] += f" --{option}"
        else:
            lines.append(f"  --{option}")
    return [f"{line} \\" for line in lines[:-1]] + [lines[-1]]


def space_text(space: Mapping[str, Any], why: Mapping[str, str]) -> str:
    """Return ``search.space`` as YAML lines, each below the comment that explains it."""
    lines = []
    for name, domain in space.items():
        if name in why:
            lines.append(f"    # {why[name]}")
        line = f"    {name}: {_flow(domain)}"
        lines += [line] if len(line) <= 100 else _block(name, domain)
    return "\n".join(lines) + "\n"


def _block(name: str, domain: Any) -> list[str]:
    """Write the branches of a domain below each other; others on one line, however long."""
    if not (isinstance(domain, Mapping) and set(domain) == {"by"}):
        return [f"    {name}: {_flow(domain)}"]
    ((other, branches),) = domain["by"].items()
    head = [f"    {name}:", "      by:", f"        {other}:"]
    return head + [f"          {word}: {_flow(branch)}" for word, branch in branches.items()]


def _flow(domain: Any) -> str:
    """Write a domain on one line, as people do."""
    if isinstance(domain, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(value)}" for key, value in domain.items()) + "}"
    if isinstance(domain, (list, tuple)):
        return "[" + ", ".join(_flow(value) for value in domain) + "]"
    if domain is None or isinstance(domain, bool):
        return "null" if domain is None else str(domain).lower()
    return str(domain)  # the data hold plain words and numbers only
