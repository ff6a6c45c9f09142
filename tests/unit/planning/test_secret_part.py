"""A search on a secret part of the records is planned on it; its final run keeps what it leaves."""

import json

import pytest
from raw_specs import changed, mistakes
from secret_parts import secret_spec
from whole_studies import cli_here

from dpsweep.foundation.errors import BadInputError
from dpsweep.planning.costs.secret_part import SecretPart
from dpsweep.planning.costs.selection import choose_selection
from dpsweep.planning.preflight import preflight
from dpsweep.planning.sample import draw_sample
from dpsweep.planning.simulation.simulate import simulate
from dpsweep.planning.summary import summarize_plan
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.events import EventRun, Plan, PoissonSubset, RepeatAndSelect
from dpsweep.spec.study import SweepSpec

NOISY = {"data/validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.06}}
PLD = {"privacy/accountant": "pld"}
PLANS = {"search/space/batch.expected": {"choice": [8, 16, 32]}, "search/space/train.epochs": {"choice": [2, 6]}}  # fmt: skip


@pytest.fixture
def raw(tmp_path):
    return secret_spec(tmp_path)


def checked_of(raw, changes):
    return preflight(SweepSpec(**changed(raw, changes)))


def whole(selection, rate, trial, final, part="private"):
    search = RepeatAndSelect(selection.mean, selection.shape, trial)
    if part == "private":
        search = PoissonSubset(rate, Plan((EventRun(search, 1),)))
    return Plan((EventRun(search, 1), *final.runs))


def test_sizes_and_rates_are_declared_ones(raw):
    checked = checked_of(raw, {})
    rest = checked.rest
    assert (checked.info.num_private, rest.info.num_private) == (216, 1079)
    task = checked.sample[0]
    (rate,) = {run.event.sample_rate for run in task.plan.runs}
    final = checked.with_final(2.0).final_of(0, task)
    (final_rate,) = {run.event.sample_rate for run in final.plan.runs}
    assert rate == 16 / 216
    assert final_rate == 80 / 1079 == pytest.approx(rate, rel=0.01)
    assert final.records == "private"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="rdp"),
        pytest.param(PLANS, id="plans"),
        pytest.param(NOISY, id="noisy"),
        pytest.param(PLD, id="pld", marks=pytest.mark.slow),
    ],
)
def test_the_final_run_gets_what_the_search_leaves_and_no_more(raw, changes):
    checked = checked_of(raw, changes)
    charge = choose_selection(checked)
    by = checked.spec.privacy.accountant
    assert 0.99 * 3.0 < charge.epsilon <= 3.0
    final = checked.with_final(charge.bound.final_epsilon)
    admitted = [task for task in checked.sample if charge.admits(checked, task)]
    assert len(admitted) == len(checked.sample)
    for task in admitted[::8]:  # each pair, by hand, in each part of the records
        last = final.final_of(0, task).full_plan
        for part in ("private", "validation"):
            trial = task.full_plan.part(part).labelled("private")
            if not trial:
                continue
            events = whole(charge.selection, 0.2, trial, last.part(part).labelled("private"), part)
            assert epsilon_of(events, delta=1e-5, accountant=by) <= charge.epsilon * (1 + 1e-9)
    more = checked.with_final(charge.bound.final_epsilon * 1.02)
    over = SecretPart(more)._bound(SecretPart(more)._finals(charge.bound.final_epsilon * 1.02), 1.0)
    assert over.selected(charge.selection, delta=1e-5) > 3.0


@pytest.mark.slow
def test_profiles_leave_the_final_run_more(raw):
    renyi, profiles = (choose_selection(checked_of(raw, more)) for more in ({}, PLD))
    assert profiles.bound.final_epsilon > 1.03 * renyi.bound.final_epsilon


