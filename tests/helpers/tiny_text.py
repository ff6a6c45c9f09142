"""Tiny encoders and language models with a tokenizer, as ``save_pretrained`` lays them out."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = [*"abcdefgh", "good", "bad", "fine", "poor", "film", "book", "song", "and"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
VOCABULARY = len(SPECIAL) + len(WORDS)
PAD = 0
_WIDTH = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}


def save_tokenizer(path: Path, *, special: bool = True, pad: str | None = "[PAD]") -> Path:
    """Write a tokenizer of whole words; with ``special`` as BERT's, else as GPT-2's."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *WORDS])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if special:
        ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
    named: dict[str, Any] = {"unk_token": "[UNK]", "eos_token": "[SEP]"}
    if pad:
        named["pad_token"] = pad
    if special:
        named["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(path)
    return path


def save_encoder(path: Path, kind: str = "BertModel", **changes: Any) -> Path:
    """Write an encoder of the BERT family with random weights, and its tokenizer."""
    family = kind.removesuffix("Model").removesuffix("ForMaskedLM")
    family = family.removesuffix("ForSequenceClassification")
    config = getattr(transformers, f"{family}Config")(**{**_WIDTH, **changes})
    return _save(getattr(transformers, kind), config, save_tokenizer(path))


def save_gpt2(path: Path, kind: str = "GPT2LMHeadModel", *, n_positions: int = 16) -> Path:
    """Write a GPT-2 with random weights, and a tokenizer without a pad token."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=n_positions,
        bos_token_id=3, eos_token_id=3,
    )  # fmt: skip
    return _save(getattr(transformers, kind), config, save_tokenizer(path, special=False, pad=None))


def _save(kind: Any, config: Any, path: Path) -> Path:
    logging = transformers.utils.logging
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            kind(config).save_pretrained(path)
    finally:
        logging.enable_progress_bar()
    return path
