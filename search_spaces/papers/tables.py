"""All presets of each paper: those on data that are here, and those with the paper's own recipe."""

from __future__ import annotations

from collections.abc import Mapping

from dpsweep.search_spaces.papers import (
    bu2024,
    bu2024_recipe,
    bu2024_text,
    golatkar2022,
    golatkar2022_recipe,
    luo2021,
    luo2021_recipe,
    tramer2021,
    tramer2021_recipe,
    zhao2020,
    zhao2020_recipe,
)
from dpsweep.search_spaces.presets import Preset

BU2024: Mapping[str, Preset] = {
    **bu2024.PRESETS,
    **bu2024_recipe.PRESETS,
    **bu2024_text.PRESETS,
}
GOLATKAR2022: Mapping[str, Preset] = {**golatkar2022.PRESETS, **golatkar2022_recipe.PRESETS}
LUO2021: Mapping[str, Preset] = {**luo2021.PRESETS, **luo2021_recipe.PRESETS}
TRAMER2021: Mapping[str, Preset] = {**tramer2021.PRESETS, **tramer2021_recipe.PRESETS}
ZHAO2020: Mapping[str, Preset] = {**zhao2020.PRESETS, **zhao2020_recipe.PRESETS}
