"""Accounting mode select: a random number of sealed trials, of which only the best is released.

Papernot and Steinke 2022, https://arxiv.org/abs/2110.03620. The trials run in a study of their own,
``sealed/``, with its own journal, ledgers and resume, which is erased once the winner is out.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from dpsweep.foundation.durable import write_atomically
from dpsweep.foundation.errors import (
    AbsentLedgerError,
    BadInputError,
    ChangedCodeError,
    LedgerError,
    LockedError,
    StorageError,
    StudyError,
    SweepError,
)
from dpsweep.foundation.file_paths import matching
from dpsweep.foundation.logs import open_log
from dpsweep.foundation.words import counted
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.ledgers.records import charges_at_once
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import read_records, trial_file
from dpsweep.privacy.randomness import secret_hex, secret_numpy_generator, secret_seed
from dpsweep.running import entries
from dpsweep.running.ending import Ending
from dpsweep.running.features import prefetch
from dpsweep.running.giving_up import give_up_claim
from dpsweep.running.modes.launch import Launch
from dpsweep.running.modes.sealed_final import (
    begin_final,
    continue_final,
    refuse_other_bound,
    run_final,
)
from dpsweep.running.stage import Stage
from dpsweep.running.traces import TRACES
from dpsweep.search_spaces.base import MAX_INFEASIBLE_IN_A_ROW
from dpsweep.study.files import StudyFiles
from dpsweep.study.launched import enforced_terms
from dpsweep.study.study import Observer, Study
from dpsweep.study.trial import TrialReport, TrialState, TrialTask
from dpsweep.trainables.networks.own_models import CHANGED, OLD_CODE

SEALED = "sealed"
_HISTORY_LOST = "files of the sealed trials were deleted, damaged or replaced"
_UNPLANNED = "a trial of the selection was not run as planned"


def _sealed_directory(study: Study) -> Path:
    path = study.files.path / SEALED
    assert isinstance(path, Path), "a selection keeps its files on this machine"
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    return path


def run_selection(launch: Launch) -> Ending:
    """Run a random number of independent trials in a sealed study and release the best.

    Guarantees:
        The number of trials is drawn before the data is opened and never depends on them; every
        trial draws its configuration from the same prior (the space, given that a plan exists and
        lies below the charged curve at every order) and all its randomness anew and in secret, its
        initial weights included; no trial sees another. The journal, the tracking store, the
        observer and ``SweepResult`` learn of the winner only, as trial 0; the sealed study is
        erased once it is released.

        Ray and its directory (``dpsweep.cluster.private_directory``) end with the trials.

        A search on a secret part of the records (``search.on.subset``) releases its best
        configuration, by the final run on all records (``running.modes.sealed_final``), and
        nothing else: no model, no score. Who is in the part is drawn once, with the number of
        trials, in one record of the sealed study's ledger, before the first trial. A launch after
        a crash goes on with that part and what was found on it. Where the record is lost and the
        study's own ledger is there, no other part is drawn: the study's claim is given up. The
        sealed study is erased before the final run begins.

        Not covered: both ledgers deleted before anything was released, or older copies of them
        put back; whoever can read this user's files or watch the processes while they run; the
        run time, which grows with the number of trials (the journal keeps only the day, but files
        have dates); deaths of processes that depend on the data, after which a trial begins anew up
        to ``resources.max_failures`` times; and a selection that another version of dpsweep began,
        where the tenth digit of the winner's noise says which of the two drew it.
    """
    study, spec, rate = launch.study, launch.checked.spec, launch.checked.spec.subset_rate
    released = study.view.trials.get(0)
    if rate is not None and released is not None:
        return continue_final(launch, released, _emptied(study))
    if released is not None and released.state is TrialState.FINISHED:
        return Ending("finished", "the winner is released")
    assert launch.selection is not None
    _sealed_directory(study)
    launch.observer.on_message(
        "accounting select: the number of trials, their scores and their progress stay sealed; "
        f"about {counted(launch.selection.selection.mean, 'trial')} to be expected"
    )
    apart = {"dataset_ledger": None, "dataset_epsilon": None, "dataset_delta": None}
    privacy = spec.privacy.model_copy(update=apart)  # the study itself is on that ledger
    sealed = Study(
        spec.model_copy(update={"privacy": privacy}), files=StudyFiles(study.files.path, SEALED)
    )
    try:
        ledger = StudyLedger(
            sealed.files.ledger,
            terms=enforced_terms(sealed.spec),
            in_journal=sealed.view.trials,
        )
        ledger.settle_lost(sealed.view.ended())
        sealed.keep_spec()
    except LockedError:
        sealed.close()
        raise
    except AbsentLedgerError:  # its words may, too
        sealed.close()
        raise _away() from None
    except LedgerError:  # its words tell of trials
        sealed.close()
        give_up_claim(study, launch.ledger, _HISTORY_LOST)
        raise SweepError(
            f"{_HISTORY_LOST}; nothing is released", fix="start a new study under another name"
        ) from None
    try:
        is_drawn = ledger.has_num_trials and (rate is None or ledger.part_seed is not None)
        if launch.ledger.has_begun_selection and not is_drawn:
            reason = f"{SEALED}/ was removed while the selection ran; trials would be drawn anew"
            give_up_claim(study, launch.ledger, reason)
            raise SweepError(reason, fix="start a new study under another name")
        seed = None if rate is None else secret_hex
        num_trials = ledger.num_trials(lambda: launch.num_draws, seed)
        launch.ledger.begin_selection()
        if spec.privacy.dataset_ledger is not None:
            DatasetLedger(spec.privacy.dataset_ledger).note_trial(launch.ledger.study_id, 0)
        data, features = launch.data, None
        if rate is None:
            features = prefetch(launch.checked, data, launch.target, launch.observer)
        else:  # features of a secret part are computed in memory: the store would tell who is in it
            assert ledger.part_seed is not None
            data = data.for_secret_part(rate, ledger.part_seed)
        stage = Stage(
            launch.checked,
            sealed,
            ledger,
            composition=None,
            data=data,
            supplies=dataclasses.replace(launch.supplies, feature_root=features),
            observer=Observer(),
            policy=launch.policy(),
            fresh_attempts=True,
        )
        unfinished = []
        for trial in list(sealed.view.trials.values()):
            if trial.state is TrialState.RUNNING:
                try:
                    unfinished.append(sealed.files.task(trial.trial))
                except StudyError:  # its secret seed cannot be had again
                    stage.end_lost(trial.trial)
        refuse_other_bound(launch, stage, num_trials)
        source = _Draws(launch, stage, num_trials, unfinished)
        _hand_on_downgrade(launch, sealed)  # of a launch that was killed
        try:
            state = stage.execute(source, launch.target)
        except (StorageError, AbsentLedgerError):  # its path may tell which trials there were
            raise _away() from None
        except ChangedCodeError:  # which network was drawn may tell how many trials there were
            raise ChangedCodeError(f"a network of your own {CHANGED}", fix=OLD_CODE) from None
        except SweepError as error:
            if not stage.violation and not isinstance(error, LedgerError):
                raise
            give_up_claim(study, launch.ledger, "a sealed trial violated its ledger")
            raise SweepError(  # without the sealed trial's own words
                "a sealed trial violated its ledger; nothing is released",
                fix="do not trust this study before the cause is known",
            ) from None
        finally:
            _hand_on_downgrade(launch, sealed)
        if state != "finished":
            return Ending(state)
        if sealed.view.count(TrialState.PRUNED):
            give_up_claim(study, launch.ledger, _UNPLANNED)
        winner = sealed.view.best(maximize=spec.search.mode == "max")
        final = None
        try:
            if winner is not None and rate is None:
                _release(launch, sealed, winner.trial)
            elif winner is not None:
                final = begin_final(launch, sealed, winner)
        except StudyError:  # its words tell the winner's number
            give_up_claim(study, launch.ledger, _HISTORY_LOST)
            raise SweepError(
                f"{_HISTORY_LOST}; nothing is released", fix="start a new study under another name"
            ) from None
    finally:
        ledger.close()
        sealed.close()
    if final is not None:
        return run_final(launch, final, _emptied(study))
    return Ending("finished", "the winner is released" if winner else "there is no winner")


def _away() -> StorageError:
    return StorageError(
        "a file of the sealed study cannot be read or written, or is not there any more",
        because="the disk is full, read-only or broken, or somebody has moved it",
        fix="make room, or put it back as it was, and run the same command again",
    )


def _hand_on_downgrade(launch: Launch, sealed: Study) -> None:
    """Give up the study's claim if a sealed trial broke it; the trial's own words stay sealed."""
    if sealed.view.downgraded and not launch.ledger.downgraded:
        give_up_claim(launch.study, launch.ledger, _UNPLANNED)


class _Draws:
    """The independent trials of a selection: a given number of draws from the prior."""

    def __init__(
        self, launch: Launch, stage: Stage, num_trials: int, unfinished: list[TrialTask]
    ) -> None:
        self._launch, self._stage, self._num_trials = launch, stage, num_trials
        self._waiting = unfinished
        self._num_started = len(stage.study.view.trials)

    @property
    def is_exhausted(self) -> bool:
        """True when the drawn number of trials was started."""
        return not self._waiting and self._num_started >= self._num_trials

    def next_task(self, *, num_running: int) -> TrialTask | None:
        """Return a trial that was interrupted, or a new draw."""
        if self._waiting:
            return self._waiting.pop(0)
        if self.is_exhausted:
            return None
        task = self._admitted() or self._draw()
        task.reserve(self._stage.ledger)
        self._stage.admit(task)
        self._num_started += 1
        return task

    def _admitted(self) -> TrialTask | None:
        """Return a trial that a killed launch has admitted, and not started."""
        for number in sorted(self._numbers() - set(self._stage.study.view.trials)):
            try:
                return self._stage.study.files.task(number)
            except StudyError:  # nor written down what it is to do: another is drawn for it
                continue
        return None

    def _numbers(self) -> set[int]:
        return self._stage.ledger.admitted | set(self._stage.study.view.trials)

    def _draw(self) -> TrialTask:
        """Draw a configuration in secret: which of them were drawn says how many there were."""
        checked, charge = self._launch.checked, self._launch.selection
        assert charge is not None
        number = max(self._numbers(), default=-1) + 1
        rng = secret_numpy_generator()
        for _ in range(MAX_INFEASIBLE_IN_A_ROW):
            try:
                task = checked.admit(number, checked.space.sample(rng))
            except BadInputError:
                continue
            if (admitted := charge.admitted(checked, task)) is not None:
                return dataclasses.replace(admitted, seed=secret_seed())
        raise SweepError(
            f"{MAX_INFEASIBLE_IN_A_ROW} draws in a row were infeasible",
            fix="`dpsweep plan` shows the infeasible share of the space; narrow it",
        )

    def on_report(self, report: TrialReport) -> None:
        """Nothing to learn: trials are independent."""

    def on_end(self, report: TrialReport, state: TrialState) -> None:
        """Nothing to learn: trials are independent."""


def _release(launch: Launch, sealed: Study, winner: int) -> None:
    """Copy the winner out of the sealed study as trial 0, then write it down."""
    study, charge = launch.study, launch.selection
    assert charge is not None
    task = dataclasses.replace(sealed.files.task(winner), trial=0, seed=None)
    source, target = sealed.files.trial(winner), study.files.trial(0)
    target.mkdir(parents=True, exist_ok=True)
    for path in matching(source, "best*"):
        write_atomically(target / path.name, path.read_bytes())
    study.write_task(task)
    task = dataclasses.replace(task, planned_epsilon=charge.epsilon)
    started = entries.trial_started(launch.checked.spec, task, study.view.pretrained)
    study.write(started)
    copy = trial_file(study.files.ledger, 0)
    copy.unlink(missing_ok=True)
    with open_log(copy) as log:  # attempts and processes are nobody's business
        for record in charges_at_once(read_records(trial_file(sealed.files.ledger, winner))):
            log.append(record)
    report = dataclasses.replace(  # with the scores of the released model alone
        sealed.last_report(winner), trial=0, epsilon=charge.epsilon, done=True, metrics={}
    )
    state, reason = TrialState.FINISHED, "the best of the selection"
    released = entries.released(launch.checked.spec, task.records, state)
    artifacts = entries.artifacts(study.files, 0)
    study.write_end(report, state, reason, released=released, artifacts=artifacts)
    launch.observer.on_view(study.view)


def _emptied(study: Study) -> Path:
    """Erase the sealed study, and return a folder in its place that is erased at the end."""
    erase(study)
    return _sealed_directory(study) / TRACES


def erase(study: Study) -> None:
    """Remove the sealed study; what it has cost is on the study's own ledger.

    Raises:
        SweepError: Something of it is still there.
    """
    path = study.files.path / SEALED
    if not isinstance(path, Path):
        return  # no selection has files in a bucket
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        raise SweepError(
            f"{path} could not be removed",
            because="it holds the scores of trials that are not released",
            fix="run the same command again, or remove it by hand",
        )
