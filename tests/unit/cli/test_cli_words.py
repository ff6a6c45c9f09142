"""What the command line says: short terms, stages, plans in words, mistakes with their places."""

import io
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys

import pytest
import yaml
from rich.console import Console
from whole_studies import cli_here, make_spec
from written_studies import write_study

from dpsweep.cli.progress import ProgressDisplay
from dpsweep.ledgers.dataset import DatasetLedger
from dpsweep.ledgers.study import StudyLedger
from dpsweep.spec.study import SweepSpec
from dpsweep.study.journal import StudyView, TrialView
from dpsweep.study.trial import TrialState

TERMS = ("delta=1e-05", "unit=example", "add_or_remove_one", "sampling=poisson", "rdp")
UNACCOUNTED = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "unaccounted"}


def brief(result):
    return result.claims.brief()


# --- Short terms ----------------------------------------------------------------------------


def test_the_short_terms_have_every_term_and_the_study(tmp_path):
    text = brief(write_study(tmp_path, [1, 0.3]))
    for term in (*TERMS, "accounting=composed"):
        assert term in text
    assert "epsilon: one trial alone;" in text
    assert "The study: epsilon=6.0000 for the whole sweep; the same terms." in text
    assert "Unfinished trials: what they have spent, for information." in text
    assert len(text) < 300


def test_the_short_terms_keep_every_caveat(tmp_path):
    validation = {"fraction": 0.2, "visibility": "exact"}
    data = {"dataset": "digits", "validation": validation}
    text = brief(write_study(tmp_path, [1, 1], privacy=UNACCOUNTED, data=data))
    for term in (*TERMS, "accounting=unaccounted"):
        assert term in text
    assert "the cost of the search NOT included" in text
    assert "exact private validation scores and choices by them are not covered" in text
    assert re.search(r"For indication, all trials composed: epsilon=\d.*no guarantee", text)
    assert "Unfinished" not in text


def test_a_downgrade_is_always_said_first(tmp_path):
    result = write_study(tmp_path, [1, 1])
    ledger = StudyLedger(result.files.ledger)
    ledger.downgrade("a precondition broke")
    ledger.close()
    for verb in ("status", "best", "pareto"):
        done = cli_here(verb, "digits", "--root", tmp_path / "studies")
        shown = " ".join(done.stdout.split())
        assert "DOWNGRADED from composed to unaccounted, for good: a precondition broke." in shown
        assert "epsilon=6.0000" not in shown
        assert "accounting=unaccounted" in shown


def test_explain_says_it_at_length(tmp_path):
    write_study(tmp_path, [1, 0.3])
    for verb in ("status", "best", "pareto", "logs"):
        short = cli_here(verb, "digits", "--root", tmp_path / "studies").stdout
        long = cli_here(verb, "digits", "--root", tmp_path / "studies", "--explain").stdout
        assert "--explain says more" in " ".join(short.split())
        assert "as if it were the only one" not in " ".join(short.split())
        assert "as if it were the only one" in " ".join(long.split())


def test_the_best_trial_is_marked_and_comes_first_by_score(tmp_path):
    result = write_study(tmp_path, [1, 0.3, 1])
    best = result.best().trial_id
    out = cli_here("status", "digits", "--root", tmp_path / "studies").stdout
    marked = [line.split()[1] for line in out.splitlines() if line.startswith("* ")]
    assert marked[0] == str(best)
    records = cli_here("status", "digits", "--root", tmp_path / "studies", "-f", "json").stdout
    assert "" not in json.loads(records)[0]
    assert list(json.loads(records)[0])[:3] == ["trial", "state", "method"]


def test_best_begins_with_scores_and_epsilons(tmp_path):
    write_study(tmp_path, [1, 1])
    lines = cli_here("best", "digits", "--root", tmp_path / "studies").stdout.splitlines()
    names = [line.split("  ")[0] for line in lines]
    assert names[:4] == ["trial", "validation/accuracy", "epsilon", "epsilon of the study"]
    start = names.index("configuration, what was searched first:")
    assert names[start + 1 : start + 3] == ["optim.lr", "noise.shape"]


# --- Stages and the live panel --------------------------------------------------------------


