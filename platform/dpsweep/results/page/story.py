"""The story of a study, as values for a page: asked, cost, won, stopped, how to repeat it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsweep.foundation.errors import NothingWithinBudgetError
from dpsweep.foundation.words import decimals, exact
from dpsweep.privacy.statement import PrivacyStatement, shown_epsilon
from dpsweep.results.origins import reading_data
from dpsweep.results.study import SweepResult
from dpsweep.results.study_card import card
from dpsweep.results.tables.searched import best_id, searched_values
from dpsweep.results.trial import TrialResult
from dpsweep.spec.facts import without_password
from dpsweep.spec.search.section import EPSILON
from dpsweep.study.journal import on_test_records
from dpsweep.trainables.data.loading import describe_dataset

#: A label, and a value in words.
Fact = tuple[str, str]


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        columns: Names.
        rows: Cells, as text.
        numeric: Which columns are sorted and aligned as numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool]


@dataclass(frozen=True)
class Story:
    """What a page says of a study, in the order of the page.

    Guarantees:
        It is made of ``SweepResult``'s own words and rows. Of a study in ``select`` these are of
        the winner alone, and nothing counts trials.

    Attributes:
        name: Of the study.
        state: One line: how it stands.
        asked: What the spec asked for.
        cost: What may be claimed of the study, and of a trial, with all terms.
        won: The best trial, or why there is none.
        config: Its configuration.
        stopped: Why trials ended, with counts; empty where counts are secret.
        trials: All trials that may be shown.
        card: The privacy card, in Markdown.
        spec: The spec, as YAML without passwords.
        version: Of dpsweep.
    """

    name: str
    state: str
    asked: Sequence[Fact]
    cost: str
    won: Sequence[Fact]
    config: Sequence[Fact]
    stopped: Table | None
    trials: Table
    card: str
    spec: str
    version: str


def story_of(result: SweepResult, *, version: str) -> Story:
    """Return the story of a study as it stands."""
    won, config = _won(result)
    is_sealed = result.spec.privacy.mode.is_sealed
    return Story(
        name=result.name,
        state=result.status_line().partition(": ")[2],
        asked=_asked(result),
        cost=result.claims.caption() or result.unreleased,
        won=won,
        config=config,
        stopped=None if is_sealed else _stopped(result),
        trials=_trials(result),
        card=card(result),
        spec=without_password(result.spec).to_yaml(),
        version=version,
    )


def _asked(result: SweepResult) -> list[Fact]:
    spec = result.spec
    with reading_data(spec):
        info = describe_dataset(spec.data)
    better = "high is good" if result.is_maximized else "low is good"
    objectives = spec.search.compared_by
    scores = [f"{o}, {'low is good' if o == EPSILON else better}" for o in objectives]
    return [
        ("Data", f"{info.name}, {info.num_private} private records as declared"),
        ("Accounting", f"{spec.privacy.accounting}: {spec.privacy.mode.claim}"),
        ("Score", "; ".join(scores)),
        ("Search", f"{spec.search.sampler} over {', '.join(result.varied) or 'one configuration'}"),
        ("Scheduler", spec.scheduler.type),
    ]


def _won(result: SweepResult) -> tuple[list[Fact], list[Fact]]:
    try:
        best = result.best()
    except NothingWithinBudgetError as error:
        return [("No best trial", error.message)], []
    number = [] if result.spec.privacy.mode.is_sealed else [("Trial", str(best.trial_id))]
    scores = {best.metric: best.value, **best.metrics}
    facts: list[Fact] = [
        *number,
        *((name, as_cell(name, _score(score))) for name, score in scores.items()),
        ("Epsilon", _in_words(best.statement)),
    ]
    if best.study_statement is not None:
        facts.append(("The study", _in_words(best.study_statement)))
    (searched,) = searched_values(result, [best])
    chosen = ((name, as_cell(name, value)) for name, value in searched.items() if value is not None)
    facts += chosen  # on paper the whole configuration stays folded
    if best.model_uri:
        facts.append(("Model", best.model_uri))
    return facts, [(name, as_cell(name, value)) for name, value in best.config.items()]


def _in_words(statement: PrivacyStatement) -> str:
    text = statement.one_line()
    return text.removeprefix("epsilon=")


def _stopped(result: SweepResult) -> Table | None:
    """Return how many trials ended in which way; what is its own to each is left out."""
    counts = Counter(
        (result.state_of(trial), _without_scores(trial.reason)) for trial in result.results
    )
    infeasible = result.view.num_infeasible
    if infeasible:
        counts["infeasible", "no plan within the budget"] = infeasible
    if not counts:
        return None
    rows = [[state, reason, str(n)] for (state, reason), n in counts.most_common()]
    return Table(["state", "reason", "trials"], rows, [False, False, True])


def _without_scores(reason: str) -> str:
    """Return a reason as it is common to several trials.

    >>> _without_scores("0.53 at rung 1 of 2 is below the cut-off 0.86 (best 1 of 5)")
    'at rung 1 of 2: below the cut-off'
    >>> _without_scores("nets:small fails on 8x8 records: no such layer")
    'nets:small fails on 8x8 records'
    """
    judged = re.fullmatch(r"\S+ (at rung \d+ of \d+) is (\w+ the cut-off) .*", reason)
    if judged:
        return f"{judged[1]}: {judged[2]}"
    return reason.partition(": ")[0].partition(";")[0]


def _trials(result: SweepResult) -> Table:
    spec = result.spec
    test = on_test_records(spec.search.metric)
    is_tested = spec.data.test.visibility == "public"
    trials, best = result.results, best_id(result)
    rows = [
        {**_trial(result, trial, test if is_tested else None, best), **searched}
        for trial, searched in zip(trials, searched_values(result, trials))
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [all(_is_number(row.get(name)) for row in rows) for name in names]
    cells = [[as_cell(name, row.get(name)) for name in names] for row in rows]
    return Table(names, cells, numeric)


def _trial(
    result: SweepResult, trial: TrialResult, test: str | None, best: int | None
) -> Mapping[str, Any]:
    spec, number = result.spec, trial.trial_id
    has_kinds = spec.privacy.mode.is_public_search or spec.search.on is not None
    return {
        **({} if best is None else {"best": "*" if number == best else ""}),
        "trial": number,
        "state": result.state_of(trial),
        **({"records": result.view.trials[number].records} if has_kinds else {}),
        **({} if spec.final_trial is None else {"run": spec.run_of(number)}),
        "method": trial.config.get("method"),
        trial.metric: _score(trial.value),
        **({test: _score(trial.metrics.get(test))} if test else {}),
        "epsilon": shown_epsilon(trial.epsilon),
        "sampling": trial.statement.sampling,
        "step": trial.step,
        "steps": trial.steps_run,
        "planned": trial.num_steps,
    }


def _score(value: float | None) -> str | None:
    return None if value is None else decimals(value)


def _is_number(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return value is None
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def as_cell(name: str, value: Any) -> str:
    """Return a value as text for people; an epsilon with all its digits, as none is rounded down.

    >>> as_cell("optim.lr", 0.123456), as_cell("a", None), as_cell("a", True), as_cell("a", "b")
    ('0.1235', '', 'true', 'b')
    >>> as_cell("noise.target_epsilon", 2.000049)
    '2.000049'
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return exact(value) if "epsilon" in name else f"{value:.4g}"
    return str(value)
