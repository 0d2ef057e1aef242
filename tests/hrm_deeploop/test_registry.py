"""Kinds are found by name; a mistake names what is near; a plugin that is missing is named."""

import pytest

from hrm_deeploop.registry import REGISTRIES, Registry, UnknownNameError, load_plugins


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("hrm_deeploop.registry.REGISTRIES", dict(REGISTRIES))
    return Registry("color", "color")


def test_a_name_is_looked_up_and_an_unknown_one_is_answered_with_those_near(registry):
    registry.add("red", 1, origin="hrm_deeploop.colors")
    registry.add("green", 2, origin="mine")
    assert (registry["red"], "green" in registry, list(registry)) == (1, True, ["red", "green"])
    message = r"color=reed: there is no such color; did you mean red.* plugins=\[its module\]"
    with pytest.raises(UnknownNameError, match=message):
        registry["reed"]


def test_what_is_not_ours_has_an_origin(registry):
    registry.add("red", 1, origin="hrm_deeploop.colors")
    registry.add("green", 2, origin="mine.colors")
    assert (registry.origin("red"), registry.origin("green")) == (None, "mine.colors")
    assert registry.defined_in("mine.colors") == {"green": 2}


def test_a_definition_may_come_again_from_its_own_place_alone(registry):
    registry.add("red", 1, origin="mine")
    registry.add("red", 2, origin="mine")  # a notebook's cell, run again
    assert registry["red"] == 2
    with pytest.raises(ValueError, match="other registers a color of a name that mine has"):
        registry.add("red", 3, origin="other")


def test_a_plugin_is_found_in_the_working_directory_or_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colors_of_mine.py").write_text("WAS_LOADED = True\n")
    load_plugins(["colors_of_mine", "__main__"])
    with pytest.raises(ValueError, match=r"plugins=\[nowhere\]: can't be imported"):
        load_plugins(["nowhere"])


def test_every_sort_of_kind_is_registered():
    import hrm_deeploop.runs.config  # noqa: F401

    expected = {"scaling", "transition", "model.name", "optim.optimizer", "logger"}
    assert expected <= REGISTRIES.keys()
    for key in expected:
        assert list(REGISTRIES[key])
