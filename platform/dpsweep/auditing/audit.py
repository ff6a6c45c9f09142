"""Audit of one configuration: canaries in, the trial's own code, guesses out, verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsweep.auditing.canaries import Canaries, make_canaries, without_limit
from dpsweep.auditing.decoding import count_right, log_likelihood_ratios
from dpsweep.auditing.randomness import (
    BATCHES,
    NOISE_AGAIN,
    are_correlated,
    step_alone,
    twin_problems,
)
from dpsweep.auditing.subject import Subject, can_follow, rate_of, unsampled
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.version import __version__
from dpsweep.foundation.words import counted
from dpsweep.privacy.budget import ADD_OR_REMOVE_ONE
from dpsweep.privacy.events import EventRun, Plan
from dpsweep.privacy.one_run_audit import ceiling, epsilon_lower_bound, is_refuted
from dpsweep.privacy.randomness import secret_numpy_generator
from dpsweep.privacy.statement import PrivacyStatement
from dpsweep.study.audits import AuditRecord
from dpsweep.trainables.hooks import Auditable, Contributions
from dpsweep.trainables.method import Method, RunContext

#: Canaries' gradients are that many times those of their loss.
_AMPLIFIED = 1000.0
#: Called with (positions done, positions in all).
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit, all of them fixed before it begins.

    Attributes:
        canaries: m.
        positions: Positions of the plan that are run, from its first; None: all.
        confidence: Of the bound.
    """

    canaries: int = 1000
    positions: int | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.canaries < 20:
            raise BadInputError(
                f"{counted(self.canaries, 'canary')} cannot tell anything", fix="at least 20"
            )

    @property
    def guesses(self) -> int:
        """r, a tenth of the canaries: those whose scores are the most extreme."""
        return self.canaries // 10


def run_audit(
    subject: Subject, settings: AuditSettings, *, progress: Progress = lambda done, of: None
) -> AuditRecord:
    """Return what canaries tell of a configuration's claim.

    The method is prepared with the canaries that are in, and runs its plan position by position,
    as a trial does: its sampler, its engine, its clipping, its noise. A second instance with all
    canaries, brought to the same state before each position, says what each of them would add to
    the release; scores are likelihood ratios (``decoding``), added up over positions.

    Guarantees:
        No record of a study is read: canaries are synthetic, so nothing is charged. A claim that
        holds is called refuted with probability at most 1 - confidence, and batches or noise are
        called known with less than 1e-8. Nothing follows from a claim that is not.

        Not covered: leaks that these attacks do not use, positions that are not run, events that
        are not followed (``not_audited``), and shuffled batches, whose order is drawn in secret.

    Args:
        subject: What is audited.
        settings: How.
        progress: Told after each position.
    Raises:
        BadInputError: The contributions of so many canaries do not fit into memory.
    """
    plan = subject.first(settings.positions)
    if not can_follow(subject.method_class) or not any(rate_of(run) for run in plan.runs):
        return _record(subject, settings, plan, None)
    watch = _Watch(subject, settings, plan)
    for position in range(len(plan)):
        watch.follow(position)
        progress(position + 1, len(plan))
    return _record(subject, settings, plan, watch)


