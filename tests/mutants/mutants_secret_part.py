"""Mutants of searches on a secret part of the records."""

from mutant import Mutant

_BOUND = "platform/dpsweep/privacy/selection/on_subset.py"
_PRICE = "platform/dpsweep/planning/costs/secret_part.py"
_SEALED = "platform/dpsweep/running/modes/sealed.py"
_FINAL = "platform/dpsweep/running/modes/sealed_final.py"
_DATA = "trainables/data/dataset.py"
_TESTS = "tests/unit/privacy/test_on_subset.py"
_PLANNED = "tests/unit/planning/test_secret_part.py"
_RUNNING = "tests/unit/running/test_secret_part_mode.py"
_PART = "tests/unit/trainables/data/test_secret_part.py"

SECRET_PART = (
    Mutant(
        "validation records that are amplified",
        _BOUND,
        'rate = self.rate if part == "private" else 1.0',
        "rate = self.rate",
        (f"{_TESTS}::test_scores_of_search_and_final_run_add_up_and_are_not_amplified[rdp]",),
        "all validation records score every trial, whoever is in the part",
    ),
    Mutant(
        "a final run that costs nothing",
        _BOUND,
        "if with_final and not final.is_free:",
        "if False:",
        (f"{_TESTS}::test_one_configuration_costs_what_its_events_do[rdp-0]",),
        "the study says what its search costs, and releases more",
    ),
    Mutant(
        "a selection on the part that is no selection, under rdp",
        _BOUND,
        "        selected = self._selected(orders)\n",
        "        selected = self.once.renyi(orders)\n",
        (f"{_TESTS}::test_scores_of_search_and_final_run_add_up_and_are_not_amplified[rdp]",),
        "the best of many is priced as one",
    ),
    Mutant(
        "a selection on the part at a smaller rate, under pld",
        _BOUND,
        "subset_profile(convex, self.rate)",
        "subset_profile(convex, self.rate / 2)",
        (f"{_TESTS}::test_one_configuration_costs_what_its_events_do[pld-0]",),
        "half of what a record in the part tells is forgotten",
    ),
    Mutant(
        "final runs above what is charged",
        "platform/dpsweep/planning/costs/charge.py",
        "return trial if self.has_final(checked, trial) else None",
        "return trial",
        (f"{_RUNNING}::test_no_draw_has_a_final_run_dearer_than_what_was_charged",),
        "which final run follows depends on the search: each must be within one bound",
    ),
    Mutant(
        "a final run that gets all of the budget",
        _PRICE,
        "        final_epsilon = self._final_epsilon(alone)\n",
        "        final_epsilon = self._cap\n",
        (f"{_PLANNED}::test_the_final_run_gets_what_the_search_leaves_and_no_more[rdp]",),
        "search and final run together pass the study's epsilon",
    ),
    Mutant(
        "another part after a kill",
        _SEALED,
        "data = data.for_secret_part(rate, ledger.part_seed)",
        "data = data.for_secret_part(rate, secret_hex())",
        (f"{_RUNNING}::test_a_search_that_is_killed_goes_on_with_the_same_part",),
        "the best of trials on several parts, of which one is paid for",
    ),
    Mutant(
        "a part that is drawn anew where its record is lost",
        _SEALED,
        "is_drawn = ledger.has_num_trials and (rate is None or ledger.part_seed is not None)",
        "is_drawn = ledger.has_num_trials",
        (f"{_RUNNING}::test_a_record_without_its_part_is_not_completed",),
        "whoever removes the record has it drawn again",
    ),
    Mutant(
        "a search on all records",
        _DATA,
        "return np.flatnonzero(drawn < rate)",
        "return np.arange(actual)",
        (f"{_PART}::test_members_are_binomial_and_independent",),
        "what is paid for is a search on a part of them",
    ),
    Mutant(
        "a part of fixed size",
        _DATA,
        "return np.flatnonzero(drawn < rate)",
        "return np.sort(np.argsort(drawn)[: round(rate * actual)])",
        (
            f"{_PART}::test_each_record_enters_by_a_draw_of_its_own",
            f"{_PART}::test_members_are_binomial_and_independent",
        ),
        "the theorem is of independent draws; others push a record out",
    ),
    Mutant(
        "a hash of the part",
        _DATA,
        '            content_hash="",\n',
        '            content_hash=hash_of_parts({**self.parts, "private": private}),\n',
        (f"{_PART}::test_its_facts_are_declared_whatever_was_drawn[0.2]",),
        "whoever has the records can find out who is in it",
    ),
    Mutant(
        "a sealed study that outlives its search",
        _SEALED,
        "    erase(study)\n    return _sealed_directory(study)",
        "    return _sealed_directory(study)",
        (
            f"{_RUNNING}::test_a_launch_killed_between_search_and_end_is_followed_by_the_same_run[running]",
        ),
        "the losers and the part are there as long as the final run takes",
    ),
    Mutant(
        "the epsilon of the final run alone",
        "platform/dpsweep/study/study.py",
        "        if self.stated_epsilon is None:\n",
        "        if True:\n",
        (f"{_RUNNING}::test_what_is_said_names_the_part_and_what_is_released",),
        "the smaller epsilon of the final run is read as that of the study",
    ),
    Mutant(
        "a final run with any events of its epsilon",
        _FINAL,
        "            composition=DeclaredComposition(\n"
        "                classes, budget.target_epsilon, budget.delta, budget.target_epsilon\n"
        "            ),\n",
        "            composition=None,\n",
        (f"{_RUNNING}::test_steps_lost_in_a_crash_are_paid_out_of_the_plan",),
        "events that the charged bound does not cover",
    ),
    Mutant(
        "a rate that may be changed",
        "platform/dpsweep/ledgers/history.py",
        'enforced["search.on.subset"] = (state.selection.get("subset") or {}).get("rate")',
        "pass",
        (f"{_RUNNING}::test_a_study_on_all_records_cannot_be_given_a_part",),
        "an edited spec says that a study on all records was on a part of them",
    ),
)
