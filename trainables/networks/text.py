"""Networks of transformers on token ids: encoders with a classifier, and language models.

``text/DIRECTORY`` is a directory that ``save_pretrained`` wrote, ``text/OWNER/NAME`` a network on
the Hugging Face hub (``pretrained.text_weights``); its weights are public. The network maps ids
(batch, tokens) to logits and is written as a graph, so that an exported one holds no class of this
package and loads with torch and transformers alone. All dropout of the configuration is set to 0:
noise and clipping regularise already, and every example's gradient is then a function of the
example.
"""

from __future__ import annotations

import inspect
import operator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.data.dataset import DatasetInfo
from dpsweep.trainables.data.source import TextInfo
from dpsweep.trainables.networks.no_dropout import refuse_random, remove_dropout
from dpsweep.trainables.networks.pretrained.text_weights import (
    TEXT,
    asks_for_mean,
    find_directory,
    has_weights,
    load_network,
    names_language_model,
    random_network,
)
from dpsweep.trainables.networks.probe import refuse_not_finite, refuse_statistics

#: Names of a network's parts within the graph.
_ENCODER, _CLASSIFIER, _WITH_HEAD, _LANGUAGE_MODEL = (
    "encoder",
    "classifier",
    "network",
    "language_model",
)
#: Classes of transformers: what is behind an encoder, or nothing.
_HEADED, _BODY, _LM = "AutoModelForSequenceClassification", "AutoModel", "AutoModelForCausalLM"

#: What the forward pass of a network that does not fit its input raises.
_OF_FORWARD = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)


def build_text(name: str, info: DatasetInfo) -> nn.Module:
    """Return a network on the CPU: ids int64 (batch, tokens) -> float32 logits.

    Logits are (batch, classes), or (batch, tokens, vocabulary) for ``causal_lm``; the vocabulary
    of the network may be larger than the tokenizer's. Which parts are random, from torch's global
    generator, follows from the weights that the directory lacks:

    - An encoder with transformers' own head for classification, where all that is missing belongs
      to the head (RoBERTa's head, the last layer of a BERT whose pooler is trained, GPT-2's score).
    - Else, or where a directory of sentence-transformers asks for it (``1_Pooling``), the mean of
      the encoder's outputs over a record's tokens and a new linear classifier: a pooler with
      random weights, frozen within the body, would throw away what the encoder knows.
    - A language model must be complete.

    Padding is masked for classification. It needs no mask in a language model, where it comes
    last and no position sees what comes later. Of a pair, the tokens after the first separator are
    told to be of the second text, where the tokenizer and the network do so (BERT; not RoBERTa). A
    text that spells out the separator, such as ``[SEP]``, moves that border within its own record.

    Args:
        name: ``text/DIRECTORY``, an absolute path, or ``text/OWNER/NAME`` of the hub.
        info: What the data is: task, tokens per record, vocabulary, pad id.
    Raises:
        ModelError: The network cannot be built for this data, weights are missing, or records
            influence each other.
        BadInputError: There is no such directory, its path is relative, or the data is no text.
            A name that the hub does not have, or cannot be asked for, is a ``ModelError``.
    """
    text = info.text
    if text is None or not name.startswith(TEXT):
        kind = "is text" if text is not None else "is no text"
        raise BadInputError(
            f"model.name {name} does not fit the data, which {kind}",
            fix="use dataset: text with model.name: text/DIRECTORY, and only with it",
        )
    directory = find_directory(name)
    if info.task == "causal_lm":
        network, missing = load_network(_LM, directory, pad_id=text.pad_id, num_labels=None)
        if missing:
            raise _incomplete(directory, missing)
        parts: dict[str, nn.Module] = {_LANGUAGE_MODEL: network}
    else:
        parts = _classifier(directory, text.pad_id, info.num_classes)
        network = next(iter(parts.values()))
    num_tokens = network.get_input_embeddings().num_embeddings
    if num_tokens < text.vocabulary_size:
        raise ModelError(
            f"{name} knows {num_tokens} tokens, and the tokenizer has {text.vocabulary_size}",
            fix="use the tokenizer that the network was trained with (data.tokenizer)",
        )
    _refuse_short(network, name, info)
    remove_dropout(network)
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None  # Opacus knows no exception; masked padding has no gradient
    model = _with_positions(parts, name, info)
    _probe(model, name, info)
    return model.train()


