"""Scores that a study may not tell, planted in it and looked for in all that it puts out."""

import base64
import io
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from public_studies import PublicStudy
from selections import SPACE, go_without_ray, select_spec
from stored_studies import track
from whole_studies import cli_here

from dpsweep import load_sweep, sweep
from dpsweep.foundation.logs import read_log
from dpsweep.privacy.selection.number import Selection
from dpsweep.results.pictures.confusion import keep_confusion
from dpsweep.results.pictures.table import pictures_of
from dpsweep.running.gallery import draw_study
from dpsweep.running.stage import Stage
from dpsweep.trainables.execution.execution import TrialExecution

WON, *LOST = SCORES = (0.876543, 0.432187, 0.543298, 0.612375)
#: Every way out of a study that prints.
VERBS = (
    ("status",), ("status", "-f", "csv", "--explain"), ("best", "-f", "json"), ("best", "--as-spec"),
    ("show", "0"), ("show", "1"), ("pareto",), ("logs",), ("decisions",), ("report",),
    ("report", "-f", "json"), ("export", "-f", "csv"), ("export", "-f", "json"),
    ("reproduce", "0", "--dry-run"),
)  # fmt: skip


def marks_of(score):
    """Return a score as it might be shown: its first digits, and rounded."""
    return {repr(score)[:6], f"{score:.4f}"}


def execute_with_planted_scores(most):
    """Stand for ``Stage.execute``: trials run here, report planted scores, and end after some."""

    def execute(stage, source, target):
        for _ in range(most):
            if (task := source.next_task(num_running=0)) is None:
                return "finished"
            directory = stage.study.files.trial(task.trial)
            execution = TrialExecution(directory, task, settings=stage.settings(), data=stage.data)
            score, is_done = SCORES[task.trial], False
            while not is_done:
                report = execution.advance()
                metrics, delivered = (
                    dict.fromkeys(values, score) for values in (report.metrics, report.delivered)
                )
                report = replace(report, metrics=metrics, delivered=delivered, value=score)
                is_done = stage.on_report(report).done
            execution.close()
            stage.on_end(task.trial)
        return "interrupted"

    return execute


def with_confusion(checked, study, spool, *_, **more):
    """Stand for ``log_best_model``: there is a picture of the winner's model."""
    spool.release()
    keep_confusion(study.files, trial=0, part="test", names="ab", counts=[[3, 1], [0, 4]])


@pytest.fixture(scope="module", params=["released", "interrupted"])
def selected(request, tmp_path_factory):
    """A selection of four trials with planted scores: it has ended, or stopped after three."""
    root = tmp_path_factory.mktemp(request.param)
    (root / "temporary").mkdir()
    spec = select_spec(root, {**SPACE, "optim.lr": {"loguniform": [1, 4]}})
    uri = f"sqlite:///{root}/mlflow.db"
    tracking = spec.tracking.model_copy(update={"uri": uri, "pictures": True})
    spec = spec.model_copy(update={"tracking": tracking})
    is_released = request.param == "released"
    sealed, aside = root / "studies" / "selection" / "sealed", root.with_name(f"{root.name}-aside")
    erase = sweep.erase

    def keep_and_erase(study):
        shutil.copytree(sealed, aside)
        erase(study)

    with pytest.MonkeyPatch.context() as patch:
        go_without_ray(patch.setattr, root / "temporary")
        patch.setattr(Selection, "draw", lambda self, rng: len(SCORES))
        patch.setattr(Stage, "execute", execute_with_planted_scores(9 if is_released else 3))
        patch.setattr(sweep, "log_best_model", with_confusion)
        patch.setattr(sweep, "erase", keep_and_erase)
        with nullcontext() if is_released else pytest.raises(KeyboardInterrupt):
            sweep.run_sweep(spec)
    result = load_sweep(spec.name, root=spec.storage.root)
    secret = aside if is_released else sealed
    losers = [
        line["hparams"]["optim.lr"]
        for line in read_log(secret / "journal.jsonl")
        if line["event"] == "trial_started" and (line["trial"] or not is_released)
    ]
    scores = LOST if is_released else SCORES[:3]
    marks = {mark for score in scores for mark in marks_of(score)} | {repr(lr)[:9] for lr in losers}
    return SimpleNamespace(
        root=root, result=result, sealed=secret, marks=marks, is_released=is_released, uri=uri
    )


def texts_of(root, *, without):
    """Return file -> its text, tables in pages and Parquet unpacked, below a folder."""
    import pandas as pd

    texts = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and without not in path.parents:
            text = path.read_bytes().decode("utf-8", "replace")
            tables = re.findall(r"base64,([A-Za-z0-9+/=]{40,})", text)
            text += "".join(base64.b64decode(t).decode("utf-8", "replace") for t in tables)
            if path.suffix == ".parquet":
                text = pd.read_parquet(path).to_csv()
            texts[str(path)] = text
    return texts


