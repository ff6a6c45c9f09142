"""Every benchmark, one after the other, and its tables into BENCHMARKS.md: ``make bench``.

Each measures against its peers in a process of its own; its tables replace those between its
markers (``<!-- bench: linear_head -->``, see ``tables.py``) as soon as they are whole, with the
machine, its load before and after, and the command. All else in the page is left alone. A bench
that fails keeps its old tables; the others are still run, and the exit status is 1.

    python tests/benchmarks/run.py --only linear_head,adamix   # write these tables
    python tests/benchmarks/run.py --check                     # print and compare, write nothing
    python tests/benchmarks/run.py --out build/tables.md       # a page of tables alone
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware import machine
from tables import Section, block, differences, replaced

from dpsweep.foundation.errors import BadInputError, SweepError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "BENCHMARKS.md"
CPU, ANY = ("cpu",), ("cpu", "cuda")
#: Largest difference between a figure of the page and one of now that --check lets pass.
TOLERANCE = 0.25


@dataclass(frozen=True)
class Bench:
    """A script that prints its tables with ``--json``.

    Attributes:
        name: In markers and behind ``--only``.
        script: In this folder.
        devices: Where it runs; elsewhere than on the CPU by ``--device``.
        rounds: Its option for the number of turns; empty: it has none.
        draws: Whether it takes ``--pictures FOLDER``.
        is_small: Whether it takes ``--small`` on the CPU.
    """

    name: str
    script: str
    devices: tuple[str, ...] = ANY
    rounds: str = "--rounds"
    draws: bool = False
    is_small: bool = False


BENCHES = (
    Bench("linear_head", "bench_linear_head.py"),
    Bench("many_heads", "bench_many_heads.py"),
    Bench("adamix", "bench_adamix.py"),
    Bench("bitfit", "bench_bitfit.py"),
    Bench("sparse", "bench_sparse.py"),
    Bench("networks", "bench_networks.py", is_small=True),
    Bench("places", "bench_places.py", rounds="--orders"),
    Bench("accounting", "bench_accounting.py", CPU, rounds=""),
    Bench("sweep", "bench_sweep.py", CPU),
    Bench("search", "bench_search.py", CPU, rounds="--seeds"),
    Bench("plots", "draw_costs.py", CPU, draws=True),
)


def main(
    arguments: Sequence[str] | None = None,
    *,
    benches: Sequence[Bench] = BENCHES,
    folder: Path = HERE,
    page: Path = PAGE,
) -> int:
    """Run the benchmarks of a device; return the exit status.

    Args:
        arguments: Of the command line.
        benches: All that there are.
        folder: Where their scripts are.
        page: Where their tables stand.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=ANY, default="cpu")
    parser.add_argument("--only", metavar="NAMES", help="of these benches, with commas between")
    parser.add_argument("--rounds", type=int, help="turns of each bench, or seeds; its default")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if figures differ")
    parser.add_argument(
        "--out", type=Path, help="page to write in BENCHMARKS.md's place; it may be new"
    )
    options = parser.parse_args(arguments)
    try:
        chosen = _chosen(benches, options.only, options.device)
        names = {bench: _marker(bench, options.device) for bench in chosen}
        if options.out:
            page = options.out
            _make_room(page, names.values())
        for name in names.values():
            block(page.read_text(), name, title=page.name)
    except SweepError as error:
        print(error, file=sys.stderr)
        return 2
    outcomes = []
    for bench in chosen:
        print(f"== {bench.name}", flush=True)
        command = [sys.executable, str(folder / bench.script), "--json"]
        command += ["--device", options.device] if options.device != "cpu" else []
        if options.rounds and bench.rounds:
            command += [bench.rounds, str(options.rounds)]
        command += ["--small"] if bench.is_small and options.device == "cpu" else []
        if bench.draws and not options.check:
            command += ["--pictures", _pictures(page)]
        try:
            outcomes.append(
                _one(command, names[bench], page, options.device, is_check=options.check)
            )
        except KeyboardInterrupt:
            print(f"interrupted; {page.name} has the tables of what was whole", file=sys.stderr)
            return 130
        except (SweepError, subprocess.CalledProcessError) as error:
            print(f"{bench.name} keeps its old tables: {error}", file=sys.stderr, flush=True)
            outcomes.append(False)
    return 0 if all(outcomes) else 1


def _chosen(benches: Sequence[Bench], only: str | None, device: str) -> list[Bench]:
    usable = [bench for bench in benches if device in bench.devices]
    if only is None:
        return usable
    by_name = {bench.name: bench for bench in usable}
    for name in only.split(","):
        if name not in by_name:
            raise BadInputError(
                f"no bench {name!r} on {device}", fix=f"choose from {', '.join(by_name)}"
            )
    return [by_name[name] for name in dict.fromkeys(only.split(","))]


def _make_room(page: Path, names: Iterable[str]) -> None:
    """Append the markers that a page of one's own lacks; make the page where there is none."""
    page.parent.mkdir(parents=True, exist_ok=True)
    text = page.read_text() if page.exists() else ""
    missing = (name for name in names if f"<!-- bench: {name} -->" not in text)
    text += "".join(f"\n<!-- bench: {name} -->\n<!-- end -->\n" for name in missing)
    page.write_text(text)


def _marker(bench: Bench, device: str) -> str:
    return bench.name if device == "cpu" else f"{bench.name} on {device}"


def _pictures(page: Path) -> str:
    return "docs/pictures" if page == PAGE else str(page.resolve().parent / "pictures")


def _one(command: list[str], name: str, page: Path, device: str, *, is_check: bool) -> bool:
    """Run a bench and write its tables, or compare them; return whether all is well."""
    before = os.getloadavg()[0]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    section = Section.from_json(output.strip().rpartition("\n")[2])
    line = f"`{section.command}`, {machine(device)}; load {before:.1f} before, "
    text = f"{section.markdown()}\n\n{line}{os.getloadavg()[0]:.1f} after."
    print(text, flush=True)
    now = page.read_text()  # of now: a bench takes minutes, and prose may be written meanwhile
    if is_check:
        old = now[block(now, name, title=page.name)]
        lines = differences(old, section.tables, tolerance=TOLERANCE)
        print("".join(f"differs: {difference}\n" for difference in lines), end="", flush=True)
        return not lines
    whole = page.with_name(page.name + ".new")
    whole.write_text(replaced(now, name, text, title=page.name))
    whole.replace(page)
    return True


if __name__ == "__main__":
    sys.exit(main())
