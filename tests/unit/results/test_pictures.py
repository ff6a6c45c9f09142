"""Pictures and page of studies that an earlier version made, one of each accounting mode."""

import base64
import csv
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from whole_studies import cli_here

from dpsweep import load_sweep
from dpsweep.results.page import html
from dpsweep.results.page.drawing import ResultAtRest, draw
from dpsweep.results.page.html import PAGE_BEGINS, page_of
from dpsweep.results.page.story import story_of
from dpsweep.results.pictures.confusion import keep_confusion
from dpsweep.results.pictures.coordinates import parallel_coordinates
from dpsweep.results.pictures.files import write_pictures
from dpsweep.results.pictures.importance import importance
from dpsweep.results.pictures.table import pictures_of
from dpsweep.results.pictures.utility import _row
from dpsweep.results.study import SweepResult
from dpsweep.results.tables.searched import searched_values
from dpsweep.search.importance import importances

OLD = Path(__file__).parents[2] / "golden" / "old_studies"
TERMS = ("delta", "accountant", "neighboring_relation", "privacy_unit", "accounting", "sampling")


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return a function that opens a study by its name."""
    shutil.copytree(OLD, tmp_path / "studies")
    monkeypatch.chdir(tmp_path)
    return lambda name: load_sweep(name, root=tmp_path / "studies")


def rows_of(picture):
    return list(csv.DictReader(io.StringIO(picture.csv())))


def pictures(result):
    return {picture.name: picture for picture in pictures_of(result)}


def test_every_row_with_an_epsilon_has_its_terms(study):
    seen = 0
    for name in ("composed", "unaccounted", "public", "features"):
        for picture in pictures_of(study(name)):
            for row in rows_of(picture):
                if any("epsilon" in name for name in row):
                    seen += 1
                    assert all(row[term] for term in TERMS), (picture.name, row)
    assert seen > 10


def test_captions_of_epsilons_have_their_terms_too(study):
    drawn = pictures(study("composed"))
    for name in ("learning_curves", "epsilon_over_time", "rung_survival"):
        for term in ("delta=1e-05", "add_or_remove_one", "poisson", "composed", "example"):
            assert term in drawn[name].caption


def test_a_study_in_select_draws_nothing_of_several_trials(study):
    assert pictures_of(study("select")) == []


def test_the_matrix_of_the_winner_is_drawn_under_select_without_its_number(study):
    result = study("select")
    keep_confusion(result.files, trial=0, part="test", names="ab", counts=[[3, 1], [0, 4]])
    (matrix,) = pictures_of(result)
    assert "trial" not in matrix.caption
    assert [row["records"] for row in rows_of(matrix)] == ["3", "1", "0", "4"]


def test_a_matrix_of_another_trial_than_the_best_is_not_drawn(study):
    result = study("composed")
    best = result.best().trial_id
    for trial, is_drawn in ((best, True), (best + 1, False)):
        keep_confusion(result.files, trial=trial, part="test", names="ab", counts=[[1, 0], [0, 1]])
        assert ("confusion" in pictures(result)) is is_drawn


def test_points_of_the_learning_curves_are_the_reports(study):
    result = study("composed")
    metric = result.spec.search.metric
    expected = [
        (trial.trial_id, point["epsilon"], point["metrics"][metric])
        for trial in result.results
        for point in trial.curve
        if metric in point["metrics"]
    ]
    rows = rows_of(pictures(result)["learning_curves"])
    assert [(int(r["trial"]), float(r["epsilon"]), float(r["score"])) for r in rows] == expected


def test_the_budget_is_never_overdrawn_in_the_picture(study):
    result = study("composed")
    picture = pictures(result)["epsilon_over_time"]
    assert "committed at each end of a trial" in picture.caption  # between two of them: more
    rows = rows_of(picture)
    assert all(float(row["epsilon"]) <= result.study_statement().epsilon for row in rows)
    minutes = [float(row["minutes"]) for row in rows]
    assert minutes == sorted(minutes)


def test_files_are_a_png_and_a_table_each(study, tmp_path):
    drawn = pictures_of(study("composed"))
    paths = write_pictures(drawn[:1], tmp_path / "out")
    assert [path.suffix for path in paths] == [".png", ".csv"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[1].read_text() == drawn[0].csv()


def test_a_png_has_its_caption_with_all_terms(study, monkeypatch):
    """It is shown alone: in MLflow, on slides."""
    import vl_convert

    charts = []
    monkeypatch.setattr(vl_convert, "vegalite_to_png", lambda chart, scale: charts.append(chart))
    drawn = [p for p in pictures_of(study("composed")) if "epsilon" in p.csv()]
    for picture in drawn:
        picture.png()
    assert len(charts) > 2
    for picture, chart in zip(drawn, charts, strict=True):
        words = " ".join(chart["title"]["subtitle"])
        assert words == f"Study composed. {' '.join(picture.caption.split())}"
        for term in ("delta=1e-05", "add_or_remove_one", "poisson", "rdp", "composed", "example"):
            assert term in words


def trials_of(*configs, values, space, mode="max"):
    """Return a made-up study whose trials have these configurations and scores."""
    spec = SimpleNamespace(
        space=space,
        data=SimpleNamespace(validation=SimpleNamespace(visibility="public", noise_std=None)),
    )
    trials = [
        SimpleNamespace(trial_id=n, config=config, value=value, metric="validation/accuracy")
        for n, (config, value) in enumerate(zip(configs, values))
    ]
    varied = [n for n, c in space.items() if isinstance(c, dict) and n != "method"]
    return SimpleNamespace(
        spec=spec, results=trials, varied=varied, is_maximized=mode == "max",
        state_of=lambda trial: "finished",
    )  # fmt: skip


SHAPES = {
    "method": "dp_sgd",
    "model.name": {"choice": ["a", "mine.networks:a_long_name", "z"]},
    "noise.shape": {"choice": ["constant", "cosine"]},
    "noise.end_ratio": {"uniform": [0.1, 2.0], "when": {"noise.shape": "cosine"}},
}


def config(model, shape, ratio=1.0):
    return {
        "method": "dp_sgd", "model.name": model, "noise.shape": shape, "noise.end_ratio": ratio
    }  # fmt: skip


def test_a_line_is_broken_where_a_value_means_nothing():
    """A default that nobody has searched is no point of an axis."""
    result = trials_of(
        config("a", "constant"), config("mine.networks:a_long_name", "cosine", 0.5),
        config("z", "cosine", 1.5), values=[0.5, 0.7, 0.9], space=SHAPES,
    )  # fmt: skip
    picture = parallel_coordinates(result)
    of_ratio = {r["trial"]: r["height"] for r in picture.rows if r["axis"] == "noise.end_ratio"}
    assert of_ratio == {0: None, 1: 0.0, 2: 1.0}
    line, *texts = picture.chart["layer"]
    assert line["mark"]["invalid"] == "break-paths-filter-domains"
    labels = texts[0]["data"]["values"]
    assert [row["label"] for row in labels if row["axis"] == "model.name"] == [
        "a", "mine.networks…", "z"
    ]  # fmt: skip
    assert [r["label"] for r in labels if r["axis"] == "noise.end_ratio"] == ["0.5", "1.5"]
    assert picture.png().startswith(b"\x89PNG")


def test_good_lines_have_one_colour_whatever_is_good():
    configs = config("a", "cosine", 0.5), config("z", "cosine", 1.5)
    ranges = [
        parallel_coordinates(trials_of(*configs, values=[0.1, 0.2], space=SHAPES, mode=mode)).chart[
            "layer"
        ][0]["encoding"]["color"]["scale"]["range"]
        for mode in ("max", "min")
    ]
    assert ranges[0] == ranges[1][::-1]


def test_what_nobody_searched_is_no_cell(study):
    result = study("composed")
    (row, *_) = searched_values(result, result.results)
    assert list(row) == [name for name in result.varied if name in result.results[0].config]
    made = trials_of(config("a", "constant"), values=[0.5], space=SHAPES)
    assert searched_values(made, made.results) == [
        {"model.name": "a", "noise.shape": "constant", "noise.end_ratio": None}
    ]


def test_every_picture_can_be_drawn(study):
    for picture in pictures_of(study("composed")):
        assert len(picture.png()) > 2000, picture.name


def test_importance_finds_what_decides_and_leaves_out_what_some_trials_lack():
    space = {
        "method": "dp_sgd",
        "optim.lr": {"loguniform": [0.01, 1]},
        "train.epochs": {"uniform": [1, 9]},
        "noise.shape": {"choice": ["constant", "cosine"]},
        "noise.end_ratio": {"uniform": [0.5, 1.5], "when": {"noise.shape": "cosine"}},
    }
    trials = []
    for number in range(24):
        shape = "cosine" if number % 2 else "constant"
        config = {
            "method": "dp_sgd",
            "optim.lr": 10 ** (-2 + 2 * (number % 12) / 11),
            "train.epochs": 1.0 + (number * 7 % 24) / 3,
            "noise.shape": shape,
            **({"noise.end_ratio": 1.0} if shape == "cosine" else {}),
        }
        trials.append((config, float(number % 12)))
    shares, left_out = importances(space, trials, seed=0)
    assert next(iter(shares)) == "optim.lr"
    assert shares["optim.lr"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert left_out == ["noise.end_ratio"]
    assert importances(space, trials, seed=0)[0] == shares


def test_of_many_trials_the_forest_is_grown_from_some_and_its_caption_says_so(study, monkeypatch):
    """Of 1,000 trials it took half a minute, after the last one."""
    result, asked = study("composed"), []
    first = result.results[0]
    trials = [dataclasses.replace(first, trial_id=n, value=n / 1000) for n in range(1000)]
    monkeypatch.setattr(type(result), "results", trials)

    def shares(space, points, *, seed):
        asked.append([value for _, value in points])
        return {"optim.lr": 1.0}, []

    monkeypatch.setattr("dpsweep.search.importance.importances", shares)
    drawn = importance(result)
    assert "over 250 of 1000 trials, evenly spaced by number, pruned ones" in drawn.caption
    (values,) = asked
    assert values == [n / 1000 for n in range(0, 1000, 4)]
    monkeypatch.setattr(type(result), "results", trials[:250])
    assert "fANOVA over 250 trials, pruned ones" in importance(result).caption
    assert len(asked[1]) == 250


def test_what_is_drawn_reads_each_trial_once(study, monkeypatch):
    """Ten times, each with its ledger and its claim, took ten seconds of 1,000 trials."""
    result, expected, read = ResultAtRest(study("composed").files), study("composed"), []
    of_trial = SweepResult._result

    def counted(self, view):
        read.append(view.trial)
        return of_trial(self, view)

    monkeypatch.setattr(SweepResult, "_result", counted)
    draw(result)
    assert len(read) > 1
    assert sorted(read) == sorted(result.view.trials)
    assert result.results == expected.results


def test_the_page_says_what_was_asked_what_it_cost_and_what_won(study):
    result = study("composed")
    page = page_of(result)
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert result.study_statement().one_line().split(";")[0] in text
    assert result.best().metric in text
    for trial in result.results:
        assert f">{trial.trial_id}</td>" in text
    assert "Privacy card" in text
    assert str(result.spec.search.num_trials) in text


def test_scores_of_the_page_have_four_decimals_below_headers_on_their_side(study, monkeypatch):
    """0.39 stood above 0.04178, and the header of numbers on the left."""
    result = study("composed")
    metric, best = result.best().metric, result.best()
    trials = [dataclasses.replace(t, value=0.39) if t != best else t for t in result.results]
    monkeypatch.setattr(type(result), "results", trials)
    story = story_of(result, version="")
    at = story.trials.columns.index(metric)
    scores = [row[at] for row in story.trials.rows]
    assert "0.3900" in scores
    assert all(re.fullmatch(r"\d\.\d{4}", score) for score in scores)
    assert dict(story.won)[metric] == f"{best.value:.4f}"
    page = page_of(result)
    page = page.replace("<wbr>", "")
    heads = re.findall(
        r'<th scope="col"[^>]*?( class="number")?><button type="button">(.*?)<', page
    )
    numbers = {name for mark, name in heads if mark}
    assert {metric, "trials", "trial", "epsilon", "step"} <= numbers
    assert not numbers & {"state", "reason", "method"}


def test_a_printed_page_has_the_searched_values(study):
    """Tables were cut off at the edge, and the winner's values folded away."""
    result = study("composed")
    story = story_of(result, version="")
    won, best = dict(story.won), result.best()
    assert won["optim.lr"] == f"{best.config['optim.lr']:.4g}"
    (searched,) = searched_values(result, [best])
    assert [name for name, value in searched.items() if value is not None] == [
        name for name in won if name in best.config
    ]
    page = page_of(result)
    assert "@media print" in page
    assert ".wide { overflow: visible; }" in page.partition("@media print")[2].partition("\n")[0]
    assert ">optim.<wbr>lr</button>" in page  # headers break between words


