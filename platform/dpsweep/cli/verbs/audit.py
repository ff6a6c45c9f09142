"""The verb ``audit``: canaries through a trial's own code, and what they prove of its claim."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from dpsweep.auditing.subject import Subject, built_in
from dpsweep.cli.base import Json, Output, Root, say
from dpsweep.cli.completion import method_names, study_names
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.progress import LINE_EVERY_S
from dpsweep.foundation.errors import BadInputError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.registry import did_you_mean
from dpsweep.foundation.words import counted
from dpsweep.privacy.one_run_audit import guesses_needed
from dpsweep.privacy.statement import shown_epsilon
from dpsweep.privacy.terms import SINGLE_RUN
from dpsweep.results.origins import reading_data, weights_path
from dpsweep.results.study import SweepResult, load_sweep
from dpsweep.study.audits import CONSISTENT, FAIL, AuditRecord, write_audit
from dpsweep.trainables import TRAINABLES
from dpsweep.trainables.data.dataset import info_of_records
from dpsweep.trainables.data.episodes import Episodes
from dpsweep.trainables.data.loading import describe_dataset
from dpsweep.trainables.data.supplies import Supplies

#: Positions that are run at most; with --quick; steps of a method of the table.
_POSITIONS, _QUICK, _STEPS = 100, 4, 24
ALL = "all"


def audit(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the study.", autocompletion=study_names),
    ] = None,
    trial: Annotated[int | None, typer.Argument(metavar="TRIAL", help="Its trial.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="In the place of a trial: this method of the table, or all of them, in a small "
            "configuration.",
            autocompletion=method_names,
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="With --method: epsilon of its configuration; default: 1.")
    ] = None,
    canaries: Annotated[
        int, typer.Option(min=20, help="Synthetic records to guess about; a tenth is guessed.")
    ] = 1000,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Positions of a trial's plan to run, at most; default: {_POSITIONS}."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Run {_QUICK} positions, whatever --positions says.")
    ] = False,
    root: Root = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Test a claim with canaries, on synthetic records; exit 1 if it is refuted."""
    if method is None:
        if epsilon is not None:
            raise BadInputError("--epsilon goes with --method", fix="leave it out: a trial has one")
        records = [
            _of_trial(name, trial, root, canaries, _QUICK if quick else positions or _POSITIONS)
        ]
    else:
        if name is not None:
            raise BadInputError(
                "a study and --method are two audits", fix="give one of them: NAME TRIAL, or it"
            )
        if positions is not None:
            raise BadInputError(
                "--positions goes with a trial",
                fix=f"leave it out: a --method has {_STEPS} steps, {_QUICK} with --quick",
            )
        records = _of_methods(method, epsilon, canaries, _QUICK if quick else _STEPS)
    _print(records, output, is_list=method is not None)
    if any(record.verdict == FAIL for record in records):
        raise typer.Exit(1)


def _of_trial(
    name: str | None, trial: int | None, root: FilePath | None, canaries: int, positions: int
) -> AuditRecord:
    """Audit a trial of a study, and keep the record in the study."""
    if name is None or trial is None:
        raise BadInputError(
            "nothing to audit is named" if name is None else f"no trial of study {name!r} is named",
            fix="dpsweep audit NAME TRIAL, or --method all",
        )
    result = load_sweep(name, root=root)
    record = _run(_subject(result, trial), canaries, positions)
    if result.spec.privacy.mode.is_sealed:
        claimed = result.trial(trial).statement.one_line()
        say(f"the audit is of these positions alone; what is claimed of the winner: {claimed}")
    path = write_audit(result.files.path, record)
    say(
        f"kept: {path}; the study's privacy card has a line of it from now on, the one in the "
        "tracking store once the study's `dpsweep run` is typed again"
    )
    return record


def _subject(result: SweepResult, trial: int) -> Subject:
    """Return what is audited; the epsilon of a winner's own steps covers nothing of the search."""
    result.refuse_unknown(trial)
    spec = result.spec
    task, episodes = result.files.task(trial), Episodes.of(spec)
    with reading_data(spec):
        info = info_of_records(describe_dataset(spec.data), spec.searched_share, task.records)
    return Subject.of_task(
        task,
        info if episodes is None else episodes.describe(info),
        name=result.name,
        delta=spec.privacy.delta,
        accountant=spec.privacy.accountant,
        accounting=SINGLE_RUN if spec.privacy.mode.is_sealed else result.claims.accounting,
        privacy_unit=spec.privacy_unit,
        study_seed=spec.seed,
        supplies=Supplies(pretrained=weights_path(spec, result.view)),
    )


