"""Views of a study in MLflow's UI: the saved view of its trials, addresses, and descriptions.

MLflow 3.17 keeps a saved view as a tag of the experiment, under a key that an address may name:
filter, order, columns and charts. A bare address could give the first two only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from textwrap import wrap

from dpsweep.tracking.schema import EPSILON, OBJECTIVE
from dpsweep.tracking.state import TrackingState

#: Tag of an experiment in which MLflow's UI looks for a saved view.
VIEW_TAG = "mlflow.sharedViewState."
_MAX_TAG = 5000  # of an experiment, in MLflow
_MAX_AXES = 12
#: Beside each epsilon; the first two at once, the others at the end of a row.
_TERMS = ("delta", "accounting", "unit", "adjacency", "sampling", "accountant", "records")
_WIDTH, _WIDE = 100, 150  # pixels of a column
_BEST, _RELEASED = "Best", "Released"
# Without it MLflow's UI opens its page for chat applications, which shows no runs.
_TRAINING = "workflowType=machine_learning"


def view_key(state: TrackingState) -> str:
    """Return the name under which an address finds the saved view of a study."""
    return f"dpsweep-{state.study_id}"


def saved_view(state: TrackingState) -> str:
    """Return the saved view of a study's trials, as MLflow's UI reads it.

    Trials by score, the best first, with their score, epsilon, method, state and what was searched;
    as charts the score over epsilon, and parallel coordinates of what was searched. The study's own
    run is not among them: its parameters are no columns.
    """
    score = state.metric or OBJECTIVE
    method = "params.`method`" if "method" in state.searched else "tags.`dpsweep.method`"
    searched = [name for name in state.searched if name != "method"]
    terms = [f"tags.`dp.{name}`" for name in _TERMS]
    columns = [f"metrics.`{score}`", f"metrics.`{EPSILON}`", *terms[:2], method]
    columns.append("tags.`dpsweep.state`")
    section = {"uuid": "dpsweep", "name": "Sweep", "display": True, "isReordered": True}
    section |= {"columns": 2, "cardHeight": 420}
    chart = {"metricSectionId": "dpsweep", "deleted": False, "isGenerated": False}
    over_epsilon = {
        **chart,
        "uuid": "dpsweep-epsilon",
        "type": "SCATTER",
        "displayName": f"{score} over {EPSILON}",
        "runsCountToCompare": 100,
        "xaxis": {"key": EPSILON, "type": "METRIC"},
        "yaxis": {"key": score, "type": "METRIC"},
    }
    parallel = {
        **chart,
        "uuid": "dpsweep-searched",
        "type": "PARALLEL",
        "displayName": "what was searched",
        "runsCountToCompare": 100,
        "selectedParams": state.searched[:_MAX_AXES],
        "selectedMetrics": [EPSILON, score],
        "showAllRuns": True,
    }

    def envelope(num_columns: int) -> str:
        view = {
            "searchFilter": trials_filter(state),
            "orderByKey": f"metrics.`{score}`",
            "orderByAsc": state.mode == "min",
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "modelVersionFilter": "All Runs",
            "selectedColumns": [
                *columns,
                *(f"params.`{name}`" for name in searched[:num_columns]),
                *terms[2:],
            ],
            "columnOrder": columns,
            "columnWidths": {**dict.fromkeys(columns, _WIDTH), columns[0]: _WIDE},
            "runsHiddenMode": "SHOW_ALL",
            "compareRunSections": [section],
            "compareRunCharts": [over_epsilon, parallel],
            "isAccordionReordered": True,
        }
        name = f"{state.study}: trials by {score}"
        times = {"createdAt": state.started_ms, "updatedAt": state.started_ms}
        return json.dumps({"name": name, **times, "state": json.dumps(view)})

    num_columns = len(searched)
    while num_columns and len(envelope(num_columns)) > _MAX_TAG:
        num_columns -= 1
    return envelope(num_columns)


def trials_filter(state: TrackingState) -> str:
    """Return the filter, in MLflow's words, that the trials of a study pass and nothing else."""
    return f"tags.`dpsweep.study_id` = '{state.study_id}' AND tags.`dpsweep.trial` != ''"


