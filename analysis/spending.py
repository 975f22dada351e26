"""Where each device-second of a study went."""

import json
import math
from dataclasses import dataclass

import pandas as pd

from analysis import tables
from analysis.settings import SpendSettings
from analysis.study import RUNS, Study, is_driver_alive, newest_study, open_study
from tune.reports import TIE
from tune.store.journal import ENDED_BY_CAP, ENDED_BY_ERRORS, ENERGY, MIN_UNSPENT_SHARE, SLOT_SHARE_SQL
from tune.store.queries import LOSS, OF_BEST
from tune.units import duration_text, energy_text, money_text, parse_price

TRAINED_ON = f"""
    WITH looks AS (
             SELECT trial, training_seconds, IIF(numbers IS NULL, {LOSS.format("reports")},
                 ?2 * (SELECT value FROM json_each(numbers) WHERE key = ?1)) AS loss FROM reports
             WHERE valid_loss IS NOT NULL AND NOT {OF_BEST}),
         lowest AS (SELECT trial, MIN(loss) AS loss FROM looks GROUP BY trial),
         best AS (
             SELECT trial, MAX(training_seconds) AS seconds FROM looks JOIN lowest USING (trial)
             WHERE looks.loss <= lowest.loss + IIF(?1 = '', {TIE}, 0) GROUP BY trial)
    SELECT (MAX(reports.training_seconds) - best.seconds) * {SLOT_SHARE_SQL} AS past FROM reports
    JOIN best USING (trial) LEFT JOIN leases USING (trial, lease) LEFT JOIN slots USING (slot) GROUP BY trial"""
"""Query of the device-seconds that each trial trained after the last evaluation as good as its best, by the share of
its last slot. A closing report that is of its best and not of its end is left out. ?1: the metric of a user's loop,
else ''; ?2: -1 where high is good, else 1."""
ENDING_TEXTS = {
    **dict.fromkeys((ENDED_BY_CAP, "done"), "ended by itself: what it could use of its cap was spent"),
    ENDED_BY_ERRORS: "gave up, as trials failed with one error, or many diverged: correct it, and --resume goes on",
    "deadline": "ended at its deadline, and may have left some of its cap unspent",
}
"""How a study ended, by the reason in its journal."""
CHARGE_KINDS = ("steps", "start", "compile", "evaluation", "checkpoint", "idle", "lost")
NO_FAMILY = "-"


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Where the device-seconds of a study went. table: a row for each family (`-`: none), a column for each of
    CHARGE_KINDS.

    overhead: seconds of the driver, and those of it that the journal and TensorBoard took; empty where unknown.
    past_best: device-seconds that each trial trained after its best. price: of a device-hour; joules: of the machine;
    both None where unknown.
    """

    cap: float
    table: pd.DataFrame
    past_best: list[float]
    overhead: dict[str, float]
    price: float | None
    joules: float | None

    @property
    def spent(self) -> float:
        return float(self.table.to_numpy().sum())

    @property
    def by_kind(self) -> dict[str, float]:
        return {what: float(self.table[what].sum()) for what in CHARGE_KINDS}

    @property
    def summary(self) -> str:
        """As text: spent 7h58m12.1s of 8h (99.6 %), 96.1 % of it in optimizer steps, 19.93 at 2.50 a
        device-hour; in the words of a search's last line"""
        spent, cap = duration_text(round(self.spent, 1)), duration_text(self.cap)
        steps = tables.share(self.by_kind["steps"], self.spent)
        beside = f"{money_text(self.spent, self.price)}{energy_text(self.joules)}"
        of_cap = f"{spent} of {cap} ({tables.share(self.spent, self.cap)})"
        return f"spent {of_cap}, {steps} of it in optimizer steps{beside}"

    @property
    def past_best_text(self) -> str:
        """As text: trained past their best: 31.0s of the cap (2.6 %), at most 12.0s (1.0 %) of one trial"""
        whole, most = sum(self.past_best), max(self.past_best, default=0.0)
        texts = (f"{tables.duration(each)}{{}} ({tables.share(each, self.cap)})" for each in (whole, most))
        first, last = (text.format(of) for text, of in zip(texts, (" of the cap", ""), strict=True))
        return f"trained past their best: {first}, at most {last} of one trial"

    @property
    def overhead_text(self) -> str:
        """As text: Of 1m02s of the driver the journal took 0.1s (0.2 %), TensorBoard 0.3s (0.5 %)."""
        if not self.overhead:
            return "What the journal and TensorBoard took is known of searches that ended in order."
        whole = self.overhead["search"]
        journal, board = (
            f"{tables.duration(seconds)} ({tables.share(seconds, whole)})"
            for seconds in (self.overhead["journal"], self.overhead["tensorboard"])
        )
        return f"Of {tables.duration(whole)} of the driver the journal took {journal}, TensorBoard {board}."