class _Watch:
    """An audit under way: the instance that trains, its shadow, and what was seen so far."""

    def __init__(self, subject: Subject, settings: AuditSettings, plan: Plan) -> None:
        self._subject, self._settings, self._plan = subject, settings, plan
        self._runs = [run for run in plan.runs for _ in range(run.count)]
        canaries = make_canaries(subject, settings.canaries, secret_numpy_generator())
        self._canaries: Canaries = canaries
        self._method = self._prepared(canaries.included)
        # One record at a time: chunks of one are the shortest.
        self._shadow = self._prepared(canaries.candidates, {"batch.physical": 1})
        self._noises: list[NDArray[np.float64]] = []
        self._is_twinned = False
        self.scores = np.zeros(settings.canaries)
        self.problems: list[str] = []
        self.at_bound: float | None = None
        self.rates: list[float] = []
        self.not_followed: dict[str, None] = {}

    def _prepared(self, data: Any, changed: dict[str, Any] | None = None) -> Method:
        hparams = without_limit(self._subject)
        hparams |= {name: v for name, v in (changed or {}).items() if name in hparams}
        method = self._subject.method_class()
        subject = self._subject
        context = RunContext(
            subject.study_seed,
            subject.trial,
            own_seed=subject.own_seed,
            supplies=subject.supplies,
        )
        method.prepare(data, hparams, self._subject.plan, context)
        assert isinstance(method, Auditable)
        method.amplify(_AMPLIFIED)
        return method

    def follow(self, position: int) -> None:
        """Run a position, and score the canaries by what it releases."""
        rate = rate_of(self._runs[position])
        contributions = None if rate is None else self._contributions(position)
        if rate is None or contributions is None:
            self.not_followed[_named(self._runs[position])] = None
            self._method.run(position, position + 1)
            return
        if not self._is_twinned and (rate < 1 or not any(map(_is_sampled, self._runs))):
            self._compare_twins(position, rate)
        step = step_alone(self._method, position)
        if step is None:
            self.not_followed[_named(self._runs[position])] = None
            return
        exact, noisy = step
        self._noises.append((noisy - exact)[: 2**16])
        scale = self._scale(position, contributions)
        if contributions.public is not None:
            noisy = noisy - contributions.public.double().numpy()
        rows = contributions.rows.numpy()
        if self.at_bound is None:
            norms = np.linalg.norm(rows, axis=1)
            self.at_bound = float((norms > 0.99 * contributions.bound).mean())
        rows /= np.float32(scale)
        self.scores += log_likelihood_ratios(noisy / scale, rows, rate)
        self.rates.append(rate)

    def _contributions(self, position: int) -> Contributions | None:
        self._shadow.load_state_dict(self._method.state_dict())
        assert isinstance(self._shadow, Auditable)
        return self._shadow.contributions(position)

    def _scale(self, position: int, contributions: Contributions) -> float:
        """Return the standard deviation of the noise that the position is charged for."""
        event: Any = self._runs[position].event
        return float(event.noise_multiplier) * contributions.bound

    def _compare_twins(self, position: int, rate: float) -> None:
        self._is_twinned = True
        state = self._method.state_dict()

        def prepared() -> Method:
            twin = self._prepared(self._canaries.included)
            twin.load_state_dict(state)
            return twin

        num_in = int(self._canaries.is_in.sum())
        self.problems += twin_problems(prepared, position, sample_rate=rate, num_records=num_in)

    def all_problems(self) -> tuple[str, ...]:
        """Return the problems that were seen, each once."""
        problems = list(self.problems)
        if NOISE_AGAIN not in problems and are_correlated(self._noises):
            problems.append(NOISE_AGAIN)
        return tuple(problems)

    @property
    def num_right(self) -> int:
        """v: how many of the guesses are right."""
        is_full = all(rate >= 1 for rate in self.rates)
        return count_right(
            self.scores, self._canaries.is_in, self._settings.guesses, two_sided=is_full
        )


def _is_sampled(run: EventRun) -> bool:
    rate = rate_of(run)
    return rate is not None and rate < 1


def _named(run: EventRun) -> str:
    return f"{run.phase} ({run.event.name} on {run.part} records)"


def _claim(subject: Subject, private: Plan) -> PrivacyStatement:
    return PrivacyStatement(
        epsilon=subject.claim(private),
        delta=subject.delta,
        accountant=subject.accountant,
        neighboring_relation=ADD_OR_REMOVE_ONE,
        sampling=private.sampling,
        privacy_unit=subject.privacy_unit,
        accounting=subject.accounting,
        released=f"the noisy sums of {counted(len(private), 'position')}",
    )


def _record(
    subject: Subject, settings: AuditSettings, plan: Plan, watch: _Watch | None
) -> AuditRecord:
    """Return the outcome; without a watch, or a release that it followed, nothing is claimed."""
    followed = watch is not None and bool(watch.rates)
    private = plan.part("private")
    claim = _claim(subject, private) if followed else None
    problems = watch.all_problems() if watch is not None else ()
    not_audited = list(watch.not_followed) if watch is not None and followed else []
    if not followed:
        kinds = (_named(run) for run in subject.plan.part("private").runs)
        not_audited = list(dict.fromkeys(kinds))
    if len(plan) < len(subject.plan):
        not_audited.append(f"positions {len(plan) + 1} to {len(subject.plan)} of the plan")
    not_audited += subject.beside
    m, guesses, confidence = settings.canaries, settings.guesses, settings.confidence
    correct = watch.num_right if watch is not None and followed else 0
    test = {"delta": subject.delta, "confidence": confidence}
    return AuditRecord(
        study=subject.name,
        trial=subject.trial,
        method=subject.method,
        claim=claim,
        lower_bound=epsilon_lower_bound(m, guesses, correct, **test),
        ceiling=ceiling(m, guesses, **test),
        canaries=m,
        guesses=guesses,
        correct=correct,
        confidence=confidence,
        positions=len(plan),
        planned=len(subject.plan),
        is_refuted=claim is not None
        and is_refuted(claim.epsilon, m=m, guesses=guesses, correct=correct, **test),
        problems=problems,
        without_sampling=_claim(subject, unsampled(private)) if BATCHES in problems else None,
        at_bound=watch.at_bound if watch is not None else None,
        not_audited=tuple(not_audited),
        version=__version__,
    )
