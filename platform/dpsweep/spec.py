"""A whole study as frozen data: SweepSpec and its sections, checked at construction.

The same spec is a YAML file or a Python object; each becomes the other without loss. A mistake
raises SpecError with every mistake of the spec, one line each, with file and line for a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
)

from dpsweep.errors import Mistake, SpecError
from dpsweep.parameters import (
    SPACE_SCHEMA,
    Parameter,
    canonical_scalar,
    canonical_space,
    check_points,
    parse_space,
)
from dpsweep.spec_base import (
    AS_NUMBER,
    AS_TEXT,
    AS_WHOLE,
    Flaw,
    Part,
    Text,
    mistakes_of,
    peek,
    peek_number,
)
from dpsweep.spec_data import DataSpec, PublicSpec, TestSpec, ValidationSpec
from dpsweep.spec_file import Document, apply_overrides, dump_yaml, override, read_document

__all__ = [
    "ClusterSpec",
    "DataSpec",
    "PrivacySpec",
    "PublicSpec",
    "ReportSpec",
    "ResourcesSpec",
    "SchedulerSpec",
    "SearchSpec",
    "SpaceCheck",
    "StorageSpec",
    "SweepSpec",
    "TestSpec",
    "TrackingSpec",
    "ValidationSpec",
    "apply_overrides",
]


def _point_value(value: Any) -> Any:
    try:
        return canonical_scalar(value)
    except ValueError as error:
        raise ValueError(error.args[0]) from None


PointValue = Annotated[Any, BeforeValidator(_point_value)]
Positive = Annotated[float, Field(gt=0), AS_NUMBER]
NotNegative = Annotated[float, Field(ge=0), AS_NUMBER]
Count = Annotated[int, Field(ge=1), AS_WHOLE]


class PrivacySpec(Part):
    """The budget of one trial, and how the search over many is accounted for.

    Guarantees:
        A private trial spends at most (``trial_epsilon``, ``delta``) under
        ``neighboring_relation``. What the whole search spends is the matter of ``accounting``.
    """

    delta: Annotated[float, Field(gt=0, lt=1), AS_NUMBER] = Field(
        default=1e-5,
        description="Chance that the guarantee fails; well below 1 / number of records.",
    )
    trial_epsilon: Positive = Field(
        description="say how much epsilon one trial may spend; 1 is strict, 8 is loose"
    )
    accounting: Literal["composed", "select", "public", "unaccounted"] = Field(
        description="it has no default, so that the choice is yours: `unaccounted` says that "
        "epsilon is that of one trial and the cost of the search is not included"
    )
    study_epsilon: Positive | None = Field(
        default=None, description="Budget of the whole study; for accounting composed and select."
    )
    accountant: Literal["rdp", "pld"] = Field(
        default="rdp", description="How epsilon is bounded: rdp (fast) or pld (tighter, slower)."
    )
    neighboring_relation: Literal["add_or_remove_one", "replace_one", "replace_special"] = Field(
        default="add_or_remove_one", description="Which two datasets count as neighbours."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Refuse what is not built yet, and a study budget that nothing would enforce."""
        mode = raw.get("accounting")
        if mode in ("composed", "select", "public"):
            yield Flaw(
                ("accounting",),
                f"{mode!r} is not available yet: no search can be accounted for so far",
                "use unaccounted; every epsilon is then labelled as that of one trial alone",
            )
        if mode == "unaccounted" and raw.get("study_epsilon") is not None:
            yield Flaw(
                ("study_epsilon",),
                "an unaccounted study has no budget of its own, so this would not be kept",
                "remove it",
            )
        relation = raw.get("neighboring_relation", "add_or_remove_one")
        if relation in ("replace_one", "replace_special"):
            yield Flaw(
                ("neighboring_relation",),
                f"{relation!r} is not available yet",
                "use add_or_remove_one; an epsilon under another relation is another number",
            )


