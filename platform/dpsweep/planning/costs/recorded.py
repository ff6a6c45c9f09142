"""Charges on a study's ledger, which hold ever after: whether this version can still keep to them.

Another version of dpsweep may calibrate another noise for the same spec. Where that differs by a
trifle, plans are run as they are on record (``privacy.composition.recalibrated``); where it differs
by more, whatever comes next would be refused, so nothing is begun.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dpsweep.foundation.errors import BadInputError, StudyError
from dpsweep.ledgers.study import StudyLedger
from dpsweep.planning.costs.charge import SelectionCharge
from dpsweep.planning.costs.probing import Probing
from dpsweep.planning.declaring.phases import classes_of, declared_phases
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.composition.declared import (
    DeclaredClass,
    DeclaredComposition,
    declared_classes,
    event_words,
)
from dpsweep.privacy.composition.recalibrated import other_noise
from dpsweep.privacy.events import Part, PrivacyEvent


def recorded_charges(
    checked: Preflight,
    ledger: StudyLedger,
    composition: Composition | None,
    selection: SelectionCharge | None,
    begun: Collection[int] | None,
) -> tuple[Composition | None, SelectionCharge | None]:
    """Return what a study may spend: what is on its ledger, or else these, which are written there.

    Args:
        checked: The checked spec.
        ledger: The study's.
        composition: Chosen for this launch.
        selection: Likewise.
        begun: Trials that the journal knows; None where nothing will run any more.
    Raises:
        StudyError: Another version has calibrated its noise, and more than a trifle otherwise.
    """
    if composition is not None:
        chosen = composition
        composition = ledger.open_composition(lambda: chosen)
        if begun is not None and not _has_begun_all(checked, ledger, begun):
            _refuse_other_noise(checked, chosen, composition)
    if selection is not None:
        delta = checked.spec.privacy.delta
        bound, epsilon = ledger.charge_selection(
            selection.selection, selection.bound, selection.epsilon, delta
        )
        is_other = bound.to_json() != selection.bound.to_json()
        selection = SelectionCharge(selection.selection, bound, epsilon, is_other)
    return composition, selection


def other_version(did: str) -> StudyError:
    """Return the error of a study that another version has begun, and must end."""
    return StudyError(
        f"another version of dpsweep has {did}",
        because="what would be run is not within what the study's ledger holds",
        fix="finish it with that version, or start a new study under another name",
    )


def _has_begun_all(checked: Preflight, ledger: StudyLedger, begun: Collection[int]) -> bool:
    """Say whether no trial will come any more that needs a plan of what is declared."""
    if checked.spec.final_trial is not None:
        return checked.spec.final_trial in begun
    return ledger.final_run is not None or len(begun) >= checked.total_trials


def _refuse_other_noise(checked: Preflight, chosen: Composition, recorded: Composition) -> None:
    """Refuse events that are near to none of the declared ones."""
    ours, theirs = chosen.of_trials, recorded.of_trials
    if not isinstance(ours, DeclaredComposition) or not isinstance(theirs, DeclaredComposition):
        return
    if other_noise(_events(ours.classes), _events(theirs.classes)) is None:
        return
    try:
        classes = _classes(replace(checked, composition=recorded))
    except BadInputError:  # as declared, a plan would cost more than it may here
        classes = ours.classes
    pair = other_noise(_events(classes), _events(theirs.classes))
    if pair is not None:
        here, there = map(_words, pair)
        raise other_version(f"calibrated this study's noise ({here} here, {there} there)")


def _events(classes: Collection[DeclaredClass]) -> list[tuple[Part, PrivacyEvent]]:
    return [(each.part, each.event) for each in classes]


def _classes(checked: Preflight) -> tuple[DeclaredClass, ...]:
    """Return the classes of all that a study may run, whatever their numbers."""
    if checked.spec.final_trial is not None:
        return declared_classes(Probing(checked).phases)
    phases = declared_phases(checked)
    return classes_of(phases, phases.wanted)


def _words(event: PrivacyEvent) -> str:
    """Return a noise multiplier with the digits that may differ, or all of another event."""
    noise = event.relative_noise()
    return event_words(event) if noise is None else f"{noise:.11g}"