def spending(study: Study) -> Spending:
    """Return what was charged; what slots were held for beyond that is idle."""
    charged = study.read(
        "SELECT COALESCE(family, '-') AS family, what, SUM(seconds) AS seconds "
        "FROM charges LEFT JOIN trials USING (trial) GROUP BY 1, 2"
    )
    table = charged.pivot_table(index="family", columns="what", values="seconds", aggfunc="sum", fill_value=0.0)
    families = dict.fromkeys(
        [*study.facts.get("families", {}), *table.index.drop(NO_FAMILY, errors="ignore"), NO_FAMILY]
    )
    table = table.reindex(index=list(families), columns=CHARGE_KINDS, fill_value=0.0)
    slots = slot_hold_times(study)
    seconds = float(((slots["until"] - slots["opened"]) * slots["share"]).sum())
    price, joules = study.facts.get("settings", {}).get("price_per_hour"), study.facts.get(ENERGY)
    metric = study.measure.metric
    past_best = study.read(TRAINED_ON, metric.name if metric else "", -1 if metric and metric.maximize else 1)["past"]
    table.loc[NO_FAMILY, "idle"] += max(0.0, seconds - float(table.to_numpy().sum()))
    return Spending(
        cap=float(study.facts["cap_seconds"]), table=table, overhead=study.facts.get("overhead", {}),
        past_best=[float(each) for each in past_best],
        price=None if price is None else parse_price(str(price)),
        joules=None if joules is None else float(joules),
    )  # fmt: skip


def slot_hold_times(study: Study) -> pd.DataFrame:
    """Return when slots were held: slot; opened and until, on the study's clock; share, device-seconds in a second.

    A slot that is still open is held until now; while its trial works, until that trial's last charge.
    """
    return study.read(
        f"""WITH now AS (SELECT MAX(at) AS at FROM (SELECT at FROM charges UNION ALL SELECT at FROM decisions)),
                working AS (SELECT slot FROM leases WHERE closed IS NULL),
                told AS (SELECT slot, MAX(at) AS at FROM charges GROUP BY slot)
           SELECT slots.slot, opened, COALESCE(closed, IIF(slots.slot IN working, told.at, now.at), opened) AS until,
                  {SLOT_SHARE_SQL} AS share
           FROM slots JOIN now LEFT JOIN told USING (slot)"""
    ).astype({"opened": float, "until": float, "share": float})


def ending(study: Study) -> str:
    """Return `runs`, or how the last run ended. The journal's end counts only if nothing was held after it, and no
    other cap was agreed on."""
    sums = f"TOTAL(closed IS NULL) AS open, TOTAL((closed - opened) * {SLOT_SHARE_SQL}) AS spent"
    slots, cap = study.read(f"SELECT {sums} FROM slots").iloc[0], study.facts.get("cap_seconds")
    ended = study.facts.get("ended")
    if (
        ended is None
        or slots["open"]
        or slots["spent"] > ended.get("spent", math.inf) + 1
        or ended.get("cap", cap) != cap
    ):
        return "runs" if is_driver_alive(study.folder) else "has not ended: it was killed, and --resume goes on with it"
    reason = str(ended.get("reason", "done"))
    unspent = float(ended.get("cap", 0.0)) - float(ended.get("spent", 0.0))
    if reason == ENDED_BY_CAP and ended.get("near_deadline") and unspent > MIN_UNSPENT_SHARE * ended["cap"]:
        reason = "deadline"
    return ENDING_TEXTS.get(reason, f"was cut short ({reason}) before it was done, and --resume goes on with it")


def spend(settings: SpendSettings) -> int:
    """Print where the cap went. UserError: the study does not serve."""
    study = open_study(settings.study or newest_study(RUNS))
    found = spending(study)
    if settings.json:
        figures = {
            "cap": found.cap, "spent": found.spent, "in_steps": found.by_kind["steps"], "idle": found.by_kind["idle"],
            "past_best": sum(found.past_best), "price_per_hour": found.price, ENERGY: found.joules,
            "by": found.by_kind, "by_family": found.table.to_dict(orient="index"), "overhead": found.overhead,
        }  # fmt: skip
        print(json.dumps(figures, indent=1))
    elif settings.format:
        print(settings.render([tables.as_text(study.name, rows_of(found), found.summary)]))
    else:
        show(study, found)
    return 0


def rows_of(found: Spending) -> pd.DataFrame:
    """Return a row for each of CHARGE_KINDS with a column for each family, as people read them."""
    table = found.table.T.rename(columns={NO_FAMILY: "no trial"})
    table.loc["all"] = table.sum()
    table["device-s"] = table.sum(axis=1)
    of_spent = [tables.share(seconds, found.spent) for seconds in table["device-s"]]
    rows = table.map("{:,.1f}".format).assign(**{"of spent": of_spent})
    rows.insert(0, "", rows.index)
    return rows


def show(study: Study, found: Spending) -> None:
    """Print the table, and the lines that sum it up."""
    tables.draw(tables.as_text(study.name, rows_of(found)))
    print("", found.summary, found.past_best_text, found.overhead_text, sep="\n")