def test_the_page_marks_the_best_trial(study):
    result = study("composed")
    table = story_of(result, version="").trials
    marked = [row for row in table.rows if row[table.columns.index("best")] == "*"]
    assert [row[table.columns.index("trial")] for row in marked] == [str(result.best().trial_id)]
    assert "planned" in table.columns
    public = story_of(study("public"), version="").trials
    of = public.columns.index("records")
    assert {row[of] for row in public.rows} == {"public", "private"}


def test_learning_curves_of_public_trials_are_drawn_over_steps(study):
    """They cost nothing, so against epsilon all of them stand at 0."""
    curves = pictures(study("public"))["learning_curves"]
    assert curves.title == "Learning curves against steps"
    assert curves.chart["encoding"]["x"]["field"] == "step"
    assert pictures(study("composed"))["learning_curves"].title.endswith("epsilon")


def test_the_page_loads_nothing(study):
    page = page_of(study("composed"))
    assert "default-src 'none'" in page
    outside = re.sub(r"<script type=\"module\">.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=\"(?!#|data:)", outside)
    assert "@import" not in outside
    assert "url(" not in outside


def test_the_tables_of_the_page_are_those_of_its_pictures(study):
    result = study("composed")
    page = page_of(result)
    for picture in pictures_of(result):
        assert base64.b64encode(picture.csv().encode()).decode() in page
    charts = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)[1]
    assert set(json.loads(charts)) == {picture.name for picture in pictures_of(result)}


