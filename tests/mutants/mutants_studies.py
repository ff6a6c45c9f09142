"""Mutants of studies: durable files, what a stage lets through, modes, sealed trials."""

from mutant import Mutant

STUDIES = (
    Mutant(
        "one split that is two parts",
        "platform/dpsweep/spec/data/texts.py",
        "            if others:",
        "            if False:",
        ("tests/unit/trainables/data/test_text_pairs.py::test_mistakes_of_a_spec",),
        "private records that are scored exactly, as those of a public part",
    ),
    Mutant(
        "texts that are written for private records",
        "platform/dpsweep/spec/data/evaluation.py",
        'raw.get("visibility", "private") != "public"',
        'raw.get("visibility", "private") == "none"',
        (
            "tests/unit/trainables/networks/test_generation.py::test_only_public_test_records_are_written_for",
        ),
        "exact scores of private test records",
    ),
    Mutant(
        "a trial that runs what its file says",
        "platform/dpsweep/ledgers/admission.py",
        'or record.get("task_sha256", task) != task:',
        "or False:",
        (
            "tests/unit/trainables/execution/test_base.py::test_a_trial_runs_nothing_that_was_not_admitted",
        ),
        "steps on private records that a forged file calls public",
    ),
    Mutant(
        "a record that is not synced",
        "platform/dpsweep/foundation/durable.py",
        "                os.fsync(self._file)",
        "                pass",
        ("tests/unit/foundation/test_durable.py::test_a_record_is_on_disk_before_append_returns",),
        "a charge that a power cut takes back",
    ),
    Mutant(
        "charges that nobody notes where a launch stops",
        "platform/dpsweep/running/failing.py",
        "        _note_charges(report, study)",
        "        pass",
        (
            "tests/unit/trainables/execution/test_base.py::test_what_a_process_has_charged_is_not_forgotten_with_its_ledger[removed]",
        ),
        "an older copy of a ledger in the place of one that was removed",
    ),
    Mutant(
        "any other file in the place of a ledger",
        "platform/dpsweep/foundation/durable.py",
        "return _scan(self.path)[0] == self.records",
        "return True",
        (
            "tests/unit/trainables/execution/test_base.py::test_what_a_process_has_charged_is_not_forgotten_with_its_ledger",
        ),
        "the claim of a study whose ledger was exchanged",
    ),
    Mutant(
        "a last record without its newline that is dropped",
        "platform/dpsweep/foundation/records.py",
        "return ([], 0) if _body(text) is None else",
        "return ([], 0) if True else",
        (
            "tests/unit/foundation/test_durable.py::test_a_record_that_lacks_its_newline_alone_stays",
        ),
        "a charge that an editor takes back",
    ),
    Mutant(
        "a replaced file that is not synced",
        "platform/dpsweep/foundation/durable.py",
        "os.fsync(file.fileno())",
        "pass",
        (
            "tests/unit/foundation/test_durable.py::test_an_atomic_write_syncs_the_file_then_renames_it_then_syncs_its_directory",
        ),
        "checkpoints and notes that a power cut empties",
    ),
    Mutant(
        "a directory that is not synced",
        "platform/dpsweep/foundation/durable.py",
        "        os.fsync(handle)",
        "        pass",
        (
            "tests/unit/foundation/test_durable.py::test_a_new_log_and_its_directories_have_entries_on_disk",
        ),
        "a ledger whose name a power cut takes back",
    ),
    Mutant(
        "records with a wrong checksum",
        "platform/dpsweep/foundation/records.py",
        ('if not seal or tail != f\'{_checksum(body + "}")}"}}\':\n        return None'),
        ("if not seal:\n        return None"),
        ("tests/unit/foundation/test_durable.py::test_damaged_history_is_refused[flip]",),
        "a ledger edited by an accident",
    ),
    Mutant(
        "records that are missing",
        "platform/dpsweep/foundation/records.py",
        'if record is None or record.get("seq") != number:',
        "if record is None:",
        ("tests/unit/foundation/test_durable.py::test_damaged_history_is_refused[drop]",),
        "charges that were cut out",
    ),
    Mutant(
        "two writers of one ledger",
        "platform/dpsweep/foundation/durable.py",
        (
            "take_alone(self._file)\n"
            "        except OSError as error:\n"
            "            os.close(self._file)\n"
            "            raise LockedError("
        ),
        (
            "pass\n"
            "        except OSError as error:\n"
            "            os.close(self._file)\n"
            "            raise LockedError("
        ),
        ("tests/unit/foundation/test_durable.py::test_one_writer_at_a_time",),
        "a trial that runs twice at once",
    ),
    Mutant(
        "metrics that may not leave their actor",
        "platform/dpsweep/running/stage.py",
        ("        if hidden:\n"),
        ("        if False:\n"),
        (
            "tests/unit/running/test_stage.py::test_a_private_metric_never_arrives_and_costs_the_claim",
        ),
        "the claim is void",
    ),
    Mutant(
        "exact scores of private records under a claim",
        "platform/dpsweep/running/tuner.py",
        'validation.visibility == "exact" and not spec.privacy.mode.is_accounted',
        'validation.visibility == "exact"',
        (
            "tests/unit/running/test_stage.py::test_exact_scores_of_private_records_do_not_leave_a_study_with_a_claim",
        ),
        "no finite epsilon covers them",
    ),
    Mutant(
        "exact scores for a noisy declaration",
        "platform/dpsweep/running/tuner.py",
        'is_exact = validation.visibility == "public" or (',
        'is_exact = validation.visibility != "hidden" or (',
        ("tests/unit/running/test_stage.py::test_scores_leave_the_actor_as_declared",),
        "no finite epsilon covers them",
    ),
    Mutant(
        "run times on the journal",
        "platform/dpsweep/running/stage.py",
        "report = dataclasses.replace(report, wall_s=0.0, memory_mb=0.0)",
        "report = dataclasses.replace(report)",
        ("tests/unit/running/test_stage.py::test_a_run_time_never_arrives",),
        "they tell of batch sizes",
    ),
    Mutant(
        "an error that Tune takes for a trial's",
        "platform/dpsweep/schedulers/ray_adapter.py",
        "            raise PastTune(error) from error\n",
        "            raise\n",
        (
            "tests/unit/schedulers/test_ray_adapter.py::test_an_end_that_cannot_be_written_is_an_error_not_an_endless_loop",
        ),
        "a trial whose end cannot be written is run, and charged, again",
    ),
    Mutant(
        "run times asked for under a claim",
        "platform/dpsweep/running/stage.py",
        ("return not self.spec.privacy.mode.is_accounted\n\n    def on_verdict"),
        ("return True\n\n    def on_verdict"),
        ("tests/unit/running/test_stage.py::test_a_run_time_never_arrives",),
        "they tell of batch sizes",
    ),
    Mutant(
        "a verdict written anew by every launch",
        "platform/dpsweep/running/stage.py",
        "if self.study.view.trials[report.trial].judged != judged:",
        "if True:",
        ("tests/unit/running/test_stage.py::test_a_crash_between_verdict_and_pause_writes_one",),
        "the decision log would count decisions twice",
    ),
    Mutant(
        "a violation that stops nothing",
        "platform/dpsweep/running/stage.py",
        'if report.failure.startswith("privacy violation"):',
        "if False:",
        ("tests/unit/running/test_stage.py::test_a_violation_stops_the_study",),
        "a study whose ledger is not kept goes on",
    ),
    Mutant(
        "a claim given up on the journal alone",
        "platform/dpsweep/running/giving_up.py",
        ("        ledger.downgrade(reason)\n"),
        ("        pass\n"),
        (
            "tests/unit/running/test_stage.py::test_a_private_metric_never_arrives_and_costs_the_claim",
        ),
        "who deletes the journal has it back",
    ),
    Mutant(
        "a dataset that hears of no broken claim",
        "platform/dpsweep/running/giving_up.py",
        "DatasetLedger(dataset_ledger).break_claim(ledger.study_id, reason)",
        "pass",
        ("tests/unit/running/test_give_up_claim.py::test_the_dataset_ledger_is_broken_first",),
        "its sum is no bound any more",
    ),
    Mutant(
        "loss beside a noisy accuracy",
        "platform/dpsweep/planning/admission.py",
        'names = ("accuracy",) if is_noisy else every',
        "names = every",
        ("tests/unit/running/test_stage.py::test_only_the_accuracy_of_noisy_scores_may_leave",),
        "only the accuracy has noise",
    ),
    Mutant(
        "a claim that outlives its ledger's downgrade",
        "platform/dpsweep/results/claims.py",
        "reason = self.account.downgraded or self.view.downgraded",
        "reason = self.view.downgraded",
        (
            "tests/unit/running/test_stage.py::test_a_claim_given_up_on_the_ledger_alone_is_given_up",
        ),
        "a journal without the record claims again",
    ),
    Mutant(
        "sealed trials drawn anew",
        "platform/dpsweep/running/modes/sealed.py",
        "if launch.ledger.has_begun_selection and not is_drawn:",
        "if False:",
        (
            "tests/unit/running/test_sealed.py::test_a_selection_whose_sealed_study_was_removed_is_not_drawn_anew",
        ),
        "the best of several draws",
    ),
    Mutant(
        "a broken selection that is not handed on",
        "platform/dpsweep/running/modes/sealed.py",
        "if sealed.view.downgraded and not launch.ledger.downgraded:",
        "if False:",
        (
            "tests/unit/running/test_sealed.py::test_an_interrupted_selection_whose_trials_broke_its_claim_has_none",
        ),
        "the winner would be released under a claim",
    ),
    Mutant(
        "the ends of charges in a released ledger",
        "platform/dpsweep/running/modes/sealed.py",
        "for record in charges_at_once(read_records(trial_file(sealed.files.ledger, winner))):",
        (
            "for record in [{k: v for k, v in r.items() if k != 'seq'} for r in read_records("
            "trial_file(sealed.files.ledger, winner)) if r['kind'] == 'charge']:"
        ),
        (
            "tests/unit/running/test_sealed.py::test_the_released_ledger_does_not_tell_where_charges_ended",
        ),
        "they tell how long steps took",
    ),
    Mutant(
        "sealed trials with the study's seed",
        "platform/dpsweep/running/modes/sealed.py",
        "return dataclasses.replace(admitted, seed=secret_seed())",
        "return admitted",
        (
            "tests/unit/running/test_sealed.py::test_sealed_trials_have_secret_seeds_of_their_own_and_the_winner_shows_none",
        ),
        "initial weights tell which draw has won",
    ),
    Mutant(
        "a released secret seed",
        "platform/dpsweep/running/modes/sealed.py",
        "trial=0, seed=None)",
        "trial=0)",
        (
            "tests/unit/running/test_sealed.py::test_sealed_trials_have_secret_seeds_of_their_own_and_the_winner_shows_none",
        ),
        "it tells the winner's randomness",
    ),
    Mutant(
        "sealed trials dearer than what is charged",
        "platform/dpsweep/running/modes/sealed.py",
        "if (admitted := charge.admitted(checked, task)) is not None:",
        "if admitted := task:",
        (
            "tests/unit/running/test_sealed.py::test_a_plan_dearer_than_what_was_charged_is_never_run",
        ),
        "the theorem's precondition",
    ),
    Mutant(
        "times of a selection",
        "platform/dpsweep/study/study.py",
        "now -= now % _DAY_MS",
        "pass",
        ("tests/unit/study/test_study_times.py::test_events_have_the_day_or_the_time",),
        "the run time tells how many trials there were",
    ),
    Mutant(
        "exact private scores in a composed study",
        "platform/dpsweep/spec/modes.py",
        ("if mode.is_filtered or mode.is_sealed:\n        yield from _no_exact_scores"),
        ("if mode.is_sealed:\n        yield from _no_exact_scores"),
        ("tests/unit/spec/test_modes.py::test_a_precondition_is_refused_by_name",),
        "no finite epsilon covers them",
    ),
    Mutant(
        "methods without noise in a composed study",
        "platform/dpsweep/planning/problems.py",
        """    if spec.privacy.mode.is_accounted:
        for name""",
        """    if spec.privacy.mode.is_sealed or spec.privacy.mode.is_public_search:
        for name""",
        (
            "tests/unit/planning/test_before_spending.py::test_a_claim_covers_no_method_without_a_finite_epsilon",
        ),
        "they have no finite epsilon",
    ),
    Mutant(
        "samplers that learn in a selection",
        "platform/dpsweep/spec/modes.py",
        "if sampler and sampler not in INDEPENDENT_SAMPLERS:",
        'if sampler and sampler not in (*INDEPENDENT_SAMPLERS, "tpe"):',
        ("tests/unit/spec/test_modes.py::test_a_precondition_is_refused_by_name",),
        "select needs independent trials",
    ),
    Mutant(
        "pruning in a selection",
        "platform/dpsweep/spec/modes.py",
        (
            'if scheduler in ("epsilon_halving", "median", "noisy_prefix", *FOREIGN_SCHEDULERS):\n        does'
        ),
        ('if scheduler in ("epsilon_halving",):\n        does'),
        ("tests/unit/spec/test_modes.py::test_a_precondition_is_refused_by_name",),
        "select needs trials that run to their ends",
    ),
    Mutant(
        "pld for trials that are stopped",
        "platform/dpsweep/spec/modes.py",
        "if is_pld and not is_refused",
        "if False and not is_refused",
        ("tests/unit/spec/test_modes.py::test_a_precondition_is_refused_by_name",),
        "it bounds plans that are fixed beforehand",
    ),
    Mutant(
        "private scores in a public search",
        "platform/dpsweep/spec/modes.py",
        'if visibility in ("noisy", "exact"):',
        'if visibility == "exact":',
        ("tests/unit/spec/test_modes.py::test_a_precondition_is_refused_by_name",),
        "it reads no private record",
    ),
    Mutant(
        "a search on public records with private ones",
        "platform/dpsweep/running/modes/searching.py",
        "data = launch.data.for_public_search(with_test=with_test)",
        "data = launch.data",
        ("tests/unit/running/test_public_mode.py::test_the_search_is_handed_public_records_alone",),
        "it reads no private record",
    ),
    Mutant(
        "a claim of what a diverged final run has spent",
        "platform/dpsweep/results/claims.py",
        "if view.state is TrialState.FINISHED and not view.is_cut_short:",
        "if view.state is TrialState.FINISHED:",
        (
            "tests/unit/results/test_claims.py::test_a_model_that_diverged_does_not_end_a_claim_early",
        ),
        "when a model diverges depends on the records",
    ),
    Mutant(
        "a claim by an edited spec",
        "platform/dpsweep/results/claims.py",
        "check_terms(files.ledger, state, enforced_terms(spec))",
        "pass",
        ("tests/unit/results/test_claims.py::test_an_edited_spec_claims_nothing",),
        "what was not enforced is claimed",
    ),
    Mutant(
        "a claim after two private runs of a public search",
        "platform/dpsweep/results/claims.py",
        'plan.part("private")) for plan in plans) > 1:',
        'plan.part("private")) for plan in plans) > 99:',
        (
            "tests/unit/results/test_claims.py::test_two_private_runs_of_a_public_search_claim_nothing",
        ),
        "one run was paid for",
    ),
    Mutant(
        "a registered model of a public search",
        "platform/dpsweep/running/registering.py",
        "if is_public and not result.claims.is_final(result.view.trials[trial]):",
        "if False:",
        (
            "tests/unit/running/test_registering.py::test_a_claim_that_is_lost_is_lost_on_every_version",
        ),
        "a model is handed on that the claim is not about",
    ),
    Mutant(
        "a registered version without its claim",
        "platform/dpsweep/tracking/registry/versions.py",
        "            tags=tags,\n",
        "            tags={},\n",
        (
            "tests/unit/running/test_registering.py::test_the_best_trial_is_registered_with_the_claim_of_its_study",
        ),
        "whoever sees it in the registry meets no epsilon, or not its terms",
    ),
    Mutant(
        "registered versions that keep a lost claim",
        "platform/dpsweep/tracking/mlflow_models.py",
        "            for version in versions_of(self._client, run_id):\n",
        "            for version in ():\n",
        (
            "tests/unit/running/test_registering.py::test_a_claim_that_is_lost_is_lost_on_every_version",
            "tests/unit/running/test_registering.py::test_a_claim_that_ledgers_refute_is_lost_at_the_next_launch",
        ),
        "a claim that does not hold stands in the registry",
    ),
    Mutant(
        "a model registered from a store's tags",
        "platform/dpsweep/running/registering.py",
        "    if result.source:  # its claim would be what tags of the store say\n",
        "    if False:\n",
        (
            "tests/unit/running/test_registering.py::test_registering_it_does_not_change_what_else_is_read_from_the_store",
        ),
        "a changed tag becomes a claim",
    ),
)
