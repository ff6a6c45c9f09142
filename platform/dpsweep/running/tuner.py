"""Ray Tune as a stage uses it: set up with our searcher and scheduler, run until Ray is lost."""

from __future__ import annotations

import contextlib
import copyreg
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray.tune.tune as tune_loop
from ray import tune
from ray.air._internal import usage
from ray.exceptions import RayError
from ray.tune.execution import class_cache
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import trial as tune_trial

from dpsweep.cluster.worker import is_warm
from dpsweep.foundation.bucket_path import BucketPath, store_of
from dpsweep.foundation.database_path import LogPath
from dpsweep.foundation.errors import RayLostError, StudyError, SweepError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.process.replacing import replaced
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.composition.base import Composition
from dpsweep.running.nodes.waiting import Waiting
from dpsweep.schedulers.ray_adapter import PastTune, PolicyScheduler, StopWhen
from dpsweep.search.searcher import TaskSearcher
from dpsweep.spec.cluster import ResourcesSpec, Share
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import StudyFiles
from dpsweep.study.recall import Recall
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.execution.actor import DPTrainable, bundle_of
from dpsweep.trainables.execution.settings import ExecutionSettings

# Tune hands these of the driver to its actors as a runtime environment, which Ray writes into the
# command lines of its processes and into its logs: every user of a node could read the keys there.
_SECRETS = {name for name in class_cache.ENV_VARS_TO_PROPAGATE if name.startswith("AWS_")}
_HANDED = class_cache.ENV_VARS_TO_PROPAGATE - _SECRETS
# A setting for PyTorch Lightning, which nothing here uses. With an environment of their own, actors
# run in no process that Ray has started beforehand, and wait for its agent and a second process.
_LIGHTNING = dict(class_cache.DEFAULT_ENV_VARS)
# Ray counts which of its own integrations are used, and loads all of them for that: MLflow takes a
# second, also where nothing is tracked. Nobody is told, as usage statistics are off.
_NOT_COUNTED = {"tag_callbacks": lambda callbacks: False}
#: Seconds for a storage to take the recall of trials, or to refuse it.
_RECALL_S = 5.0
_RECALLED = "interrupted: trials keep their models, which takes seconds; Ctrl-C again ends at once"


def settings_of(
    spec: SweepSpec,
    checked: Preflight,
    ledger: LogPath,
    *,
    composition: Composition | None,
    fresh_attempts: bool,
    is_timed: bool,
    supplies: Supplies,
) -> ExecutionSettings:
    """Return what every trial of a study is run by.

    Args:
        spec: The study's.
        checked: The same, checked.
        ledger: Directory of the study's ledger.
        composition: What all trials together may spend, or None.
        fresh_attempts: True to begin a trial anew whose process died (accounting select).
        is_timed: Whether run times may be shown, which tell of batch sizes.
        supplies: What the study has prepared for its trials besides the records.
    """
    validation = spec.data.validation
    is_exact = validation.visibility == "public" or (
        validation.visibility == "exact" and not spec.privacy.mode.is_accounted
    )
    is_noisy = validation.visibility == "noisy"
    return ExecutionSettings(
        ledger=ledger,
        budget=checked.budget,
        accountant=spec.privacy.accountant,
        study_seed=spec.seed,
        metric=spec.search.metric,
        maximize=spec.search.mode == "max",
        report_every=spec.report.every_steps,
        report_points=spec.report.points,
        validation="exact" if is_exact else "noisy" if is_noisy else "hidden",
        validation_noise=checked.admission.validation_noise,
        show_test=spec.data.test.visibility == "public",
        rungs=spec.rungs,
        rung_unit=spec.scheduler.rung_unit,
        composition=composition,
        fresh_attempts=fresh_attempts,
        is_process_told=fresh_attempts or not spec.privacy.mode.is_sealed,  # or its file is erased
        is_timed=is_timed,
        released=checked.admission.released_metrics,
        started_in=Path.cwd(),
        supplies=supplies,
    )


def make_tuner(
    max_failures: int,
    searcher: TaskSearcher,
    scheduler: PolicyScheduler,
    callbacks: Sequence[tune.Callback],
    *,
    storage: FilePath,
    settings: ExecutionSettings,
    data: SweepData,
    must_stop: Callable[[], bool],
    say: Callable[[str], None],
) -> tune.Tuner:
    """Return the tuner of a stage.

    Args:
        max_failures: How often a trial is continued whose process died.
        searcher: Hands over trials.
        scheduler: Stops and pauses them.
        callbacks: Hear of their reports and ends, and of every turn of Tune's loop.
        storage: Directory of Tune's own files, or their folder in a bucket.
        settings: Of every trial.
        data: The records that actors may see.
        must_stop: Asked at every report whether all trials end now.
        say: Hears what trials wait for while none can run.
    """
    _name_variables()
    _plain_infos()
    return tune.Tuner(
        tune.with_resources(
            tune.with_parameters(DPTrainable, settings=settings, data=data),
            bundle_of,
        ),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=scheduler,
            num_samples=-1,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.trial_id,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=storage.key if isinstance(storage, BucketPath) else str(storage),
            storage_filesystem=store_of(storage) if isinstance(storage, BucketPath) else None,
            verbose=0,
            callbacks=[*callbacks, Waiting(say)],
            stop=StopWhen(must_stop),
            failure_config=tune.FailureConfig(max_failures=max_failures),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )


