"""Every argument that a shell can pass works, or gets one line that works when it is followed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from eval.compare import flatten
from hrm_deeploop.runs import compose
from hrm_deeploop.runs.compose import CONFIG_DIR, Composer, format_value
from tests.commands import in_a_process, in_process, start_of

NUM_CONFIGURATIONS = 500
SMOKE = "experiment=smoke"


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        ("train", ["+experiment=smoke"], "leave the + out, experiment=smoke"),
        ("train", ["data@foo=arc1"], "give the key alone, data=..., without @"),
        ("train", ["hydra.run.dir=x"], "run_dir=... names the run"),
        ("train", ["hydra=x"], "run_dir=... names the run"),
        ("train", ["seed=0,1,2"], "compare seeds=[0,1,2] has several"),
        ("train", ["-m"], "compare trains several, with seeds=[0,1,2]"),
        ("train", ["--multirun", SMOKE], "compare trains several"),
        ("train", ["~seed"], "nothing can be deleted"),
        ("train", ["seed"], "expected key=value"),
        ("train", ["=3"], "expected key=value"),
        ("train", [""], "expected key=value"),
        ("train", ["experiment=[]"], "one of arc1, "),
        ("train", ["experiment="], "there is no such choice"),
        ("train", ["data=[arc1]"], "one of arc1, arc1-mini, arc2, folder, kaggle is expected"),
        ("train", ["data=null"], "there is no such choice"),
        ("train", [SMOKE, "seed=${x}"], "Interpolation key 'x' not found"),
        ("train", [SMOKE, "run_dir="], "run_dir=: "),
        ("train", [SMOKE, "run_dir=a,b"], "one value with commas in it is 'run_dir=\"a,b\"'"),
        ("train", [SMOKE, "optim.lr_warmup_steps=99999999999999999999"], "less than or equal"),
        ("train", [SMOKE, "log_every=99999999999999999999"], "less than or equal"),
        ("train", [SMOKE, "seed=range(1,3)"], "one run has one seed"),
        ("train", [SMOKE, "++foo=1"], "there is no such key"),
        ("train", [SMOKE, "optim.lr=nan"], "finite number"),
        ("compare", ["arms=[]"], "a comparison needs at least two"),
        ("compare", [SMOKE, "grid=0"], "grid=0: "),
        ("compare", [SMOKE, "grid=[]"], "grid=[]: "),
        ("compare", [SMOKE, "workers=0"], "'auto', or greater than 0"),
        ("evaluate", ["run="], "run=: "),
        ("evaluate", ["run=x", "out=''"], "out=: "),
        (
            "evaluate",
            ["run=x", "data=arc1"],
            "evaluate takes no file of configs/data; its keys: run",
        ),
        ("evaluate", ["run=a,b"], "one value with commas in it is 'run=\"a,b\"'"),
        ("alignment", ["run=x", "out="], "out=: "),
        ("vote", ["predictions=x", "out=''"], "out=: "),
    ],
)
def test_a_mistake_gets_one_line_that_says_what_works(command, given, message, tmp_path):
    result = in_process(command, *given, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr.strip().splitlines()[-1]
    assert result.stderr.strip().splitlines()[-1].startswith(f"{command}: ")
    assert not list(tmp_path.iterdir())


NAMES = (
    *("lr=1e-3", "a b", "a(1)", "a#b", "it's", 'say "x"', "ü", "日本", "a[0]", "a{b}", "$x$", "~a"),
    *("a:b", "a;b", "a&b", "null", "true", "1e-3", "007", "a\\b", "@a", "+a", "-a", "%", "a=b=c"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_path_of_any_name_is_a_value_and_an_element_of_a_list(name, tmp_path):
    """As a shell passes it, without quotes of its own."""
    composer = Composer("train", [SMOKE, f"run_dir={tmp_path}/{name}"])
    assert composer.values()["run_dir"] == f"{tmp_path}/{name}"
    composer = Composer("alignment", [f"run=[{tmp_path}/{name},{tmp_path}/other]"])
    assert composer.values()["run"] == [f"{tmp_path}/{name}", f"{tmp_path}/other"]


def test_the_hint_for_a_name_with_a_comma_works_when_it_is_followed(tmp_path):
    result = in_process("train", SMOKE, f"run_dir={tmp_path}/a,b", cwd=tmp_path)
    (hint,) = [part for part in result.stderr.strip().split("'") if part.startswith("run_dir=")]
    assert Composer("train", [SMOKE, hint]).values()["run_dir"] == f"{tmp_path}/a,b"


def leaves(values, key=""):
    for name, value in values.items():
        inner = f"{key}.{name}" if key else name
        yield inner
        if isinstance(value, dict):
            yield from leaves(value, inner)


ODD = (
    *("null", "true", "false", "0", "-1", "1", "3", "1e9", "1e400", "nan", "inf", "-inf", "0.5"),
    *("''", "x", "[]", "{}", "[1]", "[x,y]", "{a:1}", "99999999999999999999", "[null]", "1e-9"),
    *("vanilla", "huginn", "auto", "${seed}", "${nothing}", "[[1]]", "a b", "a=b", "(", "]", "1,2"),
)


@pytest.mark.slow
def test_five_hundred_configurations_are_valid_or_one_line(tmp_path):
    """``describe`` composes and checks as ``train`` does, and trains nothing."""
    train = yaml.safe_load((CONFIG_DIR / "train.yaml").read_text())
    train.pop("defaults")
    keys = sorted({*leaves(train), *leaves(Composer("train", [SMOKE]).values())})
    current = flatten(Composer("train", [SMOKE]).values())
    rng = np.random.default_rng(8)
    found = {0: 0, 2: 0, 3: 0}
    for number in range(NUM_CONFIGURATIONS):
        drawn = rng.choice(len(keys), size=int(rng.integers(1, 4)), replace=False)
        prefix = ("", "", "", "", "+", "++", "~")
        given = []
        for key in drawn:
            # Some of the values are those that stand there.
            value = current.get(keys[key]) if rng.random() < 0.5 else None
            odd = ODD[int(rng.integers(len(ODD)))]
            shown = odd if value is None or isinstance(value, (dict, list)) else format_value(value)
            given.append(f"{prefix[int(rng.integers(len(prefix)))]}{keys[key]}={shown}")
        result = in_process("describe", SMOKE, *given, cwd=tmp_path)
        what = (number, given, result.stderr[-500:])
        assert result.returncode in found, what
        assert "Traceback" not in result.stderr, what
        if result.returncode:
            assert result.stderr.strip().splitlines()[-1].startswith("describe: "), what
            assert "pydantic" not in result.stderr, what
        found[result.returncode] += 1
    print(found)
    assert found[2] > 100
    assert found[0] > 20


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_change_nothing(closed, tmp_path):
    command = start_of("train", SMOKE, "total_steps=1", f"run_dir={tmp_path}/run")
    line = " ".join(f"'{part}'" for part in command) + " " + closed
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "run" / "checkpoints" / "step_00000001").is_dir()


@pytest.mark.slow
def test_a_full_stdout_is_named(tmp_path):
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            start_of("train", SMOKE, "total_steps=1", f"run_dir={tmp_path}/run", "output=json"),
            **dict(stdout=full, stderr=subprocess.PIPE, text=True, timeout=300),
        )
    assert result.returncode == 2
    assert "stdout: No space left on device" in result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_compiling_without_a_compiler_is_one_line(tmp_path):
    result = in_a_process(
        *("train", SMOKE, "compile=true", "total_steps=1", f"run_dir={tmp_path}/run"),
        variables={"CXX": "no-such-compiler"},
    )
    assert result.returncode == 2
    assert "needs a C++ compiler on a CPU, and there is no no-such-compiler" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (MemoryError(), "out of memory"),
        (MemoryError("Unable to allocate 8. TiB"), "Unable to allocate 8"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "can't allocate",
        ),
    ],
)
def test_running_out_of_memory_on_a_cpu_exits_with_3(error, shown, monkeypatch):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("scripts.describe.main", fail)
    result = in_process("describe", SMOKE)
    assert result.returncode == 3
    assert shown in result.stderr
    assert "less is needed with a smaller micro_batch_size" in result.stderr


def test_an_interruption_while_modules_are_imported_is_one_line():
    code = (
        "import sys; sys.argv = ['hrm-deeploop', 'describe']\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('omegaconf'): raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from scripts.main import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 130
    assert result.stderr == "hrm-deeploop: interrupted\n"


def test_nested_values_that_refer_to_others_are_resolved():
    assert (
        compose.compose_config("train", ["data=arc1", "seed=3", "data.seed=${seed}"])["data"][
            "seed"
        ]
        == 3
    )
    assert json.dumps(Composer("train", [SMOKE]).values())
