"""Students of a teacher that errs: they learn what it says, labels put it right, epochs resume."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpsweep.foundation.errors import BadInputError
from dpsweep.trainables.methods.active_learning.distillation import SoftTrainer, soft_labels

NUM, TEMPERATURE = 400, 2.0


def gaussians(num: int = NUM, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two Gaussians on the first of two features, 3 standard deviations from each other."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 2
    x = torch.randn(num, 2, generator=generator)
    x[:, 0] += 3.0 * labels - 1.5
    return x, labels


def network(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = (nn.Linear(2, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 2))
        return nn.Sequential(*layers)


def noisy_teacher() -> nn.Sequential:
    """A network that looks at the useless feature too, as after too much noise."""
    teacher = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        teacher[0].weight.copy_(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
        teacher[0].bias.zero_()
    return teacher


def trainer(model: nn.Module, x: torch.Tensor, **changes: Any) -> SoftTrainer:
    given = {"lr": 0.01, "batch": 50, "seed": 3, "device": "cpu", "temperature": TEMPERATURE}
    return SoftTrainer(model, x, **{**given, **changes})


def said(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(x).argmax(dim=1)


def share(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found == wanted).double().mean())


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def soft(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return soft_labels(model, x, temperature=TEMPERATURE, block=64, device="cpu")


def test_a_student_agrees_with_its_teacher_and_labels_put_it_right() -> None:
    x, labels = gaussians()
    fresh_x, fresh_labels = gaussians(2000, seed=1)
    teacher, student = noisy_teacher(), network()
    targets = soft(teacher, x)
    training = trainer(student, x)
    losses = [training.distill_epoch(targets, epoch) for epoch in range(30)]
    assert losses[-1] < 0.05 * losses[0]
    assert share(said(student, x), said(teacher, x)) >= 0.95
    assert share(said(student, fresh_x), said(teacher, fresh_x)) >= 0.95
    wrong = said(teacher, x) != labels
    assert int(wrong.sum()) > 30
    assert share(said(student, x)[wrong], labels[wrong]) < 0.3

    rows = torch.arange(0, NUM, 2) + torch.arange(NUM // 2) % 2
    for epoch in range(30):
        training.label_epoch(rows, labels[rows], targets, 0.05, epoch)
    right = share(said(student, fresh_x), fresh_labels)
    assert right > share(said(teacher, fresh_x), fresh_labels) + 0.03
    assert share(said(student, x)[wrong], labels[wrong]) > 0.6


def test_soft_labels_are_softened_probabilities_in_evaluation_mode() -> None:
    x, _ = gaussians(10)
    model = network(dropout=0.5).train()
    model[0].eval()
    before = [module.training for module in model.modules()]
    found = soft_labels(model, x, temperature=4.0, block=3, device="cpu")
    assert [module.training for module in model.modules()] == before
    assert (found.dtype, found.shape, found.requires_grad) == (torch.float32, (10, 2), False)
    with torch.no_grad():
        torch.testing.assert_close(found, torch.softmax(model.eval()(x) / 4.0, dim=1))
    broken = x.clone()
    broken[7] = float("nan")
    torch.testing.assert_close(soft(model, broken)[7], torch.tensor([0.5, 0.5]))
    assert torch.equal(soft(model, broken)[:7], soft(model, x)[:7])


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_loss_is_that_of_hinton_and_its_gradient_keeps_its_size(temperature: float) -> None:
    """T^2 KL: the mean over all records at once, from the definition in double precision."""
    x, _ = gaussians(30)
    model = network()
    targets = torch.softmax(torch.randn(30, 2, generator=torch.Generator().manual_seed(1)), dim=1)
    with torch.no_grad():
        q = torch.softmax(model(x).double() / temperature, dim=1)
        p = targets.double()
        expected = temperature**2 * float((p * (p / q).log()).sum(dim=1).mean())
    found = trainer(model, x, batch=8, lr=1e-12, temperature=temperature).distill_epoch(targets, 0)
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_loss_of_labels_adds_the_replay() -> None:
    x, labels = gaussians(40)
    model, rows = network(), torch.arange(0, 40, 2)
    targets = soft(noisy_teacher(), x)
    with torch.no_grad():
        logits = model(x)
        hard = float(nn.functional.cross_entropy(logits[rows], labels[rows]))
        q = torch.softmax(logits[1::2].double() / TEMPERATURE, dim=1)
        p = targets[1::2].double()
        replayed = TEMPERATURE**2 * float((p * (p / q).log()).sum(dim=1).mean())
    still = trainer(model, x, batch=5, lr=1e-12)
    assert still.label_epoch(rows, labels[rows], None, 0.7, 0) == pytest.approx(hard, rel=1e-4)
    # As many as there are labels: all records without one, each once.
    found = still.label_epoch(rows, labels[rows], targets, 0.7, 0)
    assert found == pytest.approx(hard + 0.7 * replayed, rel=1e-4)


def steps(training: SoftTrainer, x: torch.Tensor, epochs: range) -> None:
    """Epochs of either kind, one after the other."""
    targets, rows = soft(noisy_teacher(), x), torch.arange(0, len(x), 3)
    for epoch in epochs:
        training.distill_epoch(targets, epoch)
        training.label_epoch(rows, rows % 2, targets, 0.5, epoch)


def test_a_resumed_training_gives_the_same_bits() -> None:
    """Dropout included; the state is a copy, whatever is trained later."""
    x, _ = gaussians()
    whole = network(dropout=0.3)
    steps(trainer(whole, x), x, range(4))

    model = network(dropout=0.3)
    first = trainer(model, x)
    steps(first, x, range(2))
    saved = copy.deepcopy(model.state_dict()), first.state_dict()
    steps(first, x, range(2, 3))
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    weights_then, state = torch.load(file, weights_only=True)
    for _ in range(2):  # a state can be loaded twice
        model = network(seed=9, dropout=0.3)
        model.load_state_dict(weights_then)
        second = trainer(model, x, lr=7.0)
        second.load_state_dict(state)
        steps(second, x, range(2, 4))
        assert torch.equal(weights(model), weights(whole))


def test_an_order_is_a_function_of_seed_and_epoch_alone() -> None:
    x, labels = gaussians(60)
    targets, rows = soft(noisy_teacher(), x), torch.arange(20)

    def distill(training: SoftTrainer, epoch: int) -> float:
        return training.distill_epoch(targets, epoch)

    def label(training: SoftTrainer, epoch: int) -> float:
        return training.label_epoch(rows, labels[rows], targets, 0.5, epoch)

    def after(
        kind: Callable[[SoftTrainer, int], float], epoch: int, global_seed: int = 0, **more: Any
    ) -> torch.Tensor:
        model = network(dropout=0.3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            kind(trainer(model, x, batch=7, **more), epoch)
            drawn = torch.rand(3)
            torch.manual_seed(global_seed)
            assert torch.equal(drawn, torch.rand(3))  # the global generator stays as it was
        return weights(model)

    for kind in (distill, label):
        one = after(kind, 1)
        assert torch.equal(one, after(kind, 1, global_seed=5))
        assert not torch.equal(one, after(kind, 2))
        assert not torch.equal(one, after(kind, 1, seed=4))


def test_without_dropout_the_order_still_differs_by_epoch() -> None:
    x, labels = gaussians(60)
    targets, rows = soft(noisy_teacher(), x), torch.arange(20)
    for replay in (0.0, 0.5):
        found = []
        for epoch in (1, 2):
            model = network()
            trainer(model, x, batch=7).label_epoch(rows, labels[rows], targets, replay, epoch)
            found.append(weights(model))
        assert not torch.equal(*found)
    found = []
    for epoch in (1, 2):
        model = network()
        trainer(model, x, batch=7).distill_epoch(targets, epoch)
        found.append(weights(model))
    assert not torch.equal(*found)


def test_replay_of_weight_zero_equals_no_soft_labels() -> None:
    x, labels = gaussians(60)
    rows = torch.arange(25)
    targets = soft(noisy_teacher(), x)
    results = []
    for given, replay in ((None, 0.5), (targets, 0.0), (targets, 0.5)):
        model = network(dropout=0.3)
        trainer(model, x, batch=8).label_epoch(rows, labels[rows], given, replay, 0)
        results.append(weights(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


class Recorder(nn.Module):
    """Notes which records come in; the first feature is the number of the record."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.training
        self.seen.append(x[:, 0].int().tolist())
        return self.bias.expand(len(x), 2)