def test_a_run_says_something_at_once(tmp_path):
    """On a terminal, before anything is loaded that takes seconds."""
    raw = make_spec(tmp_path, search__num_trials=0)
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(raw))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dpsweep", "run", "bad.yaml"]
    environment = {**os.environ, "COLUMNS": "80"}
    began = os.times()
    process = subprocess.Popen(command, stderr=theirs, cwd=tmp_path, env=environment)
    os.close(theirs)
    said = b""
    while b"\n" not in said and select.select([ours], [], [], 60)[0]:
        said += os.read(ours, 1000)
    assert process.poll() is None  # what it checks is still to come
    assert re.match(rb"\s*[\d.]+ s  checking bad.yaml", said)
    while True:
        try:
            said += os.read(ours, 1000)
        except OSError:
            break
    assert process.wait(timeout=60) == 2
    assert b"num_trials" in said
    assert os.times().elapsed - began.elapsed < 60
    # Seconds since its own first line of code: half a one, and several on a machine that is busy.
    assert float(said.split()[0]) < 5


def test_elsewhere_mistakes_stand_alone(tmp_path):
    raw = make_spec(tmp_path, search__num_trials=0)
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(raw))
    done = cli_here("run", tmp_path / "bad.yaml")
    assert done.returncode == 2
    mistake, more = done.stderr.splitlines()
    assert mistake.startswith("error: ")
    assert more == "data, space and plans are checked further once this is mended"


@pytest.mark.parametrize("accounting", ["unaccounted", "select"])
def test_stages_have_seconds_unless_time_tells_of_trials(tmp_path, capsys, accounting):
    raw = make_spec(tmp_path, privacy={**UNACCOUNTED, "accounting": accounting})
    if accounting == "select":
        del raw["search"]["num_trials"]
    console = Console(stderr=True, width=40)
    display = ProgressDisplay(SweepSpec(**raw), 3, console)
    display.on_stage("starting Ray on this machine, which takes a while")
    said = capsys.readouterr().err
    assert said.count("\n") == 1  # a line of a log is not wrapped
    assert bool(re.search(r"\d+\.\d s  starting", said)) == (accounting != "select")


def trials(*states):
    return {
        number: TrialView(
            number, {"method": "dp_sgd"}, state, step=number, num_steps=100, epsilon=0.5,
            sampling="poisson", value=0.5, metrics={"validation/accuracy": 0.5},
        )
        for number, state in enumerate(states)
    }  # fmt: skip


def test_the_panel_does_not_move_and_ends_without_an_empty_table(tmp_path):
    raw = make_spec(tmp_path, privacy=UNACCOUNTED)
    console = Console(width=80, force_terminal=True, file=io.StringIO())
    display = ProgressDisplay(SweepSpec(**raw), 4, console)
    run, done = TrialState.RUNNING, TrialState.FINISHED

    def shown(*states):
        with console.capture() as capture:
            console.print(display._panel(StudyView(trials=trials(*states))))
        return capture.get().splitlines()

    two, one = shown(run, run), shown(done, run)
    assert len(two) == len(one)
    header = next(line for line in two if "method" in line)
    assert header in one
    end = " ".join(shown(done, done))
    assert "method" not in end
    assert "2/4 trials" in end
    for text in (" ".join(two), end):
        for term in ("delta 1e-05", "example", "add_or_remove_one", "poisson", "rdp",
                     "unaccounted"):  # fmt: skip
            assert term in re.sub(r"\s+", " ", text)


# --- plan in words --------------------------------------------------------------------------


