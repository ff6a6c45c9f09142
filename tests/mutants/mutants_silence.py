"""Mutants of silence: what is said of a single record while private ones are read."""

from mutant import Mutant

_SILENCE, _READING, _LOADING = (
    "platform/dpsweep/foundation/process/silence.py",
    "trainables/data/raw/reading.py",
    "trainables/data/loading.py",
)
_TESTS = "tests/unit/foundation/process/test_silence.py::"
_UNHEARD = "tests/unit/trainables/data/test_unheard.py::"
_ONLY_PYTHON = f"{_TESTS}test_only_what_python_writes_itself_is_heard_within"
_WHOEVER = f"{_UNHEARD}test_whoever_reads_private_records_says_nothing_of_them"

SILENCE = (
    Mutant(
        "warnings that are heard",
        _SILENCE,
        '        warnings.simplefilter("ignore")\n        yield',
        "        yield",
        (_ONLY_PYTHON,),
        "Pillow tells the pixels of an image",
    ),
    Mutant(
        "logs that are heard",
        _SILENCE,
        "_no_logs(), _no_hooks(), ",
        "_no_hooks(), ",
        (_ONLY_PYTHON,),
        "a tokenizer tells the length of a text",
    ),
    Mutant(
        "lines of C that are heard",
        _SILENCE,
        "    os.dup2(nowhere, _STDERR)\n",
        "",
        (_ONLY_PYTHON, f"{_UNHEARD}test_images_of_which_pillow_has_something_to_say[bad_fax]"),
        "libtiff tells the damaged lines of an image",
    ),
    Mutant(
        "hooks of Python's own",
        _SILENCE,
        "_no_logs(), _no_hooks(), ",
        "_no_logs(), ",
        (f"{_TESTS}test_errors_that_nobody_can_catch_are_not_told_within",),
        "the words of an error that ends a thread",
    ),
    Mutant(
        "a hook that passes all on",
        _SILENCE,
        "        elif args.exc_type is KeyboardInterrupt:\n",
        "        else:\n",
        (
            f"{_TESTS}test_errors_that_nobody_can_catch_are_not_told_within",
            f"{_TESTS}test_hooks_pass_ctrl_c_on_and_are_as_before[sys]",
        ),
        "the words of an error in the end of an object",
    ),
    Mutant(
        "records that are read aloud",
        _READING,
        "    with unheard():\n",
        "    if True:\n",
        (f"{_WHOEVER}[load_dataset]", f"{_WHOEVER}[public_inputs]", f"{_WHOEVER}[read_classes]"),
        "what libraries say of a single record",
    ),
    Mutant(
        "another's error with its words",
        _READING,
        "because=described(error),",
        "because=repr(error),",
        (f"{_UNHEARD}test_errors_of_others_are_told_by_kind_and_place[ValueError]",),
        "a record that an error quotes",
    ),
    Mutant(
        "an exit with its words",
        _READING,
        "raise SystemExit(error.code if is_status else 1) from None",
        "raise",
        (f"{_UNHEARD}test_an_exit_keeps_its_status_and_loses_its_words[139 pixels of jane-roe-1]",),
        "Python writes them to stderr at the end",
    ),
    Mutant(
        "a full disk with the name of a file",
        _READING,
        "raise OSError(error.errno, os.strerror(error.errno)) from None",
        "raise",
        (f"{_UNHEARD}test_a_full_disk_and_ctrl_c_stay_what_they_are",),
        "names of files may be those of people",
    ),
    Mutant(
        "data sets that are read aloud",
        _LOADING,
        "\n    with reading(spec.dataset):\n",
        "\n    if True:\n",
        (f"{_WHOEVER}[load_dataset]",),
        "what libraries and errors say of a single record",
    ),
    Mutant(
        "public rows of private data that are read aloud",
        _LOADING,
        "        with reading(spec.dataset):\n",
        "        if True:\n",
        (f"{_WHOEVER}[public_inputs]",),
        "what libraries and errors say of a private row beside them",
    ),
    Mutant(
        "public classes of private data that are read aloud",
        "trainables/data/class_split.py",
        "    with reading(spec.dataset):  # all",
        "    if True:  # all",
        (f"{_WHOEVER}[read_classes]",),
        "what libraries and errors say of a record of another class",
    ),
    Mutant(
        "a pair that numpy finds too long",
        "trainables/data/raw/preparation.py",
        "if len(ids) > self.length:",
        "if False:",
        (f"{_UNHEARD}test_a_pair_that_does_not_fit_tells_no_length",),
        "its error tells the length",
    ),
)
