"""Scores of texts that a model has written, beside those that people wrote.

Each is taken from the package that its field uses (extra ``generation``). Texts are lower-cased;
words are those of mteval's tokeniser 13a, as sacrebleu has it, but for ROUGE-L, which has its own.
The E2E challenge's own script takes METEOR, ROUGE-L and CIDEr behind a Java tokeniser and with
other weights, so figures here are near the published ones and not the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from dpsweep.foundation.errors import DataError

Texts = Sequence[str]
References = Sequence[Sequence[str]]

#: Score -> the package that computes it.
PACKAGES: Mapping[str, str] = {
    "bleu": "sacrebleu",
    "rouge_l": "rouge_score",
    "nist": "nltk",
    "meteor": "nltk",
    "cider": "pycocoevalcap",
}
_WORDNET = "corpora/wordnet"


def check_packages(names: Sequence[str]) -> None:
    """Refuse scores whose package is not installed.

    Raises:
        DataError: One is missing.
    """
    for name in names:
        needed = dict.fromkeys((PACKAGES[name], "sacrebleu"))  # which finds the words
        missing = [package for package in needed if find_spec(package) is None]
        if missing:
            raise DataError(
                f"data.test.generation: {name} needs the package {missing[0]}, which is not "
                "installed",
                fix="pip install 'dpsweep[generation]', or leave it out of scores",
            )


def left_out(names: Sequence[str]) -> str:
    """Return a line on METEOR where WordNet is not there, which it looks synonyms up in; or none.

    It is left out then: without synonyms it would be another score.
    """
    if "meteor" not in names or _has_wordnet():
        return ""
    return (
        "test/meteor is left out: nltk finds no wordnet here (python -m nltk.downloader wordnet, "
        "on each node)"
    )


def written_scores(
    names: Sequence[str], written: Texts, references: References
) -> dict[str, float]:
    """Return scores of a whole part; one that is not defined for such texts is not a number.

    >>> scores = written_scores(["bleu", "rouge_l"], ["a b c d e"], [["a b c d e", "x"]])
    >>> {name: round(value, 3) for name, value in scores.items()}
    {'bleu': 100.0, 'rouge_l': 1.0}

    ``bleu`` is that of a corpus, in per cent (Papineni et al. 2002); ``rouge_l`` the mean of the
    best F1 over the references of a text, in [0, 1] (Lin 2004); ``nist`` has n-grams up to 5
    (Doddington 2002); ``meteor`` is the mean over texts, in [0, 1] (Banerjee & Lavie 2005);
    ``cider`` that of a corpus, of texts as they are here without stemming (Vedantam et al. 2015).

    Args:
        names: Of ``PACKAGES``.
        written: One text for each prompt.
        references: For each of them one or several.
    """
    lower = [text.lower() for text in written]
    lower_references = [[text.lower() for text in texts] for texts in references]
    names = [name for name in names if name != "meteor" or _has_wordnet()]
    return {name: _SCORES[name](lower, lower_references) for name in names}


def _has_wordnet() -> bool:
    import nltk

    for place in (_WORDNET, f"{_WORDNET}.zip"):
        try:
            nltk.data.find(place)
        except LookupError:
            continue
        return True
    return False


def _words(texts: Texts) -> list[list[str]]:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    words_of = Tokenizer13a()
    return [words_of(text).split() for text in texts]


def _bleu(written: Texts, references: References) -> float:
    import sacrebleu

    most = max(map(len, references))
    columns: list[list[Any]] = [  # sacrebleu takes None where a text has fewer references
        [texts[place] if place < len(texts) else None for texts in references]
        for place in range(most)
    ]
    return float(sacrebleu.corpus_bleu(list(written), columns).score)


def _rouge_l(written: Texts, references: References) -> float:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    best = [
        max(scorer.score(text, line)["rougeL"].fmeasure for text in texts)
        for line, texts in zip(written, references)
    ]
    return math.fsum(best) / len(best)


def _nist(written: Texts, references: References) -> float:
    from nltk.translate.nist_score import corpus_nist

    try:
        return float(corpus_nist([_words(texts) for texts in references], _words(written), n=5))
    except ZeroDivisionError:  # no text has an n-gram of each length
        return math.nan


def _meteor(written: Texts, references: References) -> float:
    from nltk.translate.meteor_score import meteor_score

    scores = [meteor_score(_words(texts), line) for line, texts in zip(_words(written), references)]
    return float(math.fsum(scores) / len(scores))


def _cider(written: Texts, references: References) -> float:
    from pycocoevalcap.cider.cider import Cider

    def joined(texts: Texts) -> list[str]:
        return [" ".join(words) for words in _words(texts)]

    ours: dict[int, Any] = {place: [line] for place, line in enumerate(joined(written))}
    theirs = {place: joined(texts) for place, texts in enumerate(references)}
    if not any(any(lines) for lines in theirs.values()):  # words are weighed by all references
        return math.nan
    score, _ = Cider().compute_score(theirs, ours)
    return float(score)


_SCORES: Mapping[str, Callable[[Texts, References], float]] = {
    "bleu": _bleu,
    "rouge_l": _rouge_l,
    "nist": _nist,
    "meteor": _meteor,
    "cider": _cider,
}
