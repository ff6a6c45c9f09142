"""Prompts and targets: records of two texts, of which a language model learns the second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsweep.trainables.data.raw.preparation import RecordError, too_long
from dpsweep.trainables.data.tasks import IGNORED

#: Texts that are given to a tokenizer at once.
_BLOCK = 1000


def prompted(
    tokenizer: Any,
    prompts: Sequence[Any],
    targets: Sequence[Any],
    *,
    length: int,
    pad_id: int,
    end_id: int,
    truncation: str = "longest_first",
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and labels of records that are a prompt, an end, a target, and an end again.

    That is how Li & Liang 2021 (https://arxiv.org/abs/2101.00190) give E2E to GPT-2, and Bu et al.
    2024 after them. Each text is tokenised alone; what the tokenizer sets in front of a text stands
    in front of the prompt. The label of a position is the token after it where that is one of the
    target or the end of it, so that a model learns what to say and when to stop, and nothing of
    prompts.

    Args:
        tokenizer: Of transformers.
        prompts: Texts.
        targets: As many texts.
        length: Tokens of a record; both ends are counted.
        pad_id: Id of what fills a record up on the right; it may be ``end_id``.
        end_id: Id of the end of a text.
        truncation: Which of the two loses tokens at its end if they do not fit: ``longest_first``,
            ``only_first`` or ``only_second``. A target that is cut has no end.
    Returns:
        Ids and labels, both int64 (records, length).
    Raises:
        RecordError: A value is no text, or the one text that may be cut is too short for it.
    """
    shape = (len(prompts), length)
    ids_of_all, labels = np.full(shape, pad_id, np.int64), np.full(shape, IGNORED, np.int64)
    if not all(isinstance(text, str) for texts in (prompts, targets) for text in texts):
        raise RecordError("there are values that are not text")
    for begin in range(0, len(prompts), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        try:
            firsts = tokenizer(list(prompts[rows]))["input_ids"]
            seconds = tokenizer(list(targets[rows]), add_special_tokens=False)["input_ids"]
        except Exception as error:  # tokenizers raise their own kinds, which may quote a text
            raise RecordError(f"the tokenizer cannot read a text: {type(error).__name__}") from None
        for row, (first, second) in enumerate(zip(firsts, seconds), start=begin):
            first = first[:-1] if first[-1:] == [end_id] else first
            first, second = _cut(first, [*second, end_id], length - 1, truncation)
            ids = [*first, end_id, *second]
            ids_of_all[row, : len(ids)] = ids
            labels[row, len(first) : len(ids) - 1] = second
    return ids_of_all, labels


def _cut(
    first: list[int], second: list[int], length: int, truncation: str
) -> tuple[list[int], list[int]]:
    """Return both without what is beyond ``length`` tokens in all.

    >>> _cut([1, 2, 3, 4], [5, 6], 4, "longest_first")
    ([1, 2], [5, 6])
    """
    excess = max(0, len(first) + len(second) - length)
    of_first = {"only_first": excess, "only_second": 0}.get(truncation)
    if of_first is None:
        # Tokens go from the longer one, and from the second of two that are as long.
        level = min(len(first), max(length - len(second), length // 2 + length % 2))
        of_first = len(first) - level if excess else 0
    if of_first > len(first) or excess - of_first > len(second):
        raise too_long(truncation)
    return first[: len(first) - of_first], second[: len(second) - (excess - of_first)]


def parted(ids: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of one record's prompt, its end included, and of its target.

    >>> ids, labels = np.array([7, 8, 3, 5, 3, 0]), np.array([-100, -100, 5, 3, -100, -100])
    >>> prompt, target = parted(ids, labels)
    >>> prompt.tolist(), target.tolist()
    ([7, 8, 3], [5, 3])

    Args:
        ids: Of ``prompted``, int64 (length,).
        labels: Of the same record, int64 (length,).
    """
    places = np.flatnonzero(labels != IGNORED)
    begin = int(places[0]) + 1 if len(places) else len(ids)
    return ids[:begin], labels[places]
