"""What the seconds of a training go to, as upstream trains nanoGPT and as this project does."""

from model.experiments.stages import STAGES
from tune.devices import Devices
from tune.experiments.experiment import Experiment, Point, Row
from tune.experiments.methods.shapes import REPORT
from tune.experiments.settings import ExperimentSettings
from tune.experiments.stages.tables import tables
from tune.experiments.stages.work import AFTER, BEFORE, work

STEPS = 1_000
SECONDS_A_STEP = {"cpu": 0.12, "cuda": 0.03}
"""On a slow machine."""
FIXED_SECONDS = 10.0


def points(devices: Devices, settings: ExperimentSettings) -> list[Point]:
    """Upstream's way first, in whose process nothing of ours is set yet; then ours, in two precisions."""
    steps = max(1, round(settings.scale * STEPS))
    seconds = FIXED_SECONDS + steps * SECONDS_A_STEP[devices.kind]
    shape = {**REPORT, **{name: value for name, value in settings.fix.items() if name in REPORT}}
    upstream = "bf16" if devices.kind == "cuda" else "fp32"
    plain = "tf32" if "tf32" in devices.precisions else "fp32"
    found = []
    for number in range(settings.seeds):
        seed = {"seed": settings.seed + number} if number else {}
        for way, precision in ((BEFORE, upstream), (AFTER, plain), (AFTER, "bf16")):
            config = {**shape, "precision": precision, **seed}
            asked = {"way": way, "steps": steps}
            found.append(Point(devices=1, asked=asked, seconds=seconds, least=seconds, config=config))
    return found


def line(row: Row) -> str:
    """What came out, in short."""
    stage, whole = max(STAGES, key=lambda each: row["stages"][each]), sum(row["stages"].values())
    return f"{row['steps']:,} steps in {whole:.1f} s, {row['stages'][stage] / whole:.0%} of them {stage}"


STAGES_OF_A_TRAINING = Experiment(
    name="stages", about="what the seconds of a training go to, as upstream trains nanoGPT and as this project does",
    points=points, work=work, line=line, tables=tables, families=("nanogpt",), sets=("precision",),
)  # fmt: skip
