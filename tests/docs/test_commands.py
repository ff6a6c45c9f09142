"""Every command on a page runs, in the order of the page, and so does its Python.

Commands that start no Ray run in each test; the whole page, as a reader would go through it, is the
README's alone, and that of the other pages where slow tests run.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from import_graph import ROOT
from pages import PAGES, add_materials, blocks, localized, prose
from whole_studies import cli_here

#: Verbs that start no Ray and take no measurement.
QUICK = ("account", "cluster", "describe", "init", "methods", "validate")
#: Pages' files of specs -> what makes their studies short here.
SHORTER = {
    "sweep.yaml": ["search.num_trials=4"],
    "audited.yaml": ["search.num_trials=4"],
    "small.yaml": ["search.num_trials=4"],
    "docs/pictures/gallery.yaml": ["search.num_trials=8"],
    "docs/pictures/epsilons.yaml": ["search.num_trials=4", "search.space.train.repeat=0"],
    "few.yaml": ["episodes.number=2"],
    "glosses.yaml": ["search.num_trials=2", "search.space.train.max_steps=5"],
    "labels.yaml": ["search.num_trials=2"],
    "paper.yaml": [
        "data.max_private=3000", "search.space.batch.expected=512", "search.space.train.epochs=1",
    ],
}  # fmt: skip
#: Commands that are not run here: completion has tests of its own, make would install all anew.
ELSEWHERE = ("dpsweep --install-completion", "make demo", "make test")
HEAVY = ("run", "plan", "simulate", "advise", "doctor", "ui")


def lines(page):
    return [command for block in blocks(page, "console") for command in block.commands]


def verb(command):
    named = re.search(r"\bdpsweep (--)?(\w+)", command)
    return named[2] if named else ""


def needs_study(page):
    return any(verb(command) in HEAVY for command in lines(page))


def put(block, folder):
    """Write a block that names its file; return whether it does."""
    if block.file:
        (folder / block.file).write_text(localized(block.text, folder))
    return bool(block.file)


def environment():
    kept = {k: v for k, v in os.environ.items() if k not in ("DPSWEEP_STUDIES", "COLUMNS")}
    folder = Path(sys.executable).parent
    return {**kept, "PATH": f"{folder}{os.pathsep}{kept['PATH']}", "OMP_NUM_THREADS": "1"}


def execute(command, folder, timeout=900):
    return subprocess.run(
        command, shell=True, executable="/bin/bash", cwd=folder, env=environment(),
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def shortened(command):
    """Return a command that runs a study, with a short one of the same kind."""
    spec = re.match(r"dpsweep run (\S+)", command)
    if not spec:
        return command
    return command + "".join(f" --set {change}" for change in SHORTER.get(spec[1], []))


def see_it_start(command, folder):
    """Start the server of a command, wait for its first line, end it as Ctrl-C does."""
    process = subprocess.Popen(
        f"exec {command} --port 0", shell=True, executable="/bin/bash", cwd=folder,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert "MLflow UI on http" in process.stdout.readline()
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def go_through(page, folder):
    """Do all that a page says, as its reader would; return how many steps that were."""
    add_materials(folder, page)
    steps, printed = 0, ""
    for block in blocks(page, "yaml", "python", "console", "text"):
        if block.language == "console":
            for command in block.commands:
                if command in ELSEWHERE:
                    continue
                steps += 1
                if verb(command) == "ui":
                    see_it_start(command, folder)
                    continue
                done = execute(localized(shortened(command), folder), folder)
                assert done.returncode == 0, f"{block} {command}\n{done.stdout}\n{done.stderr}"
                if verb(command) == "plan":
                    printed = " ".join(done.stdout.split())
        elif block.text.startswith("Study '"):  # what a plan prints, with its dots for the rest
            for part in block.text.split("\n...\n"):
                assert " ".join(part.split()) in printed, block
        elif not put(block, folder) and block.language == "python":
            steps += 1
            (folder / "block.py").write_text(block.text)
            done = execute("python -W error::DeprecationWarning:__main__ block.py", folder)
            assert done.returncode == 0, f"{block}\n{done.stderr}"
    return steps


STORIES = [
    pytest.param(page, id=page.name, marks=pytest.mark.slow) for page in PAGES if needs_study(page)
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", STORIES)
def test_a_page_from_its_first_line_to_its_last(page, tmp_path):
    assert go_through(page, tmp_path) >= len(lines(page)) - len(ELSEWHERE)


QUICK_LINES = [
    pytest.param(page, id=page.name)
    for page in PAGES
    if any(verb(command) in QUICK for command in lines(page))
]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("page", QUICK_LINES)
def test_commands_of_a_page_that_start_nothing(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    add_materials(tmp_path, page)
    for block in blocks(page, "yaml", "python"):
        put(block, tmp_path)
    for command in lines(page):
        if command.startswith("python write_"):
            assert execute(command, tmp_path, timeout=60).returncode == 0
        elif verb(command) in QUICK and not re.search(r"[|<>]", command):
            done = cli_here(*localized(command, tmp_path).split()[1:])
            assert done.returncode == 0, f"{page.name}: {command}\n{done.stderr}"
            assert done.stdout + done.stderr


def test_each_page_with_commands_has_its_test():
    tested = {param.values[0] for param in (*STORIES, *QUICK_LINES)}
    assert {page for page in PAGES if lines(page)} == tested


@pytest.mark.parametrize("command", [c for c in ELSEWHERE if c.startswith("make ")])
def test_make_knows_its_commands(command):
    done = execute(f"{command} -n", ROOT)
    assert done.returncode == 0, done.stderr
    assert "dpsweep run" in done.stdout or "pytest" in done.stdout


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_commands_in_the_prose_are_commands(page):
    help_pages = ROOT / "tests" / "golden" / "help"
    verbs = re.findall(r"^  (\w+)  ", (help_pages / "dpsweep.txt").read_text(), re.MULTILINE)
    for code in re.findall(r"`dpsweep ([^`]+)`", prose(page)):
        word, *rest = code.split()
        assert word in verbs, code
        if word == "account" or not rest:
            continue
        if word == "cluster":
            word = f"cluster_{rest[0]}"
        options = (help_pages / f"{word}.txt").read_text()
        for option in rest:
            if option.startswith("-"):
                assert re.search(rf"(?<!\S){re.escape(option)}(?![\w-])", options), code


def test_extras_that_a_page_installs_are_extras():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {e for page in PAGES for e in re.findall(r"dpsweep\[(\w+)\]", page.read_text())}
    assert {"scatternet", "backbones", "text", "generation", "cluster", "server"} == named
    assert named <= extras.keys()
