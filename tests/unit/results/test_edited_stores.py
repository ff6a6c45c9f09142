"""A study in a tracking store in which somebody deleted, restored and edited runs by hand."""

import shutil

import pytest
from mlflow import MlflowClient
from stored_studies import copy_studies, track

from dpsweep import load_sweep
from dpsweep.foundation.errors import StudyError, SweepError
from dpsweep.results.tables.overview import stored_overview
from dpsweep.results.tables.rows import trial_rows
from dpsweep.tracking.mlflow_reader import MLflowReader


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A study of a few events, all of whose runs were deleted, whole beside restored ones."""
    folder = tmp_path_factory.mktemp("once")
    copy_studies(folder, ["composed"])
    uri = track(folder, "composed", until="trial_ended")
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("composed").experiment_id
    before = [run.info.run_id for run in client.search_runs([experiment])]
    for run_id in before:
        client.delete_run(run_id)
    track(folder, "composed")
    for run_id in before:
        client.restore_run(run_id)
    return folder


@pytest.fixture
def folder(once, tmp_path):
    shutil.copytree(once, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def uri(once, folder):
    return f"sqlite:///{folder}/mlflow.db"


def opened(uri):
    return load_sweep("mlflow:composed/composed", tracking_uri=uri)


@pytest.mark.slow
def test_a_study_with_two_runs_is_one_and_its_trials_are_those_of_the_whole_one(folder, uri):
    (row,) = stored_overview(uri)
    assert (row["where"], row["state"]) == ("mlflow:composed/composed", "finished")
    local, stored = load_sweep("composed", root=folder / "studies"), opened(uri)
    assert stored.state == local.state
    for mine, theirs in zip(trial_rows(local), trial_rows(stored), strict=True):
        assert theirs["epsilon"] == pytest.approx(mine["epsilon"], abs=1e-6)
        assert theirs["state"] == mine["state"]
    assert stored.study_statement().epsilon == local.study_statement().epsilon


def test_a_claim_that_one_of_its_runs_has_lost_is_lost(uri):
    reader, client = MLflowReader(uri), MlflowClient(uri)
    (run,) = reader.studies()
    for each in client.search_runs([client.get_run(run.run_id).info.experiment_id]):
        if "dpsweep.trial" not in each.data.tags and each.info.run_id != run.run_id:
            client.set_tag(each.info.run_id, "dp.downgraded", "a pruner was attached")
    result = opened(uri)
    assert result.study_statement() is None
    assert result.claims.downgraded == "a pruner was attached"
    assert stored_overview(uri)[0]["epsilon"] is None


@pytest.mark.parametrize("is_there", [True, False])
def test_of_several_runs_of_a_trial_the_largest_epsilon_counts_under_its_own_study(uri, is_there):
    reader, client = MLflowReader(uri), MlflowClient(uri)
    (study,) = reader.studies()
    run = reader.trials(study)[0]
    experiment = client.get_run(run.run_id).info.experiment_id
    own = run.tags["mlflow.parentRunId"]
    assert own == study.run_id
    parent = own if is_there else "another"
    if not is_there:
        client.set_tag(run.run_id, "mlflow.parentRunId", parent)
        for each in client.search_runs([experiment]):
            if each.data.tags.get("dpsweep.trial") == "0" and each.info.run_id != run.run_id:
                client.delete_run(each.info.run_id)
    spent = {}
    for epsilon, of in ((0.25, parent), (7.0, parent), (0.5, parent), (9.0, "a third")):
        tags = {**run.tags, "mlflow.parentRunId": of}
        made = client.create_run(experiment, tags=tags).info.run_id
        client.log_metric(made, "dp/epsilon", epsilon)
        spent[epsilon] = made
    expected = spent[7.0] if is_there else spent[9.0]
    assert reader.trials(study)[0].run_id == expected


@pytest.mark.parametrize(
    ("tag", "text"), [("dpsweep.state", "done"), ("plan.steps", "many"), ("plan.steps", "")]
)
def test_a_value_that_nobody_but_a_hand_writes_is_named(uri, tag, text):
    reader = MLflowReader(uri)
    run = reader.trials(reader.studies()[0])[1]
    MlflowClient(uri).set_tag(run.run_id, tag, text)
    with pytest.raises(StudyError) as caught:
        opened(uri)
    assert (
        caught.value.message == f"run {run.run_id} of study 'composed' has the tag {tag}={text!r}"
    )
    assert "somebody has edited it" in caught.value.because


EDITS = {
    "dpsweep.seq": "last", "dpsweep.state": "", "dp.delta": "small", "dp.study_epsilon": "nan",
    "dp.sampling": "by hand", "dp.study_accountant": "mine", "dp.accounting": "better",
    "dp.adjacency": "none", "dp.released": "", "dpsweep.trials.finished": "x",
}  # fmt: skip


@pytest.mark.sampled(36)
@pytest.mark.parametrize("of", [None, 1])
@pytest.mark.parametrize("tag", [*EDITS, "dpsweep.trial", "dp.epsilon", "plan.epsilon"])
def test_no_edited_tag_is_a_traceback(uri, tag, of):
    reader = MLflowReader(uri)
    (study,) = reader.studies()
    run = study if of is None else reader.trials(study)[of]
    MlflowClient(uri).set_tag(run.run_id, tag, EDITS.get(tag, "x"))
    try:
        stored_overview(uri)
        result = opened(uri)
        trial_rows(result)
        result.claims.brief()
    except SweepError:
        pass
