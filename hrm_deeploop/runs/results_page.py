"""Fill in the tables of a page from raw rows, which it takes from runs.

A table of the page stands between two comments, and names its rows and which tables of them:

    <!-- L2.json: all_tests, training -->
    <!-- end -->

A comparison has the tables of its comparison.md, and for any of its arms `SCORE difference to ARM`
and `SCORE difference with seeds to ARM`.
With ``runs`` the rows NAME.json are those of NAME/ (comparison.json or sweep.json) or of a file
NAME.json that alignment.py wrote with ``out``; pictures that the page has by the name
NAME-ladder.png, -curves.png or -sweep.png are taken from there too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from eval.comparison import Comparison, difference_to
from eval.tables import format_markdown
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.runs.alignment import AlignmentResult
from hrm_deeploop.runs.report import COMPARISON_FILE
from hrm_deeploop.runs.sweep import SWEEP_FILE, Sweep

PLACE = re.compile(
    r"(?P<begin><!-- (?P<rows>[\w.-]+\.json): (?P<tables>[^>]+?) -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)
PICTURE = re.compile(r"\((?:[^)]*/)?(?P<run>[\w.-]+)-(?P<kind>ladder|curves|sweep)\.png\)")
# A table of differences to another arm than the comparison's own.
DIFFERENCE_TO = re.compile(r"\w+ difference( with seeds)? to (?P<arm>\S+)")
Rows = Comparison | Sweep | AlignmentResult
# What only rows of that kind have.
KINDS: dict[str, type[Rows]] = {"arms": Comparison, "which": Sweep, "p_star": AlignmentResult}


class ResultsOptions(StrictConfig):
    """Keys of ``configs/results.yaml``."""

    page: str = Field(min_length=1)
    rows: str = Field(min_length=1)
    runs: str | None


def take_rows(name: str, runs: Path) -> Rows:
    """Raw rows of the runs: paths in them start at ``runs``.

    Raises:
        ValueError: if there are none.
    """
    places = [runs / name, *(runs / Path(name).stem / f for f in (COMPARISON_FILE, SWEEP_FILE))]
    for place in places:
        if place.is_file():
            # A run may have been started with another way of writing its place than that of now.
            ways = dict.fromkeys((runs.resolve(), runs.absolute(), runs))
            return _read_rows(place, [f"{way}/" for way in ways])
    raise ValueError(f"runs={runs}: none of {', '.join(map(str, places))} is there")


def _read_rows(path: Path, without: Sequence[str] = ()) -> Rows:
    """Read rows without the texts ``without``, the longer of two that overlap first.

    Raises:
        ValueError: naming the file, if it is none of the kinds of rows.
    """
    text = path.read_text(encoding="utf-8")
    for part in without:
        text = text.replace(json.dumps(part)[1:-1], "")
    try:
        keys = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for key, kind in KINDS.items():
        if key in keys:
            return kind.from_json(text, str(path))
    raise ValueError(
        f"{path}: expected rows with one of the keys {', '.join(KINDS)}, got {', '.join(keys)}"
    )


def format_rows(rows: Rows) -> str:
    """Write JSON with a line per key, or per element where the value is a list or a mapping."""
    lines = []
    for key, value in rows.to_values().items():
        if isinstance(value, list) and value:
            parts = [json.dumps(part) for part in value]
            text = "[\n  " + ",\n  ".join(parts) + "\n ]"
        elif isinstance(value, dict) and value:
            parts = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in value.items()]
            text = "{\n  " + ",\n  ".join(parts) + "\n }"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def fill_page(page: str, rows: Mapping[str, Rows]) -> str:
    """The page with its tables.

    Raises:
        ValueError: naming a table that the rows do not have.
    """

    def fill(place: re.Match[str]) -> str:
        own = rows[place["rows"]]
        tables = own.tables()
        chosen = [name.strip() for name in place["tables"].split(",")]
        for name in chosen:
            asked = DIFFERENCE_TO.fullmatch(name)
            if asked is not None and isinstance(own, Comparison):
                found = difference_to(own, asked["arm"])
                tables |= {f"{kind} to {asked['arm']}": table for kind, table in found.items()}
            if name not in tables:
                raise ValueError(
                    f"{place['rows']} has no table {name!r}; it has {', '.join(tables)}"
                )
        text = format_markdown(tables[name] for name in chosen)
        return f"{place['begin']}\n{text}{place['end']}"

    return PLACE.sub(fill, page)
