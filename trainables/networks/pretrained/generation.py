"""Generation: what a language model writes for the prompts of the test part, and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from dpsweep.trainables.data.text.opening import load_tokenizer
from dpsweep.trainables.data.text.prompts import parted
from dpsweep.trainables.data.text.written import written_scores
from dpsweep.trainables.networks.pretrained.text_weights import quiet

if TYPE_CHECKING:
    from dpsweep.spec.data.generation import GenerationSpec
    from dpsweep.trainables.data.dataset import SweepData
    from dpsweep.trainables.data.source import TextInfo


def generation_scores(
    model: nn.Module, data: SweepData, *, block: int, device: str
) -> dict[str, float]:
    """Return the scores of what a model writes for the prompts of the test part.

    Records with the same prompt have one text written and are its references. References are the
    targets that a record holds, so one that was cut to ``data.max_length`` stays cut.

    Args:
        model: A language model of ``build_text``, trained or not; left in eval mode.
        data: With prompts and targets, and ``test.generation``.
        block: Texts that are written at once, beams counted.
        device: Where the model is.
    """
    text = data.info.text
    assert text is not None
    assert text.generation is not None
    inputs, labels = data.parts["test"]
    targets: dict[tuple[int, ...], list[list[int]]] = {}
    for ids, goals in zip(inputs, labels):
        prompt, target = parted(ids, goals)
        if len(target):  # a prompt that fills its record has none
            targets.setdefault(tuple(prompt.tolist()), []).append(target.tolist())
    if not targets:
        return {}
    prompts = list(targets)
    written = write(model, prompts, text, text.generation, block=block, device=device)
    tokenizer = load_tokenizer(text.tokenizer)

    def text_of(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    return written_scores(
        text.generation.scores,
        [text_of(written[prompt]) for prompt in prompts],
        [[text_of(target) for target in targets[prompt]] for prompt in prompts],
    )


def write(
    model: nn.Module,
    prompts: Sequence[tuple[int, ...]],
    text: TextInfo,
    settings: GenerationSpec,
    *,
    block: int,
    device: str,
) -> Mapping[tuple[int, ...], list[int]]:
    """Return what a model writes after each prompt: ids without those of the prompt.

    Greedy, or with beams: nothing is drawn. Prompts of one length are written for together, so that
    none is padded.

    Args:
        model: A language model of ``build_text``.
        prompts: Ids of each, different from each other.
        text: Facts about ids.
        settings: How texts are written.
        block: See ``generation_scores``.
        device: Where the model is.
    """
    import transformers

    network: Any = model.get_submodule("language_model")
    model.eval()
    how = transformers.GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
        no_repeat_ngram_size=settings.no_repeat_ngram_size,
        do_sample=False,
        eos_token_id=text.end_id,
        pad_token_id=text.pad_id,
        use_cache=True,
    )
    written: dict[tuple[int, ...], list[int]] = {}
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for prompt in prompts:
        by_length.setdefault(len(prompt), []).append(prompt)
    size = max(1, block // settings.num_beams)
    with torch.no_grad(), quiet(transformers):
        for length, alike in sorted(by_length.items()):
            for begin in range(0, len(alike), size):
                now = alike[begin : begin + size]
                ids = torch.from_numpy(np.array(now, np.int64)).to(device)
                made = network.generate(
                    input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=how
                )
                for prompt, row in zip(now, made[:, length:].tolist()):
                    end = row.index(text.end_id) if text.end_id in row else len(row)
                    written[prompt] = row[:end]
    return written
