"""The verb that compares finished studies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpsweep.cli.base import Json, Output, Root, say
from dpsweep.cli.completion import study_names
from dpsweep.cli.memory_words import memory_taken
from dpsweep.cli.output import Format, print_records
from dpsweep.cli.written import refuse_no_folder, write_file
from dpsweep.foundation.errors import BadInputError, NothingWithinBudgetError
from dpsweep.foundation.file_paths import FilePath
from dpsweep.foundation.words import counted
from dpsweep.privacy.modes import UNACCOUNTED
from dpsweep.privacy.terms import COLUMNS, shown_delta
from dpsweep.results.page.html import PAGE_BEGINS, page_of
from dpsweep.results.report import ReportedStudy, build_report
from dpsweep.results.study import load_sweep
from dpsweep.results.tables.spread import is_spread

#: What stands beside every epsilon: columns of a record, the caption of a table.
TERMS = (*COLUMNS, "released")
#: Words of a record -> headers of a table.
_HEADERS = {
    "configurations": "finished",
    "repetitions": "runs",
    "boost": "boost",
}


def report(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Names of studies.", autocompletion=study_names),
    ],
    by: Annotated[
        str, typer.Option(help="Hyperparameters that make the rows, as in train.num_private,method")
    ] = "",
    over: Annotated[
        str,
        typer.Option(
            help="Hyperparameters that repeat a configuration, as in train.repeat; episodes always "
            "do."
        ),
    ] = "",
    lower: Annotated[
        str | None, typer.Option(help="Study on public records alone, for the performance boost.")
    ] = None,
    upper: Annotated[
        str | None, typer.Option(help="Study without privacy, for the performance boost.")
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="Differences to the first study, per repetition.")
    ] = False,
    costs: Annotated[
        bool,
        typer.Option(
            "--costs",
            help="Time, peak memory and public data of each row in the place of its configuration.",
        ),
    ] = False,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread",
            help="Least, median, largest and median deviation (MAD) over a row's configurations.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write one study's page to this file: its story, pictures, trials and card.",
        ),
    ] = None,
    root: Root = None,
    output: Output = Format.TABLE,
    as_json: Json = False,
) -> None:
    """Compare studies: best configuration per row, mean and spread over repetitions."""
    if html is not None:
        _write_page(names, root, html)
        return
    studies = [_load(name, root) for name in names]
    bounds = [None if name is None else _load(name, root) for name in (lower, upper)]
    rows = build_report(
        studies,
        by=_split(by),
        over=_split(over),
        lower=bounds[0],
        upper=bounds[1],
        is_paired=paired,
        has_costs=costs,
        has_spread=spread,
    )
    if not rows:
        raise NothingWithinBudgetError(
            f"no finished trial in {', '.join(names)}",
            fix="`dpsweep status NAME` says how each stands, `dpsweep logs NAME` why trials ended",
        )
    for name, study in zip(names, studies, strict=True):
        if all(row["study"] != study.name for row in rows):
            say(
                f"{name} has no row, as it has no finished trial; `dpsweep status {name}` says more"
            )
    lacking = sum("missing" in row for row in rows)
    if lacking:
        lack = "lacks" if lacking == 1 else "lack"
        of = f"{lacking} of {counted(len(rows), 'row')}"
        say(
            f"{of} {lack} repetitions: a run that was stopped or failed is in no mean, which is "
            "too good where a scheduler stops what scores low; `dpsweep run SPEC` continues a "
            "study that has not ended"
        )
    boosts = [value for row in rows for name, value in row.items() if name.startswith("boost ")]
    if lower is not None and None in boosts:
        of = f"{boosts.count(None)} of {counted(len(rows), 'row')}"
        say(
            f"no boost of {of}: no trial of a bound has finished there, or --upper {upper} is no "
            f"better than --lower {lower}"
        )
    for study in (*studies, *(bound for bound in bounds if bound is not None)):
        for line in study.notes:
            say(line)
    if output is not Format.TABLE:
        print_records(rows, output)
        return
    print_records(
        table(rows, is_named=len(names) > 1), output, caption=caption(rows) + legend(rows)
    )
    if costs:
        if all(row["seconds"] is None and row["accounting"] != UNACCOUNTED.name for row in rows):
            say(
                "no time and no memory: none is kept under a claim, as they tell of batch sizes; "
                "the journal has when each trial began and ended, for whoever may read it (days "
                "alone, where a search is kept secret)"
            )
        for study in studies:
            for line in memory_taken(study.resources, study.trials):
                say(f"{study.name}: {line}")


def _write_page(names: Sequence[str], root: FilePath | None, path: Path) -> None:
    """Write the page of one study."""
    if len(names) != 1:
        raise BadInputError(
            f"--html writes the page of one study, and {len(names)} are named",
            fix="name one; without --html their table compares them",
        )
    path = path.resolve()  # of a link, what it points to
    if path.exists() and not path.is_file():
        raise BadInputError(f"{path} is no file", fix="choose another name")
    if path.is_file() and not path.read_bytes().startswith(PAGE_BEGINS.encode()):
        raise BadInputError(
            f"{path} exists already, and is no page of a study", fix="choose another name"
        )
    refuse_no_folder(path)
    write_file(path, page_of(load_sweep(names[0], root=root)).encode())
    say(f"{path} has the study's page; it needs no network")


def table(rows: Sequence[Mapping[str, Any]], *, is_named: bool = False) -> list[dict[str, Any]]:
    """Return rows as people read them: few columns, spread beside its mean, short names.

    Args:
        rows: A report's.
        is_named: Keep the name of the study where all rows are of the same one, too.
    """
    dropped = set(TERMS) - set(differing_terms(rows))
    names = short_names([row["study"] for row in rows])
    if len(names) == 1 and not is_named:
        dropped.add("study")  # the caption has it
    return [_table_row({**row, "study": names[row["study"]]}, dropped) for row in rows]


def _table_row(row: Mapping[str, Any], dropped: Collection[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if name in dropped or name.endswith(" std"):
            continue
        if f"{name} std" in row:
            spread = row[f"{name} std"]
            shown[name] = f"{value:.4f}" + ("" if spread is None else f" ±{spread:.4f}")
        elif _is_interval(name):
            shown[name] = None if value is None else f"±{value:.4f}"
        elif name in ("seconds", "memory MiB"):
            shown[name] = None if value is None else round(value)
        elif isinstance(value, float) and "epsilon" not in name and " " not in name:
            shown[name] = f"{value:g}"
        elif is_spread(name):
            shown[name.split(" ")[0]] = f"{value:.4f}"
        elif name.startswith("difference"):
            shown["difference"] = None if value is None else f"{value:+.4f}"
        else:
            shown[_HEADERS.get(name.split(" ")[0], name)] = value
    return shown


def _load(name: str, root: FilePath | None) -> ReportedStudy:
    return ReportedStudy.of(load_sweep(name, root=root))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return names without the words that they all begin or end with.

    >>> short_names(["paper-ngd-digits", "paper-adamix-digits"])
    {'paper-ngd-digits': '..ngd..', 'paper-adamix-digits': '..adamix..'}
    >>> short_names(["a-b", "a"])
    {'a-b': 'a-b', 'a': 'a'}
    """
    words = {name: name.split("-") for name in names}
    if len(words) == 1:
        return {name: name for name in words}
    least = min(map(len, words.values()))
    first = 0
    while first < least - 1 and len({tuple(w[: first + 1]) for w in words.values()}) == 1:
        first += 1
    last = 0
    while last < least - first - 1 and len({tuple(w[-last - 1 :]) for w in words.values()}) == 1:
        last += 1
    return {
        name: (".." if first else "") + "-".join(w[first : len(w) - last]) + (".." if last else "")
        for name, w in words.items()
    }


