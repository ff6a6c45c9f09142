"""The launched spec of a study: what its claim rests on, and what may not change any more."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsweep.foundation.bucket_path import BucketPath, answers
from dpsweep.foundation.database_path import is_database_address
from dpsweep.foundation.errors import DamagedStudyError, SpecError, StudyError, SweepError
from dpsweep.foundation.logs import Tail, is_locked, lock
from dpsweep.foundation.postgres.sessions import answers as database_answers
from dpsweep.ledgers.study_state import read_study_state
from dpsweep.ledgers.trial import STUDY_FILE
from dpsweep.spec.base import seen
from dpsweep.spec.study import SweepSpec
from dpsweep.study.files import SPEC_FILE, StudyFiles

# What may differ between two launches of one study: nothing that changes what a trial is.
_FREE = {"resources", "tracking", "cluster", "storage"}
_FREE_SEARCH = {"num_trials", "max_concurrent", "max_time"}
_FEW = 8  # differences that an error names


def anchored(spec: SweepSpec) -> SweepSpec:
    """Return the spec with its databases and ledgers by paths that hold in every directory."""
    start, uri = "sqlite:///", spec.tracking.uri
    if uri is not None and uri.startswith(start):
        path = Path(uri.removeprefix(start)).resolve()
        tracking = spec.tracking.model_copy(update={"uri": f"{start}{path}"})
        spec = spec.model_copy(update={"tracking": tracking})
    ledger = spec.privacy.dataset_ledger
    if ledger is not None and not is_database_address(ledger):
        privacy = spec.privacy.model_copy(update={"dataset_ledger": str(Path(ledger).resolve())})
        spec = spec.model_copy(update={"privacy": privacy})
    return spec


def enforced_terms(spec: SweepSpec) -> dict[str, Any]:
    """Return what a study's claim rests on, by dotted key: which records are private, what is paid.

    It is written to the study's ledger at the first launch and compared ever after.
    """
    tree = anchored(spec).to_dict()
    terms: dict[str, Any] = {"privacy_unit": spec.privacy_unit}
    for section in ("privacy", "data"):
        terms |= _leaves(section, tree[section])
    if spec.pretrain is not None:  # which records it takes for public
        for key in ("dataset", "path", "classes", "checkpoint"):
            terms[f"pretrain.{key}"] = tree["pretrain"].get(key)
    if spec.privacy.mode.is_filtered:
        terms["privacy.composition"] = spec.privacy.chosen_composition
    if spec.searched_share is not None:
        terms["search.on.split"] = spec.searched_share
    if spec.subset_rate is not None:
        terms["search.on.subset"] = spec.subset_rate
    return terms


def _leaves(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {key: value}
    return {name: leaf for k, v in value.items() for name, leaf in _leaves(f"{key}.{k}", v).items()}


@dataclass(frozen=True)
class Difference:
    """One key in which two specs differ, with the value that each has.

    Attributes:
        key: Dotted.
        before: Of the first spec, as a spec file has it; ``ABSENT`` where it has no such key.
        after: Of the second.
    """

    key: str
    before: Any
    after: Any

    def shown(self) -> tuple[str, str]:
        """Return both values as words."""
        before, after = (
            "nothing" if value is ABSENT else seen(value) for value in (self.before, self.after)
        )
        return before, after

    def __str__(self) -> str:
        before, after = self.shown()
        return f"{self.key} ({before} -> {after})"


def _differing(before: Any, after: Any, path: str) -> list[Difference]:
    """Return what differs, down to single keys, each with its old and its new value."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(key for key in after if key not in before)]
        branches = [
            _differing(before.get(k, ABSENT), after.get(k, ABSENT), f"{path}.{k}") for k in keys
        ]
        return [leaf for leaves in branches for leaf in leaves]
    return [] if before == after else [Difference(path, before, after)]


#: Stands for the value of a key that a spec does not have.
ABSENT = object()


def differences(old: SweepSpec, new: SweepSpec, *, is_whole: bool = False) -> list[Difference]:
    """Return in what two specs differ, by key.

    Args:
        old: The first.
        new: The second.
        is_whole: Name keys, too, that may change between two launches of one study.
    """
    before, after = old.to_dict(), new.to_dict()
    changed = []
    for key in sorted(set(before) | set(after)):
        if (key in _FREE and not is_whole) or before.get(key) == after.get(key):
            continue
        if isinstance(before.get(key), dict) and isinstance(after.get(key), dict):
            for part in sorted(set(before[key]) | set(after[key])):
                free = key == "search" and part in _FREE_SEARCH and not is_whole
                if not free and before[key].get(part) != after[key].get(part):
                    old_part, new_part = before[key].get(part, ABSENT), after[key].get(part, ABSENT)
                    changed += _differing(old_part, new_part, f"{key}.{part}")
        else:
            changed += _differing(before.get(key, ABSENT), after.get(key, ABSENT), key)
    return changed


def is_new(spec: SweepSpec) -> bool:
    """Say whether the study of a spec has not begun: a launch that was refused leaves it new.

    Of a bucket or a database that does not answer nothing is known here; a run asks it again, and
    refuses.
    """
    if _is_silent(spec):
        return True
    if not (path := StudyFiles.of(spec).spec).exists():
        return True
    try:
        files = StudyFiles.at(path.parent)  # where it was launched, whatever the spec says now
        is_known = files.database is None or database_answers(files.database)
        return is_known and not has_begun(files)
    except SweepError:  # damaged, which is told where it is opened
        return False


def _is_silent(spec: SweepSpec) -> bool:
    """Say whether a study is in a bucket that does not answer now."""
    root = spec.storage.root
    return isinstance(root, BucketPath) and not answers(root)


