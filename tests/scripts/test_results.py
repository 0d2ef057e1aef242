"""The tables of a page are what its raw rows give."""

import json
from pathlib import Path

import pytest

from eval.comparison import Comparison
from hrm_deeploop.runs.results_page import PLACE, _read_rows, fill_page, format_rows
from hrm_deeploop.runs.sweep import Sweep
from tests.commands import ROOT, in_process

SWEEP = {
    "format": 1,
    "which": "L",
    "other": 0.5,
    "revisited": "L",
    "depth_key": "L_cycles",
    "rows": [
        {
            "p": p,
            "depth": 2,
            "num_seeds": 2,
            "share_trained": share,
            "train_loss": losses,
            "validation_loss": [],
            "kappa": [],
            "rounds": 2,
            "status": ["trained"] * len(losses),
        }
        for p, share, losses in ((0.0, 0.5, [1.5]), (0.5, 1.0, [0.25, 0.75]))
    ],
}
ROWS = Sweep.from_json(json.dumps(SWEEP), "s.json")
PAGE = "above\n<!-- s.json: share trained, train loss -->\nold\n<!-- end -->\nbelow\n"


def run(*overrides, cwd=ROOT):
    return in_process("results", *overrides, cwd=cwd)


def test_tables_of_the_rows_stand_in_their_place():
    page = fill_page(PAGE, {"s.json": ROWS})
    lines = page.splitlines()
    assert (lines[0], lines[-1]) == ("above", "below")
    assert "old" not in lines
    assert "| L_cycles 2 | 0.50 | 1.00 |" in lines
    assert "| L_cycles 2 | 1.500 | 0.500 |" in lines
    assert fill_page(page, {"s.json": ROWS}) == page


def test_rows_are_written_a_line_each_and_read_back():
    text = format_rows(ROWS)
    assert json.loads(text) == SWEEP
    assert sum('"p": ' in line for line in text.splitlines()) == 2


@pytest.mark.parametrize("as_relative", [True, False])
def test_rows_are_taken_from_runs_without_their_place(as_relative, tmp_path):
    runs, page = tmp_path / "runs", tmp_path / "page.md"
    (runs / "s").mkdir(parents=True)
    # of two runs, one was started by its whole path
    rows = {**SWEEP, "depth_key": f"{runs}/s/p0.5", "revisited": "runs/s/p0"}
    (runs / "s" / "sweep.json").write_text(json.dumps(rows))
    (runs / "s" / "sweep.png").write_bytes(b"picture")
    page.write_text(PAGE + "![where](rows/s-sweep.png)\n")
    options = [f"page={page}", f"rows={tmp_path / 'rows'}"]
    result = run(*options, f"runs={'runs' if as_relative else runs}", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "rows" / "s.json").read_text()) == {
        **rows,
        "depth_key": "s/p0.5",
        "revisited": "s/p0" if as_relative else "runs/s/p0",
    }
    assert (tmp_path / "rows" / "s-sweep.png").read_bytes() == b"picture"
    assert "| s/p0.5 2 | 0.50 | 1.00 |" in page.read_text()
    again = run(*options, cwd=tmp_path)
    assert "as it was" in again.stdout


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("nothing", "no `<!-- ROWS.json: TABLE -->` in it"),
        (PAGE, "No such file or directory"),
        (PAGE.replace("share trained", "shares"), "s.json has no table 'shares'; it has share"),
    ],
)
def test_a_mistake_is_one_line(page, message, tmp_path):
    place, rows = tmp_path / "page.md", tmp_path / "rows"
    place.write_text(page)
    rows.mkdir()
    if "shares" in page:
        (rows / "s.json").write_text(json.dumps(SWEEP))
    result = run(f"page={place}", f"rows={rows}")
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert place.read_text() == page


def test_a_table_that_is_not_of_these_rows_and_damaged_rows_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"s\.json has no table 'all_tests difference to vanilla'"):
        fill_page(
            PAGE.replace("share trained", "all_tests difference to vanilla"), {"s.json": ROWS}
        )
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    (tmp_path / "s.json").write_text('{"which"')
    result = run(f"page={page}", f"rows={tmp_path}")
    assert result.returncode == 2
    assert f"{tmp_path / 's.json'}: Expecting" in result.stderr.splitlines()[-1]


def test_the_page_of_results_is_what_its_raw_rows_give():
    page = (ROOT / "docs" / "results.md").read_text()
    names = {place["rows"] for place in PLACE.finditer(page)}
    assert names
    rows = {name: _read_rows(ROOT / "docs" / "results" / name) for name in names}
    assert fill_page(page, rows) == page


def test_raw_rows_name_no_place_of_the_machine_that_made_them():
    """Strings are names, settings and paths within the runs, none of which begins at a root."""

    def strings(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, (dict, list)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from strings(part)

    files = sorted((ROOT / "docs" / "results").glob("*.json"))
    assert files
    for path in files:
        found = list(strings(json.loads(path.read_text())))
        assert found, path
        assert not [text for text in found if Path(text).is_absolute()], path


def test_a_page_may_ask_for_differences_to_any_arm():
    rows = {"L2.json": Comparison.load(ROOT / "docs" / "results" / "L2.json")}
    place = "<!-- L2.json: all_tests difference to deepnorm -->\n<!-- end -->"
    lines = fill_page(place, rows).splitlines()
    (vanilla,) = [line for line in lines if line.startswith("| vanilla |")]
    own = rows["L2.json"].arms["deepnorm"].difference.all_tests[2]
    entry = vanilla.split("|")[3]
    assert f"{-100 * own.mean:+.1f} [" in entry
    assert entry.endswith(f" {own.lost}:{own.won} ")
    # Over tasks and seeds: the same mean, with an interval around it.
    with_seeds = fill_page(place.replace("difference", "difference with seeds"), rows).splitlines()
    assert "over tasks and seeds" in with_seeds[2]
    (vanilla,) = [line for line in with_seeds if line.startswith("| vanilla |")]
    mean, low, high = (float(x.strip("[],")) for x in vanilla.split("|")[3].split())
    assert mean == round(-100 * own.mean, 1)
    assert low < mean < high
    with pytest.raises(ValueError, match="no results of an arm 'nobody'; there are vanilla, deep"):
        fill_page(place.replace("deepnorm", "nobody"), rows)
