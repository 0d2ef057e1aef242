"""What is answered to one task: the attempts of every test pair, with their votes."""

from dataclasses import dataclass
from html import escape

import numpy as np
from rich.console import Console
from rich.text import Text

from arc_data.grid import Grid
from arc_data.task import Task
from eval.ladder import ARC_PRIZE_ATTEMPTS
from eval.predictions import Predictions
from eval.views import figures_html, show_figures
from eval.vote import Candidate, count_ballots


@dataclass(frozen=True, kw_only=True, eq=False)
class TestAnswer:
    """The candidates of one test pair, best first."""

    __test__ = False  # no test of pytest's

    input: Grid
    truth: Grid | None  # None where the output is not known
    candidates: tuple[Candidate, ...]
    num_votes: int  # augmentations that were asked; an empty prediction is no vote

    @property
    def attempts(self) -> tuple[Candidate, ...]:
        """The candidates that the ARC Prize lets one submit."""
        return self.candidates[:ARC_PRIZE_ATTEMPTS]

    @property
    def is_solved(self) -> bool | None:
        """Whether an attempt is the truth; None where the output is not known."""
        if self.truth is None:
            return None
        return any(np.array_equal(attempt.grid, self.truth) for attempt in self.attempts)

    def figures(self) -> list[tuple[str, Grid | None]]:
        """Return input, truth and attempts with their captions."""
        found: list[tuple[str, Grid | None]] = [("input", self.input)]
        if self.truth is not None:
            found.append(("truth", self.truth))
        for number, attempt in enumerate(self.attempts, start=1):
            votes = f"{attempt.votes} of {self.num_votes} votes"
            found.append((f"attempt {number}: {votes}", attempt.grid))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskAnswer:
    """The answer to a task; ``notes`` say what to know before trusting it."""

    task: Task
    tests: tuple[TestAnswer, ...]
    notes: tuple[str, ...] = ()

    @property
    def attempts(self) -> tuple[Candidate, ...]:
        """The attempts of the only test pair.

        Raises:
            ValueError: if the task has several; ``tests`` has them all.
        """
        if len(self.tests) != 1:
            raise ValueError(f"{self.task.id} has {len(self.tests)} test pairs: take .tests[i]")
        return self.tests[0].attempts

    @property
    def is_solved(self) -> bool | None:
        """Whether every test pair is solved; None where an output is not known."""
        solved = [test.is_solved for test in self.tests]
        return None if None in solved else all(solved)

    def show(self) -> None:
        """Print every test pair with its attempts, in color."""
        console = Console()
        # As Text: an id or a note may hold brackets, which a string's markup would swallow.
        console.print(Text(repr(self)))
        for note in self.notes:
            console.print(Text(f"note: {note}"))
        for test in self.tests:
            show_figures(test.figures(), console)

    def _repr_html_(self) -> str:
        notes = [f"<p>note: {escape(note)}</p>" for note in self.notes]
        lines = [f"<b>{escape(self.task.id)}</b>", *notes]
        return "".join([*lines, *(figures_html(test.figures()) for test in self.tests)])

    def __repr__(self) -> str:
        best = [test.attempts[0].votes if test.attempts else 0 for test in self.tests]
        asked = [test.num_votes for test in self.tests]
        if len(set(asked)) == 1:
            votes = f"{' and '.join(map(str, best))} of {asked[0]} votes"
        else:
            votes = " and ".join(f"{b} of {n}" for b, n in zip(best, asked, strict=True)) + " votes"
        pairs = "1 test pair" if len(best) == 1 else f"{len(best)} test pairs"
        solved = {True: ", solved", False: ", not solved", None: ""}[self.is_solved]
        return f"TaskAnswer({self.task.id}: {pairs}, best {votes}{solved})"


def answer_task(predictions: Predictions, notes: tuple[str, ...] = ()) -> TaskAnswer:
    """Vote on the predictions of one task.

    Raises:
        ValueError: if they are of several tasks.
    """
    if len(predictions.tasks) != 1:
        raise ValueError(f"expected predictions of one task, got {len(predictions.tasks)}")
    (task,) = predictions.tasks
    ballots = count_ballots(predictions)
    candidates = ballots.candidates(ballots.rank())
    asked = np.bincount(predictions.test_index[predictions.final], minlength=len(task.test))
    return TaskAnswer(
        task=task,
        tests=tuple(
            TestAnswer(
                input=pair.input,
                truth=pair.output,
                candidates=tuple(candidates.get((task.id, i), ())),
                num_votes=int(asked[i]),
            )
            for i, pair in enumerate(task.test)
        ),
        notes=notes,
    )
