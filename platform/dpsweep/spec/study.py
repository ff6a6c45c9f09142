"""A whole study as frozen data: SweepSpec and its sections, checked at construction.

The same spec is a YAML file or a Python object; each becomes the other without loss. A mistake
raises SpecError with every mistake of the spec, one line each, with file and line for a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError

from dpsweep.foundation.errors import Mistake, SpecError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.privacy.terms import PrivacyTerms
from dpsweep.spec.base import (
    AS_TEXT,
    AS_WHOLE,
    Count,
    Part,
    mistakes_of,
    peek,
    peek_mode,
)
from dpsweep.spec.cluster import LAUNCHED, ClusterSpec, ResourcesSpec
from dpsweep.spec.data.datasets import PUBLISHED_RECORDS
from dpsweep.spec.data.evaluation import TestSpec, ValidationSpec
from dpsweep.spec.data.public import PublicSpec, without_defaults
from dpsweep.spec.data.public_rules import public_rules
from dpsweep.spec.data.section import DataSpec
from dpsweep.spec.deltas import derived_delta
from dpsweep.spec.document.overrides import apply_overrides, override
from dpsweep.spec.document.reading import Document, read_document
from dpsweep.spec.document.writing import dump_yaml
from dpsweep.spec.episodes import EPISODE, EpisodesSpec, episode_rules
from dpsweep.spec.installed import AS_STORED
from dpsweep.spec.modes import mode_rules
from dpsweep.spec.pretrain import PretrainSpec, pretrain_rules
from dpsweep.spec.privacy import PrivacySpec, SelectionSpec
from dpsweep.spec.search.on import OnSpec, on_rules, with_on
from dpsweep.spec.search.probe import PROBE, ProbeSpec, probe_rules, with_probe_defaults
from dpsweep.spec.search.scheduler import SchedulerSpec
from dpsweep.spec.search.section import SearchSpec, metric_rules
from dpsweep.spec.space.parameter import Parameter
from dpsweep.spec.space.parameters import parse_space
from dpsweep.spec.start import StartSpec, methods_named, start_rules
from dpsweep.spec.storage import StorageSpec
from dpsweep.spec.tracking import TrackingSpec

__all__ = [
    "ClusterSpec",
    "DataSpec",
    "EpisodesSpec",
    "OnSpec",
    "PretrainSpec",
    "PrivacySpec",
    "ProbeSpec",
    "PublicSpec",
    "ReportSpec",
    "ResourcesSpec",
    "SchedulerSpec",
    "SearchSpec",
    "SelectionSpec",
    "SpaceCheck",
    "StartSpec",
    "StorageSpec",
    "SweepSpec",
    "TestSpec",
    "TrackingSpec",
    "ValidationSpec",
    "apply_overrides",
]


class ReportSpec(Part):
    """When a trial evaluates and reports."""

    every_steps: Count | None = Field(
        default=None, description="Steps between two reports; wins over points."
    )
    points: Count = Field(default=10, description="Number of reports of one trial, evenly spaced.")


#: Names of studies; they are folders, and parts of names elsewhere.
NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
#: Says what else is wrong about the parameters of a space (see ``SweepSpec.from_yaml``).
SpaceCheck = Callable[[Sequence[Parameter]], Sequence[Mistake]]


class SweepSpec(Part):
    """A whole study.

    Numbers and arrays of NumPy, ranges and paths count as what a file would have in their place.

    >>> spec = SweepSpec(
    ...     name="digits-eps2",
    ...     data={"dataset": "digits", "validation": {"visibility": "public"}},
    ...     privacy={"trial_epsilon": 2.0, "accounting": "unaccounted"},
    ...     search={"space": {"method": "dp_sgd", "optim.lr": {"loguniform": [0.1, 8]}}},
    ... )
    >>> SweepSpec.from_yaml(spec.to_yaml()) == spec
    True

    Raises:
        SpecError: With every mistake.
    """

    name: Annotated[str, Field(pattern=NAME), AS_TEXT] = Field(
        description="name the study: 1 to 64 of a-z 0-9 . _ -, first a letter or a digit"
    )
    seed: Annotated[int, Field(ge=0, lt=2**32), AS_WHOLE] = Field(
        default=0,
        description="Fixes initial weights and suggested configurations; never the noise.",
    )
    data: DataSpec = Field(description="say which data to use; `dpsweep init` writes an example")
    pretrain: PretrainSpec | None = Field(
        default=None, description="Public weights that trials may start from; null: none."
    )
    privacy: PrivacySpec = Field(
        description="say what a trial may spend, for instance\n"
        "  {accounting: composed, trial_epsilon: 2.0, study_epsilon: 6.0}"
    )
    search: SearchSpec = Field(description="say what to search; `dpsweep init` writes an example")
    episodes: EpisodesSpec | None = Field(
        default=None,
        description="Train each configuration on many small datasets drawn from the private one; "
        "null: on the private one itself.",
    )
    start: StartSpec | None = Field(
        default=None,
        description="A private model, trained once, that trials start from; null: none.",
    )
    scheduler: SchedulerSpec = SchedulerSpec()
    report: ReportSpec = ReportSpec()
    resources: ResourcesSpec = ResourcesSpec()
    tracking: TrackingSpec = TrackingSpec()
    cluster: ClusterSpec = ClusterSpec()
    storage: StorageSpec = StorageSpec()

    _document: Document | None = PrivateAttr(None)
    _names_delta: bool = PrivateAttr(True)

    def model_post_init(self, context: Any) -> None:
        """Give a spec that names no delta the one of its declared number of records.

        Resources learn of which methods trials are.
        """
        super().model_post_init(context)
        resources = self.resources.for_methods(methods_named(self.search.space, self.start))
        self.__dict__["resources"] = resources  # frozen for everybody else
        data = self.data
        num_records = data.num_records or PUBLISHED_RECORDS.get(data.dataset)
        if "delta" in self.privacy.model_fields_set or not num_records:
            return
        self._names_delta = False
        privacy = self.privacy.model_copy(update={"delta": derived_delta(num_records)})
        self.__dict__["privacy"] = privacy

    @property
    def names_delta(self) -> bool:
        """Whether ``privacy.delta`` was given, and not derived."""
        return self._names_delta

    def with_delta(self, delta: float) -> SweepSpec:
        """Return the same spec with another derived delta."""
        privacy = self.privacy.model_copy(update={"delta": delta})
        return self.model_copy(update={"privacy": privacy})

    @classmethod
    def complete(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name the sampler of ``select`` and of episodes, and complete strategy ``probe``.

        Their num_trials may be null.
        """
        raw = with_probe_defaults(with_on(raw))
        search = raw.get("search")
        is_select = peek_mode(raw, "privacy", "accounting").is_sealed
        if not is_select and raw.get("episodes") is None:
            return raw
        sampler = "random" if is_select else "grid"
        if isinstance(search, SearchSpec) and "sampler" not in search.model_fields_set:
            return {**raw, "search": search.model_copy(update={"sampler": sampler})}
        if isinstance(search, Mapping):
            kept = dict(search)
            if kept.get("num_trials", 0) is None:
                del kept["num_trials"]
            return {**raw, "search": {"sampler": sampler, **kept}}
        return raw

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Mistake]:
        """Check what the sections demand of each other."""
        yield from mode_rules(raw)
        yield from episode_rules(raw)
        yield from pretrain_rules(raw)
        yield from start_rules(raw)
        yield from public_rules(raw)
        yield from metric_rules(raw)
        yield from probe_rules(raw)
        yield from on_rules(raw)

    @property
    def space(self) -> dict[str, Any]:
        """The search space, with the number of the episode as a parameter where there are some.

        It stands first: a grid runs all configurations on one episode before the next one.
        """
        if self.episodes is None:
            return self.search.space
        return {EPISODE: {"choice": list(range(self.episodes.number))}, **self.search.space}

    @property
    def privacy_unit(self) -> str:
        """Whose data one private record is, as it must stand beside every epsilon."""
        unit = self.data.privacy_unit
        return unit if self.episodes is None else f"{unit} of one episode"

    def privacy_terms(
        self, sampling: str, *, accountant: str | None = None, accounting: str | None = None
    ) -> PrivacyTerms:
        """Return what must stand beside an epsilon of this study.

        Args:
            sampling: How records enter the events that it bounds.
            accountant: Where another one than the spec's bounds it.
            accounting: Where another mode than the spec's holds.
        """
        privacy = self.privacy
        return PrivacyTerms(
            delta=privacy.delta,
            accountant=accountant or privacy.accountant,
            neighboring_relation=privacy.neighboring_relation,
            sampling=sampling,
            privacy_unit=self.privacy_unit,
            accounting=accounting or privacy.accounting,
        )

    @property
    def num_starts(self) -> int:
        """Number of private runs before the search; they are the first trials of the study."""
        return 0 if self.start is None else self.start.runs

    @property
    def final_trial(self) -> int | None:
        """Number of the one run that is delivered, where it is said before the first trial.

        Of a public search and of one on a part of the records it is the trial after the last.
        """
        return self.search.probe.most if self.search.strategy == PROBE else None

    def run_of(self, trial: int) -> str:
        """Return which run of strategy ``probe`` a trial is: probe, spare or final; else empty."""
        if self.final_trial is None:
            return ""
        if trial == self.final_trial:
            return "final"
        return "probe" if trial < self.search.probe.num_probes else "spare"

    @property
    def searched_share(self) -> float | None:
        """Share of the private records that the search runs on, where the final run is on all
        others; None: there is no such part."""
        return None if self.search.on is None else self.search.on.split

    @property
    def subset_rate(self) -> float | None:
        """Probability that a private record is in the secret part that the search runs on, where
        the final run is on all of them; None: there is no such part."""
        return None if self.search.on is None else self.search.on.subset

    @property
    def part_share(self) -> float | None:
        """Declared share of the private records in the part that the search runs on, whatever
        records the final run is on; None: all of them."""
        return self.subset_rate if self.searched_share is None else self.searched_share

    @property
    def has_final_run(self) -> bool:
        """Whether one run is delivered, and all trials before it only find its configuration."""
        is_public = self.privacy.mode.is_public_search
        return is_public or self.final_trial is not None or self.search.on is not None

    @property
    def rungs(self) -> tuple[float, ...]:
        """Where trials are compared, in ``scheduler.rung_unit``, ascending; of some types none."""
        if "rungs" not in SchedulerSpec.KEYS[self.scheduler.type]:
            return ()
        whole = self.privacy.trial_epsilon if self.scheduler.rung_unit == "epsilon" else 1.0
        return self.scheduler.rungs or (0.4 * whole, 0.65 * whole)

    @classmethod
    def from_yaml(
        cls,
        source: FilePath | str,
        *,
        overrides: Sequence[str] = (),
        check_space: SpaceCheck | None = None,
        text_name: str = "<text>",
        is_stored: bool = False,
    ) -> SweepSpec:
        """Read a spec from a file, or from a text with more than one line.

        Args:
            source: Path of a YAML file, or its text.
            overrides: ``section.key=value`` each, applied before anything is checked.
            check_space: Says what else is wrong about the parameters of the space (that the
                methods know them, say), so that it is reported together with the rest.
            text_name: What mistakes in a text call it.
            is_stored: Read the spec of a study on disk: names of packages that are no longer
                installed are no mistake in it.
        Raises:
            SpecError: With every mistake, in the order of the lines.
            BadInputError: ``overrides`` is no list of texts.
        """
        document = read_document(source, text_name=text_name, is_stored=is_stored)
        document = override(document, overrides)
        spec, mistakes = None, list(document.mistakes)
        try:
            spec = cls.model_validate(document.value, context=AS_STORED if is_stored else None)
        except ValidationError as error:
            # What could not be read is no second mistake: it is not missing, nor of another type.
            unread = {mistake.key for mistake in mistakes if "YAML" in mistake.what}
            mistakes += [m for m in mistakes_of(error) if m.key not in unread]
        space = peek(document.value, "search", "space")
        if check_space is not None and isinstance(space, Mapping):
            reported = {mistake.key for mistake in mistakes}
            flaws = check_space(parse_space(space)[0])
            mistakes += [mistake for mistake in flaws if mistake.key not in reported]
        if mistakes or spec is None:
            raise SpecError(document.located(mistakes), is_first_look=True)
        spec._document = document
        return spec

    @property
    def file(self) -> str | None:
        """Name of the file or text that it was read from, as it was given; None without one."""
        return None if self._document is None else self._document.name

    def where(self, path: str) -> str:
        """Return ``sweep.yaml:12 search.space`` for a dotted path; without a file, the path."""
        return path if self._document is None else self._document.where(path)

    def as_written(self) -> dict[str, Any]:
        """Return the keys that were written, with overrides; all of them without a file."""
        return self.to_dict() if self._document is None else dict(self._document.value)

    def to_dict(self) -> dict[str, Any]:
        """Return every key that means something here, as plain lists, mappings and scalars."""
        tree = self.model_dump(mode="json")
        for key in SchedulerSpec.unused(self.scheduler.type):
            del tree["scheduler"][key]
        is_select = self.privacy.mode.is_sealed
        if is_select or self.episodes is not None:
            del tree["search"]["num_trials"]
        if not is_select:
            del tree["privacy"]["selection"]
        if self.search.strategy == PROBE:
            for key in ("sampler", "num_trials", "max_time", "points_to_evaluate", "objectives"):
                del tree["search"][key]
        else:
            del tree["search"]["probe"]
        if self.search.on is None:
            del tree["search"]["on"]
        else:
            tree["search"]["on"] = self.search.on.model_dump(exclude_none=True)
        if tree["data"]["class_names"] is None:
            del tree["data"]["class_names"]
        tree["data"]["public"] = without_defaults(tree["data"]["public"])
        for section in ("episodes", "pretrain", "start"):
            if tree[section] is None:
                del tree[section]
        for section in LAUNCHED:
            if tree["cluster"][section] is None:
                del tree["cluster"][section]
        if self.pretrain is not None and self.pretrain.checkpoint is not None:
            tree["pretrain"] = {"checkpoint": self.pretrain.checkpoint}
        return tree

    def to_yaml(self) -> str:
        """Return ``to_dict`` as YAML; ``from_yaml`` gives an equal spec."""
        return dump_yaml(self.to_dict())

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of a spec file, for editors."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **cls.model_json_schema(),
        }

    def __eq__(self, other: object) -> bool:
        """Compare what the specs say, not where it was read."""
        return isinstance(other, SweepSpec) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """Hash name and seed; specs that are equal have equal ones."""
        return hash((self.name, self.seed))