def said(root, name, verb, *more):
    done = cli_here(verb, name, *more, "--root", root / "studies")
    assert done.returncode in (0, 2, 3), done.stderr
    return done.stdout + done.stderr


def everything_said(root, name):
    """Return way out -> what it says of a study: commands, Python, a notebook, a page."""
    answers = {" ".join((verb, *more)): said(root, name, verb, *more) for verb, *more in VERBS}
    answers["compare"] = said(root, name, "compare", name)
    done = cli_here("list", root / "studies" / name, "-f", "json")
    answers["list"] = done.stdout + done.stderr
    result = load_sweep(name, root=root / "studies")
    answers["html"] = result._repr_html_() + "".join(t._repr_html_() for t in result.results)
    answers["frame"] = result.trials().to_csv()
    answers["pictures"] = "".join(
        picture.csv() + picture.caption + str(picture.vega_lite())
        for picture in pictures_of(result)
    )
    out = root / "out"
    out.mkdir(exist_ok=True)
    answers["page"] = said(root, name, "report", "--html", out / "page.html")
    answers["parquet"] = said(root, name, "export", "--to", out / "trials.parquet", "--force")
    return answers


def tellers(marks, answers):
    return {way: [m for m in marks if m in text] for way, text in answers.items() if any(
        m in text for m in marks)}  # fmt: skip


@pytest.mark.sampled(2)
def test_the_marks_are_in_the_sealed_study(selected):
    """Else nothing below would show anything."""
    texts = "".join(texts_of(selected.sealed, without=selected.root / "none").values())
    assert [mark for mark in selected.marks if mark not in texts and len(mark) == 9] == []
    assert sum(mark in texts for mark in selected.marks) >= len(selected.marks) / 2


@pytest.mark.sampled(2)
def test_of_the_other_trials_of_a_selection_nothing_is_said(selected):
    answers = everything_said(selected.root, "selection")
    assert tellers(selected.marks, answers) == {}
    assert not any(re.search(r"\b[34] trials\b", text) for text in answers.values())
    if selected.is_released:
        for way in ("best -f json", "export -f csv", "list", "frame", "html"):
            assert repr(WON)[:6] in answers[way], way
        assert "confusion" in answers["pictures"] or "predicted" in answers["pictures"]


def test_nor_is_it_in_any_file(selected):
    said(selected.root, "selection", "report", "--html", selected.root / "page.html")
    files = texts_of(selected.root, without=selected.sealed)
    assert tellers(selected.marks, files) == {}
    if selected.is_released:
        names = {path.rpartition("/")[2] for path in files}
        assert {"report.html", "confusion.csv", "confusion.png", "mlflow.db"} <= names


def test_nor_in_the_tracking_store_as_another_machine_reads_it(selected):
    from mlflow import MlflowClient

    if not selected.is_released:  # it would note when the selection began
        assert not (selected.root / "mlflow.db").exists()
        return
    client = MlflowClient(selected.uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "selection"]
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2  # the study's own, and the winner's
    assert (
        tellers(selected.marks, {run.info.run_name: str(run.to_dictionary()) for run in runs}) == {}
    )
    scores = {
        value
        for run in runs
        for name, value in run.data.metrics.items()
        if name.endswith("accuracy")
    }
    assert scores == {WON}


@pytest.fixture
def public(tmp_path):
    """A public search whose trial reports, beside its score, what may not leave its actor."""
    leaks = {"validation/accuracy": 0.5, "train/loss": LOST[0], "train/accuracy": LOST[1]}
    study = PublicStudy(tmp_path, scores=leaks)
    study.study.close()
    study.ledger.close()
    return tmp_path, study


def test_what_a_trial_of_a_public_search_may_not_report_gets_nowhere(public, tmp_path):
    root, study = public
    marks = {mark for score in LOST[:2] for mark in marks_of(score)}
    draw_study(study.study)
    track(root, "public")
    answers = everything_said(root, "public")
    assert tellers(marks, answers) == {}
    assert "train/loss" in answers["status"]  # why the claim is lost; not the value
    assert study.result.study_statement() is None
    assert tellers(marks, texts_of(root, without=root / "none")) == {}


def test_pictures_of_a_public_search_claim_nothing_for_its_trials(tmp_path):
    from csv import DictReader

    from stored_studies import copy_studies

    result = load_sweep("public", root=copy_studies(tmp_path, ["public"]))
    final = {n for n, view in result.view.trials.items() if result.claims.is_final(view)}
    pictures = {picture.name: picture for picture in pictures_of(result)}
    assert "privacy_utility" not in pictures
    rows = [row for p in pictures.values() for row in DictReader(io.StringIO(p.csv()))]
    with_epsilon = [row for row in rows if "epsilon" in row and int(row["trial"]) not in final]
    assert with_epsilon
    assert {(float(row["epsilon"]), row["sampling"]) for row in with_epsilon} == {(0.0, "none")}
