"""Mutants of public records: which of them are private as well, and who decides it."""

from mutant import Mutant

_LOADING = "trainables/data/loading.py"
_ROWS = "trainables/data/public/rows.py"
_PROBLEMS = "platform/dpsweep/planning/problems.py"
_TESTS = "tests/unit/trainables/data/public/test_public_records.py"
_PLANNING = "tests/unit/planning/test_public_records.py"

PUBLIC = (
    Mutant(
        "public records of each class that stay private ones",
        _LOADING,
        "rest = rest[~np.isin(rest, public)]",
        "rest = rest[: len(rest)]",
        (f"{_TESTS}::test_so_many_of_each_class_are_public_and_all_others_private",),
        "a record is trained on without noise, and claimed to be protected",
    ),
    Mutant(
        "declared rows that are dealt to other parts",
        _LOADING,
        "public, order = order[is_public], order[~is_public]",
        "public, order = order[is_public], order",
        (f"{_TESTS}::test_positions_are_public_and_dealt_to_no_other_part",),
        "a record that is declared public is private, or scored, as well",
    ),
    Mutant(
        "public records that private ones have a say in",
        _ROWS,
        "np.flatnonzero(labels[rows] == label)[:per_class]",
        "np.flatnonzero(labels[rows] == label)[::-1][::2][:per_class]",
        (f"{_TESTS}::test_no_private_record_has_a_say_in_which_records_are_public",),
        "which records are public tells whether a private one is there",
    ),
    Mutant(
        "a public file of private records",
        _PROBLEMS,
        "    check_overlap(spec, data)\n",
        "",
        (f"{_PLANNING}::test_a_file_that_is_half_private[40-True]",),
        "private records are learned without any noise under another name",
    ),
    Mutant(
        "a ledger that takes studies with other private records",
        "platform/dpsweep/planning/public_records.py",
        '"data.public.positions": positions_digest(data),',
        '"data.public.positions": None,',
        (f"{_PLANNING}::test_ledgers_of_a_dataset_tell_such_studies_apart",),
        "what one study shows of a record for free has no epsilon in another one",
    ),
    Mutant(
        "a public file of noisy validation records",
        "platform/dpsweep/planning/public_records.py",
        'if part in data.parts and section.visibility != "public":',
        "if False:",
        (f"{_PLANNING}::test_a_file_of_records_that_are_scored[validation]",),
        "records are trained on in the open whose scores are charged as private",
    ),
    Mutant(
        "copied images that pretrain reads at another size",
        "platform/dpsweep/planning/public_records.py",
        "source = open_source(section.model_copy(update=sizes))",
        "pass",
        (f"{_PLANNING}::test_copied_images_that_pretrain_reads_at_another_size",),
        "trials start from weights that learned private images without any noise",
    ),
    Mutant(
        "a selected trial that the clock ends",
        "platform/dpsweep/planning/problems.py",
        "if spec.resources.hang_minutes is not None:",
        "if False:",
        (
            "tests/unit/planning/test_before_spending.py::test_no_trial_of_a_selection_ends_by_how_long_it_takes",
        ),
        "which trials end depends on how long records make them take",
    ),
    Mutant(
        "weights of private records that were stored anew",
        "platform/dpsweep/planning/public_records.py",
        "    if others is not None and max(_shares(own, others)) >= SAME:\n",
        "    if False:\n",
        (f"{_PLANNING}::test_private_records_in_another_file_of_pretrain[120-True]",),
        "trials start from weights that learned private records without any noise",
    ),
)
