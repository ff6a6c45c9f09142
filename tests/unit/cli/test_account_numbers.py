"""Numbers of the privacy calculator that are out of range: all at once, by their options."""

from pathlib import Path

import pytest
from whole_studies import cli_here


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "noise --epsilon -1 --sample-rate 2 --steps 0 --delta 3 --end-ratio 0",
            [
                "--sample-rate: must be above 0 and at most 1, got 2",
                "--steps: must be at least 1, got 0",
                "--epsilon: must be above 0, got -1",
                "--delta: must be between 0 and 1, got 3",
                "--end-ratio: must be above 0, got 0",
            ],
        ),
        (
            "epsilon --sample-rate 0 --noise-multiplier nan --steps 5 --delta 1",
            [
                "--sample-rate: must be above 0 and at most 1, got 0",
                "--noise-multiplier: must be above 0, got nan",
                "--delta: must be between 0 and 1, got 1",
            ],
        ),
        (
            "steps --sample-rate 0.1 --noise-multiplier 1 --epsilon inf --delta 0.1",
            ["--epsilon: must be above 0, got inf"],
        ),
    ],
)
def test_each_is_told_by_its_option(words: str, expected: list[str]) -> None:
    done = cli_here("account", *words.split())
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"error: {line}" for line in expected]


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("json", '"epsilon": null,'),
        ("yaml", "epsilon: null\n"),
        ("csv", "\ninf,1e-05,"),
        ("table", "inf"),
    ],
)
def test_an_epsilon_that_does_not_exist_is_null_where_there_is_no_such_number(
    output: str, shown: str, tmp_path: Path
) -> None:
    events = tmp_path / "events.json"
    events.write_text('[{"event": "non_private"}]')
    done = cli_here("account", "epsilon", "--events", events, "--delta", "1e-5", "-f", output)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
