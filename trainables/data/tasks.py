"""Tasks that a network is trained for: one class, several attributes, or the next token.

A task is its loss and its scores, which ``score`` takes on a part of the data. Loads no torch until
one of them is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from dpsweep.foundation.errors import BadInputError, DataError, described, is_signal
from dpsweep.trainables.data.dataset import part_tensors
from dpsweep.trainables.devices.failures import NoRoomError, lacks_memory

if TYPE_CHECKING:
    import torch

    from dpsweep.trainables.data.dataset import SweepData
    from dpsweep.trainables.data.losses import Loss

#: Label of a position whose next token does not count; torch's cross-entropy leaves it out.
IGNORED = -100


class Tally(NamedTuple):
    """A block of records' part of the scores.

    Attributes:
        correct: Correct answers, int64: a single number, or one per attribute.
        asked: Answers that were asked for, of each attribute where there are several.
        loss: Sum of their losses, nats.
    """

    correct: torch.Tensor
    asked: int
    loss: float


class Task:
    """One class a record: cross-entropy, and the share of records that are correct.

    Labels are int64 (records,), outputs (records, classes).
    """

    name: ClassVar[str] = "classification"
    #: Names of the scores, without those of single attributes.
    score_names: ClassVar[tuple[str, ...]] = ("accuracy", "loss")

    @property
    def loss_sum(self) -> Loss:
        """From outputs and labels to the sum of the losses of the examples, nats.

        The loss of an example depends on its own outputs alone.
        """
        from dpsweep.trainables.data.losses import cross_entropy_sum

        return cross_entropy_sum

    def tally(self, outputs: torch.Tensor, labels: torch.Tensor) -> Tally:
        """Count the answers of a block of records; outputs with a NaN are none."""
        correct = ((outputs.argmax(dim=1) == labels) & ~outputs.isnan().any(dim=1)).sum()
        return Tally(correct, len(labels), float(self.loss_sum(outputs, labels)))

    def scores(self, tallies: Sequence[Tally], class_names: Sequence[str]) -> dict[str, float]:
        """Return ``score_names``, and one accuracy per attribute where there are several.

        Args:
            tallies: Those of all blocks.
            class_names: Names of the classes or attributes.
        Raises:
            DataError: Nothing was asked for.
        """
        count = sum(tally.asked for tally in tallies)
        if count == 0:
            raise DataError("there is nothing to score: no record has an answer that counts")
        correct = sum(tally.correct.cpu() for tally in tallies)
        return {
            "accuracy": float(correct.double().mean()) / count,  # type: ignore[union-attr]
            "loss": sum(tally.loss for tally in tallies) / count,
        }

    def metric_names(self, class_names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of all that ``scores`` returns."""
        return self.score_names


class MultiLabel(Task):
    """Several attributes a record, each 0 or 1, as in CelebA: one logit per attribute.

    The loss is the sigmoid cross-entropy, mean over the attributes. Labels are float32
    (records, attributes), outputs the same; a logit above 0 says 1. ``accuracy`` is the mean over
    the attributes, ``accuracy/NAME`` that of one (Bu et al. 2024, https://arxiv.org/abs/2210.00036,
    section 4.3).
    """

    name = "multi_label"

    @property
    def loss_sum(self) -> Loss:
        """See ``Task``."""
        return _attributes_sum

    def tally(self, outputs: torch.Tensor, labels: torch.Tensor) -> Tally:
        """See ``Task``; counts per attribute, and an output that is NaN answers none."""
        correct = (((outputs > 0) == (labels > 0.5)) & ~outputs.isnan()).sum(dim=0)
        return Tally(correct, len(labels), float(_attributes_sum(outputs, labels)))

    def scores(self, tallies: Sequence[Tally], class_names: Sequence[str]) -> dict[str, float]:
        """See ``Task``."""
        scores = super().scores(tallies, class_names)
        count = sum(tally.asked for tally in tallies)
        correct = sum(tally.correct.cpu() for tally in tallies)
        shares = (correct.double() / count).tolist()  # type: ignore[union-attr]
        return scores | {f"accuracy/{name}": share for name, share in zip(class_names, shares)}

    def metric_names(self, class_names: Sequence[str]) -> tuple[str, ...]:
        """See ``Task``."""
        return (*self.score_names, *(f"accuracy/{name}" for name in class_names))


