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