def test_it_is_the_same_at_each_launch(raw):
    first, again = (choose_selection(checked_of(raw, {})) for _ in range(2))
    assert first.bound.to_json() == again.bound.to_json()
    assert first.epsilon == again.epsilon


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ({"optim.noise_lr": 2.0}, {"optim.noise_lr": 2.0 * 80 / 16}),
        ({"optim.noise_scale": 2.0, "optim.input_norm": 1.0}, {"optim.noise_scale": 2.0}),
        ({"optim.lr": 0.5}, {}),
        ({"optim.lr": 0.5, "optim.name": "adam"}, {"optim.lr": 0.5}),
    ],
)
def test_rates_are_carried_over_by_their_laws(raw, rate, expected):
    """u / B stays: u grows with B, s has B in it, a plain rate pays for the noise as well."""
    space = {k: v for k, v in raw["search"]["space"].items() if not k.startswith("optim.")}
    checked = checked_of(raw, {"search/space": {**space, **rate}}).with_final(2.5)
    task = checked.sample[0]
    final = checked.final_of(0, task)
    before, after = (plan.runs[0].event.noise_multiplier for plan in (task.plan, final.plan))
    assert before > 1.5 * after
    expected = expected or {"optim.lr": 0.5 * (80 / 16) * before / after}
    for name, value in expected.items():
        assert final.hparams[name] == pytest.approx(value)
    assert final.hparams["batch.expected"] == 80
    assert final.hparams["clip.max_grad_norm"] == task.hparams["clip.max_grad_norm"]


def test_plan_prices_it_and_says_what_is_carried_over(raw, tmp_path):
    checked = checked_of(raw, {})
    charge = choose_selection(checked)
    summary = summarize_plan(checked, draw_sample(checked))
    assert summary.study_epsilon == charge.epsilon
    assert summary.modes["composed"] is summary.modes["public"] is summary.composed_epsilon is None
    part = summary.selection.secret_part
    assert (part.rate, part.records, part.final_epsilon) == (0.2, 1079, charge.bound.final_epsilon)
    assert part.search_epsilon < charge.epsilon
    assert summary.final.epsilon == charge.bound.final_epsilon
    assert summary.final.factors == {"optim.noise_lr": (5.0, 5.0)}
    path = tmp_path / "secret.yaml"
    path.write_text(SweepSpec(**raw).to_yaml())
    told = " ".join(cli_here("plan", path).stdout.split())
    assert "a secret part of the 1079 declared private records, each in it with probability" in told
    assert "the final run keeps" in told
    assert "optim.noise_lr times 5" in told
    record = json.loads(cli_here("plan", path, "--json").stdout)
    assert record["selection"]["secret_part"]["search_epsilon"] == part.search_epsilon
    assert record["final_run"]["records"] == 1079


def test_plan_says_what_leaves_no_final_run(raw):
    checked = checked_of(raw, {"privacy/study_epsilon": 0.3})
    summary = summarize_plan(checked, draw_sample(checked))
    assert summary.selection.fits is False
    assert summary.final is None
    assert (
        "which the search on the secret part alone costs" in summary.selection.secret_part.problem
    )


NO_ROOM = [
    ({"privacy/study_epsilon": 0.3}, "0.3 is below epsilon="),
    ({"data/validation": {"fraction": 0.2, "visibility": "noisy", "noise_std": 0.014}, "privacy/trial_epsilon": 2.9}, "privacy.study_epsilon"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), NO_ROOM)
def test_what_leaves_no_final_run_is_refused(raw, changes, line):
    said = mistakes(choose_selection, checked_of(raw, changes))
    assert any(line in each for each in said), said
    assert any("lower privacy.trial_epsilon, search.on.subset" in each for each in said), said


REFUSED = [
    ({"search/space": {"method": "adamix", "features.name": "none"}}, "adamix has no rule by which"),
    ({"search/space/batch.expected": 400}, "400 is larger than the 216 declared private records"),
    ({"data/max_private": 1, "search/space/batch.expected": 1}, "parts the private records, and there is one"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_what_cannot_be_searched_on_a_secret_part_is_refused(raw, changes, line):
    said = mistakes(preflight, SweepSpec(**changed(raw, changes)))
    assert any(line in each for each in said), said


def test_it_is_not_simulated(raw):
    with pytest.raises(BadInputError, match="cannot be simulated"):
        simulate(checked_of(raw, {}), None, policies=["fifo"])
