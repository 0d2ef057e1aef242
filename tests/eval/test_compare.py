"""A comparison states its whole difference and refuses what no arm declares."""

import pytest

from eval.compare import check_declared, config_difference, flatten, format_difference

BASE = {"model": {"hidden": 4, "heads": 2}, "scaling": {"rule": "vanilla"}, "run_dir": "a"}
OTHER = {"model": {"hidden": 8, "heads": 2}, "scaling": {"rule": "deeploop"}, "run_dir": "b"}


def test_the_difference_lists_every_key_that_differs_but_not_the_place():
    assert flatten(BASE)["model.hidden"] == 4
    assert config_difference({"one": BASE, "two": OTHER}) == {
        "model.hidden": {"one": 4, "two": 8},
        "scaling.rule": {"one": "vanilla", "two": "deeploop"},
    }
    assert config_difference({"one": BASE, "two": BASE}) == {}
    assert config_difference({"one": {}, "two": {"x": 1}}) == {"x": {"one": None, "two": 1}}


def test_equal_numbers_of_other_type_differ():
    assert config_difference({"a": {"x": 1}, "b": {"x": True}}) != {}


def test_an_undeclared_difference_is_refused_and_named():
    difference = config_difference({"one": BASE, "two": OTHER})
    with pytest.raises(ValueError, match=r"differ in model\.hidden \(one: 4, two: 8\), but"):
        check_declared(difference, {"one": ["scaling"], "two": ["scaling"]})
    check_declared(difference, {"one": ["scaling"], "two": ["scaling", "model.hidden"]})


def test_declaring_a_group_is_not_declaring_a_longer_name():
    difference = {"scaling_factor": {"a": 1, "b": 2}}
    with pytest.raises(ValueError, match="scaling_factor"):
        check_declared(difference, {"a": ["scaling"], "b": ["scaling"]})


def test_the_difference_is_printed_whole():
    text = format_difference(config_difference({"one": BASE, "two": OTHER}))
    assert "model.hidden: one = 4, two = 8" in text
    assert "scaling.rule: one = vanilla, two = deeploop" in text
    assert "none" in format_difference({})