def test_the_page_of_a_selection_tells_of_the_winner_alone(study):
    result = study("select")
    text = re.sub(r"<(script|style).*?</\1>", "", page_of(result), flags=re.DOTALL)
    assert "Why trials ended" not in text
    story = story_of(result, version="0")
    assert len(story.trials.rows) == 1
    assert story.stopped is None
    assert not re.search(r"\b\d+ (pruned|failed|of at most|trials)\b", text)


def test_words_of_a_study_are_escaped(study, monkeypatch):
    result = study("composed")
    evil = "<img src=x onerror=alert(1)>"
    story = story_of(result, version="0")
    object.__setattr__(story, "won", [("Trial", evil)])
    object.__setattr__(story, "card", evil)
    monkeypatch.setattr(html, "story_of", lambda result, version: story)
    monkeypatch.setattr(html, "pictures_of", lambda result: [])
    assert "<img" not in page_of(result)


def test_a_claim_that_is_given_up_leaves_the_page_and_the_tables(study):
    from dpsweep.running.gallery import draw_study, withdraw

    result = study("composed")
    assert withdraw(result, "nothing is drawn yet") == []
    draw_study(result)
    assert result.study_statement().one_line().split(";")[0] in result.files.page.read_text()
    withdraw(result, "a ledger was lost")
    texts = [result.files.page, *result.files.pictures.glob("*.csv")]
    assert len(texts) > 3
    assert {path.read_text() for path in texts} == {"withdrawn: a ledger was lost\n"}


