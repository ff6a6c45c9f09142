"""HTML of a study: the story, the pictures and the trials on one page that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files as resources

from dpsweep.foundation.version import __version__
from dpsweep.foundation.words import encodable
from dpsweep.results.page.bundle import vega_bundle
from dpsweep.results.page.story import story_of
from dpsweep.results.pictures.base import Picture
from dpsweep.results.pictures.table import pictures_of
from dpsweep.results.study import SweepResult

#: How a page begins.
PAGE_BEGINS = "<!doctype html>"


def page_of(result: SweepResult, pictures: Sequence[Picture] | None = None) -> str:
    """Return the page of a study as it stands: one HTML file, light and dark, for any width.

    Guarantees:
        The page loads nothing: its policy forbids every address but its own. All names and texts of
        the study are escaped. It says what ``SweepResult`` says, and under ``select`` that is the
        winner alone.

    Args:
        result: The study.
        pictures: What ``pictures_of`` returns for it, where that is in hand.
    """
    import jinja2
    from markdown_it import MarkdownIt

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    source = resources(__package__).joinpath("page.html.jinja").read_text()
    story = story_of(result, version=__version__)
    pictures = pictures_of(result) if pictures is None else pictures
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    bundle = vega_bundle() if pictures else ""
    if "</script" in bundle:
        raise AssertionError("the bundle would end its own element")
    page = environment.from_string(source).render(
        story=story,
        card=markdown.render(story.card),
        pictures=pictures,
        charts={picture.name: picture.vega_lite(width="container") for picture in pictures},
        csv={picture.name: _as_data(picture) for picture in pictures},
        bundle=bundle,
    )
    return encodable(page)


def _as_data(picture: Picture) -> str:
    """Return a picture's table as an address that a browser saves as a file."""
    return f"data:text/csv;base64,{base64.b64encode(picture.csv().encode()).decode()}"
