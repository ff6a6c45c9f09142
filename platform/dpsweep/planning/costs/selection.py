"""Selection's price: releasing the best of a random number of trials (accounting ``select``)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpsweep.foundation.errors import BadInputError, SpecError
from dpsweep.foundation.words import counted
from dpsweep.planning.costs.charge import SelectionCharge
from dpsweep.planning.costs.secret_part import SecretPart, SecretPartFigures
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.calibration.largest import largest_within
from dpsweep.privacy.selection.bounds import bound_of, dearest
from dpsweep.privacy.selection.number import Selection
from dpsweep.privacy.selection.on_subset import SubsetBound
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import AccountantName, shown_delta
from dpsweep.study.trial import TrialTask


@dataclass(frozen=True)
class SelectionFigures:
    """The price of running a random number of trials and releasing the best.

    Attributes:
        mean: Expected number of trials.
        shape: Its distribution: eta, or ``poisson``.
        base_epsilon: Epsilon of a trial as dear as any of the sample at every Renyi order, or
            every epsilon.
        accountant: Of all these epsilons.
        probability_of_one: Chance of a single trial.
        epsilon: Of the released best one.
        cap: ``study_epsilon`` of the spec, or None.
        trial_epsilon_that_fits: Largest trial epsilon found (rounded down) whose selection fits the
            cap; None under another mode than select, without a cap, where none was found, or where
            a final run gets what is left.
        secret_part: Of a search on a secret part of the records; ``epsilon`` is then that of the
            search and its final run together, or of the search where no final run fits.
    """

    mean: float
    shape: float | str
    base_epsilon: float
    accountant: AccountantName
    probability_of_one: float
    epsilon: float
    cap: float | None
    trial_epsilon_that_fits: float | None
    secret_part: SecretPartFigures | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the cap is kept; None without one."""
        if self.secret_part is not None and self.secret_part.final_epsilon is None:
            return False
        return None if self.cap is None else self.epsilon <= self.cap


def choose_selection(checked: Preflight) -> SelectionCharge | None:
    """Return what a study with accounting select costs; None in other modes.

    Raises:
        SpecError: It costs more than ``privacy.study_epsilon``.
    """
    privacy = checked.spec.privacy
    if not privacy.mode.is_sealed:
        return None
    if checked.rest is not None:
        return SecretPart(checked).charge()
    selection = Selection(privacy.selection.mean, privacy.selection.shape)
    bound = bound_of([task.full_plan for task in checked.sample], privacy.accountant)
    epsilon = bound.selected(selection, delta=privacy.delta)
    cap = privacy.study_epsilon
    if cap is not None and not epsilon <= cap:
        problem = (
            f"{cap:g} is below epsilon={shown_epsilon(epsilon)}, which the best of about "
            f"{counted(selection.mean, 'trial')} costs at delta={shown_delta(privacy.delta)}"
        )
        fix = "lower privacy.trial_epsilon or privacy.selection.mean; `dpsweep plan` shows both"
        raise checked.refusal("privacy.study_epsilon", problem, fix)
    return SelectionCharge(selection, bound, epsilon)


def selection_figures(checked: Preflight, private: Sequence[TrialTask]) -> SelectionFigures:
    """Return what a selection among configurations like a sample's costs."""
    if checked.rest is not None:
        return _on_secret_part(SecretPart(checked))
    privacy = checked.spec.privacy
    selection = Selection(privacy.selection.mean, privacy.selection.shape)
    bound = bound_of([task.full_plan for task in private], privacy.accountant)
    epsilon = bound.selected(selection, delta=privacy.delta)
    cap = privacy.study_epsilon
    fits_at = None
    if cap is not None and privacy.mode.is_sealed:
        pair = (privacy.trial_epsilon, epsilon)
        fits_at = _trial_epsilon_for(checked, private, selection, cap, pair)
    return SelectionFigures(
        mean=selection.mean,
        shape=selection.shape,
        base_epsilon=bound.epsilon(delta=privacy.delta),
        accountant=bound.accountant,
        probability_of_one=selection.probability(1),
        epsilon=epsilon,
        cap=cap,
        trial_epsilon_that_fits=fits_at,
    )


def _on_secret_part(priced: SecretPart) -> SelectionFigures:
    """Return the figures of a search on a secret part of the records."""
    spec, selection, problem, charge = priced.checked.spec, priced.selection, "", None
    try:
        charge = priced.charge()
    except SpecError as error:
        problem = "; ".join(mistake.what for mistake in error.mistakes)
    alone = priced.search_epsilon()
    bound = priced.search_bound if charge is None else charge.bound
    final_epsilon = bound.final_epsilon if isinstance(bound, SubsetBound) and charge else None
    assert spec.subset_rate is not None
    assert priced.checked.rest is not None
    return SelectionFigures(
        mean=selection.mean,
        shape=selection.shape,
        base_epsilon=bound.epsilon(delta=spec.privacy.delta),
        accountant=bound.accountant,
        probability_of_one=selection.probability(1),
        epsilon=alone if charge is None else charge.epsilon,
        cap=spec.privacy.study_epsilon,
        trial_epsilon_that_fits=None,
        secret_part=SecretPartFigures(
            spec.subset_rate,
            priced.checked.rest.info.num_private,
            alone,
            final_epsilon,
            problem,
        ),
    )


def with_planned_final(checked: Preflight, figures: SelectionFigures | None) -> Preflight:
    """Return the same spec with the final run that a search on a secret part leaves room for."""
    if checked.spec.subset_rate is None:
        return checked
    part = None if figures is None else figures.secret_part
    if part is None or part.final_epsilon is None:
        return dataclasses.replace(checked, rest=None)
    return checked.with_final(part.final_epsilon)


def _trial_epsilon_for(
    checked: Preflight,
    private: Sequence[TrialTask],
    selection: Selection,
    cap: float,
    known: tuple[float, float],
) -> float | None:
    """Return a trial epsilon, to four digits, whose selection was seen to fit ``cap``.

    Each guess plans anew the configurations that are dearest at some Renyi order or epsilon, and
    all of them if those fit.

    Args:
        checked: The checked spec.
        private: Its sample.
        selection: Distribution of the number of trials.
        cap: Largest epsilon of the released best trial.
        known: A trial epsilon and its selected one.
    """
    plans = [task.full_plan for task in private]
    those = [private[index] for index in dearest(plans, checked.spec.privacy.accountant)]

    def selected(trial_epsilon: float) -> float:
        epsilon = _selected(checked, those, selection, trial_epsilon)
        if epsilon > cap:
            return epsilon
        return max(epsilon, _selected(checked, private, selection, trial_epsilon))

    return largest_within(selected, cap, known=known)


def _selected(
    checked: Preflight, tasks: Sequence[TrialTask], selection: Selection, trial_epsilon: float
) -> float:
    """Return what the selection costs if the trials are planned for another epsilon."""
    budget = dataclasses.replace(checked.budget, target_epsilon=trial_epsilon)
    planner = dataclasses.replace(checked, budget=budget)
    plans = []
    for task in tasks:
        try:
            values = {"method": task.method, **task.hparams}
            plans.append(planner.admit(task.trial, values).full_plan)
        except BadInputError:
            continue  # the sweep would not run this configuration
    if not plans:
        return math.inf
    privacy = checked.spec.privacy
    return bound_of(plans, privacy.accountant).selected(selection, delta=privacy.delta)