@pytest.mark.parametrize("num_labelled", [20, 7, 26, 30])
def test_a_pass_takes_every_record_once_and_replays_the_others(num_labelled: int) -> None:
    x = torch.arange(30.0)[:, None]
    targets = torch.full((30, 2), 0.5)
    recorder = Recorder().eval()
    training = trainer(recorder, x, batch=8)
    training.distill_epoch(targets, 0)
    assert [len(batch) for batch in recorder.seen] == [8, 8, 8, 6]
    assert sorted(row for batch in recorder.seen for row in batch) == list(range(30))

    recorder.seen.clear()
    rows = torch.arange(30).flip(0)[:num_labelled]
    training.label_epoch(rows, rows % 2, targets, 1.0, 0)
    own, others = [], []
    for batch in recorder.seen:
        size = len(batch) if num_labelled == 30 else len(batch) // 2
        own += batch[:size]
        others += batch[size:]
    assert sorted(own) == sorted(rows.tolist())
    without = set(range(30)) - set(own)
    assert set(others) <= without
    if without:
        assert len(others) == num_labelled
        counts = [others.count(record) for record in without]
        assert max(counts) - min(counts) <= 1


def test_labels_go_with_their_rows() -> None:
    """The order of a batch must shuffle both alike: the network can learn any labels by heart."""
    x = 10 * torch.eye(12)
    labels = torch.tensor([0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1])
    model = nn.Sequential(nn.Linear(12, 2))
    training = trainer(model, x, batch=5, lr=0.1)
    rows = torch.tensor([11, 3, 4, 8, 0])
    for epoch in range(20):
        loss = training.label_epoch(rows, labels[rows], None, 0.0, epoch)
    assert loss < 0.05
    assert share(said(model, x[rows]), labels[rows]) == 1.0


