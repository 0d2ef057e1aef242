"""Vote and score from files, without a model.

hrm-deeploop vote predictions=runs/mini/eval/step_00001500/predictions.npz
hrm-deeploop vote predictions=[A/predictions.npz,B/predictions.npz] pool=true out=ensemble
hrm-deeploop vote submission=runs/mini/eval/step_00001500/submission.json
hrm-deeploop vote submission=submission.json data=arc1
"""

from pathlib import Path
from typing import Any

from arc_data import sources
from arc_data.config import DataConfig
from eval.revote import score_file, vote_again
from eval.tables import SCORE_TITLES, percent
from hrm_deeploop.runs.checking import to_yaml, validate
from hrm_deeploop.runs.choices import VoteOptions
from hrm_deeploop.runs.compose import compose_config
from scripts import cli

KEYS_OF = ["vote"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("vote", overrides)
    output = cli.take_output(values)
    if isinstance(values["predictions"], str):
        values["predictions"] = [values["predictions"]]
    data = values.get("data")
    values["data"] = None if data is None else validate(DataConfig, data)
    options: VoteOptions = validate(VoteOptions, values)
    cli.show_config(to_yaml(options))
    tasks = None if options.data is None else sources.load(options.data).evaluated_tasks
    if options.submission is not None:
        graded = score_file(Path(options.submission), tasks)
        found = graded.score
        scores = {n: None if found is None else getattr(found, n) for n in SCORE_TITLES}
        if output == "text":
            for remark in graded.remarks:
                print(f"warning: {remark}")
            for name, fraction in scores.items():
                print(f"{name} at K=2: {percent(fraction)} % ({SCORE_TITLES[name]})")
        counts = {name: n for name, n in graded._asdict().items() if name != "score"}
        return {"scores": scores, **counts, "output": output}
    directory, ladder = vote_again(
        [Path(path) for path in options.predictions or ()],
        out=None if options.out is None else Path(options.out),
        tasks=tasks,
        votes=options.votes,
        attempts=options.attempts,
    )
    if output == "text":
        ladder.show()
        print(f"written: {directory}/")
    return {"directory": str(directory), "ladder": ladder.to_values(), "output": output}


if __name__ == "__main__":
    cli.launch(main, "vote", __doc__, keys_of=KEYS_OF)
