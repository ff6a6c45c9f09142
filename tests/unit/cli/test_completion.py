"""Shell completion by its protocol: the environment variables that the shells' scripts set."""

import os
import subprocess
import sys

import pytest

PROGRAM = "import sys; from dpsweep.cli.app import app; sys.argv[0] = 'dpsweep'; app()"


@pytest.fixture
def complete(tmp_path):
    for name in ("digits-one", "digits-two", "other"):
        (tmp_path / "studies" / name).mkdir(parents=True)
        (tmp_path / "studies" / name / "spec.yaml").write_text(f"name: {name}\n")
    (tmp_path / "studies" / ".features").mkdir()

    def complete(shell, line, **more):
        words = {
            "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
            "zsh": {"_TYPER_COMPLETE_ARGS": line},
            "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        studies = {"DPSWEEP_STUDIES": str(tmp_path / "studies")}
        environment = {**os.environ, **studies, **words, **more}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**environment, "_DPSWEEP_COMPLETE": f"complete_{shell}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    return complete


SLOW = [pytest.param(shell, marks=pytest.mark.slow) for shell in ("zsh", "fish")]


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", *SLOW])
def test_each_shell_completes_verbs_and_studies(shell, complete):
    verbs = complete(shell, "dpsweep de")
    assert "describe" in verbs
    assert "decisions" in verbs
    assert "status" not in verbs
    studies = complete(shell, "dpsweep status dig")
    assert "digits-one" in studies
    assert "digits-two" in studies
    assert "other" not in studies
    assert "features" not in complete(shell, "dpsweep status ")


def test_studies_are_those_of_the_root_that_is_given(complete, tmp_path):
    (tmp_path / "elsewhere" / "third").mkdir(parents=True)
    (tmp_path / "elsewhere" / "third" / "spec.yaml").write_text("name: third\n")
    found = complete("bash", f"dpsweep best --root {tmp_path}/elsewhere ")
    assert found.split() == ["third"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dpsweep describe sc", ["scatternet", "scatternet_non_private"]),
        ("dpsweep init --method ada", ["adamix", "adamix_paragon"]),
        ("dpsweep init --preset bu2024/", None),
    ],
)
def test_words_of_the_product_are_completed(line, found, complete):
    words = complete("bash", line).split()
    if found is None:
        assert words
        assert all(word.startswith("bu2024/") for word in words)
    else:
        assert words == found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "_DPSWEEP_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_DPSWEEP_COMPLETE=complete_" in done.stdout
