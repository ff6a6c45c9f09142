"""Files of studies in which something is other than it was written: one clear error, or no less.

Readers of a study print either the same and higher epsilons or say in words what is wrong.
"""

import contextlib
import json
import random
import shutil
import signal

import mutations
import pytest
from stored_studies import NAMES, copy_studies
from whole_studies import cli_here

from dpsweep.foundation.errors import SweepError
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.study.files import StudyFiles
from dpsweep.trainables.execution.checkpoints import CheckpointStore

IN_CI, IN_ALL = 12, 500
LIMIT_S = 60  # of one command; it takes tenths of a second
SUFFIXES = {".json", ".jsonl", ".ckpt", ".yaml", ".sha256", ".db"}
READERS = (("status", "-f", "json"), ("best",), ("report",), ("show", "0"))


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    root = copy_studies(tmp_path_factory.mktemp("fuzz"))
    for path in root.glob("*/readings.json"):
        path.unlink()
    return root, {name: spent(root, name)[1] for name in NAMES}


def spent(root, name, *verb):
    """Run a reader; return its end and, of ``status``, trial -> epsilon."""
    words = verb or READERS[0]
    done = cli_here(words[0], name, *words[1:], "--root", root)
    rows = json.loads(done.stdout) if words[0] == "status" and done.returncode == 0 else None
    return done, rows and {row["trial"]: row["epsilon"] for row in rows}


def hurt(rng, study):
    """Change one file of a study; return its path."""
    files = sorted(p for p in study.rglob("*") if p.is_file() and p.suffix in SUFFIXES)
    path, how = rng.choice(files), rng.random()
    if how < 0.1:
        content = rng.choice([p for p in files if p != path]).read_bytes()
    elif how < 0.75 and path.suffix == ".jsonl":
        content = mutations.odd_log(rng, path)
    elif how < 0.75 and path.suffix == ".json":
        content = mutations.odd_document(rng, path)
    else:
        content = mutations.hurt_bytes(rng, path.read_bytes())
    path.write_bytes(content)
    return path


def check(studies, folder, seed):
    root, truth = studies
    rng = random.Random(seed)
    name = NAMES[seed % len(NAMES)]
    study = folder / name
    shutil.rmtree(study, ignore_errors=True)
    shutil.copytree(root / name, study)
    path = hurt(rng, study)
    what = f"seed {seed}: {path.relative_to(folder)}"
    for verb in READERS:
        signal.alarm(LIMIT_S)
        done, shown = spent(folder, name, *verb)  # raises what would be a traceback
        signal.alarm(0)
        assert done.returncode in (0, 1, 2, 3), what
        if done.returncode in (1, 2):
            assert done.stderr.startswith("error: "), what
        for trial, epsilon in truth[name].items() if shown is not None else ():
            assert trial in shown, what
            lower = shown[trial] is not None and (epsilon is None or shown[trial] < epsilon)
            assert not lower, what
    check_checkpoints(StudyFiles(folder, name))


def check_checkpoints(files):
    """Look at each trial's checkpoints as whoever continues it does."""
    for directory in sorted((files.path / "trials").glob("*")):
        store = CheckpointStore(directory)
        with contextlib.suppress(SweepError):  # anything else fails here, with its traceback
            store.resume()
        with contextlib.suppress(SweepError):
            store.load("best")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_no_file_of_a_study_lowers_what_it_has_spent(studies, tmp_path, part):
    for seed in range(part, IN_CI, 4):
        check(studies, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_no_file_of_many_lowers_what_a_study_has_spent(studies, tmp_path):
    for seed in range(IN_CI, IN_ALL):
        check(studies, tmp_path, seed)


def test_no_dataset_ledger_is_charged_less(tmp_path):
    """Bytes that are hurt; a record that was edited by hand is not covered (``DatasetLedger``)."""
    path = tmp_path / "digits.jsonl"
    for number in range(3):
        DatasetLedger(path).reserve(
            f"id{number}", f"study-{number}", directory=tmp_path / str(number), dataset="digits",
            parts={"data.classes": None}, accounting="composed", epsilon=1.0, delta=1e-6,
            cap_epsilon=6.0, cap_delta=1e-5,
        )  # fmt: skip
        DatasetLedger(path).note_trial(f"id{number}", 0)
    whole = path.read_bytes()
    refused = 0
    for seed in range(IN_CI * 4):
        rng = random.Random(seed)
        if seed % 2:
            path.write_bytes(mutations.hurt_bytes(rng, whole))
        else:
            path.write_bytes(whole)
            path.write_bytes(mutations.odd_log(rng, path))
        done = cli_here("budget", path, "-f", "json")
        assert done.returncode in (0, 1, 2), seed
        refused += done.returncode != 0
        if done.returncode:
            assert done.stderr.startswith("error: "), seed
        elif seed % 2 and path.read_bytes().startswith(whole):
            assert json.loads(done.stdout)["epsilon"] >= 3.0, seed
    assert refused > IN_CI