def launched_spec(files: StudyFiles) -> SweepSpec:
    """Return the spec that a study was launched from.

    Raises:
        DamagedStudyError: It is damaged.
    """
    try:
        return SweepSpec.from_yaml(files.spec, is_stored=True)
    except SpecError as error:
        raise DamagedStudyError(
            f"{files.spec} is damaged, or another version has written it",
            because=str(error.mistakes[0]),
            fix="restore it from a backup; what the study has spent is in its ledger",
        ) from error


def has_begun(files: StudyFiles) -> bool:
    """Say whether a study has a ledger or a journal with a line; before, nothing was charged.

    They are looked for where the spec says, so it must not name another database than it did.
    """
    return any(files.ledger.glob("*")) or Tail(files.journal).size() > 0


# What a study has only once its ledger is there.
_AFTER_THE_LEDGER = ("trials", "optuna.db", "tracking.json", "sealed", "ray", "decisions.csv")


def refuse_remnants(files: StudyFiles, others: Sequence[str] = ()) -> None:
    """Refuse a directory without a study ledger that has things of a study, for whoever asks.

    Args:
        files: Of the study.
        others: More that is of it, by name.
    Raises:
        DamagedStudyError: Its ledger was deleted.
    """
    if read_study_state(files.ledger).study_id is not None:
        return
    left = [name for name in _AFTER_THE_LEDGER if (files.path / name).exists()]
    left += others
    if not left or read_study_state(files.ledger).study_id is not None:  # launched meanwhile
        return
    raise DamagedStudyError(
        f"{files.path} has {', '.join(left)} of a study, and no privacy ledger",
        because=f"{files.ledger / STUDY_FILE} was deleted; what that study has spent is not known "
        "any more",
        fix="restore it, or give the new study another `name:`",
    )


def _refuse_elsewhere(spec: SweepSpec) -> None:
    """Refuse the ``spec.yaml`` of a study if it leads elsewhere from here, or its folder has moved.

    It would be another study, and spend the same budget again.
    """
    file = Path(spec.file or "")
    if file.name != SPEC_FILE or not file.is_file():
        return
    folder, goal = file.resolve().parent, StudyFiles.of(spec).path
    is_study = any((folder / name).exists() for name in ("ledger", "trials", "tracking.json"))
    if not is_study or folder == goal:
        return
    place = shlex.quote(f"storage.path={folder.parent}")
    own_name = StudyFiles(folder.parent, folder.name).frozen().get("name")
    if folder.name != spec.name == own_name and (folder / "ledger").exists():
        raise StudyError(
            f"{file} is the spec of study {spec.name!r}, whose folder is not named so: {folder}",
            because="a launch would begin another study, which spends its budget again",
            fix=f"of a folder that was renamed, name it {spec.name} again and set "
            f"{place} (`--set`; overrides=[..] in Python); a new study has another `name:`",
        )
    if folder.name == spec.name:
        raise StudyError(
            f"{file} is the spec of the study in {folder}, and storage.path leads to {goal} from "
            "here",
            because="that would be another study, which spends its budget again",
            fix=f"run it in the directory where it was launched, or set {place} (`--set`; "
            "overrides=[..] in Python); a new study has another `name:`",
        )


def refuse_launch(spec: SweepSpec) -> None:
    """Refuse to launch what cannot be: another spec's study, or one that runs now.

    ``Study`` refuses both, too; this comes before any record is read.

    Raises:
        StudyError: The specs differ (``refuse_other_spec``), or another process runs the study.
        StorageError: The study's database does not answer.
    """
    refuse_other_spec(spec)
    place = StudyFiles.of(spec).lock
    with contextlib.suppress(OSError):  # a folder closed to this user, which ``Study`` tells
        if is_locked(place):
            lock(place, holder=f"study {spec.name!r}").release()  # its error names who holds it


def refuse_other_spec(spec: SweepSpec, files: StudyFiles | None = None) -> None:
    """Refuse to continue a study from another spec than the one it was launched from.

    Args:
        spec: The spec to launch or continue.
        files: Where, if not where the spec says.
    Raises:
        StudyError: They differ in more than may change.
        DamagedStudyError: The launched one is damaged.
    """
    if files is None:
        _refuse_elsewhere(spec)
    if files is None and _is_silent(spec):
        return  # a run asks again, and refuses
    files = files or StudyFiles.of(spec)
    if not files.spec.exists():
        return
    files.frozen()
    old = launched_spec(files)
    if old.storage.database != spec.storage.database:
        raise StudyError(
            f"study {spec.name!r} has its ledgers in {old.storage.database or files.path}, and the "
            f"spec says {spec.storage.database or 'files'}",
            because="what it has spent is written there",
            fix="undo the change of storage.database, or give the new study another `name:`",
        )
    if not has_begun(files):
        return
    changed = differences(anchored(old), anchored(spec))
    if changed:
        shown = ", ".join(map(str, changed[:_FEW]))
        if len(changed) > _FEW:
            shown += f" and {len(changed) - _FEW} more: `dpsweep compare {spec.name} SPEC`"
        raise StudyError(
            f"study {spec.name!r} was launched from another spec",
            because=f"changed since then: {shown}",
            fix="give the new study another `name:`, or undo the change to continue this one "
            "(num_trials, max_concurrent, max_time, resources, tracking, cluster may change)",
        )


def launch_note(spec: SweepSpec) -> str:
    """Say why a launch would be refused for the study that is there already; empty if none is.

    For whoever only plans: another spec than the launched one may be planned, and not run.
    """
    try:
        refuse_other_spec(spec)
    except SweepError as error:
        because = f"; {error.because}" if error.because else ""
        return f"a run of this spec is refused: {error.message}{because}"
    return ""
