"""The JavaScript of a page that draws charts without a network."""

from __future__ import annotations

from importlib.metadata import version

from dpsweep.foundation.kept import kept


def vega_bundle() -> str:
    """Return Vega and vega-embed, as the installed ``vl_convert`` puts them together.

    That takes over a second, so it is kept for the next page.
    """

    def make() -> bytes:
        import vl_convert

        made: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
        return made.encode()

    return kept("vega", f"{version('vl-convert-python')}.js", make).decode()