class SearchSpec(Part):
    """What is searched, how, and by which score."""

    sampler: Literal["random", "grid", "tpe"] = Field(
        default="tpe", description="How configurations are chosen; grid needs `num` on each range."
    )
    num_trials: Count = Field(default=24, description="How many configurations are trained.")
    metric: Literal["validation/accuracy", "validation/loss"] = Field(
        default="validation/accuracy", description="Score that configurations are compared by."
    )
    mode: Literal["max", "min"] = Field(default="max", description="Whether a high score is good.")
    max_concurrent: Count | None = Field(
        default=None, description="Most trials at once; null: as many as the resources allow."
    )
    points_to_evaluate: tuple[dict[str, PointValue], ...] = Field(
        default=(), description="Configurations to try first, each a mapping of parameter to value."
    )
    space: Annotated[
        dict[str, Any], AfterValidator(canonical_space), WithJsonSchema(SPACE_SCHEMA)
    ] = Field(
        description="say what to search, for instance\n"
        "  {method: dp_sgd, optim.lr: {loguniform: [0.1, 8]}}"
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Check the space, the first points, and that the score points the right way."""
        metric, mode = raw.get("metric", "validation/accuracy"), raw.get("mode", "max")
        if isinstance(metric, str) and metric.startswith("test/"):
            yield Flaw(
                ("metric",),
                f"{metric!r} cannot be searched by: its value for the winner would be too good",
                "use validation/accuracy or validation/loss",
            )
        if (metric, mode) in (("validation/loss", "max"), ("validation/accuracy", "min")):
            yield Flaw(
                ("mode",),
                f"mode {mode} with {metric} looks for the worst configuration",
                f"use mode: {'min' if mode == 'max' else 'max'}",
            )
        space = raw.get("space")
        if not isinstance(space, Mapping):
            return
        parameters, flaws = parse_space(space)
        yield from (Flaw(("space", *path), what, fix) for path, what, fix in flaws)
        if raw.get("sampler") == "grid":
            for parameter in parameters:
                if parameter.is_range and parameter.num is None:
                    yield Flaw(
                        ("space", parameter.name),
                        "sampler grid needs to know how many points to take from a range",
                        "add `num: 5` to it, or use a choice",
                    )
        points = raw.get("points_to_evaluate", ())
        if isinstance(points, (list, tuple)) and not flaws:
            yield from (
                Flaw(("points_to_evaluate", *path), what, fix)
                for path, what, fix in check_points(parameters, points)
            )

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The space as parameters, each after those that its condition names."""
        return parse_space(self.space)[0]


class SchedulerSpec(Part):
    """Which trials are stopped early."""

    type: Literal["fifo", "median", "epsilon_halving"] = Field(
        default="fifo", description="fifo runs every trial to its end."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Refuse what is not built yet."""
        if raw.get("type") in ("median", "epsilon_halving"):
            yield Flaw(("type",), f"{raw['type']!r} is not available yet", "use fifo")


class ReportSpec(Part):
    """When a trial evaluates and reports."""

    every_steps: Count | None = Field(
        default=None, description="Steps between two reports; wins over points."
    )
    points: Count = Field(default=10, description="Number of reports of one trial, evenly spaced.")


class ResourcesSpec(Part):
    """What one trial occupies while it runs."""

    cpu: Positive = Field(
        default=1, description="CPU cores of one trial; a fraction shares a core."
    )
    gpu: NotNegative = Field(default=0, description="GPUs of one trial; a fraction shares a GPU.")
    max_failures: Annotated[int, Field(ge=0), AS_WHOLE] = Field(
        default=3, description="How often a crashed trial is continued; what it spent stays spent."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Refuse what Ray cannot place."""
        gpu = peek_number(raw, "gpu", default=0)
        if gpu > 1 and gpu != int(gpu):
            yield Flaw(
                ("gpu",),
                f"a trial can share one GPU or have several whole ones, got {gpu:g}",
                f"use {int(gpu)} or {int(gpu) + 1}",
            )


class TrackingSpec(Part):
    """Where runs are recorded."""

    uri: Text | None = Field(
        default="sqlite:///mlflow.db",
        description="MLflow store: sqlite:///FILE, or the http(s) address of a server; null: none.",
    )
    experiment: Text | None = Field(
        default=None, description="MLflow experiment; null: the study's name."
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Refuse directories: MLflow's file store loses what is written concurrently."""
        uri = raw.get("uri")
        if not isinstance(uri, str) or not uri.strip() or uri == "databricks":
            return
        if "://" not in uri or uri.startswith("file:"):
            yield Flaw(
                ("uri",),
                f"{uri!r} is a directory, and MLflow no longer keeps its records in one",
                "use sqlite:///mlflow.db, the http address of a server, or null",
            )


class ClusterSpec(Part):
    """Where trials run."""

    target: Literal["local", "ray", "kuberay", "slurm"] = Field(
        default="local", description="local: this machine; ray: a running Ray cluster."
    )
    num_cpus: Count | None = Field(default=None, description="local: CPU cores to use; null: all.")
    num_gpus: Annotated[int, Field(ge=0), AS_WHOLE] | None = Field(
        default=None, description="local: GPUs to use; null: all."
    )
    address: Text | None = Field(
        default=None,
        description="ray: address of the cluster, for instance ray://head:10001 or auto.",
    )

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Flaw]:
        """Refuse what is not built yet, and keys that the target would ignore."""
        target = raw.get("target", "local")
        if target in ("kuberay", "slurm"):
            yield Flaw(
                ("target",),
                f"{target!r} is not available yet",
                "use local, or ray with the address of a cluster that runs already",
            )
        if target == "ray" and raw.get("address") is None:
            yield Flaw(
                ("address",),
                "is missing: target ray joins a running cluster",
                "give ray://HOST:10001, HOST:6379, or auto on a machine of the cluster",
            )
        if target == "local" and raw.get("address") is not None:
            yield Flaw(("address",), "has no meaning for target local", "use target: ray")
        for key in ("num_cpus", "num_gpus"):
            if target == "ray" and raw.get(key) is not None:
                yield Flaw(
                    (key,), "has no meaning for target ray: the cluster is there", "remove it"
                )


class StorageSpec(Part):
    """Where studies are kept."""

    path: Text = Field(
        default="studies", description="Directory of studies; each gets its own folder."
    )


#: Says what else is wrong about the parameters of a space (see ``SweepSpec.from_yaml``).
SpaceCheck = Callable[[Sequence[Parameter]], Sequence[Mistake]]


class SweepSpec(Part):
    """A whole study.

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

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$"), AS_TEXT] = Field(
        description="name the study: 1 to 64 of a-z 0-9 . _ -, first a letter or a digit"
    )
    seed: Annotated[int, Field(ge=0, lt=2**32), AS_WHOLE] = Field(
        default=0,
        description="Fixes initial weights and suggested configurations; never the noise.",
    )
    data: DataSpec = Field(description="say which data to use; `dpsweep init` writes an example")
    privacy: PrivacySpec = Field(
        description="say what a trial may spend, for instance\n"
        "  {trial_epsilon: 2.0, accounting: unaccounted}"
    )
    search: SearchSpec = Field(description="say what to search; `dpsweep init` writes an example")
    scheduler: SchedulerSpec = SchedulerSpec()
    report: ReportSpec = ReportSpec()
    resources: ResourcesSpec = ResourcesSpec()
    tracking: TrackingSpec = TrackingSpec()
    cluster: ClusterSpec = ClusterSpec()
    storage: StorageSpec = StorageSpec()

    _document: Document | None = PrivateAttr(None)

    @classmethod
    def from_yaml(
        cls,
        source: Path | str,
        *,
        overrides: Sequence[str] = (),
        check_space: SpaceCheck | None = None,
    ) -> SweepSpec:
        """Read a spec from a file, or from a text with more than one line.

        Args:
            source: Path of a YAML file, or its text.
            overrides: ``section.key=value`` each, applied before anything is checked.
            check_space: Says what else is wrong about the parameters of the space (that the
                methods know them, say), so that it is reported together with the rest.
        Raises:
            SpecError: With every mistake, in the order of the lines.
        """
        document = override(read_document(source), overrides)
        spec, mistakes = None, list(document.mistakes)
        try:
            spec = cls.model_validate(document.value)
        except ValidationError as error:
            mistakes += mistakes_of(error)
        space = peek(document.value, "search", "space")
        if check_space is not None and isinstance(space, Mapping):
            reported = {mistake.where for mistake in mistakes}
            found = check_space(parse_space(space)[0])
            mistakes += [mistake for mistake in found if mistake.where not in reported]
        if mistakes or spec is None:
            raise SpecError(document.located(mistakes))
        spec._document = document
        return spec

    def where(self, path: str) -> str:
        """Return ``sweep.yaml:12 search.space`` for a dotted path; without a file, the path."""
        return path if self._document is None else self._document.where(path)

    def to_dict(self) -> dict[str, Any]:
        """Return every key with its value, as plain lists, mappings and scalars."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Return the spec as YAML, with every key; ``from_yaml`` gives an equal spec."""
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