def run_trials(
    tuner: tune.Tuner, scheduler: PolicyScheduler, recall: Recall, say: Callable[[str], None]
) -> bool:
    """Run the trials of a tuner to their ends; the first Ctrl-C calls them back.

    Args:
        tuner: Of ``make_tuner``.
        scheduler: Of the tuner; it lets go of its actors whenever Tune does not clear up.
        recall: Of the study.
        say: Hears, in a thread, that trials are called back.
    Returns:
        Whether Ctrl-C has come, however late.
    Raises:
        RayLostError: Ray has ended under the trials.
        SweepError: What a method has raised that Tune calls.
    """
    try:
        with (
            _without_tracebacks_of_tune(),
            replaced(usage, _NOT_COUNTED),
            replaced(TuneController, _reusing(scheduler)),
            _own_signals(),
            _recalling(recall, say) as has_come,
        ):
            tuner.fit()
        return has_come()
    except KeyboardInterrupt:  # a second Ctrl-C; after the first one, Tune clears up itself
        scheduler.release_actors()
        raise
    except (Exception, PastTune) as raised:
        error = raised.error if isinstance(raised, PastTune) else raised
        with contextlib.suppress(Exception):  # it may be what has failed
            scheduler.release_actors()
        if isinstance(error, SweepError) or not _is_of_ray(error):
            raise error from error.__cause__
        raise _lost_ray(error) from error


def _name_variables() -> None:
    """Name the variables that Tune gives its actors; a Ray that was started here has them all."""
    class_cache.DEFAULT_ENV_VARS = {} if is_warm.is_set() else dict(_LIGHTNING)
    class_cache.ENV_VARS_TO_PROPAGATE = set() if is_warm.is_set() else set(_HANDED)


def _plain_infos() -> None:
    """Let what Tune tells its actors of their trials be read without Tune (``nodes.warm``)."""
    info = getattr(tune_trial, "_TrialInfo", None)
    names = ("trial_name", "trial_id", "trial_resources", "experiment_name")
    if info is not None and {name for name in vars(info) if name[0] != "_"} == set(names):
        copyreg.pickle(
            info, lambda info: (SimpleNamespace, (), {name: getattr(info, name) for name in names})
        )


def share_of(trial: int, resources: ResourcesSpec, files: StudyFiles) -> Share:
    """Return what a trial occupies; of one that stays paused, as its files are gone, any share."""
    try:
        return resources.of(files.task(trial).method)
    except StudyError:
        return next(iter(resources.shares.values()))


def _reusing(scheduler: PolicyScheduler) -> dict[str, Any]:
    """Return the method by which Tune gives a trial a process that it has kept, as it is here."""
    name = "_maybe_reuse_cached_actor"
    reuse = getattr(TuneController, name, None)
    return {} if reuse is None else {name: scheduler.kept.instead_of(reuse)}


@contextlib.contextmanager
def _without_tracebacks_of_tune() -> Iterator[None]:
    """Keep Tune from logging tracebacks of what is told in a line here."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Give Ctrl-C back to whoever had it: Tune keeps it after its end, and takes note at most."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # else no Python has set it, and Tune's stays
                signal.signal(number, handler)


@contextlib.contextmanager
def _recalling(recall: Recall, say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Call trials back as soon as Tune notes Ctrl-C, which it has no hook for.

    Yields:
        What says whether it has.
    """
    catch = tune_loop._setup_signal_catching

    def call_back() -> None:
        recall.begin()
        say(_RECALLED)

    def catch_and_recall() -> threading.Event:
        interrupted = catch()
        note = interrupted.set

        def noted() -> None:
            note()
            if thread.ident is None:  # Tune's handler is that of SIGUSR1, too, and of all of them
                thread.start()  # a handler of signals neither prints nor waits for a storage

        setattr(interrupted, "set", noted)  # noqa: B010
        return interrupted

    thread = threading.Thread(target=call_back, daemon=True)
    try:
        with replaced(tune_loop, {"_setup_signal_catching": catch_and_recall}):
            yield lambda: thread.ident is not None
    finally:
        if thread.ident is not None:
            thread.join(_RECALL_S)
            recall.end()


def _is_of_ray(error: BaseException | None) -> bool:
    """Say whether an error, or what it was raised from, is that Ray does not answer any more."""
    while error is not None:
        if isinstance(error, (RayError, ConnectionError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _lost_ray(error: Exception) -> RayLostError:
    return RayLostError(
        f"Ray has ended under the study ({type(error).__name__})",
        fix="run the same command again: it continues every trial from its checkpoint",
    )
