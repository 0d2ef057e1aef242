"""Task files: what is refused, with every problem named, and what is accepted."""

import json
import os

import pytest

from arc_data.files import read_any, read_folder, read_json, read_kaggle
from arc_data.task import InvalidDataError

GOOD = {"train": [{"input": [[1]], "output": [[2]]}], "test": [{"input": [[3]], "output": [[4]]}]}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(function, *arguments):
    with pytest.raises(InvalidDataError) as error:
        function(*arguments)
    return error.value.problems


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "31_wide",
            "train pair 0, input: expected 1 to 30 rows and columns, got a grid that is too large: "
            "1 x 31",
        ),
        ("color_10", "train pair 0, input, row 0, column 1: expected an integer 0..9, got 10"),
        ("empty_grid", "train pair 0, input, row 0: expected a list of 1 to 30 cells"),
        ("fraction", "train pair 0, input, row 0, column 0: expected an integer 0..9, got 1.7"),
        ("missing_test_key", "expected key 'test' with a list of at least one pair"),
        ("no_demonstrations", "expected key 'train' with a list of at least one pair"),
        ("ragged_row", "train pair 0, input, row 1: expected 2 cells as in row 0, got 1"),
        ("truncated", "expected JSON ("),
    ],
)
def test_a_bad_file_is_one_problem_with_its_place(name, message, data_dir):
    path = data_dir / "cases" / f"refuse_{name}.json"
    (problem,) = problems_of(read_any, path)
    assert problem.startswith(str(path))
    assert message in problem


@pytest.mark.parametrize("name", ["1x1", "hidden_output", "my_task_v2", "name_key", "two_tests"])
def test_a_good_file_is_a_task_under_its_whole_name(name, data_dir):
    (task,) = read_any(data_dir / "cases" / f"accept_{name}.json")
    assert task.id == f"accept_{name}"
    assert (task.test[0].output is None) == (name == "hidden_output")


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("1.0", "1.0"),
        ("-1", "-1"),
        ("true", "True"),
        ("null", "None"),
        ('"1"', "'1'"),
        ("[1]", "a list of 1"),
        ("{}", "an object of 0"),
        ("1e0", "1.0"),
        ("NaN", "nan"),
        ("-Infinity", "-inf"),
        (
            "123456789012345678901234567890123456789012345",
            "1234567890123456789012345678901234567...",
        ),
    ],
)
def test_whatever_stands_for_a_cell_is_named(cell, shown, tmp_path):
    text = json.dumps(GOOD).replace("[[3]]", f"[[{cell}]]")
    (problem,) = problems_of(read_any, write(tmp_path / "t.json", text))
    assert problem == (
        f"{tmp_path}/t.json, test pair 0, input, row 0, column 0: "
        f"expected an integer 0..9, got {shown}"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "expected an object with keys 'train' and 'test', got 3"),
        ({"train": {}, "test": []}, "expected key 'train' with a list"),
        ({**GOOD, "train": [7]}, "train pair 0: expected an object with keys 'input' and 'output'"),
        ({**GOOD, "train": [{"output": [[1]]}]}, "train pair 0: expected key 'input' with a grid"),
        ({**GOOD, "train": [{"input": [[1]]}]}, "train pair 0: expected key 'output' with a grid"),
        (
            {**GOOD, "train": [{"input": [[1]], "output": None}]},
            "train pair 0, output: expected a list of 1 to 30 rows, got None",
        ),
        (
            {**GOOD, "test": [{"input": [[1]], "output": []}]},
            "test pair 0, output: expected a list",
        ),
        (
            {**GOOD, "test": [{"input": [3]}]},
            "test pair 0, input, row 0: expected a list of 1 to 30",
        ),
        ({**GOOD, "test": [{"input": "12"}]}, "input: expected a list of 1 to 30 rows, got '12'"),
        ('{"train": 1, "train": 2}', "expected key 'train' once"),
        ("", "expected JSON ("),
        ("[" * 100_000, "expected JSON"),
        ("1" * 5000, "expected JSON ("),
    ],
)
def test_other_content_is_refused_with_what_was_expected(value, message, tmp_path):
    problems = problems_of(read_any, write(tmp_path / "t.json", value))
    assert any(message in problem for problem in problems), problems


def test_an_explicit_null_hides_a_test_output(tmp_path):
    hidden = {**GOOD, "test": [{"input": [[3]], "output": None}]}
    (task,) = read_any(write(tmp_path / "t.json", hidden))
    assert task.test[0].output is None


