"""The core loop. A sweep, from its spec to its best configuration:

    spec -> preflight            everything that can be wrong, before anything starts
         -> StudyLedger          what the study may spend, written down before data is opened
         -> ClusterTarget        a Ray cluster, joined or started (behind the steps above)
         -> pretrained_weights   public weights that trials start from
         -> mode                 composed, select, public or unaccounted
         (``dpsweep.running.modes.searching``):
            -> start             the private run that trials start from (``dpsweep.planning.start``)
            -> prefetch          frozen features that trials need, once
            (``dpsweep.running.features``)
            -> TaskSource        suggests hyperparameters; each becomes a plan or is infeasible
            -> StudyLedger       reserves the plan's cost, durably, before launch
            -> DPTrainable       charges, runs, saves, evaluates, reports, segment by segment
            -> TrialPolicy       continue, pause or stop, from reports alone
            -> journal           what happened, durably; the tracking store follows
         -> SweepResult          the best configuration, with what its epsilon depends on

``dpsweep.running.stage`` is the part that Ray Tune drives. Running the same spec again continues
the study: trials that did not end resume from their own checkpoints, and what they had charged
stays charged.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping

from dpsweep.cluster.private_directory import PATIENCE_S, remove_left_behind
from dpsweep.foundation.process.interrupts import raise_lost
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.ledgers.study import StudyLedger
from dpsweep.ledgers.trial import study_spent
from dpsweep.planning.costs.charge import SelectionCharge
from dpsweep.planning.costs.composition import choose_composition
from dpsweep.planning.costs.recorded import recorded_charges
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.places import make_places, new_dataset_ledger, probe_dataset_ledger
from dpsweep.planning.preflight import Preflight, preflight, valid
from dpsweep.planning.problems import check_records, record_notes
from dpsweep.privacy.composition.base import Composition
from dpsweep.privacy.randomness import secret_numpy_generator
from dpsweep.results.study import SweepResult
from dpsweep.running import entries
from dpsweep.running.delivery import FLUSH_URGENT_S, deliver, log_best_model
from dpsweep.running.ending import Conclusion, Ending, ending_of, write_charges
from dpsweep.running.failing import refuse_repetition
from dpsweep.running.gallery import Drawing
from dpsweep.running.giving_up import give_up_claim
from dpsweep.running.handing_on import HandingOn
from dpsweep.running.modes.launch import Launch
from dpsweep.running.modes.probing import run_composed
from dpsweep.running.modes.sealed import erase, run_selection
from dpsweep.running.modes.searching import run_public, run_search
from dpsweep.running.nodes.cluster import LaunchCluster
from dpsweep.running.nodes.joining import join_cluster
from dpsweep.running.nodes.software import package_notes
from dpsweep.running.pretrain import pretrained_weights
from dpsweep.running.recovery import mend_tasks
from dpsweep.running.termination import Termination
from dpsweep.running.traces import TRACES, remove_traces
from dpsweep.spec.study import SweepSpec
from dpsweep.study.launched import enforced_terms, refuse_launch
from dpsweep.study.study import Observer, Study, watching
from dpsweep.tracking import open_spool, takes_graphs
from dpsweep.trainables.data.loading import load_records
from dpsweep.trainables.data.supplies import NO_SUPPLIES, Supplies

MODES: Mapping[str, Callable[[Launch], Ending]] = {
    "composed": run_composed,
    "unaccounted": run_search,
    "public": run_public,
    "select": run_selection,
}


def run_sweep(spec: SweepSpec, *, observer: Observer | None = None) -> SweepResult:
    """Run a sweep, or continue it, and return its results.

    Guarantees:
        No step reads private records before its charge is on disk; no trial passes
        ``privacy.trial_epsilon``. What is claimed of the whole study is the accounting mode's:
        ``SweepResult.study_statement``. Under ``unaccounted`` no epsilon covers the search.

    Args:
        spec: A valid spec.
        observer: Who watches.
    Raises:
        BadInputError: Bad input, or something that cannot be had (``SpecError``, ``DataError``,
            ``ResourceError``, ``StudyError``, ``ModelError``, ``InfeasibleBudgetError``,
            ``DatasetBudgetError``); nothing was started, unless pre-training or features had begun.
        SweepError: Otherwise, the study had to stop; running it again continues it.
        KeyboardInterrupt: Ctrl-C has come, and the study has ended in order, as interrupted. For
            SIGTERM, ``dpsweep run`` has a handler; your own may ``signal.raise_signal(SIGINT)``.
    """
    result = run_checked(preflight(valid(spec)), observer=observer)
    if result.state == "interrupted":  # or a loop would go on, and spend
        raise KeyboardInterrupt(f"study {spec.name!r} is interrupted; run_sweep continues it")
    return result


def run_checked(
    checked: Preflight,
    *,
    observer: Observer | None = None,
    termination: Termination | None = None,
    cluster: LaunchCluster | None = None,
) -> SweepResult:
    """Do what ``run_sweep`` does, for a spec that has passed ``preflight``.

    Args:
        checked: The checked spec.
        observer: Who watches.
        termination: Of a process that treats SIGTERM as Ctrl-C, which must then end in time.
        cluster: The launch's, begun, if it was begun before this module was loaded.
    """
    spec, observer = checked.spec, watching(observer)
    cluster = cluster or LaunchCluster(checked)
    remove_left_behind(PATIENCE_S)
    refuse_launch(spec)
    make_places(spec)
    cluster.refuse_early()
    checked.check_some_plan()
    composition, selection = choose_composition(checked), choose_selection(checked)
    checked.check_dataset_budget(selection)
    num_draws = selection.selection.draw(secret_numpy_generator()) if selection else 0
    observer.on_stage(f"reading the data: {spec.data.dataset}")
    data = load_records(spec)
    check_records(spec, checked.methods, data, checked.space.values())
    study = Study(spec)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.begin()
        stack.callback(study.close)
        refuse_repetition(study)
        news = study.check_data(data.content_hash, old_hash=data.old_hash)
        if news and spec.data.dataset == "image_folder":  # of others, names cannot change
            names = ", ".join(data.info.class_names)
            observer.on_message(f"study {spec.name!r}: {news}; they are recorded now: {names}")
        study.check_remnants()
        is_over, is_new = _is_complete(checked, study), not study.has_begun
        if is_new:  # nothing is charged to it until its trials can run
            target = join_cluster(cluster, checked, observer)
            # Once more, before it has a ledger: a refused one stays new, and its spec may change.
            checked.check_dataset_budget(selection)
            probe_dataset_ledger(spec)
        terms, in_journal = enforced_terms(spec), study.view.trials
        ledger = StudyLedger(study.files.ledger, terms=terms, in_journal=in_journal)
        stack.callback(ledger.close)
        if ledger.downgraded and not study.view.downgraded:
            give_up_claim(study, ledger, ledger.downgraded)
        study_spent(study.files.ledger, study.view.charged())  # refuses a study that lost a ledger
        if not ledger.is_on_dataset:
            for note in new_dataset_ledger(spec):
                observer.on_message(note)
        if not is_over and not is_new:
            target = join_cluster(cluster, checked, observer)
        raise_lost()  # Ctrl-C, before anything is charged
        composition, selection = _commit(checked, study, ledger, composition, selection)
        ledger.settle_lost(study.view.ended())
        for note in (*record_notes(spec, data), *package_notes(study.view.trials)):
            observer.on_message(note)
        if is_over:
            observer.on_message(f"study {spec.name!r} has finished already; nothing to run")
            erase(study)
            remove_traces(study.files.path / TRACES, observer.on_message)
            admitting = dataclasses.replace(checked, composition=composition)
            mend_tasks(admitting, study, sorted(study.view.trials), observer)
            if (renewed := entries.card_renewed(study, observer)) is not None:
                study.write(renewed)
                observer.on_message("its privacy card is written anew: trials were audited since")
            with open_spool(study.files, spec.tracking, observer.on_message) as spool:
                log_best_model(checked, study, spool, data, observer)
                if spool.is_enabled and spec.tracking.pictures and not study.files.page.exists():
                    observer.on_stage("drawing its pictures, which its end has left out")
                    if (late := entries.drawn_late(study, observer)) is not None:
                        study.write(late)
                deliver(spool, observer)
            return SweepResult(study.files)
        study.write(entries.study_started(study))
        write_charges(study)
        spool = open_spool(
            study.files,
            spec.tracking,
            observer.on_message,
            is_held=bool(selection),
            num_trials=checked.total_trials,
        )
        stack.enter_context(spool)
        drawing = Drawing(study, is_wanted=spool.is_enabled and spec.tracking.pictures)
        stack.callback(drawing.close)
        is_wanted, most = takes_graphs(spec.tracking), checked.total_trials
        hand_on = HandingOn(study, observer, drawing, is_wanted=is_wanted, num_trials=most)
        charged = (ledger, composition, selection, num_draws)
        watched = (observer, target, hand_on, study.view.worked_ms / 1000)
        launch = Launch(checked, study, *charged, data, NO_SUPPLIES, *watched)
        conclusion = Conclusion(study, observer)

        def leave() -> None:
            conclusion.write(Ending("interrupted"), is_urgent=True)
            spool.flush(timeout_s=FLUSH_URGENT_S)

        if termination is not None:
            stack.enter_context(termination.forcing(leave))
            target.watch(termination.lose_ray)
        ending, first = Ending("failed"), None
        observer.on_stage(study.said_running(is_new))
        try:
            weights = pretrained_weights(spec, study, data, observer)
            launch = dataclasses.replace(launch, supplies=Supplies(pretrained=weights))
            ending = MODES[spec.privacy.accounting](launch)
            if ending.state == "finished":
                # A selection's traces go first: what follows may take minutes.
                if selection is None:
                    cluster.close_behind()
                else:
                    cluster.close()
                erase(study)
                if spool.is_enabled:
                    hand_on.begin()
                on_shown, taken = drawing.begin, hand_on.of
                log_best_model(
                    checked, study, spool, data, observer, on_shown=on_shown, taken=taken
                )
                drawing.finish(ending.state, ending.reason, observer)
        except BaseException as error:
            ending, first = ending_of(error, is_selection=selection is not None), error
            if isinstance(error, KeyboardInterrupt):  # before trials ran: Ray Tune takes it then
                observer.on_message("interrupted; the same command continues the study")
            raise
        finally:
            conclusion.write(ending, first)
            cluster.close()
            if ending.state == "finished":
                remove_traces(study.files.path / TRACES, observer.on_message)
            deliver(spool, observer)
        if ending.state == "finished" and ending.reason:
            observer.on_message(f"study {spec.name!r} has finished: {ending.reason}")
    return SweepResult(study.files)


def _commit(
    checked: Preflight,
    study: Study,
    ledger: StudyLedger,
    composition: Composition | None,
    selection: SelectionCharge | None,
) -> tuple[Composition | None, SelectionCharge | None]:
    """Write down what the study may spend; what an earlier launch wrote down holds.

    Returns:
        The composition and the selection that hold.
    Raises:
        DatasetBudgetError: The dataset's budget does not allow the study.
        StudyError: Its next trials would not be what was written down (``recorded_charges``).
    """
    spec, privacy = checked.spec, checked.spec.privacy
    begun = None if _is_complete(checked, study) else study.view.trials
    composition, selection = recorded_charges(checked, ledger, composition, selection, begun)
    if privacy.dataset_ledger is not None:
        DatasetLedger(privacy.dataset_ledger).reserve(
            ledger.study_id,
            spec.name,
            directory=(spec.storage.root / spec.name).resolve(),
            dataset=checked.dataset_name,
            parts=checked.dataset_parts,
            accounting=privacy.accounting,
            epsilon=checked.declared_epsilon(selection),
            delta=privacy.delta,
            cap_epsilon=privacy.dataset_epsilon,
            cap_delta=privacy.dataset_delta,
            trials=ledger.on_dataset,
            # A selection is noted as one trial, whatever it has run.
            started=study.view.on_private & ledger.admitted if selection is None else (),
            is_charged=ledger.is_on_dataset,
        )
        ledger.note_dataset()
    study.keep_spec()
    return composition, selection


def _is_complete(checked: Preflight, study: Study) -> bool:
    """Say whether a study has finished, and not only as fewer trials or less time were wanted."""
    view = study.view
    if view.state != "finished":
        return False
    wants_more = checked.spec.privacy.mode.is_adaptive and len(view.trials) < checked.total_trials
    return not (wants_more and view.goes_on(checked.spec.search.max_time))
