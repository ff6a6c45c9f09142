"""The importance of hyperparameters: the share of the score's variance that each explains."""

from __future__ import annotations

from dpsweep.results.pictures.base import Picture, tooltip
from dpsweep.results.study import SweepResult

#: Scored trials that a forest needs. Where one hyperparameter of four explains most of the score,
#: another one leads in more than half of all studies of 8 trials, and in a quarter of those of 16.
LEAST = 16
#: Trials that a forest is grown from, at most: its time grows with their number, to tens of seconds
#: of 1,000.
MOST = 250


def importance(result: SweepResult) -> Picture | None:
    """Return Optuna's importance of each hyperparameter (fANOVA, Hutter et al. 2014).

    None of fewer than ``LEAST`` scored trials. A hyperparameter that not all trials have is left
    out, with a word.
    """
    from dpsweep.search.importance import importances

    trials = [
        (trial.config, trial.value)
        for trial in result.results
        if trial.value is not None and trial.state.value in ("finished", "pruned")
    ]
    if len(trials) < LEAST:
        return None
    num_scored = len(trials)
    if num_scored > MOST:
        trials = [trials[place * num_scored // MOST] for place in range(MOST)]
        of = f"{MOST} of {num_scored} trials, evenly spaced by number"
    else:
        of = f"{num_scored} trials"
    shares, left_out = importances(result.spec.space, trials, seed=result.spec.seed)
    if not shares:
        return None
    rows = [{"hyperparameter": name, "importance": share} for name, share in shares.items()]
    chart = {
        "height": {"step": 26},
        "mark": "bar",
        "encoding": {
            "y": {"field": "hyperparameter", "type": "nominal", "sort": "-x", "title": None},
            "x": {"field": "importance", "type": "quantitative", "scale": {"domain": [0, 1]}},
            "tooltip": tooltip(rows),
        },
    }
    without = f" Not all trials have {', '.join(left_out)}: left out." if left_out else ""
    return Picture(
        "importance",
        "Importance of hyperparameters",
        f"Share of the variance of {result.spec.search.metric} that each hyperparameter explains, "
        f"by Optuna's fANOVA over {of}, pruned ones with the score that they had: "
        f"a hint, not a test.{without}",
        rows,
        chart,
    )
