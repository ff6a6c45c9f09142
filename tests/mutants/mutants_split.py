"""Mutants of searches on a part of the records."""

from mutant import Mutant

_SPLIT = "platform/dpsweep/privacy/composition/split.py"
_MODES = "platform/dpsweep/running/modes/searching.py"
_DATA = "trainables/data/dataset.py"
_TESTS = "tests/unit/privacy/test_split.py"
_RUNNING = "tests/unit/running/test_split_mode.py"
_SECRET_PART = "tests/unit/running/test_secret_part_mode.py"
_PARTS = "tests/unit/trainables/data/test_searched_part.py"
_CARRIED = "tests/unit/trainables/methods/test_carrying_over.py"

SPLIT = (
    Mutant(
        "a final run on all private records",
        _DATA,
        "rows = np.setdiff1d(np.arange(len(labels)), rows)",
        "rows = np.arange(len(labels))",
        (
            f"{_PARTS}::test_each_record_is_in_one_part_alone",
            f"{_RUNNING}::test_the_winner_is_carried_over_to_the_records_that_the_search_has_not_read",
        ),
        "a record of the search is in the final run too: the study costs the sum, and says less",
    ),
    Mutant(
        "two final runs",
        _SPLIT,
        "FINAL_RUN: 1.0 + 2 * self.slack",
        "FINAL_RUN: 2.0 + 2 * self.slack",
        (f"{_TESTS}::test_there_is_one_final_run",),
        "two runs on the rest cost twice delta, and the better one would be picked",
    ),
    Mutant(
        "a final run at any price",
        _SPLIT,
        "1.0 if self._is_within(final) else math.inf",
        "1.0",
        (f"{_TESTS}::test_a_final_run_over_the_budget_fits_nowhere",),
        "what the final run costs is bounded by nothing",
    ),
    Mutant(
        "scores of the final run that nobody keeps",
        _SPLIT,
        "limits = {name: limit - self._kept_cost[name] for name, limit",
        "limits = {name: limit for name, limit",
        (f"{_TESTS}::test_scores_of_the_final_run_are_kept_and_no_trial_gets_them[filter]",),
        "search and final run together score the validation records beyond the budget",
    ),
    Mutant(
        "a rest that costs nothing outside of a split",
        "platform/dpsweep/privacy/composition/base.py",
        'plan = plan.moved(REST, "private")',
        "plan = plan.without(REST)",
        (f"{_TESTS}::test_parts_that_nobody_has_parted_are_added[filter]",),
        "events that a filter does not see are free",
    ),
    Mutant(
        "a final run that is charged as the search",
        "platform/dpsweep/study/trial.py",
        'return self.plan.moved("private", self.part)',
        "return self.plan",
        (
            f"{_RUNNING}::test_the_winner_is_carried_over_to_the_records_that_the_search_has_not_read",
        ),
        "the ledger does not say which records the final run has read",
    ),
    Mutant(
        "a search that goes on beside its final run",
        _MODES,
        "    number = ledger.final_run\n",
        "    number = None\n",
        (f"{_RUNNING}::test_a_driver_killed_before_the_journal_knows_is_followed_by_the_same_run",),
        "a launch after a kill gives the number of the reserved run to another trial",
    ),
    Mutant(
        "a final run that is begun again",
        "platform/dpsweep/running/modes/final_run.py",
        "        if final.state is not TrialState.RUNNING or launch.ledger.has_ended(final.trial):\n",
        "        if False:\n",
        (
            f"{_RUNNING}::test_a_final_run_that_has_ended_is_never_repeated[True]",
            f"{_SECRET_PART}::test_a_final_run_that_has_failed_is_never_repeated",
        ),
        "the final run is repeated until its score is good",
    ),
    Mutant(
        "a share that may be changed",
        "platform/dpsweep/ledgers/history.py",
        'enforced["search.on.split"] = kept.searched_share',
        "pass",
        (f"{_RUNNING}::test_a_study_without_a_part_cannot_be_given_one",),
        "an edited spec parts the records of a study that was enforced on all of them",
    ),
    Mutant(
        "a rate that is copied",
        "trainables/methods/carrying_over.py",
        "batches = _batch(carried, after) / _batch(hparams, before)",
        "batches = 1.0",
        (f"{_CARRIED}::test_at_the_same_epsilon_the_rate_grows_as_the_records_do",),
        "what was found on a tenth of the records is a tenth of a rate on the rest",
    ),
)
