"""Mutants of images of people: what a file may do, and what is read of them again."""

from mutant import Mutant

_VISION = "tests/unit/trainables/data/vision"
_KEPT = "tests/unit/trainables/data/kept"

IMAGES = (
    Mutant(
        "a pickle of others that is executed",
        "trainables/data/vision/plain_pickle.py",
        'raise pickle.UnpicklingError(f"it names {module}.{name}"[:100])',
        "return super().find_class(module, name)",
        (f"{_VISION}/test_archives.py::test_a_pickle_of_others_runs_nothing",),
        "who writes a data set runs code where it is read",
    ),
    Mutant(
        "decoded images that nobody has checked",
        "trainables/data/kept/keep.py",
        "return file if file.computed_sha256() == sha256 else None",
        "return file",
        (f"{_KEPT}/test_keep.py::test_what_is_damaged_is_made_anew[a bit]",),
        "a study goes on with other records, and says they are the same",
    ),
    Mutant(
        "records of others in what a trial is sent",
        "trainables/data/kept/pixels.py",
        "source = np.ascontiguousarray(self.source[self.rows])  # these rows, and no others",
        "source = np.ascontiguousarray(self.source)",
        (f"{_KEPT}/test_pixels.py::test_a_pickle_holds_the_rows_or_the_path[memory]",),
        "a search on public records would hold private ones",
    ),
    Mutant(
        "classes that are counted in a table of labels",
        "trainables/data/vision/label_table.py",
        "if label not in number_of:",
        "if number_of.setdefault(label, len(number_of)) < 0:",
        (f"{_VISION}/test_image_files.py::test_a_wrong_table_is_one_line_that_names_no_image",),
        "a single private record would add a class",
    ),
)
