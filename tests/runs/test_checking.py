"""YAML files that are no configuration are refused before they take memory."""

import pytest

from hrm_deeploop.runs.checking import MAX_YAML, read_yaml

BILLIONS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{after}: &{after} [{','.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BILLIONS, "an alias is no part of a configuration"),
        ("a: &a 1\nb: *a\n", "an alias is no part of a configuration"),
        ("a: " + "[" * 5000, "too deeply nested"),
        ("# " + "x" * MAX_YAML, "more than 1,048,576 bytes"),
        ("a: [1", "not a readable YAML file"),
        ("a: !!python/object/apply:os.system [ls]", "not a readable YAML file"),
        ("a: " + "9" * 5000, "not a readable YAML file"),
    ],
)
def test_what_is_no_configuration_is_refused(text, message, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"config.yaml: .*{message}"):
        read_yaml(path)


def test_plain_values_are_read(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("format: 1\nlr: 1.0e-3\nids: [a, '007']\n")
    assert read_yaml(path) == {"format": 1, "lr": 1e-3, "ids": ["a", "007"]}
