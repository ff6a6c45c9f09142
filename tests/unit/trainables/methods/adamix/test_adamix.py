"""AdaMix: its plan, its update against the paper's formula, what it reads, what it keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpsweep.foundation.errors import BadInputError, DataError, InfeasibleBudgetError
from dpsweep.privacy.accountants import epsilon_of
from dpsweep.privacy.budget import PrivacyBudget
from dpsweep.privacy.events import EventRun, Gaussian, Plan, PoissonGaussian
from dpsweep.spec.space.hyperparameters import resolve
from dpsweep.trainables.data.dataset import SweepData
from dpsweep.trainables.gradients.noise import SecretNoise
from dpsweep.trainables.method import PlanContext, RunContext
from dpsweep.trainables.methods.adamix import few_shot, noisy_gd
from dpsweep.trainables.methods.adamix.adamix import AdaMix
from dpsweep.trainables.methods.adamix.paragon import AdaMixParagon
from dpsweep.trainables.methods.adamix.parts import VARIANTS

DELTA, CLASSES, FEATURES = 1e-5, 3, 40
#: Every private method with a plan of its own.
TRAINED = [name for name in VARIANTS if name != "only_public"]
RATE = 3e-3
PLAIN = {"optim.step_over_clip": False, "regularize.weight": 0.0, "clip.max_grad_norm": 1e6}


@pytest.fixture
def data(make_blobs) -> SweepData:
    blobs = make_blobs(num_private=300, shape=(FEATURES,), classes=CLASSES)
    public = make_blobs(num_private=60, shape=(FEATURES,), classes=CLASSES)
    parts = {**blobs.parts, "public": public.parts["private"]}
    return replace(blobs, parts=parts, info=replace(blobs.info, num_public=60))


def hyperparameters(given: Mapping[str, Any], method: type = AdaMix) -> dict[str, Any]:
    return resolve(method.hyperparameters, {"features.name": "none", **given})


def planned(epsilon: float = 3.0, accountant: str = "pld", **given: Any) -> Plan:
    hparams = hyperparameters({key.replace("__", "."): value for key, value in given.items()})
    budget = PrivacyBudget(epsilon, DELTA)
    return AdaMix.plan(hparams, PlanContext(budget, accountant, 300))  # type: ignore[arg-type]


def prepared(
    data: SweepData, plan: Plan | None = None, *, trial: int = 0, **given: Any
) -> tuple[AdaMix, Plan]:
    """An instance with a plan of its own, or the one given."""
    hparams = hyperparameters({key.replace("__", "."): value for key, value in given.items()})
    context = PlanContext(PrivacyBudget(3.0, DELTA), "pld", 300)
    hparams = AdaMix.complete(hparams, context)
    if plan is None:
        plan = AdaMix.plan(hparams, context)
    instance = AdaMix()
    instance.prepare(data, hparams, plan, RunContext(0, trial))
    return instance, plan


def steps(count: int, noise_multiplier: float = 20.0) -> Plan:
    return Plan((EventRun(Gaussian(noise_multiplier), count),))


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecretNoise, "like", lambda self, t, scale: torch.zeros_like(t))


def test_a_trial_s_own_seed_draws_no_shots_of_its_own(data: SweepData) -> None:
    """Trials of a selection are independent; which records public.draw 0 means is the study's."""
    hparams = hyperparameters({"train.max_steps": 1, "public.shots": 2})
    plan = AdaMix.plan(hparams, PlanContext(PrivacyBudget(3.0, DELTA), "pld", 300))

    def shots(context: RunContext) -> Any:
        instance = AdaMix()
        instance.prepare(data, hparams, plan, context)
        return instance._public._x

    assert torch.equal(shots(RunContext(0, 0, own_seed=5)), shots(RunContext(0, 3)))
    assert not torch.equal(shots(RunContext(0, 0)), shots(RunContext(1, 0)))
    assert (RunContext(0, 0).seed, RunContext(0, 0, own_seed=5).seed) == (0, 5)


# --- The plan ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", TRAINED)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("target", [1.0, 3.0, None])
def test_steps_or_noise_are_solved_for_the_target(variant, accountant, target) -> None:
    """Given one of them, the other spends all but at most 3 per cent of the target."""
    common = {"adamix__variant": variant, "noise__target_epsilon": target}
    for given in (
        {"noise__noise_multiplier": 20.0},
        {"noise__noise_multiplier": None, "train__max_steps": 77},
    ):
        plan = planned(4.0, accountant, **common, **given)
        spent = epsilon_of(plan, delta=DELTA, accountant=accountant)
        assert 0.97 * (target or 4.0) < spent <= (target or 4.0)
        assert all(isinstance(run.event, Gaussian) for run in plan.runs)
    assert len(plan) == 77


