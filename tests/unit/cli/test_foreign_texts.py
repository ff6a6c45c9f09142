"""Texts that somebody else has written, on a terminal and in a picture: shown, and not obeyed."""

import csv
import io
import json
import subprocess
import sys

import pytest
from stored_studies import copy_studies
from whole_studies import cli_here

from dpsweep.cli.tables import lines_of_record, lines_of_table, talk, wrapped
from dpsweep.foundation.records import encode_record
from dpsweep.spec.document.reading import parse_yaml
from dpsweep.spec.document.writing import dump_yaml
from dpsweep.tracking.state import TrackingState

SIGNS = "\x1b]0;PWN\x07\x1b[31m\x9b\u061c\u200e\u200f\u202e\u2066\x7f\ud800"
OBEYED = set(SIGNS) - set("]0;PWN[31m")
SHOWN = r"\x1b]0;PWN\x07\x1b[31m\x9b\u061c\u200e\u200f\u202e\u2066\x7f\ud800"


@pytest.fixture
def studies(tmp_path):
    """Return a folder with a study whose journal says what a terminal would obey."""
    root = copy_studies(tmp_path, ["composed"])
    path, lines = root / "composed" / "journal.jsonl", []
    for line in path.read_text().splitlines():
        event = json.loads(line)
        del event["crc"]
        if event["event"] == "trial_ended":
            event["reason"] += SIGNS
            event["tags"] = {key: value + SIGNS for key, value in event["tags"].items()}
        if event["event"] == "trial_started":
            event["hparams"] = {**event["hparams"], f"optim.name{SIGNS}": f"sgd{SIGNS}"}
        if event["event"] == "study_ended":
            event["end_reason"] = f"{event.get('end_reason')}{SIGNS}"
        lines.append(encode_record(event))
    path.write_text("".join(lines))
    return root


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["table", "csv", "yaml", "json"])
@pytest.mark.parametrize("verb", ["status", "best", "logs", "show 0", "pareto"])
def test_a_journal_commands_no_terminal(studies, verb, form):
    word, *more = verb.split()
    done = cli_here(word, "composed", *more, "--root", studies, "-f", form)
    assert done.returncode == 0
    printed = done.stdout + done.stderr
    assert not OBEYED & set(printed)
    if form == "table" and verb in ("best", "show 0"):
        assert SHOWN in printed


def test_what_is_exported_can_be_written(studies):
    done = cli_here("export", "composed", "--root", studies)
    assert done.returncode == 0
    assert not OBEYED & set(done.stdout)
    assert list(csv.DictReader(io.StringIO(done.stdout)))


def test_a_page_can_be_written(studies, tmp_path):
    done = cli_here("report", "composed", "--root", studies, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr


def test_a_key_of_a_spec_and_a_folder_command_none(studies, tmp_path):
    spec = tmp_path / "sweep.yaml"
    spec.write_text('name: a\ndata: {"valid\\e]0;PWN\\aation": 1}\n')
    done = cli_here("validate", spec)
    assert not OBEYED & set(done.stderr)
    assert r"data.valid\x1b]0;PWN\x07ation" in done.stderr.replace("\n    ", "")
    (studies / "x\x1b[31m").mkdir()
    (studies / "x\x1b[31m" / "spec.yaml").write_text("name: x")
    done = cli_here("status", "other", "--root", studies)
    assert "studies there: composed\n" in done.stderr


@pytest.mark.parametrize("has_run", [False, True])
def test_an_address_of_a_store_commands_none(studies, has_run):
    signs = SIGNS.removesuffix("\ud800")  # which no YAML can have
    folder = studies / "composed"
    spec = (folder / "spec.yaml").read_text()
    uri = json.dumps(f"https://server/{signs}", ensure_ascii=True)
    (folder / "spec.yaml").write_text(spec.replace("uri: null", f"uri: {uri}"))
    if has_run:
        state = TrackingState(store=f"x#1{SIGNS}", parent_run_id=SIGNS, study_id=SIGNS)
        state.save(folder / "tracking.json")
    done = cli_here("ui", "composed", "--root", studies)
    assert done.returncode == 0, done.stderr
    assert not OBEYED & set(done.stdout)
    assert done.stdout.count(SHOWN.removesuffix(r"\ud800")) == (9 if has_run else 1)


@pytest.mark.parametrize("signs", [SIGNS.removesuffix("\ud800"), "two\nlines\u2028'\"\\"])
def test_a_spec_that_is_printed_commands_none_and_says_the_same(tmp_path, signs):
    path = f"data {signs}.npz"
    done = cli_here(
        "init", "--dataset", "npz", "--data-path", path, "--records", 300, "--classes", 2
    )
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, dump_yaml({"data": {"path": path}})):
        assert not OBEYED & set(text)
        assert parse_yaml(text, "spec").value["data"]["path"] == path


def test_tables_and_sentences_show_what_they_hold():
    texts = [
        *wrapped(f"a {SIGNS}", 200),
        *talk(f"a `b c` {SIGNS}\n {SIGNS}", 200),
        *lines_of_record({SIGNS: SIGNS}, 200),
        *lines_of_table(["n", SIGNS], [{"n": "1", SIGNS: SIGNS}], [], 300),
    ]
    assert not OBEYED & set("".join(texts))
    assert sum(text.count(SHOWN) for text in texts) == 7
    assert wrapped("one\ntwo", 20) == ["one", "two"]


@pytest.mark.sampled(21)
@pytest.mark.parametrize("sign", ["\x00", "\x07", "\x0b", "\x1b", "\x1f", "\ufffe", "\ud800"])
def test_a_letter_that_xml_does_not_have_ends_no_process(sign):
    """In a process of its own: vl_convert ends the one that it draws in."""
    code = f"""
from dpsweep.results.pictures.base import Picture, nominal
sign = {sign!r}
chart = {{"mark": "bar", "encoding": {{"x": nominal("class" + sign)}}}}
picture = Picture("p", "t" + sign, "c" + sign, [{{"class" + sign: "a" + sign}}], chart)
assert picture.png().startswith(b"\\x89PNG")
assert sign not in picture.words() and "\\ufffd" in picture.words()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
