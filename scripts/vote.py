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
from eval.tables import SCORE_TITLES, format_ladders, percent
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import to_yaml, validate
from hrm_deeploop.runs.revote import VoteOptions, score_file, vote
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
        scores = score_file(Path(options.submission), tasks)
        if output == "text":
            for name, fraction in scores.items():
                print(f"{name} at K=2: {percent(fraction)} % ({SCORE_TITLES[name]})")
        return {"scores": scores, "output": output}
    directory, ladder = vote(options, tasks)
    if output == "text":
        print(format_ladders({"": ladder}))
        print(f"written: {directory}/")
    return {"directory": str(directory), "ladder": ladder, "output": output}


if __name__ == "__main__":
    cli.launch(main, "vote", __doc__, keys_of=KEYS_OF)