def _of_methods(method: str, epsilon: float | None, canaries: int, steps: int) -> list[AuditRecord]:
    """Audit a method of the table, or all of them, each in a configuration of its own."""
    epsilon = 1.0 if epsilon is None else epsilon
    if not epsilon > 0:
        raise BadInputError(f"--epsilon must be > 0, got {epsilon:g}")
    names = list(TRAINABLES)
    if method != ALL and method not in names:
        hint = did_you_mean(method, [*names, ALL])
        raise BadInputError(f"no method {method!r}", fix=hint or f"all, {', '.join(names)}")
    wanted = names if method == ALL else [method]
    return [_run(built_in(each, epsilon, steps), canaries, None) for each in wanted]


def _run(subject: Subject, canaries: int, positions: int | None) -> AuditRecord:
    from dpsweep.auditing.audit import AuditSettings, run_audit

    progress = _Progress(subject.method)
    settings = AuditSettings(canaries, positions)
    try:
        return run_audit(subject, settings, progress=progress)
    finally:
        progress.close()


def _print(records: list[AuditRecord], output: Format, *, is_list: bool) -> None:
    if output in (Format.JSON, Format.YAML):
        rows = [record.to_dict() for record in records]
        print_records(rows if is_list else rows[0], output)
    else:
        cells = [_cells(record, output) for record in records]
        print_records(cells if is_list else cells[0], output)
    for record in records:
        for line in _talk(record):
            say(f"{record.method}: {line}" if is_list else line)


def _cells(record: AuditRecord, output: Format) -> dict[str, Any]:
    """Return a record as a row: no epsilon of it without its terms."""
    claim = record.claim
    cells: dict[str, Any] = {
        "method": record.method,
        "verdict": record.verdict,
        "claim": None if claim is None else shown_epsilon(claim.epsilon),
        "terms": None if claim is None else claim.short(),
        "lower bound": f"{record.lower_bound:.4f}",
        "ceiling": f"{record.ceiling:.4f}",
        "canaries": record.canaries,
        "guesses": record.guesses,
        "right": record.correct,
        "confidence": record.confidence,
        "positions": f"{record.positions}/{record.planned}",
    }
    if output is Format.CSV:
        return {key.replace(" ", "_"): value for key, value in cells.items()}
    if claim is None:
        return {key: cells[key] for key in ("method", "verdict")}
    return cells


def _talk(record: AuditRecord) -> list[str]:
    """Return what must be said of an outcome, a line each."""
    lines = [record.sentence()]
    if record.without_sampling is not None:
        lines.append(f"with known batches it is {record.without_sampling.one_line()}")
    if record.not_audited and record.claim is not None:
        lines.append(f"not audited: {'; '.join(record.not_audited)}")
    if record.verdict == CONSISTENT and not record.could_fail and record.claim is not None:
        needed = 10 * guesses_needed(record.claim.epsilon, confidence=record.confidence)
        lines.append(
            f"this test could not fail: its ceiling is {record.ceiling:.4f}, below the claim; "
            f"--canaries {needed} or more, or fewer --positions, would let it"
        )
    if record.at_bound is not None and record.at_bound < 0.5:
        lines.append(
            f"{record.at_bound:.0%} of the canaries had to be clipped: clipping is hardly tested"
        )
    if record.claim is not None:
        lines.append(
            "the lower bound is about these attacks, and never the privacy of a model; the records "
            "are synthetic, so nothing was charged"
        )
    return lines


class _Progress:
    """One line on stderr that says how far an audit is."""

    def __init__(self, method: str) -> None:
        self._method, self._started = method, time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._said = self._started
        self._is_shown = False

    def __call__(self, done: int, positions: int) -> None:
        """Show the share that is done, and when the rest will be."""
        now = time.monotonic()
        if not self._is_terminal and now - self._said < LINE_EVERY_S:
            return
        self._said, self._is_shown = now, True
        left = (now - self._started) * (positions - done) / done
        text = f"{self._method}: {done} of {counted(positions, 'position')} | ETA {left:.0f} s"
        if self._is_terminal:
            print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)
        else:
            say(text)

    def close(self) -> None:
        """End the line."""
        if self._is_shown and self._is_terminal:
            say("")
