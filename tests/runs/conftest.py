"""A task of given outputs."""

import pytest

from arc_data.task import parse_task


@pytest.fixture(scope="session")
def make_task():
    """Makes a task whose test pairs have these outputs; None is one that is not known."""

    def make(task_id, *outputs):
        pair = {"input": [[1]], "output": [[1]]}
        test = [{"input": [[1]], "output": output} for output in outputs]
        return parse_task(task_id, {"train": [pair], "test": test}, task_id)

    return make
