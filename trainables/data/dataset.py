"""Data of a study: declared sizes, a data-independent split, arrays that actors share.

The split is a function of the declared number of records alone (never of a record), so it costs
no privacy, and the private part is disjoint from every part that is evaluated on.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from dpsweep.foundation.errors import DataError
from dpsweep.trainables.data.hashes import hash_of_parts
from dpsweep.trainables.data.kept.pixels import Pixels, taken
from dpsweep.trainables.data.source import Arrays
from dpsweep.trainables.devices.sharing import TorchGpu, is_kept_there

if TYPE_CHECKING:
    import torch

    from dpsweep.spec.data.section import DataSpec
    from dpsweep.trainables.data.source import TextInfo

Records = Literal["private", "public", "rest"]

#: Fixes the split of every study. Public; changing it changes every split.
SPLIT_SEED = 20_211_005
#: Records that are moved to a GPU at once: images that are kept as bytes are made meanwhile.
_MOVED_ROWS = 4096


@dataclass(frozen=True)
class DatasetInfo:
    """Public facts about a study's data, known before a private record is opened.

    Attributes:
        name: Dataset name of the spec.
        input_shape: Shape of one record: (channels, height, width), (features,) or (tokens,).
        num_classes: Number of classes or attributes; the vocabulary for ``causal_lm``.
        num_private: Declared number of private training records; the actual one may differ.
        num_validation: Declared number of validation records.
        num_test: Declared number of test records.
        num_public: Declared number of public records, pollution among them.
        class_names: One name per class or attribute; none for ``causal_lm``.
        has_own_validation: True if the dataset comes with a validation part, whose size is then
            counted in its files and not declared.
        has_own_test: Whether it comes with a test part, likewise.
        features: Key of the ``FeatureSpec`` that the records are features of; empty for raw ones.
        task: What is learned, see ``dpsweep.trainables.data.tasks``.
        text: What must be known of records that are token ids; None for other records.
        num_polluted: How many of the public records are pollution, by declaration.
        public_from: The other file that the public records are, in words; empty where they are
            some of the training source.
        public_labels: Who reads labels of public records: all (``known``), active learning alone
            (``bought``), or nobody (``hidden``), in which case each of them is -1.
        is_far_smaller: Whether headers or names tell that the training source holds less than half
            of the declared records. It is said to whoever launches a study, and kept nowhere. (That
            there are more than twice as many is seen when they are read: classes may be left out.)
        notes: Of the source, for whoever launches a study.
    """

    name: str
    input_shape: tuple[int, ...]
    num_classes: int
    num_private: int
    num_validation: int
    num_test: int
    num_public: int
    class_names: tuple[str, ...]
    has_own_validation: bool = False
    has_own_test: bool = False
    features: str = ""
    task: str = "classification"
    text: TextInfo | None = None
    num_polluted: int = 0
    public_from: str = ""
    public_labels: Literal["known", "bought", "hidden"] = "known"
    is_far_smaller: bool = False
    notes: tuple[str, ...] = ()


def is_size_told(info: DatasetInfo, data: DataSpec, part: str) -> bool:
    """Return whether the number of a part's records may be told to anybody.

    Most are declared. A part that comes on its own is counted, so its size is told only where its
    records are public.
    """
    if part == "validation":
        return not info.has_own_validation or data.validation.visibility == "public"
    if part == "test":
        is_dealt = data.test.fraction > 0 and not info.has_own_test
        return is_dealt or data.test.visibility == "public"
    return True


class Drawing(Protocol):
    """A rule by which the records of a trial are drawn: ``trainables.data.episodes.Episodes``."""

    def for_trial(self, pool: SweepData, hparams: Mapping[str, Any]) -> SweepData:
        """Return the records of a trial with these hyperparameters, drawn from those of a pool."""


@dataclass(frozen=True)
class SweepData:
    """The records of a study.

    Attributes:
        info: Public facts.
        parts: ``private``, ``public``, ``validation`` and ``test``, each (inputs, labels): float32
            C-contiguous (records, *input_shape) and int64 (records,). Text is int64 token ids;
            labels are float32 (records, attributes) for ``multi_label``, int64 (records, tokens)
            for ``causal_lm``. An absent part has length 0. Never written to: actors hold read-only
            views of one copy. Inputs of many images are ``Pixels``, which index as an array does
            and read float32 from a file when they are asked for.
        content_hash: SHA-256 of the class names and all parts, to see whether a resumed study has
            the same data. It depends on private records without noise: it stays beside the data.
        records: Whose records a method trains on, which it finds in ``private``: private ones,
            public ones that stand in for them (``for_public_search``), or the rest that a search on
            a part of the private ones leaves (``for_final_run``).
        hashes: Part name -> ``part_hash`` of its inputs, where it is known already. They stay
            beside the data, as ``content_hash`` does.
        episodes: How the records of a trial are drawn from these (``for_trial``), or None where
            they are these themselves.
        pool: Of an episode, the data that it was drawn from.
        rows: Of an episode, the rows of each part in its pool, int64.
        polluted: Which public records are pollution, bool (public records,); None where none is.
        old_hash: SHA-256 of all parts without class names, as studies of earlier versions have it;
            empty where no study is begun on these.
        searched_share: Share of the private records that the search is to run on; None: all of
            them, or these are one of the two parts already.
    """

    info: DatasetInfo
    parts: dict[str, Arrays]
    content_hash: str
    records: Records = "private"
    hashes: Mapping[str, str] = field(default_factory=dict)
    episodes: Drawing | None = None
    pool: SweepData | None = None
    rows: Mapping[str, np.ndarray] = field(default_factory=dict)
    polluted: np.ndarray | None = None
    old_hash: str = ""
    searched_share: float | None = None

    def for_records(self, records: Records) -> SweepData:
        """Return the data of a trial that trains on such records, which are parted if they are."""
        return self.for_final_run() if records == "rest" else self.for_search()

    def for_search(self) -> SweepData:
        """Return the data that a search on a part of the private records sees, or all of it.

        Guarantees:
            No record of it is in ``for_final_run`` as well; see ``searched_rows``.
        """
        return self if self.searched_share is None else self._on_part(is_searched=True)

    def for_final_run(self) -> SweepData:
        """Return the data with those private records alone that the search does not see.

        Raises:
            DataError: The search sees all of them, so that there are no others.
        """
        if self.searched_share is None:
            raise DataError(
                f"the search sees all private records of {self.info.name}, and there is no rest",
                because="the study has no search.on",
            )
        return self._on_part(is_searched=False)

    def for_secret_part(self, rate: float, seed: str) -> SweepData:
        """Return the data of a search on a secret part of the private records (``secret_rows``).

        Guarantees:
            Facts of it are declared ones: the expected number of records, never the actual one. It
            has no hash of what is in it, by which somebody with the records could look for it.
        """
        inputs, labels = self.parts["private"]
        rows = secret_rows(len(labels), rate, seed)
        private = (taken(inputs, rows), np.ascontiguousarray(labels[rows]))
        return replace(
            self,
            info=info_of_records(self.info, rate, "private"),
            parts={**self.parts, "private": private},
            content_hash="",
            hashes={part: text for part, text in self.hashes.items() if part != "private"},
            old_hash="",
        )

    def _on_part(self, *, is_searched: bool) -> SweepData:
        assert self.searched_share is not None
        inputs, labels = self.parts["private"]
        declared = self.info.num_private
        rows = searched_rows(declared, self.searched_share, len(labels))
        if not is_searched:
            rows = np.setdiff1d(np.arange(len(labels)), rows)
        private = (taken(inputs, rows), np.ascontiguousarray(labels[rows]))
        parts = {**self.parts, "private": private}
        records: Records = "private" if is_searched else "rest"
        return replace(
            self,
            info=info_of_records(self.info, self.searched_share, records),
            parts=parts,
            content_hash=hash_of_parts(parts, self.info.class_names),
            records=records,
            hashes={part: text for part, text in self.hashes.items() if part != "private"},
            searched_share=None,
            old_hash="",
        )

    def for_trial(self, hparams: Mapping[str, Any]) -> SweepData:
        """Return what a trial with these hyperparameters runs on: all of it, or its episode."""
        return self if self.episodes is None else self.episodes.for_trial(self, hparams)

    def for_public_search(self, *, with_test: bool) -> SweepData:
        """Return the same data with the public records in the place of the private ones.

        Guarantees:
            The result holds no private training record and nothing computed from one. Validation
            records, and test records if they are wanted, are in it as they are.

        Args:
            with_test: True if the test records are public too.
        Raises:
            DataError: There are no public records, or pollution is among them.
        """
        if self.polluted is not None:
            raise DataError(
                f"the public records of {self.info.name} are polluted, and stand in for no others",
                fix="remove data.public.pollution",
            )
        if self.info.num_public == 0:
            raise DataError(
                f"{self.info.name} has no public records, so nothing can be searched on them",
                because="data.public.fraction is 0, or too small for one record",
                fix="set data.public.fraction, for example to 0.2, if that many are public",
            )
        inputs, labels = self.parts["public"]
        none = (inputs[:0], labels[:0])
        parts = {**self.parts, "private": (inputs, labels), "public": none}
        now_in = {"private": "public", "validation": "validation"}
        if with_test:
            now_in["test"] = "test"
        else:
            parts["test"] = none
        hashes = {new: self.hashes[old] for new, old in now_in.items() if old in self.hashes}
        info = replace(self.info, num_private=self.info.num_public, num_public=0)
        content = hash_of_parts(parts, info.class_names)
        return SweepData(info, parts, content, "public", hashes)


def is_far_below(actual: int, declared: int) -> bool:
    """Say whether data are not what was declared: less than half of it, or nothing at all."""
    return actual < max(1, declared / 2)


def is_far_above(actual: int, declared: int) -> bool:
    """Say whether data are not what was declared: more than twice of it."""
    return actual > 2 * declared


def first_rows(declared: int, wanted: int | None, actual: int) -> np.ndarray:
    """Return the sorted rows, int64, of the ``wanted`` private records that a trial trains on.

    Guarantees:
        Which rows they are is a function of the two declared numbers alone; a row that is not
        there is left out, and without ``wanted`` all ``actual`` rows are taken.

    >>> first_rows(declared=10, wanted=4, actual=10).tolist()
    [2, 3, 7, 8]
    """
    if wanted is None or wanted >= declared:
        return np.arange(actual)
    chosen = np.random.default_rng(SPLIT_SEED + 1).permutation(declared)[:wanted]
    chosen.sort()
    return chosen[chosen < actual]


def split_sizes(declared: int, share: float) -> tuple[int, int]:
    """Return how many private records a search on a share of them sees, and how many are left.

    >>> split_sizes(1000, 0.1), split_sizes(8, 0.01), split_sizes(8, 0.99)
    ((100, 900), (1, 7), (7, 1))

    Args:
        declared: Public number of private records, at least 2.
        share: In (0, 1).
    """
    searched = min(max(round(share * declared), 1), declared - 1)
    return searched, declared - searched


def info_of_records(info: DatasetInfo, share: float | None, records: Records) -> DatasetInfo:
    """Return the facts that a trial on such records has, in a study that searches on a share."""
    if share is None or records == "public":
        return info
    return replace(info, num_private=split_sizes(info.num_private, share)[records == "rest"])


def searched_rows(declared: int, share: float, actual: int) -> np.ndarray:
    """Return the sorted rows, int64, of the private records that a search on a share sees.

    Guarantees:
        Row i is among them or not by i and the two declared numbers alone, as each record's part is
        by its slot (``loading.load_dataset``): never by what is in a record, nor by which others
        are there. A row that is not there is left out; rows beyond the declared number are not
        searched.

    >>> searched_rows(10, 0.3, 10).tolist(), searched_rows(10, 0.3, 8).tolist()
    ([6, 7, 8], [6, 7])
    """
    chosen = np.random.default_rng(SPLIT_SEED + 2).permutation(declared)
    chosen = np.sort(chosen[: split_sizes(declared, share)[0]])
    return chosen[chosen < actual]


def secret_rows(actual: int, rate: float, seed: str) -> np.ndarray:
    """Return the sorted rows, int64, of the private records that are in a secret part.

    Guarantees:
        Row i is among them with probability ``rate``, by a draw of its own: whatever is in a
        record, and whichever others are there, the same draws decide over them.

    >>> secret_rows(8, 0.5, "2a").tolist(), secret_rows(5, 0.5, "2a").tolist()
    ([1, 4], [1, 4])

    Args:
        actual: Number of private records that are there.
        rate: In (0, 1).
        seed: Secret random bits, in hexadecimal digits.
    """
    drawn = np.random.default_rng(int(seed, 16)).random(actual)
    return np.flatnonzero(drawn < rate)


def part_tensors(data: SweepData, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a part as CPU tensors that share the memory of its arrays, writable or not.

    Of images that are kept as bytes, rows become numbers when they are asked for
    (``PixelTensor``).
    """
    inputs, labels = data.parts[part]
    return tensor_of(inputs), tensor_of(labels)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array, or images that are kept as bytes, as a CPU tensor without a copy."""
    import torch

    if isinstance(array, Pixels):
        from dpsweep.trainables.data.kept.pixel_tensors import PixelTensor

        return PixelTensor(array)
    with warnings.catch_warnings():
        # Arrays from the object store are read-only. Nothing here writes to them, and a copy
        # per actor is what the object store is there to avoid.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def training_tensors(data: SweepData, part: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a part where training reads it: on the GPU if it takes up to a quarter of what this
    process may have there (``sharing.is_kept_there``), else as in ``part_tensors``.

    Of what is on the GPU, the rows of a batch alone go there at a step, int64; batches, sums, noise
    and updates stay. Of what stays on the host, chunks are moved one by one, from pinned memory,
    which the device need not wait for (``devices.numerics.moved``).
    """
    import torch

    inputs, labels = part_tensors(data, part)
    if device.startswith("cuda") and is_kept_there(inputs.nbytes, TorchGpu(device)):
        there = torch.empty(inputs.shape, dtype=inputs.dtype, device=device)
        for begin in range(0, len(inputs), _MOVED_ROWS):
            there[begin : begin + _MOVED_ROWS] = inputs[begin : begin + _MOVED_ROWS].to(device)
        return there, labels.to(device)
    return inputs, labels
