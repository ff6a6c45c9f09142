"""One edit of a line that privacy rests on, and the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """An edit that takes a guarantee away.

    Attributes:
        name: Unique, in words.
        file: Source file, from the root of the repository.
        old: Text of it that stands there exactly once.
        new: What takes its place.
        tests: Node ids of pytest, at least one; each of them must fail by itself.
        why: What is lost.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def applied(self, source: str) -> str:
        """Return the source with the edit.

        Raises:
            ValueError: The old text is not there exactly once, or the result is no Python.
        """
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: its old text stands {count} times in {self.file}")
        changed = source.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        return changed

    def applied_in(self, root: Path) -> str:
        """Return the edited source of a tree; see ``applied``."""
        path = root / self.file
        if not path.is_file():
            raise ValueError(f"{self.name}: there is no {self.file}")
        return self.applied(path.read_text())