def test_a_picture_that_fails_is_said_and_fails_no_study(study, monkeypatch):
    from dpsweep.running import gallery

    def fail(result):
        raise ValueError("no such mark")

    said = []
    monkeypatch.setattr(gallery.drawing, "pictures_of", fail)
    result = study("composed")
    assert gallery.draw_study(result, SimpleNamespace(on_message=said.append)) == []
    assert "no such mark" in said[0]


@pytest.mark.slow
def test_a_process_of_its_own_draws_when_it_is_told_to(study):
    from dpsweep.running.gallery import Drawing

    result, said = study("composed"), []
    with closing(Drawing(result, is_wanted=True)) as drawing:
        assert not result.files.page.exists()
        drawing.finish("finished", "trials ran", SimpleNamespace(on_message=said.append))
    assert said == []
    # Its end is written after it, and it shows how the study has ended.
    result.view.state, result.view.end_reason = "finished", "trials ran"
    assert "finished (trials ran)" in page_of(result)
    assert result.files.page.read_text() == page_of(result)
    drawn = {path.name for path in result.files.pictures.iterdir()}
    assert drawn == {f"{p.name}.{end}" for p in pictures_of(result) for end in ("png", "csv")}


def test_a_process_that_cannot_draw_says_why(study):
    from dpsweep.running.gallery import Drawing

    result, said = study("composed"), []
    (result.files.path / "spec.yaml").write_text("name: [")
    with closing(Drawing(result, is_wanted=True)) as drawing:
        drawing.finish("finished", "", SimpleNamespace(on_message=said.append))
    assert len(said) == 1
    assert "pictures are not drawn" in said[0]
    assert "spec" in said[0]


