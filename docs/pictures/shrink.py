"""Small copies of a study's pictures, for a page: narrower, in a palette of 48 colours.

python docs/pictures/shrink.py studies/NAME/pictures FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

_WIDTH, _COLOURS = 900, 48  # pixels, more than the page shows


def shrink(source: Path, target: Path) -> None:
    """Write a copy of a PNG that is a fifth as large, or less."""
    image = Image.open(source).convert("RGB")
    height = round(image.height * _WIDTH / image.width)
    smaller = image.resize((_WIDTH, height), Image.Resampling.LANCZOS)
    smaller.quantize(_COLOURS, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(Path(sys.argv[1]).glob("*.png")):
        shrink(path, folder / path.name)