def test_a_byte_order_mark_is_no_obstacle_and_other_encodings_are_refused(tmp_path):
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert read_any(tmp_path / "bom.json")[0].id == "bom"
    (tmp_path / "wide.json").write_bytes(json.dumps(GOOD).encode("utf-16"))
    assert "expected UTF-8 text (byte 0)" in problems_of(read_any, tmp_path / "wide.json")[0]


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    problems = problems_of(read_folder, tmp_path)
    assert len(problems) == 4
    assert all("expected a file, got" in problem for problem in problems)
    assert "nothing there" in problems_of(read_json, tmp_path / "absent")[0]


def test_a_folder_lists_every_problem_of_every_file(tmp_path):
    write(tmp_path / "good.json", GOOD)
    write(tmp_path / "two.json", {**GOOD, "train": [{"input": [[10], [1, 1]], "output": [[1]]}]})
    write(tmp_path / "sub" / "three.json", "{")
    write(tmp_path / "other" / "good.json", GOOD)
    problems = problems_of(read_folder, tmp_path)
    assert len(problems) == 4
    assert sum("two.json, train pair 0, input, row" in problem for problem in problems) == 2
    assert any("three.json: expected JSON" in problem for problem in problems)
    assert any("expected an id of its own" in problem for problem in problems)


def test_a_folders_subfolders_say_the_split_and_hidden_files_are_passed_over(tmp_path):
    write(tmp_path / "data" / "evaluation" / "b.json", GOOD)
    write(tmp_path / "data" / "training" / "a.json", GOOD)
    write(tmp_path / "Category" / "c.JSON", GOOD)
    write(tmp_path / "Category" / "._c.json", "not json")
    write(tmp_path / ".git" / "d.json", "not json")
    write(tmp_path / "notes.txt", "not json")
    splits = {task.id: task.split for task in read_folder(tmp_path)}
    assert splits == {"a": "training", "b": "evaluation", "c": "training"}
    assert read_folder(tmp_path / "data" / "evaluation")[0].split == "evaluation"


def test_a_folder_without_tasks_or_no_folder_is_refused(tmp_path):
    assert "expected at least one .json file" in problems_of(read_folder, tmp_path)[0]
    assert "expected a folder" in problems_of(read_folder, tmp_path / "absent")[0]
    assert "expected a folder" in problems_of(read_folder, write(tmp_path / "f", "x"))[0]


HIDDEN = {"train": GOOD["train"], "test": [{"input": [[3]]}, {"input": [[5]]}]}


def kaggle(tmp_path, challenges, solutions):
    return (
        write(tmp_path / "x_challenges.json", challenges),
        None if solutions is None else write(tmp_path / "x_solutions.json", solutions),
    )


def test_kaggle_files_are_joined_in_order(tmp_path):
    paths = kaggle(tmp_path, {"b": HIDDEN, "a": HIDDEN}, {"a": [[[1]], [[2]]], "b": [[[3]], [[4]]]})
    tasks = read_kaggle(*paths)
    assert [task.id for task in tasks] == ["a", "b"]
    outputs = {task.id: [pair.output.tolist() for pair in task.test] for task in tasks}
    assert outputs == {"a": [[[1]], [[2]]], "b": [[[3]], [[4]]]}
    assert {task.split for task in tasks} == {"evaluation"}
    assert read_any(paths[0])[0].test[0].output is not None  # the solutions beside it are found


def test_kaggle_challenges_alone_have_hidden_outputs(tmp_path):
    (task,) = read_kaggle(*kaggle(tmp_path, {"a": HIDDEN}, None))
    assert [pair.output for pair in task.test] == [None, None]


@pytest.mark.parametrize(
    ("challenges", "solutions", "message"),
    [
        ({"a": HIDDEN}, {}, "expected an object with task ids as keys"),
        ({"a": HIDDEN}, {"b": [[[1]], [[1]]]}, "expected task 'a' of x_challenges.json"),
        ({"a": HIDDEN}, {"a": [[[1]]]}, "expected 2 outputs as in x_challenges.json, got 1"),
        (
            {"a": HIDDEN},
            {"a": [[[1]], [[10]]]},
            "test pair 1, output, row 0, column 0: expected an",
        ),
        ({"a": HIDDEN}, {"a": {}}, "task 'a': expected a list of grids"),
        ({"a": HIDDEN, "b": 3}, None, "task 'b': expected an object with keys"),
        ([], None, "expected an object with task ids as keys, got a list of 0"),
        ({"a": GOOD}, {"a": [[[9]]]}, "test pair 0: expected the output that"),
    ],
)
def test_kaggle_files_that_do_not_fit_are_refused(challenges, solutions, message, tmp_path):
    problems = problems_of(read_kaggle, *kaggle(tmp_path, challenges, solutions))
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize("task_id", ["../../etc/passwd", "a_b_c", "", "ü \n", "\ud800"])
def test_any_id_is_kept_whole(task_id, tmp_path):
    challenges = {task_id: HIDDEN}
    (task,) = read_kaggle(*kaggle(tmp_path, challenges, None))
    assert task.id == task_id