def differing_terms(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the terms in which rows of one study differ: they need columns of their own."""
    values: dict[str, dict[str, set[Any]]] = {}
    for row in rows:
        for term in TERMS:
            values.setdefault(term, {}).setdefault(row["study"], set()).add(row[term])
    return [term for term in TERMS if any(len(of_study) > 1 for of_study in values[term].values())]


def caption(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the epsilons of a table mean nothing without, once for equal terms."""
    columns = differing_terms(rows)
    studies: dict[str, dict[str, None]] = {}
    for row in rows:
        said = {term: f"see {term}" if term in columns else f"{row[term]}" for term in TERMS}
        if "delta" not in columns:
            said["delta"] = shown_delta(row["delta"])
        terms = (
            f"delta={said['delta']}, unit={said['privacy_unit']}, {said['neighboring_relation']}, "
            f"sampling={said['sampling']}, {said['accountant']}; accounting={said['accounting']}; "
            f"it covers {said['released']}"
        )
        studies.setdefault(terms, {})[row["study"]] = None
    lines = [
        f"epsilon of {', '.join(names)}: that of the costliest repetition, {terms}."
        for terms, names in studies.items()
    ]
    compared = {
        name
        for row in rows
        for name, value in row.items()
        if name.startswith(("boost ", "difference ")) and value is not None
    }
    if compared:
        comparisons = " and ".join(sorted(compared))
        lines.append(f"Not covered by a row's epsilon: other studies, which {comparisons} rest on.")
    return "\n".join(lines)


def legend(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what the spreads of a table are, as a line; nothing where there are none."""
    lines = []
    if any(row[name] is not None for row in rows for name in row if _is_interval(name)):
        lines.append(
            "±: standard deviation over runs; 95%: half width of Student's interval of the mean."
        )
    names = list(dict.fromkeys(name for row in rows for name in row if is_spread(name)))
    if names:
        score = names[0].split(" (")[1].removesuffix(")")
        lines.append(
            f"min, median, max, MAD: of {score} over all configurations of a row, each at the mean "
            "of its runs; MAD: median absolute deviation. No row's epsilon covers them together."
        )
    return "".join(f"\n{line}" for line in lines)


def _is_interval(name: str) -> bool:
    return name.endswith(" 95%")
