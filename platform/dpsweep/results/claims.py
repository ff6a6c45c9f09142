"""Claims about a study's privacy: its own epsilon, its trials', and what they cover."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, reduce
from typing import Any

from dpsweep.foundation.errors import LedgerError, StudyError
from dpsweep.foundation.logs import is_locked
from dpsweep.ledgers.history import (
    check_begun,
    check_journal,
    check_reported,
    check_strays,
    check_terms,
    check_trials,
)
from dpsweep.ledgers.study_state import account_of, read_study_state
from dpsweep.ledgers.trial import (
    STUDY_FILE,
    inherited_events,
    read_records,
    study_spent,
    trial_covered,
    trial_file,
    trial_spent,
    trials_on_disk,
)
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import Plan
from dpsweep.privacy.events.plan import REST
from dpsweep.privacy.modes import PUBLIC, UNACCOUNTED, Mode
from dpsweep.privacy.statement import PrivacyStatement, shown_epsilon
from dpsweep.privacy.terms import OF_ITS_PLAN, PrivacyTerms, planned_sampling
from dpsweep.results.coverage import (
    CUT_SHORT,
    PUBLIC_MODEL,
    SO_FAR,
    noise_of_scores,
    records_of_trial,
    released_by_study,
    with_caveats,
)
from dpsweep.spec.episodes import EPISODE
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.launched import enforced_terms, refuse_remnants
from dpsweep.study.trial import TrialState
from dpsweep.tracking.labels import joint_sampling


class Claims:
    """The privacy statements of a study, by what its ledgers enforced.

    Guarantees:
        Nothing is said of a study whose spec says something else than the terms on its ledger, or
        whose ledgers and journal do not agree on which trials have run and what they have spent.

    Args:
        files: The study's files.
        spec: Its frozen spec.
        view: What its journal says.
    Raises:
        LedgerError: One of these files was edited or lost.
        DamagedStudyError: The study's ledger is, and other things of the study are there.
    """

    def __init__(self, files: StudyFiles, spec: SweepSpec, view: StudyView) -> None:
        self._files, self.spec, self.view = files, spec, view
        state = read_study_state(files.ledger)
        check_terms(files.ledger, state, enforced_terms(spec))
        # What a running launch writes is read piece by piece; it has checked what was there before.
        self._is_live = is_locked(files.lock)
        if not self._is_live:
            check_strays(files.ledger, state)
            check_journal(files.ledger, state, view.trials)
            check_begun(files.ledger, state, is_new=view.state == "new")
            refuse_remnants(files)
        check_trials(files.ledger, state)
        self.account = account_of(state)

    @property
    def files(self) -> StudyFiles:
        """The study's files; StudyError once their folder has gone."""
        return self._files.there()

    @property
    def mode(self) -> Mode:
        """The accounting mode whose claim holds: the spec's, or unaccounted once it was broken."""
        return UNACCOUNTED if self.downgraded else self.spec.privacy.mode

    @property
    def accounting(self) -> str:
        """Its name."""
        return self.mode.name

    @cached_property
    def downgraded(self) -> str | None:
        """Why the claim was given up, or does not hold by the trials' ledgers; None if it does."""
        reason = self.account.downgraded or self.view.downgraded
        return reason or self._broken_by_ledgers() or None

    def _broken_by_ledgers(self) -> str:
        """Say what the ledgers of the trials show that the accounting mode rules out."""
        mode, composition = self.spec.privacy.mode, self.account.composition
        if mode.is_filtered and composition is not None:
            is_over = composition.is_over(composition.cost(self._spent))
            if is_over:
                return "the ledgers of its trials add up to more than the study's budget"
        if mode.is_public_search:
            plans = (trial_spent(self.files.ledger, number) for number in self.view.trials)
            if sum(bool(plan.part("private")) for plan in plans) > 1:
                return "more than one trial has read private records"
        if composition is not None and composition.searched_share is not None:
            plans = (trial_spent(self.files.ledger, number) for number in self.view.trials)
            if sum(bool(plan.part(REST)) for plan in plans) > 1:
                return "more than one trial has read the records that are left to the final run"
        if self.spec.subset_rate is not None and len(self.view.trials) > 1:
            return "more than one run follows the search on a secret part of the records"
        return ""

    def epsilon_terms(self) -> dict[str, Any]:
        """Return what must stand beside every epsilon of this study, as columns of a record."""
        columns = self._terms("none").columns()
        del columns["sampling"]  # each has its own
        return columns

    def caption(self, shown: Collection[int] | None = None, *, is_so_far: bool = False) -> str:
        """Return what a table of trials must say about its epsilon column.

        Args:
            shown: Trials of the table; None: all.
            is_so_far: Whether its rows are moments of trials.
        """
        lines = []
        study, composed = self.study_statement(), self.composed()
        if self.downgraded:
            lines.append(
                f"Downgraded from accounting={self.spec.privacy.accounting} to unaccounted, for "
                f"good: {self.downgraded}"
            )
        if not self.mode.is_sealed:
            lines.append(
                f"epsilon: one trial alone, {self._line(shown)}; it covers "
                f"{self._released(self.mode.alone)}."
                f"{self._unfinished(shown, is_so_far)}"
            )
        is_open = not self.mode.is_sealed or bool(self.view.trials)
        if study is not None and is_open:
            lines.append(f"The study: {study.one_line()}.")
        elif composed is not None:
            which = "all trials" if self.spec.episodes is None else "all trials of one episode"
            lines.append(
                f"For indication, {which} composed: epsilon={shown_epsilon(composed.epsilon)} "
                f"({self._line()}); no guarantee, no filter was enforced."
            )
        return "\n".join([*lines, *(noise_of_scores(self.spec) if lines else [])])

    def brief(
        self,
        shown: Collection[int] | None = None,
        *,
        is_so_far: bool = False,
        more: str = "--explain says more.",
    ) -> str:
        """Return what ``caption`` says in few words: every term and every caveat, no explanation.

        Args:
            shown: Trials of the table; None: all.
            is_so_far: Whether its rows are moments of trials.
            more: Where the explanation is.
        Guarantees:
            No epsilon without delta, unit, adjacency, sampling, accountant and accounting mode; a
            claim that was given up is said with its reason, and so is what no epsilon covers.
        """
        parts = []
        study, composed, terms = self.study_statement(), self.composed(), self._line(shown)
        if self.downgraded:
            mode = self.spec.privacy.accounting
            parts.append(f"DOWNGRADED from {mode} to unaccounted, for good: {self.downgraded}.")
        if not self.mode.is_sealed:
            unfinished = self._unfinished(shown, is_so_far)
            cover = self._released(self.mode.brief)
            parts.append(f"epsilon: {cover}; {terms}.{unfinished}")
        if study is not None and (not self.mode.is_sealed or self.view.trials):
            same = study.line() == terms and not self.mode.is_sealed
            extent = self._released(study.released.partition(":")[0].partition(";")[0])
            parts.append(
                f"The study: epsilon={shown_epsilon(study.epsilon)} for {extent}; "
                f"{'the same terms' if same else study.line()}."
            )
        elif composed is not None:
            which = "all trials" if self.spec.episodes is None else "all trials of one episode"
            own = "" if composed.line() == terms else f" ({composed.line()})"
            whole = f"{shown_epsilon(composed.epsilon)}{own}"
            parts.append(f"For indication, {which} composed: epsilon={whole}, no guarantee.")
        parts += noise_of_scores(self.spec) if parts else []
        return " ".join([*parts, more] if parts else []).strip()

    def _unfinished(self, shown: Collection[int] | None, is_so_far: bool) -> str:
        """Say of which epsilons more may follow; empty where a table has none of them."""
        if is_so_far:
            return " In each row: what the trial had spent by then, for information."
        views = [v for n, v in self.view.trials.items() if shown is None or n in shown]
        cut = [v for v in views if v.is_cut_short and v.records != "public"]
        are = {
            "unfinished": any(view.state is not TrialState.FINISHED for view in views),
            "diverged": not all(self._has_promised(view) for view in cut),
        }
        kinds = " and ".join(kind for kind, is_there in are.items() if is_there)
        return f" {kinds.capitalize()} trials: what they have spent, for information." * bool(kinds)

    def _terms(self, sampling: str) -> PrivacyTerms:
        """Return all that stands beside an epsilon of this study."""
        return self.spec.privacy_terms(sampling, accounting=self.accounting)

    def _line(self, shown: Collection[int] | None = None) -> str:
        """Return all that stands beside the epsilons of trials, of all or of some, in a line."""
        if shown is None or self.mode.is_sealed or set(shown) >= set(self.view.trials):
            return self._terms(self.sampling).line()
        some = (self.trial_statement(self.view.trials[n]) for n in shown if n in self.view.trials)
        return self._terms(reduce(joint_sampling, (s.sampling for s in some), "none")).line()

    @property
    def sampling(self) -> str:
        """How records enter the events of all trials together; of a selection it is not said."""
        return "none" if self.spec.privacy.mode.is_sealed else self._spent.sampling

    def _statement(
        self,
        epsilon: float,
        *,
        sampling: str,
        released: str,
        accountant: str | None = None,
    ) -> PrivacyStatement:
        terms = self._terms(sampling).columns()
        terms["accountant"] = accountant or terms["accountant"]
        return PrivacyStatement(epsilon=epsilon, released=self._released(released), **terms)

    def _released(self, what: str) -> str:
        return with_caveats(self.spec, what)

    def study_statement(self) -> PrivacyStatement | None:
        """Return what may be said of the study as a whole, or None where nothing may.

        Guarantees:
            ``composed``: what the composition on the study's ledger is for, whatever was spent of
            it; it covers all that the study releases. ``select``: the winner's configuration,
            score and model, and nothing else. ``public``: the one final run, once it has begun;
            until it has run its plan, at the declared ``privacy.trial_epsilon``, whatever was spent
            of it: whoever stops it may have seen its scores, and when a model diverges depends on
            the records. A study whose preconditions were broken says nothing any more.
        """
        mode, composition = self.mode, self.account.composition
        if mode.is_filtered and composition is not None:
            return self._statement(
                composition.target_epsilon,
                accountant=self._study_accountant,
                sampling=planned_sampling(self._spent.sampling),
                released=released_by_study(self.spec, mode),
            )
        if mode.is_sealed and self.account.selection_epsilon is not None:
            # Without a winner there is no plan to tell of; trials ran all the same.
            sampling = next((trial.sampling for trial in self.view.trials.values()), OF_ITS_PLAN)
            return self._statement(
                self.account.selection_epsilon,
                sampling=sampling,
                released=released_by_study(self.spec, mode),
                accountant=self.account.selection_accountant,
            )
        if mode.is_public_search:
            for view in self.view.trials.values():
                if self.is_final(view):
                    return self._final_statement(view)
        return None

    def _final_statement(self, view: TrialView) -> PrivacyStatement:
        """Return what the final run of a public search costs: all it may, unless it ran whole."""
        if view.state is TrialState.FINISHED and not view.is_cut_short:
            return self.trial_statement(view)
        return self._statement(
            self.spec.privacy.trial_epsilon,
            sampling=self._planned_sampling(view),
            released=PUBLIC.released,
        )

    def _has_promised(self, view: TrialView) -> bool:
        """Say whether a trial is the one final run, of which all that it may spend is claimed."""
        return self.mode.is_public_search and self.is_final(view)

    def _planned_sampling(self, view: TrialView) -> str:
        """Return how records enter the events that a trial may charge."""
        return self.files.task(view.trial).full_plan.sampling

    def is_final(self, trial: TrialView) -> bool:
        """Say whether a trial is the one that is delivered, by what it is and never by its score.

        Of a public search it is the run on private records, of probes the one with its number, of a
        search on a part of the records the run on the others, or on all of them: after a search on
        a secret part, a study has no other trial.
        """
        if self.spec.final_trial is not None:
            return trial.trial == self.spec.final_trial
        if self.spec.search.on is not None:
            return trial.records == "rest" or self.spec.subset_rate is not None
        return self.spec.privacy.mode.is_public_search and trial.records == "private"

    @cached_property
    def _spent(self) -> Plan:
        since = dict.fromkeys(trials_on_disk(self.files.ledger), 0) if self._is_live else {}
        return study_spent(self.files.ledger, since | self.view.charged())

    def trial_statement(self, view: TrialView) -> PrivacyStatement:
        """Return what may be said of one trial: alone, or as the winner of a selection."""
        if self.mode.is_sealed:
            statement = self.study_statement()
            if statement is None:
                raise LedgerError(
                    f"{self.files.ledger / STUDY_FILE} does not say what the study's winner costs",
                    because="its record of the selection was lost or edited",
                    fix="restore the file; without it nothing may be said of the winner",
                )
            return statement
        if view.is_cut_short and self._has_promised(view):
            return self._final_statement(view)
        privacy, ledger, number = self.spec.privacy, self.files.ledger, view.trial
        spent = trial_spent(ledger, number, at_least=view.charged)
        if self.spec.start is not None:
            try:
                inherited = self.files.task(number).inherited
            except StudyError:  # its task is lost; its ledger says it, too
                inherited = inherited_events(read_records(trial_file(ledger, number)))
            spent = trial_covered(ledger, number, inherited, at_least=view.charged)
        epsilon = epsilon_of(spent, delta=privacy.delta, accountant=privacy.accountant)
        if not self.spec.privacy.mode.is_sealed:
            check_reported(ledger, number, epsilon, reported=view.epsilon)
        return self._statement(epsilon, sampling=spent.sampling, released=self._released_by(view))

    @property
    def _study_accountant(self) -> str:
        composition = self.account.composition
        return self.spec.privacy.accountant if composition is None else composition.accountant

    def _released_by(self, view: TrialView) -> str:
        """Say what the epsilon of a trial alone covers."""
        is_whole = view.state is TrialState.FINISHED and not view.is_cut_short
        if view.records != "public" and not is_whole:
            return CUT_SHORT if view.is_cut_short else SO_FAR
        if self.mode.is_filtered:
            of_study = shown_epsilon(self.spec.privacy.study_epsilon)
            own, by = self.spec.privacy.accountant, self._study_accountant
            terms = "the same terms" if by == own else f"the same terms, but {by} for {own}"
            text = f"{self.mode.trial} epsilon={of_study} at {terms}"
            where = records_of_trial(self.spec, view.records)
            return text.replace("this trial alone", f"this trial alone, {where}") if where else text
        if self.mode.is_public_search and view.records == "public":
            return PUBLIC_MODEL
        return self.mode.trial

    def _indicated(self) -> set[Plan]:
        """Return what is composed for indication: all that was run, or that of each episode."""
        if self.spec.episodes is None:
            return {self._spent}
        plans: dict[int, Plan] = {}
        for number, view in sorted(self.view.trials.items()):
            spent = trial_spent(self.files.ledger, number, at_least=view.charged)
            episode = view.hparams[EPISODE]
            plans[episode] = plans.get(episode, Plan()) + spent
        return {plan.merged() for plan in plans.values()} or {Plan()}

    def composed(self) -> PrivacyStatement | None:
        """Return the sum over everything any trial ever ran, by RDP at the study's delta.

        Of a study of episodes it is the sum over the trials of the costliest one: that is what the
        study tells of one of its records, if its pool were as many data owners as episodes.

        None under ``select``: it would tell how many trials there were.

        Guarantees:
            This is an indication, not a guarantee: the best order is chosen after the run. What
            holds is ``study_statement``.
        """
        if self.spec.privacy.mode.is_sealed:
            return None
        delta, on = self.spec.privacy.delta, "" if self.spec.episodes is None else " on one episode"
        return self._statement(
            max(epsilon_of(plan, delta=delta, accountant="rdp") for plan in self._indicated()),
            accountant="rdp",
            sampling=self._spent.sampling,
            released=f"every trial ever run{on} (indication, not a guarantee)",
        )