def _refuse_short(network: Any, name: str, info: DatasetInfo) -> None:
    """Refuse a network without a place for each token of a prompt and of what is written after it.

    Raises:
        ModelError: It has fewer.
    """
    places = getattr(network.config, "max_position_embeddings", None)
    if info.text is None or info.text.generation is None or places is None:
        return
    new = info.text.generation.max_new_tokens
    if info.input_shape[0] + new > places:
        raise ModelError(
            f"{name} has {places} places, and a prompt of up to {info.input_shape[0]} tokens with "
            f"{new} new ones needs more",
            fix="lower data.test.generation.max_new_tokens or data.max_length",
        )


def text_head(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the layers of a network of ``build_text`` that are its classifier.

    They are what transformers puts after the encoder, or the new linear layer. A language model
    has none: its last layer is trained with the rest, and often is its embedding.
    """
    if not isinstance(model, fx.GraphModule):
        return ()
    parts = dict(model.named_children())
    if _CLASSIFIER in parts:
        return (parts[_CLASSIFIER],)
    if _WITH_HEAD not in parts:
        return ()
    network = parts[_WITH_HEAD]
    body = getattr(network, "base_model_prefix", "")
    return tuple(part for name, part in network.named_children() if name != body)


def is_language_model(model: nn.Module) -> bool:
    """Say whether a network of ``build_text`` is a language model, which has no classifier."""
    return isinstance(model, fx.GraphModule) and _LANGUAGE_MODEL in dict(model.named_children())


def text_untreated(name: str, num_classes: int | None = None) -> tuple[nn.Module, int]:
    """Return a network to be looked at, with the classifier it would have, and its outputs.

    Of a directory with a configuration alone, and of a name on the hub, no weights are read:
    transformers' own classifier is taken then, unless sentence-transformers ask for the mean. Under
    ``torch.device("meta")`` such a network takes no memory.

    Args:
        name: As in ``build_text``.
        num_classes: Outputs of the classifier; None: 2, or a language model where the
            configuration names one.
    Raises:
        BadInputError, ModelError: See ``build_text``.
    """
    is_local = Path(name.removeprefix(TEXT)).expanduser().is_absolute()
    directory = find_directory(name, with_weights=False)
    is_lm = num_classes is None and names_language_model(directory)
    num_labels = None if is_lm else num_classes or 2
    if is_lm:
        parts = {_LANGUAGE_MODEL: random_network(_LM, directory, num_labels=None)}
    elif is_local and has_weights(directory):
        with torch.device("cpu"):
            parts = _classifier(directory, 0, num_classes or 2)
    elif asks_for_mean(directory):
        encoder = random_network(_BODY, directory, num_labels=num_labels)
        parts = _with_mean(encoder, num_classes or 2)
    else:
        parts = {_WITH_HEAD: random_network(_HEADED, directory, num_labels=num_labels)}
    network = next(iter(parts.values()))
    size = int(network.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    task = "causal_lm" if is_lm else "classification"
    classes = size if is_lm else num_classes or 2
    info = DatasetInfo("", (2,), classes, 0, 0, 0, 0, (), task=task, text=TextInfo(size, 0))
    return _graph(parts, info, gives_positions=False), classes


def _classifier(directory: Path, pad_id: int, num_classes: int) -> dict[str, nn.Module]:
    """Return the parts of a classifier; see ``build_text`` for the choice."""
    if not asks_for_mean(directory):
        network, missing = load_network(_HEADED, directory, pad_id=pad_id, num_labels=num_classes)
        body = f"{network.base_model_prefix}."
        if not any(key.startswith(body) for key in missing):
            return {_WITH_HEAD: network}
    encoder, missing = load_network(_BODY, directory, pad_id=pad_id, num_labels=num_classes)
    parts = _with_mean(encoder, num_classes)
    missing = {key for key in missing if not key.startswith("pooler.")}
    if missing:
        raise _incomplete(directory, missing)
    return parts


def _with_mean(encoder: Any, num_classes: int) -> dict[str, nn.Module]:
    """Return an encoder and a new linear layer on the mean of its outputs."""
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # it would stand unused beside the mean
    return {_ENCODER: encoder, _CLASSIFIER: nn.Linear(encoder.config.hidden_size, num_classes)}


def _incomplete(directory: Path, missing: set[str]) -> ModelError:
    # transformers would fill them with random numbers.
    return ModelError(
        f"weights are missing in {directory}: {', '.join(sorted(missing)[:5])}",
        fix="give the complete network",
    )


def _with_positions(parts: dict[str, nn.Module], name: str, info: DatasetInfo) -> nn.Module:
    """Return the graph, with the positions given where that changes nothing.

    Networks that number the positions themselves look them up once for all records, so that a
    table of positions has no gradient per record. RoBERTa numbers them in a way of its own, and
    already per record.
    """
    plain = _graph(parts, info, gives_positions=False).eval()
    network = next(iter(parts.values()))
    if "position_ids" not in inspect.signature(network.forward).parameters:
        return plain
    with_positions = _graph(parts, info, gives_positions=True).eval()
    ids = _examples(info)[0]
    with torch.no_grad():
        wanted = _run(plain, ids, name, info)
        try:
            is_same = torch.equal(with_positions(ids), wanted)
        except (RuntimeError, ValueError, IndexError, TypeError):
            is_same = False
    return with_positions if is_same else plain


def _graph(
    parts: dict[str, nn.Module], info: DatasetInfo, *, gives_positions: bool
) -> fx.GraphModule:
    assert info.text is not None
    graph = fx.Graph()
    call = graph.call_function
    ids = graph.placeholder("ids")
    ones = call(torch.ones_like, (ids,))
    positions = call(operator.sub, (call(torch.cumsum, (ones,), {"dim": 1}), 1))
    arguments: dict[str, Any] = {"input_ids": ids}
    if gives_positions:
        arguments["position_ids"] = positions
    # The first token counts always: attention to nothing at all is not a number.
    counts = call(
        torch.logical_or,
        (call(torch.ne, (ids, info.text.pad_id)), call(torch.eq, (positions, 0))),
    )
    mask = graph.call_method("long", (counts,))
    arguments["attention_mask"] = ones if _LANGUAGE_MODEL in parts else mask
    if _tells_texts_apart(next(iter(parts.values())), info):
        ends = graph.call_method("long", (call(torch.eq, (ids, info.text.separator_id)),))
        before = call(operator.sub, (call(torch.cumsum, (ends,), {"dim": 1}), ends))
        is_second = call(torch.logical_and, (call(torch.gt, (before, 0)), counts))
        arguments["token_type_ids"] = graph.call_method("long", (is_second,))
    record = graph.call_module(next(iter(parts)), kwargs=arguments)
    if _ENCODER in parts:
        hidden = call(getattr, (record, "last_hidden_state"))
        summed = call(
            torch.sum, (call(torch.mul, (hidden, call(torch.unsqueeze, (mask, -1)))),), {"dim": 1}
        )
        count = call(torch.sum, (mask,), {"dim": 1, "keepdim": True})
        result = graph.call_module(_CLASSIFIER, (call(torch.div, (summed, count)),))
    else:
        result = call(getattr, (record, "logits"))
    graph.output(result)
    model = fx.GraphModule(nn.ModuleDict(parts), graph, class_name="TextModel")
    model.graph.eliminate_dead_code()  # a language model masks nothing
    model.recompile()
    return model


def _tells_texts_apart(network: nn.Module, info: DatasetInfo) -> bool:
    """Say whether a network has an embedding of which text of a pair a token belongs to."""
    assert info.text is not None
    if info.text.separator_id is None:
        return False
    kinds = getattr(getattr(network, "config", None), "type_vocab_size", None) or 0
    return kinds > 1 and "token_type_ids" in inspect.signature(network.forward).parameters


def _examples(info: DatasetInfo) -> tuple[torch.Tensor, ...]:
    """Return batches of two random records; only the second record differs.

    It is padded by a token, by half, and not at all.
    """
    assert info.text is not None
    generator = torch.Generator().manual_seed(0)
    length, pad = info.input_shape[0], info.text.pad_id
    ids = torch.randint(0, info.text.vocabulary_size, (4, length), generator=generator)
    ids[:2, -1] = pad
    ids[2, length // 2 :] = pad
    ids[3, ids[3] == pad] = (pad + 1) % info.text.vocabulary_size
    return tuple(ids[[0, other]] for other in (1, 2, 3))


def _run(model: nn.Module, ids: torch.Tensor, name: str, info: DatasetInfo) -> torch.Tensor:
    try:
        logits = model(ids)
    except _OF_FORWARD as error:
        because, fix = " ".join(str(error).split())[:200].rstrip("."), "use another network"
        if (places := _places(model, info)) is not None:
            because = f"it has places for {places}"
            fix = f"lower data.max_length to {places} at most, or use another network"
        raise ModelError(
            f"{name} fails on records of {info.input_shape[0]} tokens", because=because, fix=fix
        ) from error
    is_lm = info.task == "causal_lm"
    shape = (len(ids), *ids.shape[1:]) if is_lm else (len(ids),)
    if (
        not isinstance(logits, torch.Tensor)
        or logits.shape[:-1] != shape
        or logits.shape[-1] < info.num_classes
        or (logits.shape[-1] > info.num_classes and not is_lm)
    ):
        raise ModelError(f"{name} does not return the logits of {info.task}", fix="use another one")
    return logits


def _places(model: nn.Module, info: DatasetInfo) -> int | None:
    """Return how many tokens a network has places for, where these are fewer than a record has.

    They are tried: a network that fails on as many, too, fails for another reason. RoBERTa's first
    place is the one after its pad id.
    """
    config = getattr(next(model.children()), "config", None)
    size = getattr(config, "max_position_embeddings", None)
    if not isinstance(size, int):
        return None
    ids = _examples(info)[-1][[1, 1]]  # without padding, which needs no place
    for places in (size, size - 1 - (getattr(config, "pad_token_id", None) or 0)):
        if not 0 < places < info.input_shape[0]:
            continue
        try:
            with torch.no_grad():
                model(ids[:, :places])
        except _OF_FORWARD:
            continue
        return places
    return None


def _probe_order(model: nn.Module, name: str, info: DatasetInfo) -> None:
    """Exchange a token: a model that predicts the next one must not have seen it before."""
    assert info.text is not None
    ids, place = _examples(info)[0], info.input_shape[0] // 2
    logits = []
    for token in [value for value in range(3) if value != info.text.pad_id][:2]:
        ids[:, place] = token
        with torch.no_grad():
            logits.append(_run(model, ids, name, info)[:, :place])
    before, after = logits
    if not torch.allclose(before, after, rtol=1e-6, atol=1e-7):
        raise ModelError(
            f"{name} sees the tokens that it is to predict: a later one changes its earlier logits",
            because="then accuracy and perplexity of the next token mean nothing",
            fix="use a causal language model, such as GPT-2, or task: classification",
        )


def _probe(model: nn.Module, name: str, info: DatasetInfo) -> None:
    """Run random records: shapes must fit, and none may influence another's output.

    One record of a batch is exchanged; the other's logits must stay as they are, up to rounding,
    as a batch without padding may take another kernel. It is tried as well, for every place has
    to be there.
    """
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    model.train()
    batches = _examples(info)
    with torch.no_grad():
        first, *others = (_run(model, ids, name, info)[0] for ids in batches)
        _run(model, batches[-1][[1, 1]], name, info)
    refuse_not_finite(model, name, first)
    if not all(torch.allclose(first, other, rtol=1e-4, atol=1e-5) for other in others):
        raise ModelError(
            f"{name} mixes the records of a batch: one record's output depends on another",
            because="then no record has a gradient of its own to clip",
            fix="use a network whose layers treat every record alone",
        )
    refuse_random(model, batches[0])
    if info.task == "causal_lm":
        _probe_order(model, name, info)
    refuse_statistics(model, name, buffers)
