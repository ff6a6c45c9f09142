"""Hyperparameters of active learning, and which of their values fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.foundation.errors import DataError, InfeasibleBudgetError, Mistake
from dpsweep.spec.space.hyperparameters import Hyperparameter

if TYPE_CHECKING:
    from dpsweep.trainables.data.dataset import DatasetInfo

_AMONG_CANDIDATES = {"diverse_public", "near_private"}

START_HYPERPARAMETERS = (
    Hyperparameter(
        "start.epsilon",
        "float",
        None,
        "Which release of the section start a trial starts from, by its epsilon; where absent, "
        "the largest within privacy.trial_epsilon, for near_private the largest below it.",
        low=0,
        open_low=True,
        optional=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "start.run", "int", 0, "Which run of the start, from 0.", low=0, changes_privacy=True
    ),
)
SELECT_HYPERPARAMETERS = (
    Hyperparameter(
        "select.by",
        "str",
        "diverse_public",
        "Which public records get a label: random; the most uncertain by entropy or margin; "
        "diverse_public, clusters of uncertain ones; near_private, those that most private records "
        "are nearest to.",
        choices=("random", "entropy", "margin", "diverse_public", "near_private"),
        changes_privacy=True,
    ),
    Hyperparameter(
        "labels.max",
        "int",
        1000,
        "Labels that a trial may buy; 0: none, and the network learns what the start says alone.",
        low=0,
        uses_public="public records, {} labels".format,
    ),
    Hyperparameter(
        "select.uncertainty",
        "str",
        "margin",
        "What makes a record uncertain for diverse_public and near_private.",
        choices=("entropy", "margin"),
    ),
    Hyperparameter(
        "select.candidates",
        "int",
        5000,
        "Most uncertain public records that diverse_public and near_private choose among (k).",
        low=1,
    ),
    Hyperparameter(
        "select.components",
        "int",
        10,
        "Principal components to compare records in (p): of public embeddings, centred, for "
        "diverse_public; of private ones by DP-PCA, not centred, for near_private.",
        low=1,
    ),
    Hyperparameter("select.clusters", "int", 100, "Clusters of diverse_public (N_cluster).", low=1),
    Hyperparameter(
        "select.each",
        "int",
        None,
        "Labels for each cluster (N_each); where absent, as many as labels.max allows.",
        low=1,
        optional=True,
    ),
    Hyperparameter(
        "select.voters",
        "str",
        "all",
        "near_private: the private records that count: all; threshold: those no more certain than "
        "the candidates; top_k: the k most uncertain ones, the paper's, with noise for sensitivity "
        "2 (1 in the paper).",
        choices=("all", "threshold", "top_k"),
    ),
    Hyperparameter(
        "split.pca",
        "float",
        0.5,
        "near_private: share of the epsilon that the start leaves which goes to the PCA; the rest "
        "goes to the counts.",
        low=0.01,
        high=0.99,
        changes_privacy=True,
    ),
    Hyperparameter(
        "split.extra",
        "float",
        None,
        "near_private: epsilon of the PCA plus that of the counts, whatever the start has cost "
        "(figure 5a of the paper); where absent, all that the start leaves of the budget.",
        low=0,
        open_low=True,
        optional=True,
        changes_privacy=True,
    ),
    Hyperparameter(
        "split.rule",
        "str",
        "tight",
        "near_private: sum adds up epsilons and deltas, as the paper does; tight composes all "
        "events, which leaves more.",
        choices=("tight", "sum"),
        changes_privacy=True,
    ),
)
FINETUNE_HYPERPARAMETERS = (
    Hyperparameter(
        "finetune.recipe",
        "str",
        "distill",
        "distill: a fresh network learns what the start says of all public records, then the "
        "labels; plain: the start itself learns the labels (the paper's, with finetune.replay 0); "
        "labels_only: a fresh network does; with select.by random this touches no private model, "
        "and costs nothing.",
        choices=("distill", "plain", "labels_only"),
        changes_privacy=True,
    ),
    Hyperparameter("finetune.distill_epochs", "int", 10, "Passes over the public records.", low=1),
    Hyperparameter("finetune.epochs", "int", 20, "Passes over the labelled records.", low=1),
    Hyperparameter(
        "finetune.lr", "float", 1e-3, "Learning rate of Adam.", low=0, high=1e6, open_low=True
    ),
    Hyperparameter("finetune.batch", "int", 64, "Records of a batch.", low=1),
    Hyperparameter(
        "finetune.replay",
        "float",
        1.0,
        "Weight of what the start says of other public records, beside the labels; the paper has "
        "none: 0.",
        low=0,
    ),
    Hyperparameter(
        "finetune.temperature", "float", 1.0, "Of the start's soft labels.", low=0, open_low=True
    ),
)


def possible(
    declared: Sequence[Hyperparameter], values: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """Return what each hyperparameter can be; its default where the space does not name it."""
    return {h.name: list(values.get(h.name, [h.default])) for h in declared}


def selection_problems(values: Mapping[str, Sequence[Any]], info: DatasetInfo) -> list[Mistake]:
    """Return what no trial could run, as ``Method.preflight`` does.

    Args:
        values: What each hyperparameter of active learning can be.
        info: Shapes and declared sizes of the data.
    """
    problems = []

    kinds = values["select.by"]
    if info.num_public == 0:
        wrong = "there is no public record to label"
        return [Mistake("method", wrong, _larger_pool(info))]
    largest, smallest = max(values["labels.max"]), min(values["labels.max"])
    if info.public_labels == "hidden" and largest:
        wrong = f"{largest:g} labels are to be bought, and data.public.labels hides them"
        problems.append(Mistake("labels.max", wrong, "0, or data.public.labels: bought"))
    if largest == 0:
        if not set(values["finetune.recipe"]) - {"plain", "labels_only"}:
            wrong = "is 0, and nothing else is learned from but labels"
            problems.append(Mistake("labels.max", wrong, "raise it, or finetune.recipe: distill"))
        return problems
    if info.num_public and largest > info.num_public:
        wrong = f"{largest:g} is more than the {info.num_public} public records"
        problems.append(Mistake("labels.max", wrong, f"lower it, or {_larger_pool(info)}"))
    if not {"diverse_public", "near_private"} & set(kinds):
        return problems
    most, components = min(values["select.candidates"]), _components_of_pool(values)
    if smallest > most and most < info.num_public:  # else labels.max is what is wrong
        wrong = f"{most:g} candidates are fewer than the {smallest:g} labels wanted of them"
        problems.append(Mistake("select.candidates", wrong, "raise it, or lower labels.max"))
    if "diverse_public" in kinds and components > info.num_public:
        wrong = f"{components:g} components cannot be had of {info.num_public} public records"
        fix = f"at most {info.num_public}, or {_larger_pool(info)}"
        problems.append(Mistake("select.components", wrong, fix))
    each = [count for count in values["select.each"] if count is not None]
    clusters = min(values["select.clusters"])
    if "diverse_public" in kinds and clusters > largest:
        wrong = f"{clusters:g} clusters are more than the {largest:g} labels"
        problems.append(Mistake("select.clusters", wrong, "at most labels.max"))
    elif "diverse_public" in kinds and each and clusters * min(each) > largest:
        wrong = f"{clusters:g} clusters with {min(each):g} labels each are over labels.max"
        problems.append(Mistake("select.each", wrong, "raise labels.max, or leave select.each out"))
    return problems


def _larger_pool(info: DatasetInfo) -> str:
    """Return how there are more public records, by what the pool is."""
    if info.public_from:
        return "name a larger file in data.public, or raise its max_records or per_class"
    return "raise data.public.fraction (or per_class, or name more positions)"


def _components_of_pool(values: Mapping[str, Sequence[Any]]) -> int:
    """Return how many components diverse_public asks of public records, whatever else is chosen.

    near_private has components of embeddings alone, and may have the larger numbers.
    """
    number = min if "near_private" in values["select.by"] else max
    return int(number(values["select.components"]))


def embedding_problems(values: Mapping[str, Sequence[Any]], size: int) -> list[Mistake]:
    """Return that embeddings have fewer numbers than records are compared in.

    Args:
        values: What each hyperparameter of active learning can be.
        size: Numbers of one embedding.
    """
    most = max(values["select.components"])
    if most <= size or not _AMONG_CANDIDATES & set(values["select.by"]):
        return []
    wrong = f"{most:g} components cannot be had of embeddings with {size} numbers"
    return [Mistake("search.space.select.components", wrong, f"at most {size}")]


def check_pool(values: Mapping[str, Sequence[Any]], info: DatasetInfo, num_public: int) -> None:
    """Refuse a pool with fewer records than declared, where some configuration needs more.

    ``selection_problems`` compares with what is declared. How many there are stays unsaid: of a
    share of the data it tells of the number of private ones.

    Args:
        values: What each hyperparameter of active learning can be.
        info: Shapes and declared sizes of the data.
        num_public: How many public records there are, pollution among them.
    Raises:
        DataError: There is none, or not one for each component or cluster of diverse_public.
    """
    if num_public >= info.num_public:
        return
    declared = f"fewer public records are there than the {info.num_public} that are declared"
    fix = "correct data.num_records"
    if num_public == 0:
        raise DataError(f"{declared}: none to label", fix=f"{fix}, or {_larger_pool(info)}")
    largest = max(values["labels.max"])
    if "diverse_public" not in values["select.by"] or not largest:
        return
    # No configuration has more clusters than labels, or more labels than candidates.
    clusters = min(max(values["select.clusters"]), largest, max(values["select.candidates"]))
    components = _components_of_pool(values)
    for key, number in (("select.clusters", clusters), ("select.components", components)):
        if number > num_public:
            raise DataError(
                f"{declared}, too few for {number:g} {key.removeprefix('select.')} of them",
                fix=f"lower {key}, or {fix}",
            )


#: Hyperparameter -> who reads it: values of ``select.by``, and of ``finetune.recipe``.
_READ_BY: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{
        key: ("select.by", ("near_private",))
        for key in ("split.pca", "split.extra", "split.rule", "select.voters")
    },
    **{key: ("select.by", ("diverse_public",)) for key in ("select.clusters", "select.each")},
    **{
        key: ("select.by", ("diverse_public", "near_private"))
        for key in ("select.candidates", "select.components", "select.uncertainty")
    },
    "finetune.distill_epochs": ("finetune.recipe", ("distill",)),
    "finetune.replay": ("finetune.recipe", ("distill", "plain")),
    "finetune.temperature": ("finetune.recipe", ("distill", "plain")),
}


def selection_notes(values: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return what is searched and read by no configuration, as ``Method.notes`` does.

    Args:
        values: What each hyperparameter of active learning can be.
    """
    return [
        f"{key} is searched, but has an effect with {switch}: {' or '.join(readers)} alone"
        for key, (switch, readers) in _READ_BY.items()
        if len(set(values[key])) > 1 and not set(readers) & set(values[switch])
    ]