def test_with_both_the_shorter_plan_is_run() -> None:
    allowed = len(planned(3.0))
    assert len(planned(3.0, train__max_steps=7)) == 7
    assert len(planned(3.0, train__max_steps=10**6)) == allowed == 206


def test_plans_that_cannot_be_are_refused() -> None:
    with pytest.raises(InfeasibleBudgetError, match="neither"):
        planned(noise__noise_multiplier=None)
    with pytest.raises(InfeasibleBudgetError, match="does not allow one step") as caught:
        planned(0.1, noise__noise_multiplier=5.0)
    least = float(str(caught.value.fix).split(">= ")[1].split(",")[0])
    assert len(planned(0.1, noise__noise_multiplier=least * 1.001)) == 1
    with pytest.raises(InfeasibleBudgetError, match=r"noise.target_epsilon=5"):
        planned(3.0, noise__target_epsilon=5.0)
    with pytest.raises(BadInputError, match=r"adamix.projection is true"):
        planned(adamix__variant="fully_private", adamix__projection=True)


def test_only_public_costs_nothing_and_reads_nothing_private(data) -> None:
    plan = planned(adamix__variant="only_public")
    assert plan == Plan(())
    poisoned = {**data.parts, "private": (np.full_like(data.parts["private"][0], np.nan),) * 2}
    poisoned["private"] = (poisoned["private"][0], data.parts["private"][1])
    instance, _ = prepared(replace(data, parts=poisoned), plan, adamix__variant="only_public")
    same, _ = prepared(data, plan, adamix__variant="only_public")
    instance.run(0, 0)
    assert instance.evaluate("test") == same.evaluate("test")
    assert instance.evaluate("test")["accuracy"] > 0.8


def test_a_plan_of_another_method_is_refused(data) -> None:
    with pytest.raises(ValueError, match="cannot execute"):
        prepared(data, Plan((EventRun(PoissonGaussian(1.0, 0.1), 3),)))


# --- The update -------------------------------------------------------------------------------


def unit(inputs: np.ndarray) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(inputs.copy()), dim=1)


def loss_sum(weight: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x.double() @ weight.T, y, reduction="sum")


@pytest.mark.parametrize("variant", ["ngd", "public_pull", "fully_private"])
@pytest.mark.parametrize("penalty", [0.0, 9.0])
def test_without_noise_and_clip_it_is_gradient_descent(data, no_noise, variant, penalty) -> None:
    """On the summed loss of the records that a variant trains on, by plain autograd."""
    instance, _ = prepared(
        data,
        steps(40),
        adamix__variant=variant,
        public__epochs=5,
        optim__lr=RATE,
        **{k.replace(".", "__"): v for k, v in {**PLAIN, "regularize.weight": penalty}.items()},
    )
    start = instance._weight.double()
    assert bool(start.any()) is (variant != "fully_private")
    x, y = unit(data.parts["private"][0]), torch.from_numpy(data.parts["private"][1].copy())
    if variant != "public_pull":
        chosen = shots_of(data)
        x = torch.cat([x, unit(data.parts["public"][0][chosen])])
        y = torch.cat([y, torch.from_numpy(data.parts["public"][1][chosen])])
    weight = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=RATE)
    for _ in range(40):
        optimizer.zero_grad()
        pull = penalty / 2 * (weight - start).square().sum()
        (loss_sum(weight, x, y) + pull).backward()
        optimizer.step()
    instance.run(0, 40)
    moved = (weight.detach() - start).norm()
    assert moved > 0.5
    assert float((instance._weight.double() - weight.detach()).norm() / moved) < 1e-6


def shots_of(data: SweepData) -> np.ndarray:
    from dpsweep.trainables.methods.adamix.few_shot import draw_shots

    names = data.info.class_names
    return draw_shots(data.parts["public"][1], names, shots=5, draw=0, study_seed=0)


