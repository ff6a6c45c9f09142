"""How many tokens a record of text has room for at least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import DataError

if TYPE_CHECKING:
    from dpsweep.spec.study import DataSpec


def refuse_too_few(tokenizer: Any, spec: DataSpec) -> None:
    """Refuse a ``data.max_length`` that has no place for a token of each text of a record.

    Fast tokenizers add tokens of their own to a record, however few are allowed: below their
    number nothing is cut, and at it a record has nothing of its text. Where one text of a pair
    alone may be cut, it keeps a token, so that the same number is the smallest that can do.

    Args:
        tokenizer: Of transformers.
        spec: Section ``data`` of texts, not of token ids.
    Raises:
        DataError: There is no such place.
    """
    has_pair = spec.text_pair_column is not None
    own = int(tokenizer.num_special_tokens_to_add(pair=has_pair))
    needed, texts = own + 1, "a token of the text"
    if has_pair:
        needed, texts = own + 2, "a token of each text"
    if spec.prompt_column is not None:
        if tokenizer("a")["input_ids"][-1:] == [tokenizer.eos_token_id]:
            own -= 1  # ``prompted`` puts one end between the two texts, whoever it is of
        needed, texts = own + 3, "a token of the prompt, the end and a token of the target"
    length = int(spec.max_length or 0)
    if length < needed:
        beside = f" beside {own} that the tokenizer adds" if own else ""
        raise DataError(
            f"data.max_length: {length} tokens have no room for {texts}{beside}",
            fix=f"give {needed} at least",
        )
