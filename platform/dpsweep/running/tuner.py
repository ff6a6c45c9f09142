"""Ray Tune as a stage uses it: set up with our searcher and scheduler, run until Ray is lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from ray import tune
from ray.exceptions import RayError

from dpsweep.foundation.errors import RayLostError
from dpsweep.planning.preflight import Preflight
from dpsweep.privacy.filter import RenyiFilter
from dpsweep.schedulers.ray_adapter import PolicyScheduler, StopWhen, TuneListener
from dpsweep.search.searcher import TaskSearcher
from dpsweep.spec.cluster import ResourcesSpec
from dpsweep.spec.study import SweepSpec
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.data.supplies import Supplies
from dpsweep.trainables.execution.actor import DPTrainable
from dpsweep.trainables.execution.settings import ExecutionSettings


def settings_of(
    spec: SweepSpec,
    checked: Preflight,
    ledger: Path,
    *,
    filter: RenyiFilter | None,
    fresh_attempts: bool,
    is_timed: bool,
    supplies: Supplies,
) -> ExecutionSettings:
    """Return what every trial of a study is run by.

    Args:
        spec: The study's.
        checked: The same, checked.
        ledger: Directory of the study's ledger.
        filter: The Renyi filter that bounds the study, or None.
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
        filter=filter,
        fresh_attempts=fresh_attempts,
        is_timed=is_timed,
        device="cuda" if spec.resources.gpu else "cpu",
        started_in=Path.cwd(),
        supplies=supplies,
    )


def make_tuner(
    resources: ResourcesSpec,
    searcher: TaskSearcher,
    scheduler: PolicyScheduler,
    listener: TuneListener,
    *,
    storage: Path,
    settings: ExecutionSettings,
    data: SweepData,
    must_stop: Callable[[], bool],
) -> tune.Tuner:
    """Return the tuner of a stage.

    Args:
        resources: Of one trial.
        searcher: Hands over trials.
        scheduler: Stops and pauses them.
        listener: Hears of their reports and ends.
        storage: Directory of Tune's own files.
        settings: Of every trial.
        data: The records that actors may see.
        must_stop: Asked at every report whether all trials end now.
    """
    return tune.Tuner(
        tune.with_resources(
            tune.with_parameters(DPTrainable, settings=settings, data=data),
            {"cpu": resources.cpu, "gpu": resources.gpu},
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
            storage_path=str(storage),
            verbose=0,
            callbacks=[listener],
            stop=StopWhen(must_stop),
            failure_config=tune.FailureConfig(max_failures=resources.max_failures),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )


def run_trials(
    tuner: tune.Tuner, scheduler: PolicyScheduler, failure: Callable[[], Exception | None]
) -> None:
    """Run the trials of a tuner to their ends.

    Args:
        tuner: Of ``make_tuner``.
        scheduler: Of the tuner; it lets go of its actors whenever Tune does not clear up.
        failure: Returns what has failed in the methods that Tune calls, if anything: it is raised
            in the place of what Tune makes of it.
    Raises:
        RayLostError: Ray has ended under the trials.
    """
    try:
        with _without_tracebacks_of_tune():
            tuner.fit()
    except KeyboardInterrupt:  # a second Ctrl-C; after the first one, Tune clears up itself
        scheduler.release_actors()
        raise
    except Exception as error:
        with contextlib.suppress(Exception):  # it may be what has failed
            scheduler.release_actors()
        first = failure()
        if first is None and not _is_of_ray(error):
            raise
        raise first or _lost_ray(error) from error


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
