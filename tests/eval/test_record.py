"""A record comes back from its file as it was, and a damaged file is named with its field."""

import json
from pathlib import Path

import pytest

from eval.comparison import CellResult, CellTest, Comparison, ValidationScores
from eval.ladder import AnyRung, Ladder, Oracle, Rungs
from eval.predictions import About
from eval.record import Record
from eval.score import TruthRanks
from hrm_deeploop.runs.alignment import AlignmentResult, AlignmentRow, ModuleRow, SublayerRow
from hrm_deeploop.runs.directory import DataFacts, Manifest
from hrm_deeploop.runs.sweep import Sweep, SweepRow

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RUNGS = Rungs(all_tests={1: 0.25, 2: None}, arc_prize={1: 1 / 3, 2: 0.5})
LADDER = Ladder(
    **dict(RUNGS),
    oracle=Oracle(all_tests=AnyRung(all=0.5), arc_prize=AnyRung(all=None)),
    votes_at_2=RUNGS,
    segments_at_2=None,
    num_votes=16,
    num_pooled=1,
    mean_segments=1.5,
    num_tasks=4,
    num_scored_tasks=3,
    num_scored_pairs=5,
    warnings=("grün \u2028",),
)
RANKS: TruthRanks = {"0d3d703e": (0, None), "[x]": (3,)}
CELL = CellResult(
    arm="deeploop",
    point={"optim.lr": 1e-3, "model.halting": "act"},
    seed=0,
    key="abc",
    run_dir="runs/cell",
    steps=10,
    examples=960,
    flops=2**60,
    params=806_017,
    validation=ValidationScores(loss=0.1, all_tests_at_2=0.2, arc_prize_at_2=0.3),
    test=CellTest(directory="eval", ladder=LADDER, truth_ranks=RANKS),
    failure=None,
    status="trained",
    train_loss=0.1,
    first_train_loss=2.5,
    seconds=1.25,
)
SWEEP = Sweep(
    which="both",
    other=0.5,
    depth_key="L_cycles",
    revisited="L",
    rows=(
        SweepRow(
            p=0.125,
            depth=2,
            num_seeds=2,
            share_trained=0.5,
            train_loss=(1.5,),
            validation_loss=(),
            kappa=(0.8,),
            rounds=2,
            status=("trained", "diverged"),
        ),
    ),
)
SUBLAYER = SublayerRow(kappa=0.5, cosine=0.25, gradient=0.75, response=1.0)
MODULE = ModuleRow(
    rounds=2,
    kappa=0.6,
    kappa_sd=None,
    cosine=0.25,
    gradient=0.8,
    ratio=1.0,
    bound=5.0,
    sublayers={"0.mlp": SUBLAYER},
)
ALIGNMENT = AlignmentResult(
    rows=(
        AlignmentRow(
            run="runs/a",
            checkpoint="step_00000010",
            rule="deeploop",
            revisited="L",
            modules={"L": MODULE},
        ),
    ),
    gamma=None,
    p_star=None,
    why_no_gamma="the runs differ in seed",
)
MANIFEST = Manifest(
    data=DataFacts(
        source="arc1",
        sha256="ab",
        num_tasks=59,
        left_out={"not a valid task": 1},
        num_evaluated_tasks=59,
        num_puzzles=1003,
        puzzles_sha256="cd",
    ),
    gains={"H": ((1.0, 1.0),), "L": ((2.0, 0.35), (2.0, 0.35))},
    seed=3,
    command="hrm-deeploop train",
    versions={"torch": "2"},
    git_commit=None,
)
ABOUT = About(pooled=(About(facts={"step": 10, "ema": True}, key={"votes": 8}), About()))
COMPARISON = Comparison.load(RESULTS / "L2-kappa.json")
RECORDS = (LADDER, CELL, COMPARISON, SWEEP, ALIGNMENT, MANIFEST, ABOUT)


def name_of(record):
    return type(record).__name__


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_a_record_comes_back_from_its_file(record, tmp_path):
    path = tmp_path / "record.json"
    record.save(path)
    assert json.loads(path.read_text())["format"] == 1
    assert type(record).load(path) == record


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
@pytest.mark.parametrize(("found", "said"), [(None, "no format"), (2, "format 2")])
def test_another_format_is_refused_in_a_sentence(found, said, record):
    values = record.to_values()
    values.pop("format")
    if found is not None:
        values["format"] = found
    with pytest.raises(ValueError) as caught:
        type(record).from_json(json.dumps(values), "record.json")
    assert str(caught.value) == f"record.json: has {said}; this version reads format 1"


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        (SWEEP, {"rows": [{**SWEEP.to_values()["rows"][0], "depth": "deep"}]}, "rows.0.depth"),
        (CELL, {"seed": None}, "seed"),
        (CELL, {"status": "fine"}, "status"),
        (MANIFEST, {"gains": {"L": [[1.0]]}}, "gains.L.0.1"),
        (LADDER, {"all_tests": {"one": 0.5}}, "all_tests.one"),
        (ABOUT, {"typo": 1}, "typo"),
        (ALIGNMENT, {"rows": 3}, "rows"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_file_and_the_field(kind, change, field, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**kind.to_values(), **change}))
    with pytest.raises(ValueError) as caught:
        type(kind).load(path)
    assert str(caught.value).startswith(f"{path}: {field}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_a_missing_field_is_named(record):
    values = record.to_values()
    required = [name for name, field in type(record).model_fields.items() if field.is_required()]
    for name in required:
        text = json.dumps({key: value for key, value in values.items() if key != name})
        with pytest.raises(ValueError, match=f"record.json: {name}: field required"):
            type(record).from_json(text, "record.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"which"', "not readable JSON"),
        (b"[1]", "expected an object, got a list"),
        (b"[" * 100_000, "not readable JSON"),
        (b"\xff", "not readable"),
        (None, "not readable"),
    ],
)
def test_a_file_that_is_no_record_is_one_line(content, said, tmp_path):
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        Sweep.load(path)
    assert str(caught.value).startswith(f"{path}: {said}")
    assert len(str(caught.value).splitlines()) == 1


def test_a_number_is_no_name():
    """Records refuse what json.loads reads as another type instead of converting it."""

    class Named(Record):
        name: str

    with pytest.raises(ValueError, match="here: name: input should be a valid string"):
        Named.from_json('{"format": 1, "name": 3}', "here")
