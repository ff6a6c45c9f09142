"""A spec's ``data`` section turned to data of one's own: file, sizes, and the study's name.

Works on the text of a section, so that its comments stay; what they count does not, as it is of
other data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsweep.foundation.errors import BadInputError
from dpsweep.spec.data.datasets import BUILT_IN, PUBLISHED_RECORDS
from dpsweep.spec.deltas import LARGEST_DERIVED, derived_delta

#: Keys of the data section that describe the records of one file.
_OF_A_FILE = (
    "dataset", "path", "num_records", "num_classes", "image_size", "channels", "tokenizer",
)  # fmt: skip
#: What must be said of a dataset, besides its path: key -> option of ``dpsweep init``.
_NEEDED: Mapping[str, Mapping[str, str]] = {
    "npz": {"num_records": "--records N", "num_classes": "--classes K"},
    "image_folder": {"num_records": "--records N"},
    "image_dataset": {"num_records": "--records N"},
    "text": {
        "num_records": "--records N",
        "num_classes": "--classes K",
        "tokenizer": "--encoder DIRECTORY",
    },
}
_SUFFIXES = {".npz": "npz", ".csv": "text", ".jsonl": "text"}
_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")
#: What lies in a directory -> the dataset that it is.
_MARKS = {
    "cifar-10-batches-py": "cifar10",
    "data_batch_1": "cifar10",
    "cifar-100-python": "cifar100",
    "train_32x32.mat": "svhn",
    "list_attr_celeba.txt": "celeba",
    "list_attr_celeba.csv": "celeba",
}
#: Words that YAML reads as something else.
_OTHER_WORDS = ("null", "true", "false", "yes", "no", "on", "off", ".", ".inf", ".nan")
#: Datasets that a study may be called by.
_NAMES = tuple(name.replace("_", "-") for name in (*BUILT_IN, "npz", "image_folder"))
_KEY = re.compile(r"^  ([a-z_]+):(\s*)([^#]*?)(\s*#.*)?$")


@dataclass(frozen=True)
class OwnData:
    """Where data of one's own are, and what is declared of them.

    Attributes:
        path: File or directory, as the spec shall name it.
        dataset: Value of ``data.dataset``; None: by the path, see ``dataset_of``.
        num_records: Public number of training records.
        num_classes: Number of classes or attributes.
        image_size: Size that images are resized to, in pixels.
        encoder: Of texts: directory of a network and its tokenizer, or their name on a hub.
    """

    path: str
    dataset: str | None = None
    num_records: int | None = None
    num_classes: int | None = None
    image_size: int | None = None
    encoder: str | None = None

    @property
    def kind(self) -> str:
        """The dataset: the one that is named, or the one that the path looks like."""
        return self.dataset or dataset_of(self.path)

    @property
    def values(self) -> dict[str, str]:
        """The keys of the data section that are said, as YAML."""
        said = {
            "dataset": self.kind,
            "path": self.path,
            "num_records": self.num_records,
            "num_classes": self.num_classes,
            "image_size": self.image_size,
            "tokenizer": self.encoder,
        }
        return {key: _scalar(value) for key, value in said.items() if value is not None}


def dataset_of(path: str) -> str:
    """Return the dataset that a path looks like: by its suffix, or as a directory by its files.

    >>> dataset_of("photos.npz"), dataset_of("reviews.csv")
    ('npz', 'text')

    Raises:
        BadInputError: It looks like none.
    """
    place = Path(path).expanduser()
    if place.suffix in _SUFFIXES:
        return _SUFFIXES[place.suffix]
    if place.is_dir():
        marked = [kind for mark, kind in _MARKS.items() if (place / mark).exists()]
        if not marked and any((place / name).exists() for name in _SAVED):
            return "image_dataset" if _has_images(place) else "text"
        return marked[0] if marked else "image_folder"
    problem = f"--data-path {path} does not tell what it is"
    if not place.exists():
        problem = f"--data-path {path}: there is no such file or directory"
    fix = "name an .npz, .csv or .jsonl file or a directory of images, or say which by --dataset"
    raise BadInputError(problem, fix=fix)


def _has_images(place: Path) -> bool:
    """Say whether a directory of Hugging Face datasets names a column of images."""
    infos = (place / "dataset_info.json", *place.glob("*/dataset_info.json"))
    return any('"Image"' in path.read_text() for path in infos if path.is_file())


def on_own_data(section: str, own: OwnData) -> str:
    """Return a ``data`` section, indented by two, that reads data of one's own.

    Keys that describe the file are set; of another kind of data they are removed first. All else
    stays, less comments that count something. Sizes whose comment says EDIT must be said anew.

    Raises:
        BadInputError: Something must be said of such data, and nothing says it.
    """
    lines = section.splitlines()
    old = {m[1]: m[3].strip() for line in lines if (m := _KEY.match(line))}
    open_keys = {m[1] for line in lines if "EDIT" in line and (m := _KEY.match(line))}
    is_same = old.get("dataset") == own.kind
    if own.kind == "text" and not is_same:
        raise BadInputError(
            f"{own.path} holds texts, and this spec is of {old.get('dataset')}",
            fix="name data of such a kind, or use --method bitfit --dataset text",
        )
    stays = {key: value for key, value in old.items() if key in _OF_A_FILE} if is_same else {}
    values = {**stays, **own.values}
    is_next_token = old.get("task") == "causal_lm"
    missing = [
        option
        for key, option in _NEEDED.get(own.kind, {}).items()
        if (key not in values or (key in open_keys and key not in own.values))
        and not (key == "num_classes" and is_next_token)
    ]
    if missing:
        is_declared = any(option.endswith((" N", " K")) for option in missing)
        why = "what is declared of private records becomes public, so it is not counted"
        raise BadInputError(
            f"{own.path} is taken for {own.kind}, which needs {' and '.join(missing)}",
            because=why if is_declared else None,
            fix="add " + ("it" if len(missing) == 1 else "them") + "; a rounded number of records "
            "is fine (a table of numbers goes into an .npz)",
        )
    head = [f"  {key}: {values[key]}" for key in _OF_A_FILE if key in values]
    longest = _most_tokens(own.encoder)
    rest = [_uncounted(line) for line in _others(lines)]
    if longest is not None and int(old.get("max_length", 0)) > longest:
        most = f"  max_length: {longest:<17}# tokens of a record; the encoder takes no more"
        rest = [most if line.startswith("  max_length:") else line for line in rest]
    return "\n".join(head + rest) + "\n"


def _most_tokens(encoder: str | None) -> int | None:
    """Return how many tokens the network of a directory takes, as its files say; None: unsaid.

    Networks that are related to RoBERTa count their positions from behind the padding token's.
    """
    if encoder is None:
        return None
    network, tokenizer = (
        _read_json(Path(encoder).expanduser() / name)
        for name in ("config.json", "tokenizer_config.json")
    )
    places = network.get("max_position_embeddings")
    if isinstance(places, int) and "roberta" in str(network.get("model_type", "")):
        places -= int(network.get("pad_token_id") or 0) + 1
    said = [places, network.get("n_positions"), tokenizer.get("model_max_length")]
    return min((number for number in said if isinstance(number, int) and number > 1), default=None)


def _read_json(path: Path) -> dict[str, Any]:
    """Return what a file of a network says of it; nothing, if there is none that can be read."""
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def on_own_encoder(space: Mapping[str, Any], own: OwnData) -> dict[str, Any]:
    """Return a search space whose network is the encoder that ``own`` names, if it names one."""
    if own.encoder is None:
        return dict(space)
    place = Path(own.encoder).expanduser()
    name = f"text/{place.resolve()}" if place.exists() else f"text/{own.encoder}"
    changed = {"model.name": name, "features.name": name}
    is_text = {key: str(space.get(key)).startswith("text/") for key in changed}
    return {key: changed[key] if is_text.get(key) else value for key, value in space.items()}


def on_own_records(
    space: Mapping[str, Any], names: Collection[str], own: OwnData, public: float
) -> dict[str, Any]:
    """Return a search space none of whose counts of public records is more than there are.

    Nor is a batch more than half of the others, of which some may be set apart for scores.

    >>> own = OwnData("a.npz", num_records=3000)
    >>> on_own_records({"labels.max": {"choice": [500, 1000]}, "k": 5000}, ["labels.max"], own, 0.3)
    {'labels.max': {'choice': [500, 900]}, 'k': 5000}
    >>> on_own_records({"batch.expected": {"choice": [128, 2048]}}, [], own, 0.3)
    {'batch.expected': {'choice': [128, 1050]}}

    Args:
        space: ``search.space`` of a starter.
        names: Hyperparameters that count public records.
        own: With ``num_records``; without, nothing changes.
        public: Share of the records that is declared public.
    """
    if own.num_records is None:
        return dict(space)
    most = dict.fromkeys(names, int(own.num_records * public))
    most["batch.expected"] = max(1, int(own.num_records * (1 - public) / 2))
    return {
        name: _at_most(value, most[name]) if name in most else value
        for name, value in space.items()
    }


def _at_most(value: Any, most: int) -> Any:
    """Return a number, a choice, a range or the branches of one, with no number above a limit.

    >>> _at_most({"logint": [100, 5000]}, 900), _at_most({"int": [1000, 5000]}, 900)
    ({'logint': [100, 900]}, {'choice': [900]})
    """
    if isinstance(value, int):
        return min(value, most)
    if isinstance(value, list):
        return list(dict.fromkeys(_at_most(one, most) for one in value))
    if not isinstance(value, Mapping):
        return value
    if "by" in value:
        ((parent, branches),) = value["by"].items()
        return {"by": {parent: {key: _at_most(one, most) for key, one in branches.items()}}}
    fitted: dict[str, Any] = {}
    for key, one in value.items():
        numbers = _at_most(one, most) if isinstance(one, list) else one
        is_one_number = key in ("int", "logint") and len(numbers) == 1
        fitted["choice" if is_one_number else key] = numbers
    return fitted


def delta_of(dataset: str, section: str) -> str:
    """Return delta for a starter: of declared records that of a spec that names none.

    Of a published dataset it is 1e-5, as in papers, or less where that is not below 1 / N.

    >>> delta_of("mnist", ""), delta_of("celeba", ""), delta_of("npz", "  num_records: 20000  #")
    ('1e-5', '6e-07', '5e-06')
    """
    declared = re.search(r"^  num_records: (\d+)", section, re.MULTILINE)
    num_records = int(declared[1]) if declared else PUBLISHED_RECORDS.get(dataset, 1)
    is_as_in_papers = declared is None and LARGEST_DERIVED * num_records < 1
    delta = LARGEST_DERIVED if is_as_in_papers else derived_delta(num_records)
    return "1e-5" if delta == LARGEST_DERIVED else f"{delta:g}"


def _others(lines: list[str]) -> list[str]:
    """Return the lines that do not describe the file, without comments that went with those."""
    kept, is_dropped = [], False
    for line in lines:
        match = _KEY.match(line)
        if match:
            is_dropped = match[1] in _OF_A_FILE
        elif not line.lstrip().startswith("#"):
            is_dropped = False
        if not is_dropped:
            kept.append(line)
    return kept


def _uncounted(line: str) -> str:
    """Return a line less a comment with a number of records in it.

    >>> _uncounted("    fraction: 0.1   # 6000 records")
    '    fraction: 0.1'
    >>> _uncounted("  test: {visibility: public}   # scored once")
    '  test: {visibility: public}   # scored once'
    """
    return re.sub(r"\s+#[^#]*\b[1-9]\d{2,}\b[^#]*$", "", line)


def _scalar(value: str | int) -> str:
    r"""Write a value as YAML reads it back: words that could be something else in quotes.

    >>> _scalar(3), _scalar("a.npz"), _scalar("two words"), _scalar('"txt.\u202eexe')
    ('3', 'a.npz', "'two words'", '"\\"txt.\\U0000202eexe"')
    """
    if isinstance(value, int):
        return str(value)
    if not value.isprintable():
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        signs = (sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in quoted)
        return '"' + "".join(signs) + '"'
    if re.fullmatch(r"[A-Za-z_./][A-Za-z0-9_./-]*", value) and value not in _OTHER_WORDS:
        return value
    return "'" + value.replace("'", "''") + "'"


def own_name(name: str, path: str) -> str:
    """Return the name of a study on data of one's own: less the old dataset's, with the file's.

    >>> own_name("golatkar2022-adamix-fashion-mnist", "/data/Oxford Pets.npz")
    'golatkar2022-adamix-oxford-pets'
    >>> own_name("tramer2021-cifar10-grid", "mine")
    'tramer2021-grid-mine'
    """
    stem = re.sub(r"[^a-z0-9]+", "-", Path(path).stem.lower()).strip("-") or "data"
    for old in _NAMES:
        shorter = re.sub(rf"(^|-){old}(?=-|$)", "", name, count=1)
        if shorter != name:
            name = shorter.strip("-")
            break
    return f"{name}-{stem}".strip("-")[:64].rstrip("-")
