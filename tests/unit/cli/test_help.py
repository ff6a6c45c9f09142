"""The help of every verb, word for word: what a verb takes changes on purpose only."""

import json
import sys
from pathlib import Path

import pytest
from whole_studies import cli_here

GOLDEN = Path(__file__).parents[2] / "golden" / "help"
VERBS = [
    "", "init", "methods", "describe", "account epsilon", "account steps", "account noise",
    "validate", "plan", "simulate", "advise", "run", "status", "logs", "best", "pareto", "decisions",
    "report", "layers", "audit", "ui", "doctor", "reproduce", "register", "predict", "show",
    "export", "list", "compare", "budget", "cluster render", "cluster submit", "cluster status",
    "cluster logs", "cluster stop",
]  # fmt: skip


def shown(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # else "python -m pytest"
    done = cli_here(*verb.split(), "--help")
    assert done.returncode == 0
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb or "dpsweep")
def test_help_is_as_it_was(verb, monkeypatch):
    path = GOLDEN / f"{verb.replace(' ', '_') or 'dpsweep'}.txt"
    assert shown(verb, monkeypatch) == path.read_text()


def test_every_verb_has_its_help_kept(monkeypatch):
    listed = shown("", monkeypatch).partition("Commands:")[2]
    verbs = {
        line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "
    }
    assert verbs == {verb.split()[0] for verb in VERBS if verb}


def test_json_is_a_format_of_every_verb_that_has_formats():
    helps = {verb: (GOLDEN / f"{verb.replace(' ', '_')}.txt").read_text() for verb in VERBS if verb}
    formats = {verb for verb, text in helps.items() if "<table|json|yaml|csv>" in text}
    assert len(formats) > 20
    assert formats == {verb for verb, text in helps.items() if "Same as -f json" in text}
    for words in (["--json"], ["-f", "json"], ["--json", "-f", "csv"], ["-f", "csv", "--json"]):
        assert json.loads(cli_here("methods", *words).stdout)
    assert cli_here("methods", "-f", "csv").stdout.startswith("method,")
