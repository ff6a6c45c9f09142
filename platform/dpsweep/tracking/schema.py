"""Every param, metric and tag that may leave an actor: name, unit, visibility, meaning.

The schema is the gate of tracking: a name that is not here is refused, and a name whose values are
statistics of private records is listed as ``private`` so that the refusal can say why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpsweep.foundation.errors import SweepError
from dpsweep.foundation.registry import did_you_mean
from dpsweep.privacy import terms

Kind = Literal["param", "metric", "tag"]
Visibility = Literal["public", "dp", "private"]


class UnloggableError(SweepError):
    """A value may not go to the tracker: its name is unknown, or it is private."""


@dataclass(frozen=True)
class Item:
    """One name of the schema.

    Attributes:
        name: Name as it appears in the tracking store; one that ends in ``*`` is a family.
        kind: ``param``, ``metric`` or ``tag``.
        unit: Unit of the values; "1" for a ratio or a count, "" for words.
        visibility: ``public`` (known without private records, or post-processing of something
            DP), ``dp`` (itself a charged DP release), ``private`` (never leaves the actor).
        doc: One sentence.
    """

    name: str
    kind: Kind
    unit: str
    visibility: Visibility
    doc: str


def _items(kind: Kind, rows: Iterable[tuple[str, str, Visibility, str]]) -> tuple[Item, ...]:
    return tuple(Item(name, kind, unit, visibility, doc) for name, unit, visibility, doc in rows)


# A score by its plain name is that of the model that a trial delivers, written once, at its end:
# MLflow's tables show the last point of a metric. Those of other models have a prefix.
CURVE = "curve/"
BEST = "best/"
_OF_MODEL = ("validation/", "test/", "public/")

EPSILON = "dp/epsilon"
OBJECTIVE = "search/objective"
BEST_OBJECTIVE = "best/value"
BEST_TRIAL = "best/trial"
BEST_EPSILON = "best/epsilon"
TRAIN_SECONDS = "time/train_s"
PEAK_MEMORY = "memory/peak_mb"
STUDY_SPENT = "dp/study_spent_epsilon"

METRICS = _items(
    "metric",
    [
        (
            "validation/accuracy",
            "1",
            "public",
            "Share of validation records that are correct, by "
            "the model that the trial delivers: its best checkpoint.",
        ),
        ("validation/loss", "nat", "public", "Mean cross-entropy on the validation part."),
        ("validation/perplexity", "1", "public", "Exponential of the loss per token."),
        ("validation/accuracy/*", "1", "public", "validation/accuracy of one attribute."),
        ("test/accuracy", "1", "public", "Share of test records correct, by the same model."),
        ("test/loss", "nat", "public", "Mean cross-entropy on the test part."),
        ("test/perplexity", "1", "public", "Exponential of the loss per token."),
        ("test/bleu", "%", "public", "BLEU of texts written for the prompts of the test part."),
        ("test/rouge_l", "1", "public", "Their ROUGE-L: mean of the best F1 over references."),
        ("test/nist", "1", "public", "Their NIST, n-grams up to 5."),
        ("test/meteor", "1", "public", "Their mean METEOR."),
        ("test/cider", "1", "public", "Their CIDEr."),
        ("test/accuracy/*", "1", "public", "test/accuracy of one attribute."),
        ("public/*", "1", "public", "Score of a method on public records; the method names it."),
        (
            "curve/*",
            "as the score",
            "public",
            "The same of the model at a report: the learning curve.",
        ),
        (
            "best/*",
            "as the score",
            "public",
            "The same of the best trial, at the end of the study.",
        ),
        (EPSILON, "1", "public", "Epsilon of everything charged to the trial so far, at dp.delta."),
        (TRAIN_SECONDS, "s", "public", "Training and evaluation time since the last (re)start."),
        (PEAK_MEMORY, "MiB", "public", "Peak memory since the last (re)start, where told."),
        (OBJECTIVE, "1", "public", "Value of search.metric that ranks the trial."),
        (BEST_OBJECTIVE, "1", "public", "Best search/objective so far of what `best` may return."),
        (BEST_TRIAL, "1", "public", "Number of the best trial at the end of the study."),
        (BEST_EPSILON, "1", "public", "Epsilon of the best trial alone, at dp.delta."),
        ("search/finished", "1", "public", "Trials that ran to the end of their plan."),
        ("search/pruned", "1", "public", "Trials that the scheduler stopped."),
        ("search/over_budget", "1", "public", "Trials that waited when the budget was used up."),
        ("search/paused", "1", "public", "Trials that wait at a rung to be continued."),
        ("search/failed", "1", "public", "Trials that ended by an error."),
        ("search/infeasible", "1", "public", "Configurations that no plan fits into the budget."),
        (
            "dp/composed_epsilon",
            "1",
            "public",
            "Epsilon of all trials composed, at dp.delta: an indication, not a guarantee; that is "
            "dp.study_epsilon, in modes that have one.",
        ),
        (
            STUDY_SPENT,
            "1",
            "public",
            "Epsilon that the study has committed so far by its filter, or has declared: "
            "informational; the guarantee is dp.study_epsilon.",
        ),
        ("pretrain/loss", "nat", "public", "Mean cross-entropy on public records, of one epoch."),
        ("pretrain/accuracy", "1", "public", "Share of public records that were correct in it."),
        ("pretrain/holdout_accuracy", "1", "public", "The same of those that it does not train."),
        ("pretrain/seconds", "s", "public", "Time that pre-training took when it was done."),
        ("train/loss", "nat", "private", "Mean loss on private training records."),
        ("train/accuracy", "1", "private", "Accuracy on private training records."),
        ("train/grad_norm", "1", "private", "Gradient norm before noise."),
        ("train/clip_fraction", "1", "private", "Share of examples whose gradient was clipped."),
        ("train/batch_size", "1", "private", "Realised size of a Poisson batch."),
        ("data/num_records", "1", "private", "True number of private records (not the declared)."),
    ],
)

TAGS = _items(
    "tag",
    [
        ("dpsweep.study", "", "public", "Name of the study."),
        ("dpsweep.study_id", "", "public", "Identifies one study directory; names may repeat."),
        ("dpsweep.trial", "", "public", "Trial number within the study, from 0."),
        (
            "dpsweep.state",
            "",
            "public",
            "running, paused, finished, pruned, over budget, failed, interrupted.",
        ),
        ("dpsweep.reason", "", "public", "Why a trial or the study ended."),
        ("dpsweep.verdict", "", "public", "Reason of the scheduler's latest verdict on a trial."),
        ("dpsweep.method", "", "public", "Training method."),
        ("dpsweep.package", "", "public", "Package that has brought the method, and its version."),
        ("dpsweep.version", "", "public", "Version of dpsweep."),
        ("dpsweep.seq", "", "public", "Number of the last event of the journal that is here."),
        ("dpsweep.role", "", "public", "Of a trial: probe, spare or final; or pretrain."),
        ("dpsweep.pretrained", "", "public", "Address of the public weights it starts from."),
        *(
            (f"dpsweep.trials.{state}", "1", "public", f"Trials in state {state} at the end.")
            for state in ("running", "paused", "finished", "pruned", "failed", "infeasible")
        ),
        ("dpsweep.nonfinite", "", "public", "First report whose value was not a finite number."),
        ("dpsweep.data_hash", "", "public", "SHA-256 of a declared-public dataset."),
        ("dpsweep.spec_hash", "", "public", "SHA-256 of the spec."),
        (
            "dpsweep.config_hash",
            "",
            "public",
            "Of a model: SHA-256 of its hyperparameters as JSON.",
        ),
        ("dpsweep.step", "1", "public", "Of a model: steps that it has run."),
        ("dp.claim", "", "public", "Of a model: what may be claimed of it, with all terms."),
        (
            "dp.trial_alone_epsilon",
            "",
            "public",
            "Of a model: epsilon of its trial as if it were the only one, where the claim is not.",
        ),
        ("dp.private", "", "public", "false for a method that makes no privacy claim."),
        ("dp.epsilon", "", "public", "inf for a trial that is not private; else see dp/epsilon."),
        ("dp.unit", "", "public", "Whose data one record is."),
        ("dp.adjacency", "", "public", "Neighboring relation of the guarantee."),
        ("dp.sampling", "", "public", "How batches are drawn."),
        ("dp.accountant", "", "public", "Accountant that bounds epsilon."),
        ("dp.composed_accountant", "", "public", "Accountant that bounds dp/composed_epsilon."),
        ("dp.accounting", "", "public", "Accounting mode: what an epsilon of this study covers."),
        ("dp.delta", "", "public", "Delta of every epsilon of this study."),
        ("dp.trial_epsilon", "", "public", "Cap of one trial."),
        (
            "dp.study_epsilon",
            "",
            "public",
            "Epsilon that the study declares for all that dp.released names, at dp.delta.",
        ),
        ("dp.released", "", "public", "What dp.study_epsilon covers the release of."),
        ("dp.downgraded", "", "public", "Why the study lost its claim, for good."),
        ("dp.study_accountant", "", "public", "Accountant of dp.study_epsilon."),
        ("dp.composition", "", "public", "How a composed study adds up: filter or declared."),
        ("dp.filter_order", "", "public", "Order of the study's Renyi filter, fixed before it."),
        ("dpsweep.releases", "2.2, 3.2", "public", "A run of the start: within which epsilons."),
        ("dp.inherited_events", "1", "public", "Events of the release that the trial starts from."),
        (
            "dp.records",
            "",
            "public",
            "public for a trial on public records only, rest for the final run after a search on a "
            "part of the private ones, else private.",
        ),
        (
            "dp.searched_share",
            "1",
            "public",
            "Share of the private records that the search reads, where the final run reads the "
            "others.",
        ),
        (
            "dp.subset_rate",
            "1",
            "public",
            "Probability that a private record is in the secret part that the search is on; the "
            "final run reads all.",
        ),
        ("plan.steps", "1", "public", "Privacy events in the trial's plan."),
        ("plan.epsilon", "1", "public", "Epsilon of the whole plan, at dp.delta."),
        (
            "plan.sum_rule_epsilon",
            "1",
            "public",
            "Of the plan: epsilons of start, PCA and counts added up, and deltas, as in the paper.",
        ),
        ("plan.noise_multiplier", "1", "public", "Noise multiplier at the plan's first step."),
        ("plan.*", "", "public", "Another fact of the trial's plan; the method names it."),
        ("dp.validation", "", "public", "Declared visibility of the validation scores."),
        ("dp.test", "", "public", "Declared visibility of the test scores."),
    ],
)

PARAMS = _items(
    "param",
    [
        ("*", "", "public", "A spec key or hyperparameter, chosen before private data is opened."),
        ("noise.seed", "", "private", "A noise that can be regenerated protects nobody."),
        ("batch.seed", "", "private", "Who is in a Poisson batch must stay secret."),
    ],
)

SCHEMA: Mapping[tuple[str, str], Item] = {
    (item.kind, item.name): item for item in (*METRICS, *TAGS, *PARAMS)
}

# An epsilon without these beside it says nothing, so it is not logged without them.
STATEMENT_TAGS = tuple(terms.TAGS.values())


def plain_score(name: str) -> str:
    """Return the name of a score without the prefix that says of which model it is.

    >>> plain_score("curve/validation/loss"), plain_score("best/test/loss")
    ('validation/loss', 'test/loss')
    >>> plain_score("best/value")
    'best/value'
    """
    for prefix in (CURVE, BEST):
        plain = name.removeprefix(prefix)
        if plain != name and is_of_model(plain):
            return plain
    return name


def is_of_model(name: str) -> bool:
    """Say whether a metric is a score of the model that a trial delivers.

    >>> is_of_model("test/accuracy"), is_of_model("curve/validation/accuracy")
    (True, False)
    """
    return name.startswith(_OF_MODEL)


_OF_ATTRIBUTE = re.compile(r"(validation|test)/accuracy/[A-Za-z0-9 _.-]+")
#: Never an epsilon or a delta: those have terms beside them.
_OF_METHOD = re.compile(r"public/(?!\w*(epsilon|delta))[a-z][a-z0-9_]*")
_PARAM_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_/-]+)*")


def check_loggable(
    name: str, kind: Kind = "metric", *, released_as: Visibility | None = None
) -> Item:
    """Return the schema's entry for ``name``, or refuse it.

    >>> check_loggable("validation/accuracy").unit
    '1'

    Guarantees:
        A name whose values are private statistics passes only if the caller states that this value
        is public or itself the output of a charged DP mechanism (``released_as``). The schema
        knows names, not numbers: a caller that files a private value under a public name is not
        caught here.

    Args:
        name: Name of a param, metric or tag.
        kind: Which of the three.
        released_as: Visibility of this value when it differs from the schema's.
    Raises:
        UnloggableError: The name is unknown for its kind, or private.
    """
    full_name, name = name, plain_score(name) if kind == "metric" else name
    item = SCHEMA.get((kind, name))
    if item is None and kind == "metric" and _OF_ATTRIBUTE.fullmatch(name):
        item = SCHEMA["metric", f"{name.split('/')[0]}/accuracy/*"]
    if item is None and kind == "metric" and _OF_METHOD.fullmatch(name):
        item = SCHEMA["metric", "public/*"]
    if item is None and kind == "tag" and name.startswith("plan.") and _PARAM_NAME.fullmatch(name):
        item = SCHEMA["tag", "plan.*"]
    if item is None and kind == "param" and _PARAM_NAME.fullmatch(name):
        item = SCHEMA["param", "*"]
    if item is None:
        names = [other for of, other in SCHEMA if of == kind]
        raise UnloggableError(
            f"unknown {kind} {full_name!r} is not logged",
            fix=did_you_mean(name, names) or f"declare it in {__name__} with its visibility",
        )
    if (released_as or item.visibility) == "private":
        raise UnloggableError(
            f"{kind} {full_name!r} is private and is not logged",
            because=item.doc,
            fix="release it through a charged DP mechanism, or do not report it",
        )
    return item


def missing_statement(tags: Mapping[str, Any]) -> list[str]:
    """Return the tags that must stand beside an epsilon and do not.

    >>> missing_statement({"dp.delta": "1e-05", "dp.unit": "example"})
    ['dp.adjacency', 'dp.sampling', 'dp.accountant', 'dp.accounting']
    """
    return [name for name in STATEMENT_TAGS if not tags.get(name)]


def as_text(value: Any) -> str:
    """Return a param or tag value as text that can be read back (floats keep every digit).

    >>> as_text(True), as_text(1e-05), as_text(4.0)
    ('true', '1e-05', '4.0')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def finite(value: Any) -> float | None:
    """Return ``value`` as a float, or None if it is missing, infinite or not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None