def test_a_process_that_cannot_be_started_is_no_reason_to_fail(study, monkeypatch):
    """Trials may run yet: an error would end them."""
    from dpsweep.running import gallery

    def full(*args, **more):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(gallery.subprocess, "Popen", full)
    result, said = study("composed"), []
    with closing(gallery.Drawing(result, is_wanted=True)) as drawing:
        drawing.load()
        drawing.finish("finished", "", SimpleNamespace(on_message=said.append))
    assert len(said) == 1
    assert "pictures are not drawn: no process can be started" in said[0]
    assert "temporarily unavailable" in said[0]


def test_an_interrupted_end_leaves_no_process_behind(study):
    from dpsweep.running.gallery import Drawing

    result = study("composed")
    drawing = Drawing(result, is_wanted=True)
    drawing.load()
    with pytest.raises(KeyboardInterrupt), closing(drawing):
        raise KeyboardInterrupt
    assert drawing._process.poll() is not None
    assert not result.files.page.exists()


@pytest.mark.slow
def test_what_draws_has_loaded_what_an_epsilon_needs_when_it_is_asked(study):
    path = study("composed").files.path
    program = f"""
import sys
from pathlib import Path
from dpsweep.results.page import drawing
from dpsweep.study.files import StudyFiles
names = ("scipy.special", "vl_convert")
print(*(name in sys.modules for name in names))
drawing.prepare(StudyFiles.at(Path({str(path)!r})))
print(*(name in sys.modules for name in names))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False", "True", "True"]


def test_html_writes_one_page_and_refuses_two(study, tmp_path):
    root = str(tmp_path / "studies")
    path = tmp_path / "page.html"
    done = cli_here("report", "composed", "--html", path, "--root", root)
    assert done.returncode == 0, done.stderr
    assert path.read_text().startswith(PAGE_BEGINS)
    assert cli_here("report", "composed", "--html", path, "--root", root).returncode == 0
    path.write_text("name: mine\n")
    done = cli_here("report", "composed", "--html", path, "--root", root)
    assert (done.returncode, path.read_text()) == (2, "name: mine\n")
    assert "is no page of a study" in done.stderr
    done = cli_here("report", "composed", "public", "--html", path, "--root", root)
    assert done.returncode == 2
    assert "one study" in done.stderr
    done = cli_here("report", "composed", "--html", path / "page.html", "--root", root)
    assert done.returncode == 2
    done = cli_here("report", "composed", "--html", tmp_path / "none/page.html", "--root", root)
    assert (done.returncode, (tmp_path / "none").exists()) == (2, False)
    assert "no such directory" in done.stderr
    link, aim, pipe = tmp_path / "link.html", tmp_path / "aim.html", tmp_path / "pipe"
    link.symlink_to(aim)
    assert cli_here("report", "composed", "--html", link, "--root", root).returncode == 0
    assert (link.is_symlink(), aim.is_file()) == (True, True)
    os.mkfifo(pipe)
    done = cli_here("report", "composed", "--html", pipe, "--root", root)
    assert (done.returncode, pipe.is_fifo()) == (2, True)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_draws_the_page_within_its_width(study, tmp_path, width):
    result = study("composed")
    page = page_of(result)
    probe = (
        "<script>new MutationObserver(() => document.title = [innerWidth, "
        "document.documentElement.scrollWidth, document.querySelectorAll('.chart svg').length]"
        ".join('/')).observe(document.body, {attributes: true})</script>"
    )
    path = tmp_path / "page.html"
    before, end, after = page.rpartition("<script>")
    path.write_text(before + probe + end + after)
    dom = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
         f"--window-size={width},2000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    inner, scrolled, charts = re.search(r"<title>(.*?)</title>", dom)[1].split("/")
    assert int(scrolled) <= int(inner)
    assert int(charts) == len(pictures_of(result))


def test_bars_end_where_a_score_does():
    def bar(metric, *scores):
        trials = [
            SimpleNamespace(
                trial_id=n, value=score, metric=metric, config={"method": "dp_sgd"}, epsilon=1.0,
                statement=SimpleNamespace(sampling="poisson"),
            )
            for n, score in enumerate(scores)
        ]  # fmt: skip
        row = _row(trials)
        return row["low"], row["high"]

    low, high = bar("validation/accuracy", 0.9, 0.99)
    assert 0 < low < 0.9
    assert high == 1.0
    assert bar("validation/accuracy", 0.01, 0.3)[0] == 0.0
    assert bar("validation/loss", 0.9, 1.2)[1] > 1.2