class CausalLM(Task):
    """The next token at every position of a text: cross-entropy over the vocabulary.

    Labels are int64 (records, length): the token after each position, ``IGNORED`` where none
    counts. Outputs are (records, length, vocabulary). In training, the loss of a record is the
    mean over its tokens that count, so that a long text weighs as a short one and a record has one
    bounded gradient; a record without any has loss 0. Scores are over tokens: ``loss`` is nats per
    token of the whole part, ``perplexity`` its exponential, ``accuracy`` the share of next tokens
    that have the largest logit.
    """

    name = "causal_lm"
    score_names = ("accuracy", "loss", "perplexity")

    @property
    def loss_sum(self) -> Loss:
        """See ``Task``."""
        return _next_token_sum

    def tally(self, outputs: torch.Tensor, labels: torch.Tensor) -> Tally:
        """See ``Task``; counts over tokens."""
        counts = labels != IGNORED
        correct = ((outputs.argmax(dim=-1) == labels) & counts & ~outputs.isnan().any(dim=-1)).sum()
        return Tally(correct, int(counts.sum()), float(_token_losses(outputs, labels).sum()))

    def scores(self, tallies: Sequence[Tally], class_names: Sequence[str]) -> dict[str, float]:
        """See ``Task``."""
        import torch

        scores = super().scores(tallies, class_names)
        loss = torch.tensor(scores["loss"], dtype=torch.float64)
        return scores | {"perplexity": float(loss.exp())}


TASKS = {task.name: task for task in (Task(), MultiLabel(), CausalLM())}


#: Whether a record that a model fails on has no other effect than that; see ``failing_alone``.
_FAILS_ALONE: ContextVar[bool] = ContextVar("fails_alone", default=False)


@contextlib.contextmanager
def failing_alone() -> Iterator[None]:
    """Let a record that a model fails on have no answer, and change no other one, within.

    An error would tell that there is one, and would leave the other records without their answers.
    That there is no room for a block of made-up records is an error all the same
    (``NoRoomError``).
    """
    before = _FAILS_ALONE.set(True)
    try:
        yield
    finally:
        _FAILS_ALONE.reset(before)


def task_of(name: str) -> Task:
    """Return a task by its name in ``data.task``.

    >>> task_of("causal_lm").metric_names(())
    ('accuracy', 'loss', 'perplexity')
    >>> task_of("multi_label").metric_names(("smiling",))
    ('accuracy', 'loss', 'accuracy/smiling')

    Raises:
        BadInputError: There is none.
    """
    if name not in TASKS:
        raise BadInputError(f"unknown data.task {name!r}", fix=f"one of {', '.join(TASKS)}")
    return TASKS[name]


def score(
    model: torch.nn.Module, data: SweepData, part: str, *, block: int, device: str
) -> dict[str, float]:
    """Return the scores of the data's task on a part: accuracy, loss (nats) and perhaps others.

    Args:
        model: Records to logits, as the task wants them (``Task``); left in eval mode.
        data: The records; features stored in half precision are widened block by block.
        part: ``validation`` or ``test``.
        block: Most records that are scored at once.
        device: Where the model is.
    Raises:
        DataError: The part has no record.

    Guarantees:
        Those of ``outputs_of``, so one record more or less changes the number of correct ones by
        at most 1; also one that the model fails on, within ``failing_alone``.
    """
    task = task_of(data.info.task)
    said = outputs_of(model, data, part, block=block, device=device)
    tallies = [task.tally(outputs, labels) for outputs, labels in said]
    if not tallies:
        raise DataError(f"the data has no {part} part", fix=f"give data.{part}.fraction")
    return task.scores(tallies, data.info.class_names)