def starts_from_nothing(hparams: Mapping[str, Any]) -> bool:
    """Say whether neither the records nor the network follow from the start."""
    return hparams["finetune.recipe"] == "labels_only" and hparams["select.by"] == "random"


def asks_private(hparams: Mapping[str, Any]) -> bool:
    """Say whether private records are asked which public ones to label."""
    return hparams["select.by"] == "near_private" and hparams["labels.max"] > 0


def refuse_misfits(hparams: Mapping[str, Any]) -> None:
    """Check that the labels of one configuration can be chosen.

    Raises:
        InfeasibleBudgetError: More labels are wanted than there are candidates, or than may be
            bought.
    """
    labels, candidates = hparams["labels.max"], hparams["select.candidates"]
    if labels == 0 and hparams["finetune.recipe"] != "distill":
        raise InfeasibleBudgetError(
            f"labels.max=0 leaves finetune.recipe={hparams['finetune.recipe']} nothing to learn",
            fix="finetune.recipe: distill, or a label at least",
        )
    if hparams["select.by"] in _AMONG_CANDIDATES and labels > candidates:
        raise InfeasibleBudgetError(
            f"labels.max={labels} is more than select.candidates={candidates}",
            fix="more candidates, or fewer labels",
        )
    each, clusters = hparams["select.each"], hparams["select.clusters"]
    is_clustered = hparams["select.by"] == "diverse_public" and labels > 0
    if is_clustered and each and each * clusters > labels:
        raise InfeasibleBudgetError(
            f"select.each={each} labels in select.clusters={clusters} are more than "
            f"labels.max={labels}",
            fix="more labels, or fewer of the others",
        )
