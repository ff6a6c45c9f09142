"""Mutants of honest searches: what may be carried over, chosen, declared, and taken as public."""

from mutant import Mutant

_PITFALLS = "tests/unit/privacy/test_search_pitfalls.py"
_NORMS = "tests/unit/planning/test_input_norm.py"
_LOADING = "trainables/data/loading.py"
_NOISE = "platform/dpsweep/privacy/composition/recalibrated.py"
_RECALIBRATED = "tests/unit/privacy/test_recalibrated.py"

SEARCHES = (
    Mutant(
        "u at another length",
        "platform/dpsweep/spec/search/probe.py",
        "    if NOISE_LR in searched:",
        "    if False:",
        (
            f"{_PITFALLS}::test_u_is_not_carried_to_another_length_or_batch[overrides0]",
            f"{_PITFALLS}::test_u_is_not_carried_to_another_length_or_batch[overrides2]",
        ),
        "what short probes find is another noise in the final run",
    ),
    Mutant(
        "an end of a range that passes for its best",
        "platform/dpsweep/search/probes.py",
        "    if middle != index:",
        "    if False:",
        (f"{_PITFALLS}::test_an_end_without_spares_is_told_and_spares_find_what_lies_beyond[5.3]",),
        "nobody hears that the best value may lie beyond",
    ),
    Mutant(
        "a bound by an epsilon at one delta",
        "platform/dpsweep/privacy/selection/bounds.py",
        "return bool(np.all(deltas_of(plan) + _rounding_of(plan) <= longer))",
        'return bound_of([plan], "pld").epsilon(delta=1e-5) <= self.epsilon(delta=1e-5) * 1.0001',
        (f"{_PITFALLS}::test_an_epsilon_at_one_delta_does_not_price_a_selection",),
        "a dearer trial is drawn than was charged",
    ),
    Mutant(
        "the first profile for all",
        "platform/dpsweep/privacy/selection/bounds.py",
        "np.minimum(np.max(profiles, axis=0) * _ROUND_UP, 1.0)",
        "np.minimum(np.asarray(profiles[0]) * _ROUND_UP, 1.0)",
        (f"{_PITFALLS}::test_an_epsilon_at_one_delta_does_not_price_a_selection",),
        "a dearer trial is drawn than was charged",
    ),
    Mutant(
        "a profile of one direction",
        "platform/dpsweep/privacy/events/losses.py",
        "at[order] = loss.get_delta_for_epsilon(away[order])",
        "at[order] = loss._pmf_add.get_delta_for_epsilon(away[order])",
        (f"{_PITFALLS}::test_one_direction_of_a_subsampled_gaussian_claims_too_little",),
        "neighbors come in both orders",
    ),
    Mutant(
        "a declaration that counts each class once",
        "platform/dpsweep/privacy/composition/declared.py",
        "in_order((c.event, c.count) for c in classes if c.part == part)",
        "in_order((c.event, 1) for c in classes if c.part == part)",
        (f"{_PITFALLS}::test_random_adaptive_choices_never_pass_the_declared_epsilon",),
        "composed: the whole study",
    ),
    Mutant(
        "more units than were declared",
        "platform/dpsweep/privacy/composition/account.py",
        "self._total[name] - held[name] + asked[name] <= limit",
        "self._total[name] - held[name] + asked[name] <= 2 * limit",
        (
            f"{_PITFALLS}::test_no_schedule_takes_more_units_than_were_declared",
            f"{_PITFALLS}::test_kill_9_between_a_charge_and_its_steps_loses_the_units",
        ),
        "composed: the whole study",
    ),
    Mutant(
        "a norm of private records",
        _LOADING,
        "slots = _slots(spec, info, source, labels)[part]",
        'slots = _slots(spec, info, source, labels)["private"]',
        (
            f"{_NORMS}::test_no_private_record_moves_it[more0]",
            f"{_NORMS}::test_it_is_the_mean_norm_of_the_public_records",
        ),
        "a learning rate would tell of private records",
    ),
    Mutant(
        "private validation records that pass for public ones",
        _LOADING,
        'if part == "public" or spec.validation.visibility == "public":',
        "if True:",
        (f"{_NORMS}::test_private_validation_records_are_no_public_ones",),
        "a learning rate would tell of private records",
    ),
    Mutant(
        "what probes leave, approached from above for ever",
        "platform/dpsweep/privacy/calibration/largest.py",
        "(aim / high_cost) ** 2 ** (misses - 1)",
        "(aim / high_cost)",
        (
            "tests/unit/privacy/test_calibration.py"
            "::test_the_largest_number_that_fits_is_come_by_whatever_part_of_its_cost_is_fixed",
        ),
        "a study that fits its budget is refused",
    ),
    Mutant(
        "more than a trifle of other noise",
        _NOISE,
        "TRIFLE = 1e-6",
        "TRIFLE = 1e-2",
        (f"{_RECALIBRATED}::test_whatever_else_differs_stays_and_is_refused[event0]",),
        "noise that nobody has calibrated is run",
    ),
    Mutant(
        "two events that become one",
        _NOISE,
        "len(set(becomes.values())) < len(becomes)",
        "False",
        (f"{_RECALIBRATED}::test_two_events_never_become_one",),
        "one class is run more often than it is declared",
    ),
    Mutant(
        "a plan that is declared in part",
        _NOISE,
        "if None in becomes.values() or ",
        "becomes = {k: v or k for k, v in becomes.items()}\n    if ",
        (f"{_RECALIBRATED}::test_a_plan_is_as_on_record_as_a_whole_or_not_at_all",),
        "it is refused with other noise than its method has planned",
    ),
    Mutant(
        "other noise for a method that may take its own",
        "platform/dpsweep/planning/admission.py",
        'self.records != "private" or is_outside(method)',
        'self.records != "private"',
        (
            "tests/unit/running/test_recalibrated.py"
            "::test_a_method_of_another_package_is_not_asked_to_run_other_noise",
        ),
        "it may run less noise than is charged",
    ),
    Mutant(
        "less noise than a plan has, to be within a bound",
        _NOISE,
        "_louder(run, 1 + more)",
        "_louder(run, 1 - more)",
        (f"{_RECALIBRATED}::test_a_bound_takes_a_trifle_more_noise_and_no_more",),
        "a final run passes what it may cost",
    ),
    Mutant(
        "a plan that passes the bound on record, run as it is",
        "platform/dpsweep/planning/costs/charge.py",
        "covered(task.plan, lambda other: covers(replace(task, plan=other).full_plan))",
        "task.plan",
        (
            "tests/unit/running/test_recalibrated.py"
            "::test_a_search_on_a_secret_part_ends_within_the_bound_on_record[final]",
        ),
        "a study's epsilon is what another version's bound says, and more was spent",
    ),
)