def addresses(server: str, state: TrackingState, query: str = "") -> dict[str, str]:
    """Return where MLflow's UI shows a study: ``trials``, ``charts`` and ``study``.

    Empty for a study that has no run there yet. Whoever opens them logs in as themselves.

    Args:
        server: Address of the UI.
        state: Of the tracker.
        query: What stands before the ``#``, with its question mark.
    """
    server = re.sub(r"(://)[^/\s]*@", r"\1", server)
    experiment = state.store.rpartition("#")[2]
    if state.parent_run_id is None or not experiment:
        return {}
    page = f"{server.rstrip('/')}/{query}#/experiments/{experiment}/runs"
    trials = f"{page}?{_TRAINING}&viewStateShareKey={view_key(state)}"
    return {
        "trials": trials,
        "charts": f"{trials}&compareRunsMode=CHART",
        "study": f"{page}/{state.parent_run_id}?{_TRAINING}",
    }


def with_links(card: str, state: TrackingState) -> str:
    """Return the description of the study's run: its card, and below the heading what is best.

    The links are relative, so that they hold under whatever address the UI is opened. Links that
    are there already are replaced.
    """
    card = re.sub(rf"\n({_BEST}|{_RELEASED}): \[trial-.*\n\n?", "\n", card)
    experiment = state.store.rpartition("#")[2]
    best = state.best_trial
    run_id = None if best is None else state.run_ids.get(best)
    if best is None or run_id is None:
        return card
    word = _RELEASED if state.is_sealed else _BEST
    link = f"{word}: [trial-{best:04d}](#/experiments/{experiment}/runs/{run_id}?{_TRAINING})"
    model = state.model_uris.get(best, "").rpartition("/")[2]
    if model:
        link += f", [its model](#/experiments/{experiment}/models/{model}?{_TRAINING})"
    trials = f"#/experiments/{experiment}/runs?{_TRAINING}&viewStateShareKey={view_key(state)}"
    link += f"; [all trials by score]({trials})."
    heading, _, rest = card.partition("\n")
    if not heading.startswith("#"):
        return f"{card.rstrip()}\n\n{link}\n"
    return f"{heading}\n\n{link}\n{rest}"


def intro_of_trial(trial: int, hparams: Mapping[str, str], state: TrackingState) -> str:
    """Return how the description of a trial's run begins: which trial, and what it tries."""
    tried = {name: hparams[name] for name in state.searched if name in hparams}
    values = ", ".join(f"{name}={text}" for name, text in (tried or hparams).items())
    whose = "Released model" if state.is_sealed else f"Trial {trial}"
    return f"{whose} of study {state.study}" + (f": {values}." if values else ".")


_STATES = {
    "running": "It runs.",
    "finished": "It finished; scores under their plain names are of the model that it delivers.",
    "pruned": "The scheduler stopped it; what it had spent stays spent.",
    "over budget": "The study's budget was used up before it could go on; what it had spent stays "
    "spent.",
    "failed": "It failed; what it had spent stays spent.",
    "interrupted": "It was interrupted with the study; the same command continues it.",
}


def _as_code(text: str) -> str:
    """Return a text as a block that Markdown shows as it is, in lines that a column can hold."""
    lines = (wrapped for line in text.splitlines() for wrapped in wrap(line, 100) or [""])
    return "\n".join(f"    {line}" for line in lines)


def note_of_trial(trial: int, ended: str, reason: str, state: TrackingState) -> str:
    """Return the description of a trial's run; it names no epsilon, whose terms may change."""
    intro = state.intros.get(trial) or intro_of_trial(trial, {}, state)
    because = f"\n\nReason:\n\n{_as_code(reason)}" if reason else ""
    return (
        f"{intro} {_STATES[ended]}{because}\n\nIts epsilon is the metric `{EPSILON}`; what that "
        "depends on stands in the tags `dp.*`, what the study may claim on the parent run.\n"
    )