def test_frozen_parts_and_batch_norm_stay_and_modes_come_back() -> None:
    x, labels = gaussians(60)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model.eval()
    frozen = copy.deepcopy([model[0].state_dict(), dict(model[1].named_buffers())])
    before = weights(model)
    training = trainer(model, x, batch=59)  # the last batch is of one record
    training.distill_epoch(soft(noisy_teacher(), x), 0)
    training.label_epoch(torch.tensor([4]), labels[4:5], None, 0.0, 0)
    assert not torch.equal(weights(model), before)
    assert not any(module.training for module in model.modules())
    for key, value in {**frozen[0], **frozen[1]}.items():
        assert torch.equal(value, {**model[0].state_dict(), **dict(model[1].named_buffers())}[key])


def test_inputs_of_half_precision_and_token_ids() -> None:
    x, _ = gaussians(20)
    targets = soft(noisy_teacher(), x)
    assert trainer(network(), x.half()).distill_epoch(targets, 0) > 0
    tokens = torch.arange(20).reshape(10, 2)
    texts = nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(6, 2))
    assert trainer(texts, tokens).distill_epoch(targets[:10], 0) > 0
    assert soft(texts, tokens).shape == (10, 2)


def test_what_does_not_fit_is_refused() -> None:
    x, labels = gaussians(20)
    training, rows = trainer(network(), x), torch.arange(5)
    targets = soft(noisy_teacher(), x)
    with pytest.raises(BadInputError, match="19 soft labels"):
        training.distill_epoch(targets[:19], 0)
    with pytest.raises(BadInputError, match="19 soft labels"):
        training.label_epoch(rows, labels[rows], targets[:19], 1.0, 0)
    with pytest.raises(BadInputError, match="5 rows have 4 labels"):
        training.label_epoch(rows, labels[:4], targets, 1.0, 0)
    for row in (-1, 20):
        with pytest.raises(BadInputError, match="none of the 20"):
            training.label_epoch(torch.tensor([row]), labels[:1], None, 0.0, 0)
    for replay in (-0.1, float("nan")):
        with pytest.raises(BadInputError, match="replay"):
            training.label_epoch(rows, labels[rows], targets, replay, 0)
    for temperature in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(BadInputError, match="temperature"):
            trainer(network(), x, temperature=temperature)
        with pytest.raises(BadInputError, match="temperature"):
            soft_labels(network(), x, temperature=temperature, block=8, device="cpu")
    with pytest.raises(BadInputError, match="at least 1 record"):
        trainer(network(), x, batch=0)
    with pytest.raises(BadInputError, match="no public record"):
        soft(network(), x[:0])
    assert training.label_epoch(rows[:0], labels[:0], targets, 1.0, 0) == 0.0
