"""Files of a study that are cut, flipped, emptied, deleted, overwritten or older than the rest.

Whatever is hurt: no traceback, no epsilon below the truth, and all other trials finish, or the
study is refused with what is damaged and how to go on.
"""

import json
import re
import shutil
import sqlite3

import damages
import pytest
from whole_studies import children, cli, cli_here

from dpsweep.ledgers.trial import trial_spent
from dpsweep.study.files import StudyFiles

pytestmark = pytest.mark.ray

READERS = ("status", "best", "report", "decisions", "pareto", "logs")
LAST, BEST = "trials/0002/last-*.ckpt", "trials/0002/best-*.ckpt"

# What is hurt, how, and what is said of it where the study goes on.
MENDED = [
    ("optuna.db", "cut", "optuna.db is damaged"),
    ("optuna.db", "emptied", "optuna.db does not know trial 0"),
    ("optuna.db", "deleted", "optuna.db is missing"),
    ("optuna.db", "overwritten", "optuna.db is damaged: file is not a database"),
    ("optuna.db", "older", ""),  # it lacks reports alone
    ("optuna.db", "directory", "optuna.db is no file"),
    ("tracking.json", "cut", "tracking.json is damaged"),
    ("tracking.json", "flipped", "tracking.json is damaged"),
    ("tracking.json", "deleted", ""),
    ("tracking.json", "older", ""),
    ("tracking.json", "directory", "tracking.json is damaged"),
    ("mlflow.db", "deleted", "does not know this study any more"),
    ("mlflow.db", "older", "delivered again"),
    ("trials/0002/trial.json", "cut", "trial.json is damaged; it is written anew"),
    ("trials/0002/trial.json", "flipped", "trial.json is damaged; it is written anew"),
    ("trials/0002/trial.json", "deleted", "trial.json is missing; it is written anew"),
    ("trials/0002/trial.json", "directory", "trial.json is damaged; it is written anew"),
    ("trials/0000/trial.json", "emptied", "trial.json is damaged; it is written anew"),
    ("trials/0002/last.json", "cut", "last.json is damaged"),
    ("trials/0002/last.json", "flipped", "last.json is damaged"),
    ("trials/0002/last.json", "deleted", "last.json is missing"),
    ("trials/0002/last.json", "older", "is missing"),
    ("trials/0002/last.json", "directory", "last.json is damaged"),
    (LAST, "cut", "is damaged: its SHA-256 is"),
    (LAST, "flipped", "is damaged: its SHA-256 is"),
    (LAST, "emptied", "is damaged: its SHA-256 is"),
    (LAST, "deleted", ".ckpt is missing"),
    (LAST, "directory", "is damaged: Is a directory"),
    ("trials/0002/best.json", "overwritten", "best.json is damaged"),
    ("trials/0002/best.json", "deleted", "best.json is missing"),
    (BEST, "flipped", "is damaged: its SHA-256 is"),
    (BEST, "deleted", ".ckpt is missing"),
    ("trials/0000/best.json", "cut", ""),
    ("trials/0000/best-*.ckpt", "flipped", ""),
    ("trials/0002", "deleted", "what it has spent stays spent, without a model"),
    ("lock", "overwritten", ""),
]
# What cannot be had again, and what a claim rests on.
REFUSED = [
    ("journal.jsonl", "flipped", "journal.jsonl:"),
    ("journal.jsonl", "deleted", "the journal does not"),
    ("journal.jsonl", "directory", "journal.jsonl: Is a directory"),
    ("spec.yaml", "cut", "spec.yaml is damaged"),
    ("spec.yaml", "overwritten", "spec.yaml is damaged"),
    ("spec.yaml", "deleted", "has a privacy ledger, and"),
    ("spec.yaml", "directory", "spec.yaml is damaged"),
    ("ledger/trial-0002.jsonl", "cut", "trial-0002.jsonl"),
    ("ledger/trial-0000.jsonl", "deleted", "trial-0000.jsonl"),
    ("ledger/trial-0000.jsonl", "directory", "trial-0000.jsonl"),
    ("ledger/study.jsonl", "flipped", "study.jsonl:"),
    ("ledger/study.jsonl", "deleted", "study.jsonl"),
    ("ledger/study.jsonl", "directory", "study.jsonl"),
    ("data.sha256", "cut", "data.sha256 is damaged"),
    ("data.sha256", "flipped", "data"),
    ("data.sha256", "deleted", "data.sha256 is missing"),
    ("data.sha256", "directory", "data.sha256 cannot be read"),
    ("lock", "directory", "cannot write to"),
]
# Run with every change; checkpoints and a lost folder have tests of their own.
OFTEN = {("optuna.db", "cut")}
SELDOM = {  # of two that are refused alike, one
    ("data.sha256", "cut"), ("data.sha256", "directory"), ("ledger/study.jsonl", "directory"),
}  # fmt: skip


