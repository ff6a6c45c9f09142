"""Progress of a study: how it stands, and how many trials it may have in all."""

from __future__ import annotations

from dpsweep.privacy.statement import PrivacyStatement, shown_epsilon
from dpsweep.results.choosing import DRAWS_AGAIN
from dpsweep.search_spaces.base import SearchSpace
from dpsweep.spec.facts import describe_pretraining
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.trial import TrialState


def most_trials(spec: SweepSpec) -> int:
    """Return how many trials a study has at most: runs of a start, spares and final runs too."""
    if spec.final_trial is not None:
        return spec.final_trial + 1
    others = spec.num_starts + (spec.search.on is not None)
    if spec.episodes is None and spec.search.sampler != "grid":
        return others + spec.search.num_trials
    in_grid = len(SearchSpace.from_spec(spec.space).grid())
    if spec.episodes is not None:
        return in_grid
    return others + min(in_grid, spec.search.num_trials)


def status_line(name: str, spec: SweepSpec, view: StudyView, state: str) -> str:
    """Return one line: state, trials by state, seconds of all launches without their pauses.

    Args:
        name: Of the study.
        spec: Its spec.
        view: What its journal says.
        state: Of the study, which knows of a run that was killed.
    """
    counts = {each.value: view.count(each) for each in TrialState}
    if state != "running":
        counts["interrupted"] = counts.pop("running")
    progress = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    if spec.privacy.mode.is_sealed:
        progress = _sealed_progress(spec, view, state)
    elif not spec.privacy.mode.is_public_search:
        most = max(most_trials(spec), len(view.trials))
        progress = f"{progress or 'no trials yet'} of at most {most}"
    seconds = view.worked_ms / 1000
    is_new = view.end_reason not in ("", progress)
    why = f" ({view.end_reason})" if is_new else ""
    is_timed = not spec.privacy.mode.is_sealed and seconds > 0  # a store does not know it
    took = f"; {seconds:.0f} s" if is_timed else ""
    if state == "running" and spec.pretrain and view.pretrained is None:
        took += f"; public weights first: {describe_pretraining(spec)}"
    return f"study {name!r}: {state}{why}; {progress}{took}"


def unreleased(spec: SweepSpec, view: StudyView, state: str, claim: PrivacyStatement | None) -> str:
    """Return words on a study of accounting select that has nothing to show; else empty.

    Args:
        spec: Its spec.
        view: What its journal says.
        state: Of the study, which knows of a run that was killed.
        claim: What may be said of it as a whole.
    """
    if not spec.privacy.mode.is_sealed or view.trials:
        return ""
    if state == "finished":
        return f"{no_winner(spec, view, state, claim)}; {DRAWS_AGAIN}"
    shown = "the best of them is shown once the study has finished"
    if spec.subset_rate is not None:
        shown = "the run of the best configuration is shown, once they have ended"
    mean = spec.privacy.selection.mean
    text = f"its trials are secret, and so is their number, about {mean:g} by the spec; {shown}"
    is_over = state not in ("new", "running")
    again = "; run the same command again to continue it" if is_over else ""
    cost = "" if claim is None else f", at {_in_words(claim)}"
    return f"{text}{cost}{again}"


def no_winner(spec: SweepSpec, view: StudyView, state: str, claim: PrivacyStatement | None) -> str:
    """Return words on a selection that has ended without a winner; else empty.

    That it has none is part of what is released, and the claim is the selection's, whatever came
    of it. Arguments are those of ``unreleased``.
    """
    if not spec.privacy.mode.is_sealed or view.trials or state != "finished":
        return ""
    cost = "makes no claim" if claim is None else f"claims {_in_words(claim)}"
    return f"it has no winner, and nothing more will be shown; it {cost}"


def _in_words(claim: PrivacyStatement) -> str:
    return f"epsilon={shown_epsilon(claim.epsilon)} ({claim.line()})"


def _sealed_progress(spec: SweepSpec, view: StudyView, state: str) -> str:
    trials = list(view.trials.values())
    if not trials:
        return "nothing is released" + ("" if state == "finished" else " yet")
    if spec.subset_rate is None:
        return "the winner is released"
    for final in trials:
        if final.state is TrialState.FAILED:
            return f"the search has ended; {final_failed(final)}"
    has_finished = any(trial.state is TrialState.FINISHED for trial in trials)
    return f"the search has ended; the final run {'is released' if has_finished else 'is not'}"


def final_failed(final: TrialView) -> str:
    """Say why the final run of a study has failed."""
    return f"the final run has failed: {final.reason.partition(chr(10))[0]}"