def planned(tmp_path, *options, **changes):
    raw = make_spec(tmp_path, **changes)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(raw))
    done = cli_here("plan", tmp_path / "spec.yaml", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_plan_begins_with_what_will_happen(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    privacy = {"delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 3.0}
    out = planned(tmp_path, privacy=privacy, search__num_trials=24)
    words = " ".join(out.partition("\n\n")[0].split())
    assert words.startswith("Study 'digits': at most 24 configurations, drawn by random, of dp_sgd")
    assert re.search(r"\d+ (to \d+ )?of them fit into the study's budget", words)
    takes = r"(Roughly [\d.]+ (s|min)|Less than a second) of training on \d+ slots? of this machine"
    assert re.search(
        takes + r" for (1 trial, run to its end|\d+ trials, all run to their ends),", words
    )
    assert "plus about 20 s to start and to end the study" in words
    assert "It will claim epsilon=3.0000 for all that the study releases" in words
    for term in (*TERMS, "accounting=composed"):
        assert term in words
    assert "Renyi" not in words
    assert max(map(len, out.splitlines())) <= 80
    row = next(line for line in out.splitlines() if line.startswith("dp_sgd "))
    assert "2.0000" in row
    assert "Renyi order" in " ".join(planned(tmp_path, "--explain", privacy=privacy).split())


def test_a_plan_has_a_row_of_each_method(tmp_path):
    space = {"method": {"choice": ["dp_sgd", "non_private"]}, "train.max_steps": 5}
    record = json.loads(planned(tmp_path, "--json", search__space=space))
    rows = {row["method"]: row for row in record["methods"]}
    assert rows["dp_sgd"]["epsilon_per_trial"][1] <= 2
    assert rows["non_private"]["epsilon_per_trial"] is None
    assert rows["dp_sgd"]["steps_per_trial"] == [5, 5]
    counts = [row["configurations_with_a_plan"] for row in rows.values()]
    assert sum(counts) == record["configurations_sampled"]


def test_a_plan_says_what_the_dataset_has_left(tmp_path):
    """S10.1: `plan` said nothing of the dataset's budget; one learned it from `run`."""
    path = tmp_path / "digits.budget"
    privacy = {
        "delta": 1e-5, "trial_epsilon": 2.0, "accounting": "composed", "study_epsilon": 6.0,
        "dataset_ledger": str(path), "dataset_epsilon": 20.0, "dataset_delta": 1e-4,
    }  # fmt: skip
    first = json.loads(planned(tmp_path, "--json", privacy=privacy))["dataset_ledger"]
    assert (first["cap_epsilon"], first["charged_epsilon"], first["fits"]) == (20.0, 0.0, True)
    assert not path.exists()
    from dpsweep.planning.preflight import preflight

    checked = preflight(SweepSpec(**make_spec(tmp_path, privacy=privacy)))
    for name in ("one", "two"):
        DatasetLedger(path).reserve(
            name, name, directory=tmp_path / name, dataset=checked.dataset_name,
            parts=checked.dataset_parts, accounting="composed", epsilon=7.5, delta=1e-5,
            cap_epsilon=20.0, cap_delta=1e-4,
        )  # fmt: skip
    words = " ".join(planned(tmp_path, privacy=privacy).split())
    assert (
        "has (epsilon, delta)=(5.0000, 8e-05) left of (20, 0.0001) for all studies together"
        in words
    )
    assert "this study takes (6.0000, 1e-05), and does NOT fit: run will refuse it." in words


# --- Mistakes -------------------------------------------------------------------------------


def test_a_name_clash_says_each_key_with_both_values(tmp_path):
    from dpsweep.foundation.errors import StudyError
    from dpsweep.study.study import Study

    write_study(tmp_path, [1])
    raw = yaml.safe_load((tmp_path / "study.yaml").read_text())
    raw["search"]["space"]["optim.lr"] = {"loguniform": [0.1, 8]}
    raw["search"]["space"]["clip.max_grad_norm"] = 0.5
    raw["privacy"]["study_epsilon"] = 7.0
    with pytest.raises(StudyError) as caught:
        Study(SweepSpec(**raw))
    text = str(caught.value)
    for part in (
        "privacy.study_epsilon (6 -> 7)",
        "search.space.optim.lr.loguniform ([0.1, 4] -> [0.1, 8])",
        "search.space.clip.max_grad_norm (nothing -> 0.5)",
    ):
        assert part in text.replace(".0]", "]"), text
    assert "search.num_trials (" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"dataset": "npz", "path": "nowhere.npz", "num_records": 100, "num_classes": 2,
                   "validation": {"fraction": 0.2, "visibility": "public"}}},
         r"spec.yaml:\d+ data.path: no file nowhere.npz, that is /.*/nowhere.npz"),
        ({"data": {"dataset": "npz", "path": ".", "num_records": 100, "num_classes": 2,
                   "validation": {"fraction": 0.2, "visibility": "public"}}},
         r"data.path: \., that is /.* is a directory"),
        ({"tracking": {"uri": "htp:/foo"}}, "no address of a store: it begins with htp:"),
        ({"tracking": {"uri": "./mlruns"}}, "is a directory"),
        ({"search": {"space": {"methd": "dp_sgd"}}}, "write method instead of methd"),
    ],
)  # fmt: skip
def test_mistakes_name_their_place_and_reason(tmp_path, changes, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(make_spec(tmp_path, **changes)))
    done = cli_here("validate", "spec.yaml")
    assert done.returncode == 2
    assert re.search(said, done.stderr), done.stderr