def cases(table):
    return [
        pytest.param(name, how, said, marks=[pytest.mark.slow] * seldom, id=f"{name}-{how}")
        for name, how, said in table
        for seldom in ((name, how) in SELDOM if table is REFUSED else (name, how) not in OFTEN,)
    ]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory, ray_cluster):
    root = tmp_path_factory.mktemp("damage") / "pristine"
    damages.build(root)
    return root


@pytest.fixture
def study(pristine, tmp_path):
    """A copy of the interrupted study, an older one, and the epsilons that were spent."""
    path = damages.copy_study(pristine, tmp_path / "study")
    older = pristine.parent / f"{pristine.name}-older"
    damages.copy_study(older, tmp_path / "older", was=pristine)
    shown = sqlite3.connect(tmp_path / "older" / "mlflow.db")
    shown.close()
    return tmp_path / "study", path, tmp_path / "older", damages.spent(tmp_path / "study")


def damage(study, name, how):
    root, _, older, _ = study
    victim = damages.find(root, name)
    damages.hurt(victim, how, damages.find(older, name) if how == "older" else None)


def check_readers(study):
    """Run every command that reads; whatever it prints of an epsilon is not below the truth."""
    root, _, _, truth = study
    for verb in READERS:
        options = ["-f", "json"] if verb == "status" else []
        done = cli_here(verb, damages.NAME, "--root", root / "studies", *options)
        assert "Traceback" not in done.stdout + done.stderr, verb
        assert done.returncode in (0, 1, 2, 3), done.stderr
        if done.returncode not in (0, 3):
            assert "error: " in done.stderr
        elif verb == "status":
            shown = {row["trial"]: row["epsilon"] for row in json.loads(done.stdout)}
            assert all(shown[n] >= truth[n] * (1 - 1e-9) for n in shown if n in truth)


def run(study):
    done = cli_here("run", study[1])
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, re.sub(r"\s+", " ", done.stderr)


def tracked(root):
    """Return trial -> largest epsilon that the tracking store shows."""
    with sqlite3.connect(root / "mlflow.db") as db:
        rows = db.execute(
            "select p.value, max(m.value) from metrics m join tags p on p.run_uuid = m.run_uuid "
            "and p.key = 'dpsweep.trial' where m.key = 'dp/epsilon' group by 1"
        ).fetchall()
    db.close()
    return {int(trial): epsilon for trial, epsilon in rows}


@pytest.mark.parametrize(("name", "how", "said"), cases(MENDED))
def test_the_study_goes_on(study, name, how, said):
    root, _, _, truth = study
    damage(study, name, how)
    check_readers(study)
    code, told = run(study)
    assert code == 0, told
    assert said.replace("*", "") in told
    check_readers(study)
    done = cli_here("status", damages.NAME, "--root", root / "studies", "-f", "json")
    rows = {row["trial"]: row for row in json.loads(done.stdout)}
    lost = damages.OPEN if name == "trials/0002" else None
    for number in range(damages.NUM_TRIALS):
        assert rows[number]["state"] == ("failed" if number == lost else "finished"), told
    shown = tracked(root)
    for number, epsilon in truth.items():
        assert rows[number]["epsilon"] >= epsilon * (1 - 1e-9)
        assert shown[number] >= epsilon * (1 - 1e-6)
    assert [trial for _, trial in children(root)] == ["0", "1", "2", "3"]  # none twice
    code, told = run(study)  # once more: whatever was mended stays so
    assert code == 0
    assert "has finished already" in told


