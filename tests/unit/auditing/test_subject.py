"""What may be audited, and with which records."""

import dataclasses

import numpy as np
import pytest

from dpsweep.auditing.canaries import make_canaries, without_limit
from dpsweep.auditing.subject import BUILT_IN, Subject, built_in, rate_of, unsampled
from dpsweep.foundation.errors import BadInputError
from dpsweep.privacy.events import EventRun, Gaussian, Laplace, Plan, PoissonGaussian
from dpsweep.study.trial import TrialTask
from dpsweep.trainables.data.source import TextInfo

PLAN = Plan((EventRun(PoissonGaussian(1.0, 0.1), 3), EventRun(Gaussian(2.0))))
TASK = TrialTask(0, "dp_sgd", {}, PLAN, planned_epsilon=2.0, is_private=True)
TERMS = {"name": "digits", "delta": 1e-5, "accountant": "rdp"}
RNG = np.random.default_rng(0)


def subject(**changes):
    return dataclasses.replace(Subject.of_task(TASK, BUILT_IN, **TERMS), **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"is_private": False}, "makes no privacy claim"),
        ({"records": "public"}, "reads no private record of its own"),
        ({"plan": PLAN.labelled("public")}, "reads no private record of its own"),
    ],
)
def test_a_trial_that_has_nothing_to_audit_is_refused(changes, said):
    with pytest.raises(BadInputError, match=said):
        Subject.of_task(dataclasses.replace(TASK, **changes), BUILT_IN, **TERMS)


def test_a_trial_that_releases_nothing_that_is_followed_is_refused_with_all_of_it():
    asked = (EventRun(Gaussian(2.0), phase="pca"), EventRun(Laplace(1.0), phase="votes"))
    task = dataclasses.replace(TASK, method="active_learning", plan=Plan(asked))
    with pytest.raises(BadInputError) as caught:
        Subject.of_task(task, BUILT_IN, **TERMS)
    (line,) = caught.value.message.splitlines()
    assert line == (
        "an audit cannot follow trial 0 (active_learning): pca (gaussian), votes (laplace)"
    )
    assert caught.value.exit_code == 2


def test_what_a_trial_spends_besides_is_named():
    scores = Plan((EventRun(Gaussian(5.0), part="validation"),))
    task = dataclasses.replace(TASK, validation_plan=scores, inherited=PLAN)
    assert Subject.of_task(task, BUILT_IN, **TERMS).beside == (
        "noisy validation scores",
        "the run whose model it starts from",
    )
    assert subject().beside == ()


def test_a_claim_grows_with_positions_and_without_secret_batches():
    claims = [subject().claim(subject().first(count)) for count in (1, 3, None, 99)]
    assert 0 < claims[0] < claims[1] < claims[2] == claims[3]
    assert subject().claim(unsampled(PLAN)) > 2 * claims[2]
    assert unsampled(PLAN).merged().runs[0] == EventRun(Gaussian(1.0), 3)


def test_events_that_are_followed_have_a_rate():
    runs = [*PLAN.runs, EventRun(Laplace(1.0)), EventRun(Gaussian(1.0), part="public")]
    assert [rate_of(run) for run in runs] == [0.1, 1.0, None, None]


def test_half_of_the_canaries_are_in_and_nothing_else():
    canaries = make_canaries(subject(), 4000, RNG)
    assert abs(canaries.is_in.mean() - 0.5) < 0.05
    for index in (0, 1):
        everything = canaries.candidates.parts["private"][index]
        assert (canaries.included.parts["private"][index] == everything[canaries.is_in]).all()
    inputs, labels = canaries.candidates.parts["private"]
    assert inputs.shape == (4000, 1, 16, 16)
    assert inputs.dtype == np.float32
    assert set(labels) == set(range(10))
    assert canaries.included.info.num_private == BUILT_IN.num_private
    assert canaries.included.records == "private"


def test_a_trial_on_some_records_declares_these():
    some = subject(hparams={"train.num_private": 200, "public.shots": 30})
    canaries = make_canaries(some, 20, RNG)
    assert canaries.included.info.num_private == 200
    assert without_limit(some)["train.num_private"] is None
    assert np.bincount(canaries.included.parts["public"][1]).min() >= 30


@pytest.mark.parametrize(
    ("changes", "inputs", "labels"),
    [
        ({"task": "multi_label"}, ((1, 16, 16), np.float32), ((10,), np.float32)),
        (
            {"text": TextInfo(50, 0), "input_shape": (7,)},
            ((7,), np.int64),
            ((), np.int64),
        ),
        (
            {"text": TextInfo(50, 0), "input_shape": (7,), "task": "causal_lm", "num_classes": 50},
            ((7,), np.int64),
            ((7,), np.int64),
        ),
    ],
    ids=["attributes", "text", "language"],
)
def test_canaries_have_the_shape_of_the_records(changes, inputs, labels):
    info = dataclasses.replace(BUILT_IN, **changes)
    arrays = make_canaries(subject(info=info), 30, RNG).candidates.parts["private"]
    assert [(a.shape[1:], a.dtype) for a in arrays] == [inputs, labels]


def test_heads_have_canaries_beyond_their_clipping_norm():
    wide = subject(hparams={"model.name": "linear", "clip.max_grad_norm": 100.0})
    inputs = make_canaries(wide, 30, RNG).candidates.parts["private"][0]
    norms = np.linalg.norm(inputs.reshape(30, -1), axis=1)
    assert norms.min() > 2000


def test_a_method_takes_what_it_is_given():
    small = built_in("dp_sgd", 1.0, 3, {"model.name": "linear"})
    assert (len(small.plan), small.hparams["model.name"]) == (3, "linear")
    assert small.claim(small.plan) <= 1.0
