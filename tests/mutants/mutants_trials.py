"""Mutants of trials: charges, checkpoints, scores, what leaves an actor."""

from mutant import Mutant

_OUTPUTS = "tests/unit/trainables/data/test_outputs.py"

TRIALS = (
    Mutant(
        "one label too many",
        "trainables/methods/active_learning/label_oracle.py",
        "if after.sum() > self._most:",
        "if after.sum() > self._most + 1:",
        (
            "tests/unit/trainables/methods/active_learning/test_label_oracle.py::test_more_than_the_most_is_refused_and_nothing_is_bought",
        ),
        "labels.max is what is paid for",
    ),
    Mutant(
        "run before the charge",
        "trainables/execution/execution.py",
        (
            "            with self._pace.charging():\n"
            "                self.ledger.charge(self.position, until, self._charges.slice(self.position, until))\n"
            "            with self._pace.running(until - self.position):\n"
            "                self.method.run(self.position, until)\n"
        ),
        (
            "            with self._pace.running(until - self.position):\n"
            "                self.method.run(self.position, until)\n"
            "            with self._pace.charging():\n"
            "                self.ledger.charge(self.position, until, self._charges.slice(self.position, until))\n"
        ),
        (
            "tests/unit/trainables/execution/test_execution.py::test_a_crash_costs_what_was_charged_and_the_cap_holds",
        ),
        "a kill between the two is never charged",
    ),
    Mutant(
        "steps that are not charged",
        "trainables/execution/execution.py",
        "self.ledger.charge(self.position, until, self._charges.slice(self.position, until))",
        "pass",
        (
            "tests/unit/trainables/execution/test_execution.py::test_calibrated_plan_spends_nearly_all_and_never_more",
        ),
        "the law: charge, then run",
    ),
    Mutant(
        "scores that are not charged",
        "trainables/execution/scores.py",
        "        self._ledger.release(self.release())\n        self.missing",
        "        self.missing",
        (
            "tests/unit/trainables/execution/test_scores.py::test_each_score_is_charged_to_the_validation_records",
        ),
        "a noisy score is a release",
    ),
    Mutant(
        "more scores than are planned",
        "trainables/execution/scores.py",
        "is_planned = num_released < len(self._task.validation_plan)",
        "is_planned = True",
        (
            "tests/unit/trainables/execution/test_scores.py::test_a_kill_between_charge_and_evaluation_keeps_the_charge",
        ),
        "the study has reserved for those of the plan",
    ),
    Mutant(
        "the true number of validation records in a score",
        "trainables/execution/scores.py",
        "num_declared=self._data.info.num_validation",
        "num_declared=num_records",
        ("tests/unit/trainables/execution/test_scores.py::test_the_denominator_is_declared",),
        "it is private",
    ),
    Mutant(
        "exact scores for noisy ones",
        "trainables/execution/scores.py",
        'if self._settings.validation == "exact":',
        'if self._settings.validation != "hidden":',
        (
            "tests/unit/trainables/execution/test_scores.py::test_the_reported_epsilon_is_the_larger_of_the_two_parts",
        ),
        "no finite epsilon covers them",
    ),
    Mutant(
        "settings that contradict each other",
        "trainables/execution/settings.py",
        'if (self.validation == "noisy") != (self.validation_noise is not None):',
        "if False:",
        (
            "tests/unit/trainables/execution/test_execution.py::test_settings_that_contradict_each_other_are_refused[given0-'exact' does not go with]",
        ),
        "exact scores would leave for noisy ones",
    ),
    Mutant(
        "a trial on records of another kind",
        "trainables/execution/execution.py",
        "if data.records != task.records:",
        "if False:",
        (
            "tests/unit/trainables/execution/test_execution.py::test_the_other_records_are_refused[public]",
        ),
        "a search on public records reads private ones",
    ),
    Mutant(
        "checkpoints that know more than the ledger",
        "trainables/execution/execution.py",
        "check_complete(self.ledger.path, len(self.ledger), saved.charged)",
        "pass",
        (
            "tests/unit/trainables/execution/test_execution.py::test_a_lost_ledger_is_refused[deleted]",
        ),
        "a ledger that was cut short goes on as if nothing was spent",
    ),
    Mutant(
        "a selected trial that continues",
        "trainables/execution/execution.py",
        ("            if settings.fresh_attempts:\n                self._store.discard()"),
        ("            if False:\n                self._store.discard()"),
        (
            "tests/unit/trainables/execution/test_execution.py::test_a_fresh_attempt_starts_anew_and_forgets_no_charge",
        ),
        "a selected trial is one complete run",
    ),
    Mutant(
        "run times that leave the actor",
        "trainables/execution/memory.py",
        "return time.monotonic() - self._started if self._is_told else 0.0",
        "return time.monotonic() - self._started",
        (
            "tests/unit/trainables/execution/test_execution.py::test_run_times_stay_inside_unless_asked_for",
        ),
        "they tell of batch sizes",
    ),
    Mutant(
        "private records for a trial that asks them nothing",
        "trainables/execution/trial_data.py",
        '"private": (inputs[:0], labels[:0])',
        '"private": (inputs, labels)',
        (
            "tests/unit/trainables/methods/active_learning/test_active_learning.py::test_only_who_asks_private_records_is_handed_them",
        ),
        "positions on public records are free",
    ),
    Mutant(
        "messages of errors that quote records",
        "platform/dpsweep/foundation/errors.py",
        "return isinstance(error, SweepError) and is_ours",
        "return isinstance(error, Exception)",
        ("tests/unit/trainables/execution/test_base.py::test_a_failure_says_where_and_never_what",),
        "a message may quote a private value",
    ),
    Mutant(
        "messages of a package's own that quote records",
        "platform/dpsweep/foundation/errors.py",
        "return isinstance(error, SweepError) and is_ours",
        "return isinstance(error, SweepError)",
        ("tests/unit/foundation/test_errors.py::test_words_of_another_package_may_quote_a_record",),
        "whoever writes a method may put a record into any error",
    ),
    Mutant(
        "another plan than the one that is charged",
        "trainables/execution/execution.py",
        "        self.method.check_at(self.plan, self.position)\n",
        "",
        (
            "tests/unit/trainables/execution/test_execution.py"
            "::test_what_could_not_be_run_or_gone_on_with_is_charged_nothing",
        ),
        "a method that runs its own plan spends what nobody charges",
    ),
    Mutant(
        "a noisy score of no number of records",
        "trainables/execution/scores.py",
        "return round(correct) if is_whole else 0",
        "return round(correct)",
        (
            "tests/unit/trainables/execution/test_scores.py"
            "::test_what_is_no_share_of_records_is_released_as_none_right",
        ),
        "the noise is for one record more or less",
    ),
    Mutant(
        "a noisy score that says it cannot be computed",
        "trainables/execution/scores.py",
        "                raise\n            return 0",
        '                raise\n            self.missing["validation"] = "failed"\n            return 0',
        (
            "tests/unit/trainables/execution/test_scores.py"
            "::test_whether_a_noisy_score_can_be_computed_is_not_said",
        ),
        "it depends on the records",
    ),
    Mutant(
        "a noisy score that says what memory its records need",
        "trainables/execution/scores.py",
        "is_of_none = isinstance(error, NoRoomError) and is_own(error)",
        "is_of_none = isinstance(error, (NoRoomError, MemoryError))",
        (
            "tests/unit/trainables/execution/test_scores.py"
            "::test_a_lack_of_memory_that_records_alone_meet_is_not_told",
        ),
        "it may depend on one of them",
    ),
    Mutant(
        "words of others as those of the ledger",
        "trainables/execution/actor.py",
        "if is_ours and isinstance(error, (StorageError, AbsentLedgerError)):",
        "if isinstance(error, (StorageError, AbsentLedgerError)):",
        (
            "tests/unit/trainables/execution/test_base.py"
            "::test_an_error_of_ours_that_others_raise_is_told_as_theirs[StorageError-run]",
        ),
        "they may quote a record",
    ),
    Mutant(
        "a panic that reaches Ray Tune",
        "platform/dpsweep/foundation/errors.py",
        "    return is_end or is_of_ours or",
        "    return not isinstance(error, SystemExit) or is_of_ours or",
        (
            "tests/unit/trainables/execution/test_base.py"
            "::test_a_panic_while_a_trial_is_opened_is_its_failure",
        ),
        "its words are written to files, and the trial is charged again",
    ),
    Mutant(
        "a record that fails and takes the other answers with it",
        "trainables/data/tasks.py",
        "if not _FAILS_ALONE.get() or is_signal(error):",
        "if True:",
        (
            "tests/unit/trainables/execution/test_scores.py"
            "::test_a_record_that_a_network_fails_on_changes_a_noisy_score_by_one_answer",
        ),
        "the noise is for one answer more or less",
    ),
    Mutant(
        "another network's weights",
        "trainables/networks/own_models.py",
        "is_same = not code or fingerprint(name) == code",
        "is_same = True",
        (
            "tests/unit/trainables/networks/test_own_models.py"
            "::test_a_trial_is_of_the_code_that_it_was_admitted_with",
        ),
        "scores and charges are of the code of before",
    ),
    Mutant(
        "a damaged checkpoint",
        "trainables/execution/checkpoint_files.py",
        'if digest != meta["sha256"]:',
        "if False:",
        (
            "tests/unit/trainables/execution/test_execution.py::test_a_trial_goes_on_from_its_latest_whole_checkpoint",
        ),
        "a model that is not what was released",
    ),
    Mutant(
        "the true number of records in an error",
        "trainables/data/npz.py",
        "return f\"(records, {', '.join(map(str, shape[1:]))})\"",
        "return str(shape)",
        (
            "tests/unit/trainables/data/test_data.py::test_errors_keep_the_number_of_records_to_themselves",
        ),
        "it is private",
    ),
    Mutant(
        "scores of a few records in a block of their own",
        "trainables/data/tasks.py",
        "outputs: torch.Tensor = model(filled(x, size))",
        "outputs: torch.Tensor = model(x)",
        (
            f"{_OUTPUTS}::test_no_output_moves_by_a_bit_with_how_many_records_there_are[linear of 100]",
        ),
        "one record fewer moves the class of others, and a count by more than its noise is for",
    ),
    Mutant(
        "blocks as large as there are records",
        "trainables/data/tasks.py",
        'even_size(getattr(data.info, f"num_{part}"), block)',
        "even_size(len(labels), block)",
        (f"{_OUTPUTS}::test_the_size_of_blocks_follows_from_what_is_declared",),
        "the same by the size of every block",
    ),
    Mutant(
        "features of a few records in a block of their own",
        "trainables/features/blocks.py",
        "exact = module(filled(x, rows))[: len(x)]",
        "exact = module(x)",
        (
            "tests/unit/trainables/features/test_blocks.py::test_no_feature_moves_by_a_bit_with_how_many_records_there_are[efficientnet_lite0-32-140]",
        ),
        "one record fewer moves the features of another one, and its gradient",
    ),
    Mutant(
        "a reader of another package that tells a record",
        "trainables/data/sources.py",
        "    try:\n        return call(*arguments)\n    except BaseException as error:\n",
        "    try:\n        return call(*arguments)\n    except KeyError as error:\n",
        (
            "tests/unit/trainables/data/test_outside_datasets.py::test_a_reader_that_fails_tells_no_record[read-reads_a_word]",
        ),
        "the words of its error are on the screen, and quote what it could not read",
    ),
    Mutant(
        "a check of records of another package that tells one",
        "platform/dpsweep/planning/problems.py",
        "values, data, has_records=True)",
        "values, data)",
        (
            "tests/unit/planning/test_outside_methods.py::test_a_check_of_records_that_fails_tells_none[DataError]",
        ),
        "its own DataError quotes a private record",
    ),
    Mutant(
        "a picture from anywhere",
        "trainables/execution/finished/trials.py",
        " if _may_be_sent(each, directory)",
        "",
        (
            "tests/unit/trainables/execution/test_pictures.py::test_files_elsewhere_are_left_out_with_a_line",
        ),
        "the private report is sent to the tracking store",
    ),
)