def test_stdin_is_called_stdin():
    done = subprocess.run(
        [sys.executable, "-m", "dpsweep", "validate", "-"],
        input="name: x\nprivacy: {trial_epsilon: two}\n", capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "stdin:2 privacy.trial_epsilon" in done.stderr
    assert "<text>" not in done.stderr


def test_best_names_the_cheapest_trial(tmp_path):
    write_study(tmp_path, [1, 1])
    done = cli_here("best", "digits", "--root", tmp_path / "studies", "--max-epsilon", 0.1)
    assert done.returncode == 3
    assert re.search(r"the cheapest is trial \d: epsilon=\d", done.stderr)


def test_one_segment_needs_no_json():
    words = ("--sample-rate", 0.01, "--noise-multiplier", 1, "--steps", 1000, "--delta", "1e-5")
    done = cli_here("account", "epsilon", *words, "-f", "json")
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(2.1014, abs=1e-4)
    missing = cli_here("account", "epsilon", "--steps", 1000, "--delta", "1e-5")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "--sample-rate, --noise-multiplier missing" in missing.stderr
    both = cli_here("account", "epsilon", *words, "--events", "x.json")
    assert both.returncode == 2


def test_init_replaces_a_file_only_by_force(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text("mine\n")
    refused = cli_here("init", path)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert path.read_text() == "mine\n"
    assert cli_here("init", path, "--force").returncode == 0
    assert "name:" in path.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stauts",), "No such command 'stauts'. Did you mean 'status'?"),
        (("best",), "Missing argument 'NAME'."),
        (("best", "x", "--max-epsilon", "two"), "'--max-epsilon': must be a number"),
        (("logs", "x", "--trial", "1.5"), "'--trial': must be a whole number"),
        (("methods", "-f", "xml"), "'xml' is not one of"),
    ],
)
def test_wrong_words_are_said_as_wrong_specs_are(words, said):
    done = cli_here(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert re.search(r"\n  fix: .*--help\n$", done.stderr)
    assert "Input should" not in done.stderr


def test_a_selection_covers_its_best_run_only(tmp_path):
    run = {"event": "poisson_gaussian", "noise_multiplier": 2, "sample_rate": 0.04, "steps": 450}
    event = {"event": "repeat_and_select", "mean": 10, "shape": 1, "of": [run]}
    (tmp_path / "events.json").write_text(json.dumps([event]))
    words = ("account", "epsilon", "--events", tmp_path / "events.json", "--delta", "1e-5")
    record = json.loads(cli_here(*words, "-f", "json").stdout)
    assert record["epsilon"] == pytest.approx(4.0661, abs=1e-4)
    assert "of each repeat_and_select its best run only" in record["released"]


def test_talk_breaks_between_words_with_a_hanging_indent(tmp_path, monkeypatch):
    """It was one long line where stderr is no terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(make_spec(tmp_path, search__bogus=1)))
    lines = cli_here("validate", tmp_path / "spec.yaml").stderr.splitlines()
    assert len(lines) > 1
    assert max(len(line) for line in lines if " " in line.strip()) <= 80
    assert all(line.startswith("    ") for line in lines[1:-1])  # the last one says what waits


def test_only_tables_with_unfinished_trials_speak_of_them(tmp_path):
    write_study(tmp_path, [1, 0.3])
    root = ("--root", tmp_path / "studies")
    for options in ((), ("--explain",)):
        told = {v: cli_here(v, "digits", *root, *options).stdout for v in ("best", "status")}
        assert "Unfinished trials" in told["status"]
        assert "Unfinished trials" not in told["best"]


def test_one_trial_is_no_plural(tmp_path, monkeypatch):
    write_study(tmp_path, [1])
    done = cli_here("best", "digits", "--root", tmp_path / "studies", "--max-epsilon", 0.1)
    assert "because: 1 trial has finished" in done.stderr
    assert "configurations" not in planned(tmp_path, search__num_trials=1).split(",")[0]


def test_decisions_say_where_a_rung_is_and_leave_no_cell_blank(tmp_path):
    rungs = {"type": "epsilon_halving", "rungs": [0.8, 1.3], "reduction_factor": 3}
    result = write_study(tmp_path, [1], scheduler=rungs)
    verdict = {
        "event": "trial_verdict", "time_ms": 1, "trial": 0, "step": 3, "epsilon": 1.31, "rung": 2,
        "value": 0.5, "cutoff": None, "verdict": "continue", "reason": "the first one",
    }  # fmt: skip
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("dpsweep.results.records.read_log", lambda path: [verdict])
        row = result.decisions()[0]
    assert (row["rung"], row["rung_epsilon"]) == (2, 1.3)


def test_tables_without_a_row_are_not_explained(tmp_path):
    """A front of no trial was one of its epsilons, and ``decisions`` explained its rows."""
    write_study(tmp_path, [0.5], scheduler={"type": "fifo"})  # no trial of it has finished
    root = ("digits", "--root", tmp_path / "studies")
    judged = cli_here("decisions", *root)
    assert (judged.returncode, judged.stdout) == (0, "")
    assert judged.stderr == "no trial was judged; the scheduler is fifo\n"
    assert cli_here("decisions", *root, "-f", "json").stdout == "[]\n"
    front, best = cli_here("pareto", *root), cli_here("best", *root)
    assert (front.returncode, front.stdout) == (best.returncode, "") == (3, "")
    assert front.stderr == best.stderr
    journal = tmp_path / "studies" / "digits" / "journal.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    shutil.rmtree(journal.parent / "ledger")
    assert cli_here("status", *root).returncode == 1  # its trials are there
    shutil.rmtree(journal.parent / "trials")
    status = cli_here("status", *root)
    assert (status.returncode, status.stdout) == (0, "")
    assert "no trials yet" in status.stderr


def test_an_mlflow_of_ours_shows_no_progress_bars(monkeypatch):
    from dpsweep.tracking.mlflow_reach import quiet

    name = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"
    monkeypatch.delenv(name, raising=False)
    quiet()
    assert os.environ[name] == "false"
    monkeypatch.setenv(name, "true")
    quiet()
    assert os.environ[name] == "true"


def test_modes_stand_in_one_table_with_the_same_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = planned(tmp_path, search__num_trials=4)
    header = next(line for line in out.splitlines() if line.split()[:1] == ["mode"])
    assert header.split() == ["mode", "epsilon", "delta", "accountant", "released"]
    below = out.partition(header)[2]
    for mode in ("composed", "select", "public", "unaccounted"):
        assert re.search(rf"^(\*  |   ){mode} ", below, re.MULTILINE), mode


@pytest.mark.parametrize("epsilon", [1e-9, 1.2345e-7, 0.00012341, 0.5, 2.00000000001])
def test_no_epsilon_is_shown_smaller_than_it_is(epsilon):
    from dpsweep.privacy.statement import shown_epsilon

    shown = float(shown_epsilon(epsilon))
    assert epsilon <= shown <= max(epsilon * 1.01, epsilon + 1e-4 * (epsilon >= 1e-3))


def test_an_alias_is_one_mistake(tmp_path):
    privacy = "{delta: 1e-5, trial_epsilon: &e 2.0, accounting: composed, study_epsilon: *e}"
    raw = make_spec(tmp_path)
    del raw["privacy"]
    (tmp_path / "spec.yaml").write_text(f"privacy: {privacy}\n" + yaml.safe_dump(raw))
    done = cli_here("validate", tmp_path / "spec.yaml")
    assert done.stderr.count("error: ") == 1
    assert "a YAML alias" in done.stderr


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    done = cli_here("init", tmp_path / "nowhere" / "x.yaml")
    assert done.returncode == 2
    assert "x.yaml cannot be written: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_best_prints_is_no_spec(tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text("config: {optim.lr: 1.0}\nmetric: validation/accuracy\nepsilon: 1.0\n")
    done = cli_here("validate", path)
    assert done.returncode == 2
    assert "is what `dpsweep best` prints of a configuration, and no spec" in done.stderr
    assert done.stderr.count("error: ") == 1
