"""Pages of this project: their blocks, links and anchors, and materials that their specs name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml
from import_graph import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
#: Where texts of the pages say something that each reader has elsewhere.
ENCODER = "/models/minilm"
#: Where docs/text.md has a language model.
LANGUAGE_MODEL = "/models/gpt2"
#: What a fragment is put into on a page that has no whole spec above it.
BASE = """\
name: base
data: {dataset: digits, validation: {fraction: 0.2, visibility: public}}
privacy: {delta: 1.0e-5, trial_epsilon: 2.0, accounting: composed, study_epsilon: 6.0}
search:
  space: {method: dp_sgd, model.name: linear, optim.lr: {loguniform: [0.1, 8]}}
"""
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: Name of the page's file.
        line: Line of the page on which the text begins.
        language: Word behind the fence.
        text: What stands between the fences.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """Name of the file that a first line such as ``# nets.py`` gives the block."""
        named = re.match(r"# ([\w.]+\.(?:py|yaml))$", self.text.split("\n", 1)[0])
        return named[1] if named else None

    @property
    def commands(self) -> list[str]:
        """Commands of a console block, without the comments behind them."""
        lines = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return [re.sub(r"\s{2,}# .*$", "", line).rstrip() for line in lines]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the fenced blocks of a page in order, those of some languages or all."""
    text = page.read_text()
    return [
        Block(page.name, text[: match.start()].count("\n") + 2, match[1], match[2])
        for match in _FENCE.finditer(text)
        if not languages or match[1] in languages
    ]


def whole_specs(page: Path) -> list[tuple[Block, dict]]:
    """Return each YAML block of a page with the whole spec that it is, or becomes.

    A fragment is put into the last whole spec above it. Its ``start`` and ``space`` replace those,
    of other sections each key does.
    """
    last, specs = yaml.safe_load(BASE), []
    for block in blocks(page, "yaml"):
        raw = yaml.safe_load(block.text)
        if "name" in raw:
            last = raw
        else:
            merged = dict(last)
            for section, keys in raw.items():
                replaces = section == "start" or not isinstance(merged.get(section), dict)
                merged[section] = keys if replaces else {**merged[section], **keys}
            raw = merged
        specs.append((block, raw))
    return specs


def prose(page: Path) -> str:
    """Return the text of a page without its blocks."""
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures."""
    text = prose(page)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)


def add_materials(folder: Path, page: Path) -> None:
    """Lay out what the specs of a page name and no block of it makes."""
    for name in ("docs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    if page.name == "text.md":
        from tiny_text import WORDS, save_encoder

        save_encoder(folder / "encoder", max_position_embeddings=64)
        rows = [f"{WORDS[i % 7]} {WORDS[8 + i % 5]},{i % 2}" for i in range(5926)]
        (folder / "glosses.csv").write_text("\n".join(["text,label", *rows]) + "\n")
        _add_glue_and_e2e(folder)


def _add_glue_and_e2e(folder: Path) -> None:
    """Write a QNLI, an E2E and a GPT-2 of few records and parameters."""
    import datasets
    from tiny_text import save_gpt2

    datasets.disable_progress_bars()
    texts = {"question": "good film", "sentence": "a b"}
    sizes = {"train": 104743, "validation": 20, "test": 20}
    splits = {
        name: datasets.Dataset.from_dict(
            {key: [text] * size for key, text in texts.items()}
            | {"label": [-1 if name == "test" else i % 2 for i in range(size)]}
        )
        for name, size in sizes.items()
    }
    datasets.DatasetDict(splits).save_to_disk(folder / "qnli")
    save_gpt2(folder / "gpt2", n_positions=256)
    (folder / "e2e").mkdir()
    for name in ("trainset", "devset", "testset"):
        lines = ["mr,ref", *["good film,a fine film", "bad book,a poor book"] * 4]
        (folder / "e2e" / f"{name}.csv").write_text("\n".join(lines) + "\n")


def localized(text: str, folder: Path) -> str:
    """Return a block's text with the places of this machine in it."""
    for place, name in ((ENCODER, "encoder"), (LANGUAGE_MODEL, "gpt2")):
        text = text.replace(place, str(folder / name))
    return text
