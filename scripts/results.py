"""Fill in the tables of a page from raw rows, which it takes from runs.

hrm-deeploop results                        # docs/results.md from docs/results/*.json
hrm-deeploop results runs=runs/results      # first take new rows of these runs

A table of the page stands between two comments, and names its rows and which tables of them:

    <!-- L2.json: all_tests, training -->
    <!-- end -->

A comparison has the tables of its comparison.md, and for any of its arms `SCORE difference to ARM`
and `SCORE difference with seeds to ARM`.
With ``runs`` the rows NAME.json are those of NAME/ (comparison.json or sweep.json) or of a file
NAME.json that alignment.py wrote with ``out``; pictures that the page has by the name
NAME-ladder.png, -curves.png or -sweep.png are taken from there too.
"""

from pathlib import Path
from typing import Any

from arc_data.atomic import write_atomically
from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.results_page import (
    PICTURE,
    PLACE,
    ResultsOptions,
    _read_rows,
    fill_page,
    format_rows,
    take_rows,
)
from scripts import cli

KEYS_OF = ["results"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("results", overrides)
    output = cli.take_output(values)
    options: ResultsOptions = validate(ResultsOptions, values)
    cli.show_config(to_yaml(options))
    page, folder = Path(options.page), Path(options.rows)
    text = page.read_text(encoding="utf-8")
    names = sorted({place["rows"] for place in PLACE.finditer(text)})
    if not names:
        raise ValueError(f"page={page}: no `<!-- ROWS.json: TABLE -->` in it")
    if options.runs is not None:
        taken = {name: take_rows(name, Path(options.runs)) for name in names}
        pictures = {
            f"{picture['run']}-{picture['kind']}.png": (
                Path(options.runs) / picture["run"] / f"{picture['kind']}.png"
            ).read_bytes()
            for picture in PICTURE.finditer(text)
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in taken.items():
            write_atomically(folder / name, format_rows(rows))
        for name, png in pictures.items():
            write_atomically(folder / name, png)
    rows = {name: _read_rows(folder / name) for name in names}
    filled = fill_page(text, rows)
    write_atomically(page, filled)
    if output == "text":
        state = "as it was" if filled == text else "written anew"
        print(f"{page}: {state}, from {', '.join(names)} in {folder}/")
    return {"page": str(page), "rows": names, "changed": filled != text, "output": output}


if __name__ == "__main__":
    cli.launch(main, "results", __doc__, keys_of=KEYS_OF)