@pytest.mark.parametrize(("name", "how", "said"), cases(REFUSED))
def test_the_study_is_refused(study, name, how, said):
    root, _, _, truth = study
    damage(study, name, how)
    check_readers(study)
    code, told = run(study)
    assert code in (1, 2), told
    assert said in told
    assert "error: " in told
    assert all(tracked(root)[n] >= epsilon * (1 - 1e-6) for n, epsilon in truth.items())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "overwritten"])
def test_a_damaged_tracking_store_is_named_and_can_be_moved_away(study, how):
    """It may hold other studies, so it stays; the study goes on without it."""
    root = study[0]
    damage(study, "mlflow.db", how)
    check_readers(study)
    code, told = run(study)
    assert code == 0, told
    assert f"tracking store {root}/mlflow.db is damaged" in told
    assert "move it away" in told
    (root / "mlflow.db").rename(root / "moved.db")
    done = cli("run", study[1])  # in a new process: MLflow keeps files open that were moved
    assert done.returncode == 0, done.stderr
    assert [trial for _, trial in children(root)] == ["0", "1", "2", "3"]
    done = cli_here("best", damages.NAME, "--root", root / "studies", "-f", "json")
    model = json.loads(done.stdout)["model_uri"].removeprefix("models:/")
    with sqlite3.connect(root / "mlflow.db") as db:
        known = db.execute("select model_id from logged_models").fetchall()
    db.close()
    assert (model,) in known


def test_two_good_checkpoints_are_kept_and_lost_steps_stay_spent(study):
    root = study[0]
    files = StudyFiles(root / "studies", damages.NAME)
    directory = files.trial(damages.OPEN)
    assert len(list(directory.glob("last-*.ckpt"))) == 2
    before = len(trial_spent(files.ledger, damages.OPEN))
    kept = json.loads((directory / "previous.json").read_text())["step"]
    assert 8 <= kept < before
    for name in ("last-*.ckpt", "best-*.ckpt"):
        damages.hurt(max(directory.glob(name)), "flipped")
    code, told = run(study)
    assert code == 0, told
    assert f"it goes on from its previous checkpoint, at step {kept}" in told
    lost = f"{before - kept} charged step"
    assert f"continuing at step {kept}; {lost}" in told
    assert "lost and stay spent" in told
    view = files.view().trials[damages.OPEN]
    assert (view.state.value, view.step) == ("finished", 40 - (before - kept))


@pytest.mark.slow
def test_a_study_that_an_earlier_version_wrote_goes_on(study):
    """Without checksums in its JSON files, a previous checkpoint, or names in its data hash."""
    root = study[0]
    files = StudyFiles(root / "studies", damages.NAME)
    for path in [*files.path.glob("trials/*/*.json"), files.tracking]:
        raw = json.loads(path.read_text())
        assert raw.pop("crc")
        path.write_text(json.dumps(raw))
    for path in files.path.glob("trials/*/previous.json"):
        path.unlink()
    from dpsweep.spec.study import SweepSpec
    from dpsweep.trainables.data.loading import load_dataset

    old = load_dataset(SweepSpec(**damages.raw_spec(root)).data).old_hash
    (files.path / "data.sha256").write_text(f"{old}\n")
    code, told = run(study)
    assert code == 0, told
    assert "damaged" not in told
    assert files.view().trials[damages.OPEN].step == 40
    assert (files.path / "data.sha256").read_text().startswith("names ")


def test_what_an_interrupted_trial_has_spent_is_in_the_tracking_store(pristine):
    """Also what it was charged after its last report."""
    truth, shown = damages.spent(pristine), tracked(pristine)
    assert all(shown[number] >= epsilon * (1 - 1e-6) for number, epsilon in truth.items())


@pytest.mark.slow
def test_a_lost_folder_takes_no_other_trial_with_it(study):
    root = study[0]
    files = StudyFiles(root / "studies", damages.NAME)
    shutil.rmtree(files.trial(damages.OPEN))
    code, told = run(study)
    assert code == 0, told
    assert f"trial {damages.OPEN} failed: its configuration or its models are lost" in told
