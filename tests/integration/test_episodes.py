"""A whole study of episodes: one ledger each, a mean over them, and the unit beside every epsilon."""

import json
import statistics

import pytest
from typer.testing import CliRunner
from whole_studies import children, make_spec, mlflow_rows

from dpsweep.cli.app import app
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.logs import read_log
from dpsweep.ledgers.trial import trial_spent
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.spread import half_width
from dpsweep.spec.study import SweepSpec
from dpsweep.study.trial import TrialState

pytestmark = pytest.mark.ray

UNIT = "example of one episode"


def call(root, *words):
    done = CliRunner().invoke(app, [*map(str, words), "--root", str(root / "studies")])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.slow
def test_a_study_of_episodes(tmp_path, ray_cluster):
    from dpsweep.sweep import run_sweep

    search = {
        "space": {
            "method": "dp_sgd",
            "batch.sample_rate": 1.0,
            "train.max_steps": 8,
            "optim.lr": {"choice": [0.001, 0.5]},
        }
    }
    raw = make_spec(
        tmp_path, "few", search=search, report={"points": 1}, privacy__delta=1e-2,
        episodes={"ways": 3, "shots": 4, "queries": 10, "number": 3},
    )  # fmt: skip
    result = run_sweep(SweepSpec(**raw))

    assert result.state == "finished"
    assert [t.state for t in result.results] == [TrialState.FINISHED] * 6
    pairs = {(t.config["train.episode"], t.config["optim.lr"]) for t in result.results}
    assert len(pairs) == 6
    for trial in result.results:  # each has a ledger and the whole budget
        spent = trial_spent(result.files.ledger, trial.trial_id)
        assert trial.epsilon == epsilon_of(spent, delta=1e-2) <= 2.0
        assert trial.epsilon >= 0.97 * 2.0
        assert trial.statement.privacy_unit == UNIT
        assert trial.value * 30 == pytest.approx(round(trial.value * 30))  # of 3 * 10 queries

    # Two configurations saw each record of an episode, whatever the number of episodes.
    composed = result.claims.composed()
    one = trial_spent(result.files.ledger, 0) + trial_spent(result.files.ledger, 1)
    assert composed.epsilon == epsilon_of(one, delta=1e-2, accountant="rdp") > 2.0
    assert composed.privacy_unit == UNIT
    assert result.study_statement() is None

    rows = json.loads(call(tmp_path, "report", "few", "-f", "json").stdout)
    (row,) = rows
    rate = row["optim.lr"]  # mostly .5, but noise on twelve records can make it the other one
    assert (row["repetitions"], row["configurations"]) == (3, 2)
    means = {
        each: statistics.fmean(t.value for t in result.results if t.config["optim.lr"] == each)
        for each in (0.001, 0.5)
    }
    assert means[rate] == max(means.values())
    best = [trial for trial in result.results if trial.config["optim.lr"] == rate]
    for score in ("validation/accuracy", "test/accuracy"):  # a width of 0 is possible, if rare
        values = [trial.metrics[score] for trial in best]
        assert len(values) == 3
        assert row[f"{score} 95%"] == pytest.approx(half_width(values))
    assert row["privacy_unit"] == UNIT
    best = result.best()
    assert (best.config["optim.lr"], best.config["train.episode"]) == (rate, 0)

    with pytest.raises(BadInputError, match="ran on different episodes"):
        result.pareto()

    for words in (("status", "few"), ("best", "few"), ("report", "few")):
        assert UNIT in " ".join(call(tmp_path, *words).output.split())
    tags = mlflow_rows(tmp_path, "select distinct value from tags where key = 'dp.unit'")
    assert tags == [(UNIT,)]
    (note,) = [n for (n,) in mlflow_rows(
        tmp_path, "select value from tags where key = 'mlflow.note.content' "
        "and value like '%Privacy card%'")]  # fmt: skip
    assert f"unit: one {UNIT}" in note
    assert "The draw of episodes" in note
    assert "3, drawn from these records: 3 classes with 4 records each" in note
    assert len(children(tmp_path)) == 6
    assert list(load_sweep("few", root=tmp_path / "studies").view.model_uris) == [best.trial_id]

    before = len(read_log(result.files.journal))
    run_sweep(SweepSpec(**raw))
    assert len(read_log(result.files.journal)) == before