@pytest.mark.parametrize("over_clip", [True, False])
def test_a_step_is_algorithm_2(data, monkeypatch, over_clip) -> None:
    """Percentile clip, projection and public gradient, by the slow and obvious computation."""
    drawn = []
    monkeypatch.setattr(AdaMix, "noise_observer", staticmethod(lambda z: drawn.append(z.clone())))
    instance, _ = prepared(
        data,
        steps(3, 2.0),
        projection__fraction=0.5,
        clip__percentile=75.0,
        optim__lr=3e-3,
        optim__step_over_clip=over_clip,
        public__epochs=20,
        train__num_private=200,
    )
    instance.run(0, 2)
    before = instance._weight.double()
    reference = instance._reference.double()
    instance.run(2, 3)

    def gradients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [
                torch.autograd.functional.jacobian(
                    lambda w, i=i: loss_sum(w, x[i : i + 1], y[i : i + 1]), before
                )
                for i in range(len(y))
            ]
        )

    from dpsweep.trainables.data.dataset import first_rows

    rows, shots = first_rows(300, 200, 300), shots_of(data)
    (xs, ys), (xp, yp) = data.parts["private"], data.parts["public"]
    private = gradients(unit(xs[rows]), torch.from_numpy(ys[rows]))
    public = gradients(unit(xp[shots]), torch.from_numpy(yp[shots]))
    tau = float(torch.quantile(public.flatten(1).norm(dim=1), 0.75))
    norms = private.flatten(1).norm(dim=1)
    assert 0 < int((norms > tau).sum()) < 200
    clipped = (private * (tau / norms).clamp(max=1)[:, None, None]).sum(dim=0)
    total = public.sum(dim=0)
    assert 1.4 * tau < float(drawn[2].double().std()) < 2.6 * tau
    projected = instance._subspace.project((clipped + drawn[2]).float(), total.float()).double()
    step = projected + total + 0.01 * (before - reference)
    expected = before - 3e-3 * (1 / tau if over_clip else 1.0) * step
    assert float((instance._weight.double() - expected).norm() / step.norm()) < 1e-4


