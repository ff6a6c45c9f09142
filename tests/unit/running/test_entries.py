from dpsweep.running.entries import declared_records, searched_columns
from dpsweep.spec.facts import without_password
from dpsweep.spec.study import SweepSpec


def spec(uri):
    return SweepSpec(
        name="x",
        data={"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
        privacy={"trial_epsilon": 2.0, "accounting": "unaccounted"},
        search={"space": {"method": "dp_sgd"}},
        tracking={"uri": uri},
    )


def test_a_password_never_reaches_the_tracking_store():
    shown = without_password(spec("postgresql://me:s3cret@host/db")).to_yaml()
    assert "s3cret" not in shown
    assert "postgresql://me:***@host/db" in shown


def test_other_uris_stay_as_they_are():
    for uri in ("sqlite:///mlflow.db", "http://host:5000", None):
        assert without_password(spec(uri)).tracking.uri == uri


def study(**changes):
    values = {
        "name": "x",
        "data": {"dataset": "digits", "validation": {"fraction": 0.2, "visibility": "public"}},
        "privacy": {"trial_epsilon": 2.0, "accounting": "unaccounted"},
        "search": {"space": {"method": "dp_sgd"}},
    }
    return SweepSpec(**{**values, **changes})


def test_columns_are_what_may_differ_between_trials():
    space = {
        "method": "dp_sgd",
        "optim.lr": {"loguniform": [0.1, 4]},
        "train.epochs": 3,
        "noise.shape": {"choice": ["constant", "cosine"]},
        "noise.end_ratio": {"choice": [0.5], "when": {"noise.shape": "cosine"}},
    }
    searched, constants = searched_columns(study(search={"space": space}))
    assert set(searched) == {"optim.lr", "noise.shape", "noise.end_ratio"}
    assert constants["method"] == "dp_sgd"
    assert constants["train.epochs"] == 3.0
    assert isinstance(constants["train.epochs"], float)  # as a trial has it
    assert constants["optim.momentum"] == 0.9  # a default
    assert not set(searched) & set(constants)


def test_a_default_that_methods_do_not_share_is_no_constant():
    both = study(search={"space": {"method": {"choice": ["dp_sgd", "scatternet"]}}})
    searched, constants = searched_columns(both)
    assert searched == ["method"]
    assert "method" not in constants
    assert "clip.max_grad_norm" not in constants
    alone = searched_columns(study())[1]
    assert alone["clip.max_grad_norm"] == 1.0


def test_declared_records_have_a_size_and_no_path():
    parts = declared_records(study())
    assert parts == [
        {"name": "digits training", "context": "private", "records": 1438},
        {"name": "digits validation", "context": "validation, public", "records": 359},
    ]


def test_a_part_that_is_counted_and_private_has_no_size(monkeypatch):
    from dataclasses import replace

    from dpsweep.running import entries

    describe = entries.describe_dataset

    def with_own_parts(data):
        return replace(describe(data), has_own_validation=True, num_test=77)

    monkeypatch.setattr(entries, "describe_dataset", with_own_parts)
    validation = {"fraction": 0.2, "visibility": "exact"}
    parts = declared_records(study(data={"dataset": "digits", "validation": validation}))
    assert parts[1:] == [
        {"name": "digits validation", "context": "validation, exact"},
        {"name": "digits test", "context": "test, private"},
    ]
