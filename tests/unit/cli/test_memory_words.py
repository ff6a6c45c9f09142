"""What the trials of a study took, and how a rerun would pack them."""

import json

import pytest
from gpus import GIB, FakeGpu
from whole_studies import cli_here
from written_studies import write_study

from dpsweep.cli import memory_words
from dpsweep.cli.memory_words import memory_taken
from dpsweep.results.trial import TrialResult
from dpsweep.spec.cluster import ResourcesSpec
from dpsweep.study.journal import TrialView

SHARED = ResourcesSpec(gpu=0.5, by_method={"bitfit": {"gpu": 0.25}, "adamix": {"gpu": 0}})


def trials(**peaks):
    """Return a trial of each method, with its peak in MiB."""
    new = object.__new__
    made = []
    for method, peak in peaks.items():
        trial = new(TrialResult)
        vars(trial).update(config={"method": method}, memory_mb=peak)
        made.append(trial)
    return made


def test_a_rerun_is_packed_by_the_largest_peak(monkeypatch):
    monkeypatch.setattr(memory_words, "visible_gpu", FakeGpu)
    few = trials(dp_sgd=15 * 1024.0)
    lines = memory_taken(SHARED, [*few, *trials(dp_sgd=2000.0, bitfit=7 * 1024.0, adamix=500.0)])
    assert lines == [
        "memory: trials of adamix took up to 500 MiB each",
        "memory: trials of bitfit took up to 7.0 GiB of a GPU each, and need 9.8 GiB with a CUDA "
        "context and a margin of 25%: 8 trials fit on one GPU of 80.0 GiB, with "
        "resources.by_method.bitfit.gpu: 0.125",
        "memory: trials of dp_sgd took up to 15.0 GiB of a GPU each, and need 19.8 GiB with a CUDA "
        "context and a margin of 25%: 4 trials fit on one GPU of 80.0 GiB, with resources.gpu: 0.25",
    ]


@pytest.mark.parametrize(
    ("gpu", "end"),
    [
        (None, "; this machine has no GPU to say how many fit on one"),
        (FakeGpu(16 * GIB), ", more than one GPU has (16.0 GiB)"),
    ],
)
def test_what_cannot_be_packed_is_said(monkeypatch, gpu, end):
    monkeypatch.setattr(memory_words, "visible_gpu", lambda: gpu)
    (line,) = memory_taken(SHARED, trials(dp_sgd=15 * 1024.0))
    assert line.endswith(f"a CUDA context and a margin of 25%{end}")


def test_what_may_not_be_told_is_not():
    assert memory_taken(SHARED, trials(dp_sgd=None)) == []


def test_status_and_report_show_peaks_where_they_are_told(tmp_path, monkeypatch):
    write_study(tmp_path, [1, 0.3])
    where = ("digits", "--root", tmp_path / "studies")
    said = cli_here("status", *where, "--explain")
    assert "memory" not in said.stdout + said.stderr  # under a claim
    said = cli_here("report", *where, "--costs")
    assert "no time and no memory: none is kept under a claim" in said.stderr
    assert "the journal has when each trial began and ended" in said.stderr.replace("\n", " ")
    monkeypatch.setattr(TrialView, "usage", {"seconds": 2.0, "memory_mb": 900.0})
    said = cli_here("status", *where, "--explain")
    assert "memory MiB" in said.stdout
    assert "memory: trials of dp_sgd took up to 900 MiB each" in said.stderr
    assert "memory" not in cli_here("status", *where).stdout
    rows = json.loads(cli_here("status", *where, "--explain", "-f", "json").stdout)
    assert {row["memory MiB"] for row in rows} == {900.0}
    said = cli_here("report", *where, "--costs")
    assert "digits: memory: trials of dp_sgd took up to 900 MiB each" in said.stderr
    assert "memory:" not in cli_here("report", *where).stderr