def outputs_of(
    model: torch.nn.Module, data: SweepData, part: str, *, block: int, device: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the outputs for a part of the data, block by block, each with its labels.

    Guarantees:
        An output is a function of its record and of the model, to the last bit: every block has
        the same size, which follows from declared numbers, and the last one is filled up. Not
        covered: kernels that round a row otherwise at another place of its block, to which a
        record that enters in front of it moves it; on one x86 CPU none was found for linear
        heads, tanh_cnn, small_resnet and ResNet-18.

    Args: See ``score``.
    """
    import torch

    from dpsweep.trainables.devices.numerics import full_float32
    from dpsweep.trainables.devices.places import even_size, filled

    inputs, labels = part_tensors(data, part)
    size = even_size(getattr(data.info, f"num_{part}"), block)
    kind = torch.float32 if inputs.is_floating_point() else inputs.dtype
    model.eval()

    def asked(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), full_float32():
            outputs: torch.Tensor = model(filled(x, size))
        return outputs

    def answers(x: torch.Tensor) -> torch.Tensor | None:
        """Return the outputs for up to ``size`` records; None of some that fail alone."""
        try:
            outputs = asked(x)
            if _FAILS_ALONE.get() and (outputs.dim() < 2 or len(outputs) != size):
                raise ValueError("no row for each record")
        except BaseException as error:
            if not _FAILS_ALONE.get() or is_signal(error):
                raise
            return None  # what the error holds of the block is let go of before it is asked again
        return outputs[: len(x)]

    if _FAILS_ALONE.get():
        shape = (size, *inputs.shape[1:])
        _refuse_no_room(lambda: asked(torch.zeros(shape, device=device, dtype=kind)), size)
    for begin in range(0, len(labels), size):
        x = inputs[begin : begin + size].to(device, kind)
        outputs = answers(x)
        if outputs is None:
            rows = _in_halves(answers, x)
            like = next((row for row in rows if row is not None), None)
            if like is None:
                like = torch.empty(1, data.info.num_classes, device=device)
            unanswered = torch.full_like(like, torch.nan)
            outputs = torch.cat([unanswered if row is None else row for row in rows])
        yield outputs, labels[begin : begin + size].to(device)


def _refuse_no_room(asked: Callable[[], object], size: int) -> None:
    """Check that there is room for a block, by a made-up one: that tells nothing of any record.

    It is asked in front of the records, whatever they are. A lack of memory that only they meet is
    a failure like any other, and is not told, even where it is a real one: others may take a GPU's
    memory meanwhile. What torch has once had for a block there, it keeps for the next.

    Raises:
        NoRoomError: There is none.
    """
    try:
        asked()
    except BaseException as error:
        if is_signal(error):
            raise
        if lacks_memory(error):
            block = f"a block of {size} made-up records"
            raise NoRoomError(f"{described(error)}, for {block}") from None


def _in_halves(
    answers: Callable[[torch.Tensor], torch.Tensor | None], x: torch.Tensor
) -> list[torch.Tensor | None]:
    """Return the row of each record, or None of one that fails, of records that fail together."""
    rows: list[torch.Tensor | None] = []
    for half in x.chunk(2):
        outputs = answers(half)
        if outputs is not None:
            rows += outputs.split(1)
        else:
            rows += [None] if len(half) == 1 else _in_halves(answers, half)
    return rows


def _attributes_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import binary_cross_entropy_with_logits

    losses = binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return losses / logits.shape[1]


def _next_token_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    counts = (labels != IGNORED).sum(dim=1).clamp(min=1)
    return (_token_losses(logits, labels).sum(dim=1) / counts).sum()


def _token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return (records, length), 0 where no token counts."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
