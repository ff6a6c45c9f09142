"""Every rendered file and every printed command of docs/cluster.md is what the tool prints.

python tests/docs/test_rendered.py    # writes them into the page
"""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cluster.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def rewritten(text, folder):
    """Return the page with what its commands print, and how many blocks that filled."""
    from whole_studies import cli_here

    printed, filled = "", 0

    def fill(match):
        nonlocal printed, filled
        language, body = match[1], match[2]
        if body.startswith("# sweep.yaml\n"):
            (folder / "sweep.yaml").write_text(body)
        if language in ("yml", "bash"):
            assert printed, body
            body, printed, filled = printed, "", filled + 1
        elif language == "console" and "dpsweep cluster" in body:
            assert printed == "", "what a command renders stands in the block below it"
            lines = []
            for command in [line for line in body.splitlines() if line.startswith("$ ")]:
                done = cli_here(*command.split()[2:])
                assert done.returncode == 0, done.stderr
                lines.append(command)
                if "--dry-run" in command:
                    lines += done.stdout.splitlines()
                    filled += 1
                else:
                    printed = done.stdout
            body = "\n".join(lines) + "\n"
        return f"```{language}\n{body}```"

    return BLOCK.sub(fill, text), filled


def filled_page(folder):
    """Return the page as it should be."""
    return rewritten(PAGE.read_text(), folder)


def test_the_page_shows_what_the_tool_renders(tmp_path, monkeypatch):
    from dpsweep.cluster.rendering import kuberay

    monkeypatch.setattr(kuberay, "version", lambda package: "2.60.0")
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    text, filled = filled_page(tmp_path)
    assert text == PAGE.read_text(), "run: python tests/docs/test_rendered.py"
    assert filled == 3 + 11  # files, and commands of dry runs


def test_a_file_that_was_edited_on_the_page_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    edited = (
        PAGE.read_text()
        .replace("#SBATCH --nodes", "#SBATCH --notes")
        .replace("kubectl get", "kubectl got")
    )
    text, _ = rewritten(edited, tmp_path)
    assert "#SBATCH --notes" not in text
    assert "kubectl got" not in text


@pytest.mark.parametrize("target", ["kuberay", "slurm", "vm"])
def test_every_target_is_on_the_page(target):
    assert f"$ dpsweep cluster render {target} sweep.yaml" in PAGE.read_text()


if __name__ == "__main__":
    import os
    import tempfile

    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        PAGE.write_text(filled_page(Path(name))[0])
