"""Mutants of accounting: randomness, accountants, selection, clock, calibration."""

from mutant import Mutant

PRIVACY = (
    Mutant(
        "noise seeds of 32 bits",
        "platform/dpsweep/privacy/randomness.py",
        "secrets.randbits(256)",
        "secrets.randbits(32)",
        ("tests/unit/privacy/test_randomness.py::test_seeds_are_too_long_to_try_them_all",),
        "few enough to try them all",
    ),
    Mutant(
        "a known secret seed",
        "platform/dpsweep/privacy/randomness.py",
        "return secrets.randbits(_SEED_BITS)",
        "return public_seed(0, 0, 'noise')",
        (
            "tests/unit/privacy/test_randomness.py::test_secret_seeds_differ_and_ignore_global_state",
        ),
        "noise on a GPU, and weights of sealed trials",
    ),
    Mutant(
        "the larger of two parts forgotten",
        "platform/dpsweep/privacy/accountants.py",
        "return max(epsilon_and_order(events, delta)[0] for events",
        "return min(epsilon_and_order(events, delta)[0] for events",
        (
            "tests/unit/privacy/test_accountants.py::test_disjoint_parts_cost_the_larger_and_public_records_nothing[rdp]",
        ),
        "a plan costs the larger of both",
    ),
    Mutant(
        "validation events for free",
        "platform/dpsweep/privacy/events/multiset.py",
        'if run.part == "public":',
        'if run.part != "private":',
        (
            "tests/unit/privacy/test_accountants.py::test_disjoint_parts_cost_the_larger_and_public_records_nothing[rdp]",
        ),
        "noisy scores are charged",
    ),
    Mutant(
        "methods without noise for free",
        "platform/dpsweep/privacy/events/non_private.py",
        "np.full(len(orders), np.inf)",
        "np.zeros(len(orders))",
        ("tests/unit/privacy/test_accountants.py::test_limits[rdp]",),
        "they have no finite epsilon",
    ),
    Mutant(
        "epsilon rounded down",
        "platform/dpsweep/privacy/statement.py",
        "exact.quantize(Decimal('1e-4'), rounding)",
        "exact.quantize(Decimal('1e-4'), 'ROUND_FLOOR')",
        (
            "tests/unit/privacy/test_accountants.py::test_a_statement_shows_everything_and_rounds_up",
        ),
        "what is printed is an upper bound",
    ),
    Mutant(
        "the analytic Gaussian rounded down",
        "platform/dpsweep/privacy/accountants.py",
        "return high * (1 + 1e-12 + 4e-15 / mu)",
        "return low * (1 - 1e-6)",
        (
            "tests/unit/privacy/test_accountants.py::test_the_analytic_gaussian_solves_its_equation_from_above",
        ),
        "an upper bound",
    ),
    Mutant(
        "noise rounded up in pld",
        "platform/dpsweep/privacy/events/poisson_gaussian.py",
        (
            "level = math.floor(math.log(sigma) / spacing)\n"
            "                    rounded = min(math.exp(level * spacing), sigma)"
        ),
        (
            "level = math.ceil(math.log(sigma) / spacing)\n"
            "                    rounded = math.exp(level * spacing)"
        ),
        (
            "tests/unit/privacy/test_accountants.py::test_schedules_with_many_levels_are_rounded_to_the_private_side",
        ),
        "schedules with many levels over-count",
    ),
    Mutant(
        "full batches composed as one",
        "platform/dpsweep/privacy/events/losses.py",
        "count / variance for variance",
        "1 / variance for variance",
        ("tests/unit/privacy/test_gaussian_calibration.py::test_known_answer",),
        "every step counts",
    ),
    Mutant(
        "Renyi moments too small",
        "platform/dpsweep/privacy/rdp.py",
        "exponent = (counts * counts - counts) / (2 * part * part)",
        "exponent = (counts * counts - counts) / (2.01 * part * part)",
        ("tests/unit/privacy/test_rdp.py::test_integer_orders_equal_dp_accounting",),
        "every epsilon",
    ),
    Mutant(
        "a logarithm in fractional moments leaves out a 1",
        "platform/dpsweep/privacy/rdp.py",
        "np.where(log_ratio < 600, ",
        "np.where(log_ratio < 30, ",
        ("tests/unit/privacy/test_rdp.py::test_fractional_orders_are_never_below_the_formula",),
        "epsilons of little noise",
    ),
    Mutant(
        "the conversion to epsilon too small",
        "platform/dpsweep/privacy/rdp.py",
        "np.log(delta * orders) / (orders - 1)",
        "np.log(1.1 * delta * orders) / (orders - 1)",
        ("tests/unit/privacy/test_rdp.py::test_conversion_equals_dp_accounting",),
        "every epsilon",
    ),
    Mutant(
        "Laplace too cheap",
        "platform/dpsweep/privacy/events/laplace.py",
        "epsilon = 1.0 / self.scale\n",
        "epsilon = 0.99 / self.scale\n",
        ("tests/unit/privacy/test_rdp.py::test_laplace_equals_dp_accounting",),
        "the votes of near_private",
    ),
    Mutant(
        "selection without its constant",
        "platform/dpsweep/privacy/events/repeat_and_select.py",
        "curve = once + math.log(mean) / (orders - 1) + constant",
        "curve = once + math.log(mean) / (orders - 1)",
        ("tests/unit/privacy/test_rdp.py::test_selection_equals_dp_accounting",),
        "what choosing the best costs",
    ),
    Mutant(
        "selection by profiles without the number of runs",
        "platform/dpsweep/privacy/events/repeat_and_select.py",
        "np.minimum(mean * once(epsilons - shift), 1.0)",
        "np.minimum(once(epsilons - shift), 1.0)",
        ("tests/unit/privacy/test_selected_profile.py::test_no_finite_mechanism_passes_the_bound",),
        "what choosing the best costs, under pld",
    ),
    Mutant(
        "selection by profiles with too small a shift",
        "platform/dpsweep/privacy/events/repeat_and_select.py",
        "    return (1 + float(shape)) * high\n",
        "    return high\n",
        (
            "tests/unit/privacy/test_selected_profile.py"
            "::test_the_best_of_gaussians_costs_what_the_closed_form_says",
        ),
        "what choosing the best costs, under pld",
    ),
    Mutant(
        "half of a profile",
        "platform/dpsweep/privacy/events/losses.py",
        "deltas = _convex(np.exp(grid), np.concatenate([back[:0:-1], ahead]))",
        "deltas = 0.5 * _convex(np.exp(grid), np.concatenate([back[:0:-1], ahead]))",
        (
            "tests/unit/privacy/test_selected_profile.py"
            "::test_a_distribution_of_a_profile_has_at_least_that_profile",
        ),
        "selections composed with other events",
    ),
    Mutant(
        "a subset of fewer records than it has",
        "platform/dpsweep/privacy/events/poisson_subset.py",
        "np.asarray(rate * np.minimum(once(",
        "np.asarray(rate**2 * np.minimum(once(",
        ("tests/unit/privacy/test_poisson_subset.py::test_no_finite_mechanism_passes_the_bounds",),
        "a search on a secret subset, under pld",
    ),
    Mutant(
        "a subset's profile too far out",
        "platform/dpsweep/privacy/events/poisson_subset.py",
        "np.log1p(np.expm1(np.minimum(epsilons, 30.0)) / rate)",
        "np.log1p(np.expm1(np.minimum(epsilons, 30.0)) / rate**2)",
        (
            "tests/unit/privacy/test_poisson_subset.py"
            "::test_one_gaussian_on_a_subset_is_the_subsampled_gaussian",
        ),
        "a search on a secret subset, under pld",
    ),
    Mutant(
        "a subset's curve without the excess of its moments",
        "platform/dpsweep/privacy/events/poisson_subset.py",
        "log_gains = gains + np.log(-np.expm1(-gains))",
        "log_gains = np.log(-np.expm1(-gains))",
        ("tests/unit/privacy/test_poisson_subset.py::test_no_finite_mechanism_passes_the_bounds",),
        "a search on a secret subset, under rdp",
    ),
    Mutant(
        "what pld cannot bound, hidden in another event",
        "platform/dpsweep/privacy/events/losses.py",
        "    if event.no_pld is not None:\n",
        "    if False:\n",
        (
            "tests/unit/privacy/test_outside_events.py"
            "::test_what_pld_cannot_bound_is_refused_inside_of_events",
        ),
        "selections and subsets of such events, under pld",
    ),
    Mutant(
        "curves rounded down",
        "platform/dpsweep/privacy/rdp.py",
        "ROUND_UP = 1.0 + 1e-8",
        "ROUND_UP = 1.0 - 1e-8",
        ("tests/unit/privacy/test_rdp.py::test_fractional_orders_equal_the_formula_rounded_up",),
        "an upper bound",
    ),
    Mutant(
        "dearer plans than a selection is charged for",
        "platform/dpsweep/privacy/selection/curves.py",
        "return all(_is_part_under(events, curve) for events in by_part(plan).values())",
        "return True",
        (
            "tests/unit/privacy/test_selection.py::test_each_part_of_the_records_is_under_the_envelope",
        ),
        "a precondition of the theorem",
    ),
    Mutant(
        "dearer plans of many multipliers than a selection is charged for",
        "platform/dpsweep/privacy/selection/curves.py",
        "return bool(np.all(plan_curve(events, above) <= curve[np.isin(orders, above)]))",
        "return True",
        (
            "tests/unit/privacy/test_selection.py"
            "::test_a_cheaper_plan_of_very_many_multipliers_is_no_dearer_by_its_rounding",
        ),
        "a precondition of the theorem",
    ),
    Mutant(
        "the envelope of the mean plan",
        "platform/dpsweep/privacy/selection/curves.py",
        "np.max(curves, axis=0) * _ROUND_UP",
        "np.mean(curves, axis=0) * _ROUND_UP",
        (
            "tests/unit/privacy/test_selection.py::test_the_envelope_is_the_worst_plan_order_by_order",
        ),
        "a precondition of the theorem",
    ),
    Mutant(
        "a rare loss for free, by profiles",
        "platform/dpsweep/privacy/accountants.py",
        "if not plan_curve(events, rdp.ORDERS).any():",
        "if epsilon_and_order(events, _TYPICAL_DELTA)[0] == 0:",
        (
            "tests/unit/privacy/test_selection_bounds.py::test_a_rare_loss_in_each_of_many_trials_is_not_free[0.3-5.6e-09-1000000.0]",
        ),
        "epsilon 0 at one delta is not free at another",
    ),
    Mutant(
        "dearer plans than a selection is charged for, by profiles",
        "platform/dpsweep/privacy/selection/bounds.py",
        "return bool(np.all(deltas_of(plan) + _rounding_of(plan) <= longer))",
        "return True",
        (
            "tests/unit/privacy/test_selection_bounds.py::test_the_largest_of_several_profiles_covers_each",
        ),
        "a precondition of the theorem",
    ),
    Mutant(
        "the mean profile",
        "platform/dpsweep/privacy/selection/bounds.py",
        "np.max(profiles, axis=0) * _ROUND_UP",
        "np.mean(profiles, axis=0) * _ROUND_UP",
        (
            "tests/unit/privacy/test_selection_bounds.py::test_the_largest_of_several_profiles_covers_each",
        ),
        "a precondition of the theorem",
    ),
    Mutant(
        "a profile between the points of its grid",
        "platform/dpsweep/privacy/selection/bounds.py",
        "at = np.interp(places, np.exp(EPSILONS[: len(self.deltas)]), self.deltas)",
        "at = self.deltas[np.searchsorted(np.exp(EPSILONS[: len(self.deltas) - 1]), places)]",
        (
            "tests/unit/privacy/test_selection_bounds.py::test_between_its_points_it_is_not_below_the_profile",
        ),
        "a chord lies above the profile, its right end below",
    ),
    Mutant(
        "a step beyond the last allowed one",
        "platform/dpsweep/privacy/clock.py",
        "return max(position, 0)",
        "return max(position, 0) + 1",
        ("tests/unit/privacy/test_clock.py::test_last_allowed_of_a_long_run",),
        "plans with a given noise multiplier end within the cap",
    ),
    Mutant(
        "an inherited start that the clock forgets",
        "platform/dpsweep/privacy/clock.py",
        "spent = multiset(self.spent)",
        "spent = ()",
        ("tests/unit/privacy/test_clock.py::test_the_table_is_the_accountant_at_every_position",),
        "charges of earlier processes",
    ),
    Mutant(
        "a step too many",
        "platform/dpsweep/privacy/calibration/steps.py",
        ("low, high = (middle, high) if allowed(middle) else (low, middle)\n    return low"),
        ("low, high = (middle, high) if allowed(middle) else (low, middle)\n    return low + 1"),
        ("tests/unit/privacy/test_calibration.py::test_last_allowed_steps",),
        "the budget is passed",
    ),
    Mutant(
        "noise on the wrong side of the bracket",
        "platform/dpsweep/privacy/calibration/noise.py",
        ("target < epsilon(high * (1 - tolerance)):\n            return high"),
        ("target < epsilon(high * (1 - tolerance)):\n            return high * (1 - tolerance)"),
        (
            "tests/unit/privacy/test_calibration.py::test_the_start_is_within_and_a_thousandth_less_is_not",
        ),
        "the budget is passed",
    ),
    Mutant(
        "counts of merged events",
        "platform/dpsweep/privacy/events/plan.py",
        "count=runs.pop().count + run.count",
        "count=max(runs.pop().count, run.count)",
        ("tests/unit/privacy/test_events.py::test_parts_survive_cuts_and_merging",),
        "every event counts",
    ),
    Mutant(
        "events that no ledger can be read with",
        "platform/dpsweep/privacy/events/plan.py",
        "if name not in EVENTS or EVENTS[name] is not kind:",
        "if False:",
        (
            "tests/unit/privacy/test_outside_events.py::test_an_event_that_is_in_no_table_is_refused",
        ),
        "unknown events are refused",
    ),
    Mutant(
        "curves below zero",
        "platform/dpsweep/privacy/events/base.py",
        "or np.any(curves < 0)",
        "",
        ("tests/unit/privacy/test_outside_events.py::test_what_is_no_curve_is_refused",),
        "an event may not refund others",
    ),
    Mutant(
        "a cost at the order before",
        "platform/dpsweep/privacy/events/base.py",
        "int(np.searchsorted(orders, order))",
        "max(int(np.searchsorted(orders, order)) - 1, 0)",
        (
            "tests/unit/privacy/test_outside_events.py::test_a_cost_between_two_orders_is_the_higher_ones",
        ),
        "the filter's order may lie between two of the grid",
    ),
    Mutant(
        "terms below zero in a filter",
        "platform/dpsweep/privacy/composition/renyi_filter.py",
        "if all(term >= 0 for term in terms)",
        "if True",
        (
            "tests/unit/privacy/test_outside_events.py::test_a_cost_that_would_refund_others_fits_into_no_budget",
        ),
        "an event may not refund others",
    ),
    Mutant(
        "a pure epsilon below zero",
        "platform/dpsweep/privacy/events/base.py",
        "if not epsilon >= 0:",
        "if False:",
        ("tests/unit/privacy/test_outside_events.py::test_what_is_no_pure_epsilon_is_refused",),
        "an event may not refund others",
    ),
    Mutant(
        "half of what delta adds to a p-value",
        "platform/dpsweep/privacy/one_run_audit.py",
        "2 * m * delta * alpha",
        "m * delta * alpha",
        ("tests/unit/privacy/test_one_run_audit.py::test_bounds_are_the_published_ones[counts0]",),
        "claims that hold would be refuted too often",
    ),
    Mutant(
        "one right guess too many",
        "platform/dpsweep/privacy/one_run_audit.py",
        "special.bdtrc(least - 1, guesses, p)",
        "special.bdtrc(least, guesses, p)",
        ("tests/unit/privacy/test_one_run_audit.py::test_bounds_are_the_published_ones[counts1]",),
        "P[Bin > v] is not P[Bin >= v]",
    ),
    Mutant(
        "an audit that trusts its batches",
        "platform/dpsweep/auditing/audit.py",
        "self.problems += twin_problems(",
        "_ = twin_problems(",
        ("tests/unit/auditing/test_controls.py::test_batches_that_are_not_secret_fail",),
        "known batches move no score",
    ),
)