def test_the_fixed_clip_binds(data, no_noise) -> None:
    """A removed record moves the sum by the clipping norm, and never by more."""
    inputs, labels = data.parts["private"]
    weights = []
    for kept in (slice(None), slice(1, None)):
        parts = {**data.parts, "private": (inputs[kept], labels[kept])}
        instance, _ = prepared(
            replace(data, parts=parts), steps(1), adamix__variant="fully_private",
            clip__max_grad_norm=0.01, optim__lr=1.0, optim__step_over_clip=False,
        )  # fmt: skip
        instance.run(0, 1)
        weights.append(instance._weight.double())
    assert float((weights[0] - weights[1]).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", TRAINED)
def test_a_record_of_nothing_but_nan_adds_zero(data, variant) -> None:
    inputs = data.parts["private"][0].copy()
    inputs[::7] = np.nan
    parts = {**data.parts, "private": (inputs, data.parts["private"][1])}
    instance, plan = prepared(replace(data, parts=parts), adamix__variant=variant)
    instance.run(0, len(plan))
    assert math.isfinite(instance.evaluate("test")["loss"])


def test_a_large_pull_does_not_swing(data) -> None:
    """The way back to the reference is at most the whole way."""
    instance, _ = prepared(data, steps(30), regularize__weight=100.0, optim__lr=10.0)
    instance.run(0, 30)
    assert math.isfinite(instance.evaluate("test")["loss"])


def test_no_number_of_records_enters_a_step(data, no_noise) -> None:
    """Twice the records are twice the sum: nothing is divided by a count, which is private."""
    given = {"adamix__variant": "public_pull", "adamix__public_init": False}
    given |= {k.replace(".", "__"): v for k, v in PLAIN.items()}
    moves = []
    for extra in (0, 300):
        inputs, labels = data.parts["private"]
        doubled = (
            np.concatenate([inputs, inputs[:extra]]),
            np.concatenate([labels, labels[:extra]]),
        )
        instance, _ = prepared(
            replace(data, parts={**data.parts, "private": doubled}), steps(1), **given
        )
        instance.run(0, 1)
        moves.append(instance._weight)
    torch.testing.assert_close(moves[1], 2 * moves[0], rtol=1e-4, atol=1e-6)


def test_the_last_iterates_are_averaged(data) -> None:
    instance, _ = prepared(data, steps(10), optim__average=0.3)
    seen = []
    for position in range(10):
        instance.run(position, position + 1)
        seen.append(instance._weight)
        released = instance._head()[1].weight
        expected = seen[-1] if position < 7 else torch.stack(seen[7:]).mean(dim=0)
        torch.testing.assert_close(released, expected, rtol=1e-5, atol=1e-6)
    other, _ = prepared(data, steps(10), optim__average=0.3)
    other.load_state_dict(instance.state_dict())
    assert other.evaluate("test") == instance.evaluate("test")


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_theorem_3_s_average_weighs_by_the_number_of_the_step(data, share) -> None:
    """sum_t 2 t w_t / (T (T + 1)) over all steps, and so over the last of them."""
    given = {"optim__average": share, "optim__average_weights": "linear"}
    instance, _ = prepared(data, steps(10), **given)
    seen = []
    for position in range(10):
        instance.run(position, position + 1)
        seen.append(instance._weight.double())
        if position == 8:  # a trial that goes on from here ends at the same average
            middle = instance.state_dict()
    first = 10 - round(share * 10)
    numbers = torch.arange(first + 1, 11, dtype=torch.float64)
    expected = (numbers[:, None, None] * torch.stack(seen[first:])).sum(dim=0) / numbers.sum()
    torch.testing.assert_close(instance._released.double(), expected, rtol=1e-5, atol=1e-6)
    if share == 1.0:
        assert float(numbers.sum()) == 10 * 11 / 2
    uniform = torch.stack(seen[first:]).mean(dim=0)
    assert not torch.allclose(expected, uniform, rtol=1e-4)
    again, _ = prepared(data, steps(10), **given)
    again.load_state_dict(middle)
    again.run(9, 10)
    assert again._num_averaged == instance._num_averaged


# --- Variants and public records --------------------------------------------------------------


def test_each_switch_changes_the_run_and_nothing_else_does(data, no_noise) -> None:
    """One draw is one solution; a variant is its switches."""

    def weights(**given: Any) -> torch.Tensor:
        instance, _ = prepared(data, steps(4), projection__fraction=0.5, **given)
        instance.run(0, 4)
        return instance._weight

    whole = weights()
    for name in ("public_init", "adaptive_clip", "projection", "public_gradient"):
        assert not torch.equal(weights(**{f"adamix__{name}": False}), whole), name
        assert torch.equal(weights(**{f"adamix__{name}": True}), whole)
    switched = {f"adamix__{name}": False for name in ("adaptive_clip", "projection")}
    assert torch.equal(weights(**switched), weights(adamix__variant="ngd"))
    switched["adamix__public_gradient"] = False
    assert torch.equal(weights(**switched), weights(adamix__variant="public_pull"))
    assert not torch.equal(weights(public__draw=1), whole)
    assert torch.equal(weights(train__repeat=3), whole)


def test_public_solutions_are_shared_by_variants_and_trials(data) -> None:
    found = [
        prepared(data, steps(1), trial=trial, adamix__variant=variant)[0]._reference
        for trial, variant in ((0, "adamix"), (5, "ngd"), (6, "only_public"))
    ]
    assert bool(found[0].any())
    assert all(torch.equal(found[0], other) for other in found)


def test_without_a_rate_the_best_one_of_public_records_is_taken(data) -> None:
    instance, plan = prepared(data, public__lr=None, public__shots=4)
    rate = instance.public_scores()["few_shot_lr"]
    assert rate in few_shot.RATES
    same, _ = prepared(data, plan, public__lr=rate, public__shots=4)
    assert torch.equal(instance._reference, same._reference)
    assert same.public_scores() == {}  # nothing was chosen
    with pytest.raises(BadInputError, match="none can be left out"):
        planned(public__lr=None, public__shots=1)
    (mistake,) = AdaMix.preflight(
        {"features.name": ["none"], "public.lr": [None], "public.shots": [1]}, data.info
    )
    assert mistake.key == "public.lr"


def test_too_few_public_records_are_an_error(data) -> None:
    with pytest.raises(DataError, match=r"class .* public records, fewer than public.shots=50"):
        prepared(data, steps(1), public__shots=50)


def test_a_public_search_takes_its_shots_from_the_stand_ins(data) -> None:
    """The shots are not trained on twice, and no private record is needed."""
    search = data.for_public_search(with_test=True)
    instance, plan = prepared(search, public__shots=5)
    assert len(instance._public) == 15
    assert len(instance._private) == instance._num_private == 45
    instance.run(0, len(plan))
    assert instance.evaluate("validation")["accuracy"] > 0.8


def test_preflight_names_what_cannot_work(data) -> None:
    def names(**given: Any) -> set[str]:
        values = {"features.name": ["none"]}
        values |= {key.replace("__", "."): value for key, value in given.items()}
        return {name for name, _, _ in AdaMix.preflight(values, data.info)}

    assert names() == set()
    assert names(public__shots=[5, 21]) == {"public.shots"}
    assert names(noise__noise_multiplier=[None]) == {"train.max_steps"}
    assert names(noise__noise_multiplier=[None, 20.0]) == set()
    assert names(init__kind=["text"]) == {"init.kind"}
    assert names(adamix__private_report=[True]) == set()
    assert names(adamix__variant=["fully_private"], adamix__projection=[True, False]) == {
        "adamix.projection"
    }
    only = {"adamix__variant": ["only_public"], "adamix__public_init": [True]}
    assert names(**only, adamix__adaptive_clip=[True]) == {"adamix.adaptive_clip"}
    assert names(**only) == set()
    assert names(features__name=["scatternet"]) == {"features.name"}  # these are no images


def test_text_weights_start_the_run(data, monkeypatch) -> None:
    """Where features are those of an image-text pair; a wrong pair is refused."""
    from dpsweep.trainables.features import choice as feature_choice
    from dpsweep.trainables.methods.adamix import linear_probe, text_init

    given = {}

    def text_weights(class_names, *, model, prompt, scale):
        given.update(class_names=tuple(class_names), model=model, prompt=prompt, scale=scale)
        return torch.full((CLASSES, given.get("width", FEATURES)), 2.0)

    monkeypatch.setattr(text_init, "text_weights", text_weights)
    raw = feature_choice.feature_spec(hyperparameters({}), data.info, norm="l2")
    monkeypatch.setattr(linear_probe, "feature_spec", lambda *_, **__: raw)
    wanted = {"init__kind": "text", "features__name": "clip/some/pair", "init__scale": 50.0}
    instance, _ = prepared(data, steps(1), **wanted)
    assert bool((instance._weight == 2.0).all())
    assert given["model"] == "some/pair"
    assert (given["prompt"], given["scale"]) == ("a photo of a {}", 50.0)
    assert given["class_names"] == data.info.class_names
    given["width"] = FEATURES + 1
    with pytest.raises(BadInputError, match="text weights have shape"):
        prepared(data, steps(1), **wanted)
    with pytest.raises(BadInputError, match="image-text pair"):
        prepared(data, steps(1), init__kind="text")


# --- What is released and what is kept ----------------------------------------------------------


@pytest.mark.parametrize("method", [AdaMix, AdaMixParagon])
def test_the_export_is_the_model_on_raw_records(data, method) -> None:
    given = {"train.max_steps": 20} | ({"optim.average": 0.5} if method is AdaMix else {})
    hparams = hyperparameters(given, method)
    plan = method.plan(hparams, PlanContext(PrivacyBudget(3.0, DELTA), "pld", 300))
    instance = method()
    instance.prepare(data, hparams, plan, RunContext(0, 0))
    instance.run(0, len(plan))
    model = instance.export()
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    x, y = (torch.from_numpy(array.copy()) for array in data.parts["test"])
    accuracy = float((model(x).argmax(dim=1) == y).double().mean())
    assert accuracy == pytest.approx(instance.evaluate("test")["accuracy"])
    modules = {type(module).__module__.split(".")[0] for module in model.modules()}
    assert modules == {"torch"}


def test_a_restored_run_is_the_same_run(data, no_noise) -> None:
    whole, plan = prepared(data, steps(12), optim__average=0.5)
    whole.run(0, 12)
    first, _ = prepared(data, steps(12), optim__average=0.5)
    first.run(0, 8)
    second, _ = prepared(data, steps(12), optim__average=0.5)
    second.load_state_dict(first.state_dict())
    second.run(8, 12)
    assert torch.equal(second._weight, whole._weight)
    assert torch.equal(second._released, whole._released)
    paragon = hyperparameters({"train.max_steps": 6}, AdaMixParagon)
    runs = [AdaMixParagon() for _ in range(3)]
    plan = AdaMixParagon.plan(paragon, PlanContext(PrivacyBudget(3.0, DELTA), "pld", 300))
    for run in runs:
        run.prepare(data, paragon, plan, RunContext(0, 0))
    runs[0].run(0, 6)
    runs[1].run(0, 3)
    runs[2].load_state_dict(runs[1].state_dict())
    runs[2].run(3, 6)
    assert torch.equal(runs[0]._weight, runs[2]._weight)


def test_half_precision_features_give_the_same_model(data, no_noise) -> None:
    models = []
    for dtype in ("float32", "float16"):
        instance, _ = prepared(data, steps(20), features__dtype=dtype)
        instance.run(0, 20)
        models.append(instance._weight)
    assert instance._part("private").parts["private"][0].dtype == np.float16
    torch.testing.assert_close(models[1], models[0], rtol=0.05, atol=0.02)


def test_the_private_report_sums_what_each_record_spends(data, monkeypatch) -> None:
    """mu_i^2 is the sum of squared shares of the noise; nothing of it is in the state."""
    from dpsweep.trainables.methods.adamix import adamix

    seen = {}

    def report(mu, delta, members, others, **more):
        seen.update(mu=mu, delta=delta, members=members, others=others, **more)
        return {"private": "do not publish"}

    monkeypatch.setattr(adamix, "report", report)
    quiet, _ = prepared(data, steps(1))
    assert quiet.private_report() is None
    clips = []
    percentile = noisy_gd.percentile_clip
    monkeypatch.setattr(
        noisy_gd, "percentile_clip", lambda *given: clips.append(percentile(*given)) or clips[-1]
    )
    instance, _ = prepared(
        data, steps(6, 4.0), adamix__private_report=True, adamix__report_delta=1e-6
    )
    expected = torch.zeros(300, dtype=torch.float64)
    for position in range(6):
        _, norms = instance._private.gradient_sum(instance._weight)
        instance.run(position, position + 1)
        expected += ((norms.double() / clips[-1]).clamp(max=1) / 4.0) ** 2
    instance.private_report()
    np.testing.assert_allclose(seen["mu"], expected.sqrt(), rtol=1e-5)
    assert float(seen["mu"].max()) <= math.sqrt(6) / 4.0 * (1 + 1e-6)
    assert seen["delta"] == 1e-6
    assert (len(seen["members"]), len(seen["others"]), seen["steps_covered"]) == (300, 40, 6)
    state = instance.state_dict()
    assert set(state) == {"weight", "mean", "num_averaged", "position"}
    other, _ = prepared(data, steps(6, 4.0), adamix__private_report=True)
    other.load_state_dict(state)
    other.private_report()
    assert seen["steps_covered"] == 0


@pytest.mark.parametrize("has_test", [True, False])
def test_the_report_is_json(data, has_test) -> None:
    import json

    if not has_test:
        empty = tuple(array[:0] for array in data.parts["test"])
        data = replace(data, parts={**data.parts, "test": empty})
    instance, plan = prepared(data, adamix__private_report=True)
    instance.run(0, len(plan))
    figures = instance.private_report()
    assert figures is not None
    assert next(iter(figures)) == "private"
    assert figures["others"] == ("test" if has_test else "validation")
    json.dumps(figures)


def test_a_diverged_run_still_ends(data) -> None:
    """Scores that are no numbers are left out by the platform; nothing is raised."""
    instance, plan = prepared(
        data, optim__lr=1e38, adamix__private_report=True, regularize__weight=0.0
    )
    instance.run(0, len(plan))
    assert 0 <= instance.evaluate("test")["accuracy"] <= 1
    assert instance.private_report() is not None


@pytest.mark.slow
def test_the_platform_runs_every_variant(lab, data) -> None:
    """Also the one without a single event, which is a trial of one report."""
    lab.data = data
    for number, variant in enumerate(VARIANTS):
        hparams = {"features.name": "none", "adamix.variant": variant, "public.shots": 2}
        task = lab.task(lab.settings(show_test=True), hparams, number, method="adamix")
        reports = lab.run(lab.settings(show_test=True), task)
        assert reports[-1].done
        assert reports[-1].delivered["test/accuracy"] > 0.6
        spent = reports[-1].epsilon
        assert spent == 0 if variant == "only_public" else 1.94 < spent <= 2.0
    assert len(reports) == 1


@pytest.mark.usefixtures("no_noise")
def test_public_records_that_are_trained_on_as_private_are_clipped(data: SweepData) -> None:
    """They are protected there: each moves the weights by at most the clip, as any other."""
    clip = 1e-4
    given = {**PLAIN, "adamix.variant": "fully_private", "clip.max_grad_norm": clip}
    hparams = hyperparameters({**given, "optim.lr": 1.0, "public.shots": 5})
    instance = AdaMix()
    instance.prepare(data, hparams, steps(1), RunContext(0, 0))
    instance.run(0, 1)
    moved = float(instance.state_dict()["weight"].norm())
    assert 0 < moved <= clip * (300 + 5 * CLASSES)
