"""What TensorBoard shows of a study: a run for each trial, with its row of HParams, one for the ledger, and one for the
machine.

Event files are written so that no end of the process loses what was added: whole records are appended and no file is
held open. A writer with a thread and an open file for each trial reaches its limit at a thousand trials, and a kill
loses what waits in its queue. Of records of HParams TensorBoard takes the first of each kind, and of a metric the
newest value.
"""

import io
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import (
    DATA_TYPE_FLOAT64,
    DATA_TYPE_STRING,
    STATUS_FAILURE,
    STATUS_SUCCESS,
    Experiment,
    HParamInfo,
    MetricInfo,
    MetricName,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import custom_scalars

from model.training.evaluation import Score
from tune.display.standings import draw_front, loop_ranking_table, ranking_table
from tune.reports import Metric, Report, to_row
from tune.search.engine import GIVE_UP, RETRY, Engine, Listener
from tune.search_space import DIMENSIONS, VARIABLE_RECIPE_FIELDS, Dimensions, label
from tune.settings import Settings
from tune.store.journal import SLOT_SHARE_SQL, Journal, Stopwatch
from tune.store.queries import best_so_far, ranking
from tune.system import System

VERSION = "brain.Event:2"
EVENTS, OURS = "events.out.tfevents.", ".ration"
"""Prefix and suffix of the name of an event file, around the time."""


def scalar(tag: str, value: float) -> Summary.Value:
    """Return one number as a scalar of an event."""
    return Summary.Value(tag=tag, simple_value=value)


class EventFile:
    """New event file in `folder`, which is made; files of one folder are one run to TensorBoard, the oldest first.

    TensorBoard's page takes the first start in a run for the run's own, and each later one for a step back.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        before = max((path.name for path in folder.glob(f"{EVENTS}*{OURS}")), default=None)
        now = time.time()
        if before is not None:  # this one sorts after it, whatever the clock says
            now = max(now, float(before.removeprefix(EVENTS).removesuffix(OURS)) + 1e-6)
        self._path = folder / f"{EVENTS}{now:017.6f}{OURS}"
        self._append(Event(wall_time=now, file_version=VERSION))
        if before is None:
            self.rewind(0)

    def add(self, *values: Summary.Value, step: int, at: float | None = None) -> None:
        """Write values of one step. at: seconds since 1970, None for now."""
        self._append(Event(wall_time=time.time() if at is None else at, step=step, summary=Summary(value=values)))

    def rewind(self, step: int) -> None:
        """Let TensorBoard forget what was written from `step` on, since that is done again."""
        log = SessionLog(status=SessionLog.START)
        self._append(Event(wall_time=time.time(), step=step, session_log=log))

    def _append(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        with self._path.open("ab") as file:
            file.write(record.getvalue())


END = "at its end"
"""Reason of a trial that ended after its decay, past its best, or, of a loop, by itself or with its last lease."""
REASONS = {END: 1, "price": 2, "diverged": 3, "memory": 4, "error": 5}
"""Reasons why a trial ended, as numbers, since a metric is one; 0 while it may go on."""
RUNG, ENDED, DEVICE_SECONDS = "7 trial/rung", "7 trial/ended", "7 trial/device_seconds"
BLEU, CHRF = "7 trial/test_bleu", "7 trial/test_chrf"
PARAMETERS, PER_MILLION = "7 trial/parameters", "7 trial/perplexity_per_million"
PERPLEXITY, BITS = "7 trial/perplexity", "7 trial/bits_per_character"
"""Of the weights that are kept, as in the ranking; the curves `4 valid` are of the weights as they are."""
METRICS = {
    PERPLEXITY: "perplexity",
    BITS: "bits per character",
    PARAMETERS: "parameters",
    PER_MILLION: "perplexity per million parameters",
    DEVICE_SECONDS: "device-seconds",
    RUNG: "rung",
    ENDED: f"ended: 0 not, {', '.join(f'{number} {reason}' for reason, number in REASONS.items())}",
}
"""Tags whose newest value is a column of HParams, each with the head of that."""
REPORTED = "4 reported/"
"""Prefix of the tags of what a user's loop reports."""


def metrics_of(metric: Metric | None) -> dict[str, str]:
    """Return METRICS; of a user's loop those that apply, and its own metric."""
    if metric is None:
        return METRICS
    own = {tag: head for tag, head in METRICS.items() if tag in (DEVICE_SECONDS, RUNG, ENDED)}
    return {f"{REPORTED}{metric.name}": metric.name} | own


def reason_number(reason: str) -> int:
    """Return the number of the reason for which a trial was ended; the journal's text may go on after the word."""
    return next((number for word, number in REASONS.items() if reason.startswith(word)), REASONS["error"])


def names_of(dimensions: Iterable[str]) -> dict[str, str]:
    """Return the names of columns by which TensorBoard sorts them; it shows the names of the search space as heads. It
    matches studies by them, so our own dimensions have theirs in any study; others follow."""
    ours, names = ("family", *DIMENSIONS, *VARIABLE_RECIPE_FIELDS), ("family", *dimensions)
    places = enumerate(dict.fromkeys((*ours, *names)), 1)
    return {name: f"{place:03} {name}" for place, name in places if name in names}


def hparams_columns(dimensions: Dimensions, families: Iterable[str], metric: Metric | None = None) -> Summary.Value:
    """Return the record of HParams that says which columns there are; once a study, in any of its runs."""
    infos, names = [], names_of(dimensions)
    for name, values in {"family": tuple(families), **dimensions}.items():
        kind = DATA_TYPE_STRING if any(isinstance(each, str) for each in values) else DATA_TYPE_FLOAT64
        infos.append(HParamInfo(name=names[name], display_name=name, type=kind))
        infos[-1].domain_discrete.extend(values)
    metrics = [MetricInfo(name=MetricName(tag=tag), display_name=head) for tag, head in metrics_of(metric).items()]
    return _record(metadata.EXPERIMENT_TAG, experiment=Experiment(hparam_infos=infos, metric_infos=metrics))


def hparams_start(dimensions: Iterable[str], family: str, config: Mapping[str, Any]) -> Summary.Value:
    """Return a trial's row of HParams, which it has from its start on; a dimension that its family does not have stays
    empty."""
    start, names = SessionStartInfo(start_time_secs=time.time()), names_of(dimensions)
    values = {"family": family, **config}
    for name in names.keys() & values.keys():
        if isinstance(value := values[name], str):
            start.hparams[names[name]].string_value = value
        else:
            start.hparams[names[name]].number_value = value
    return _record(metadata.SESSION_START_INFO_TAG, session_start_info=start)


def hparams_end(reason: str) -> Summary.Value:
    """Return the record of HParams of a trial that ended, by whose status its row can be filtered."""
    status = STATUS_SUCCESS if reason.startswith((END, "price")) else STATUS_FAILURE
    end = SessionEndInfo(status=status, end_time_secs=time.time())
    return _record(metadata.SESSION_END_INFO_TAG, session_end_info=end)


def _record(tag: str, **data: Any) -> Summary.Value:
    return Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(HParamsPluginData(**data)))


MEMORY = "6 speed/memory_bytes"
SCALARS = {
    "4 valid/loss": "valid_loss",
    "4 valid/loss of the averaged weights": "averaged_loss",
    "4 valid/perplexity": "perplexity",
    "4 valid/perplexity on the whole split": "whole_perplexity",
    "4 valid/bits_per_character": "bits_per_character",
    "4 valid/accuracy": "accuracy",
    "4 valid/bleu": "bleu",
    "5 train/loss": "train_loss",
    "5 train/loss without dropout": "trained_loss",
    "5 train/perplexity without dropout": "trained_perplexity",
    "5 train/accuracy": "trained_accuracy",
    "5 train/learning_rate": "learning_rate",
    "5 train/gradient_norm": "gradient_norm",
    "6 speed/tokens_per_second": "tokens_per_second",
    "6 speed/step_seconds": "step_seconds",
    "6 speed/mfu": "mfu",
    MEMORY: "memory_bytes",
    RUNG: "rung",
    "7 trial/test_perplexity": "test_perplexity",
}
"""Tags, each with its column of the journal's table `reports`. Groups 1 to 3 are the ledger's, 8 the machine's."""
LOSS = "4 valid/loss"
LONGEST_RUN = 200
"""Bytes of the name of a run at most: the name of a folder may have 255."""


class TrialRun:
    """The run of one trial in a folder, from its start or from where an earlier run of the study left it.

    begun: its row of HParams.
    """

    def __init__(self, folder: Path, journal: Journal, trial: str, begun: Summary.Value) -> None:
        self._file = EventFile(folder)
        self._journal, self._trial = journal, trial
        rows = journal.rows("SELECT tokens FROM reports WHERE trial = ? ORDER BY report DESC LIMIT 1", trial)
        self._tokens = rows[0]["tokens"] if rows else 0
        self._file.add(begun, step=self._tokens)

    def on_decision(self, action: str, reason: str, now: float) -> None:
        """Write a decision about the trial. now: on the study's clock."""
        ended = reason_number(reason) if action == "stop" else 0
        values = [scalar(DEVICE_SECONDS, self._device_seconds(now))]
        if action != GIVE_UP:  # which changes nothing about the trial
            values.append(scalar(ENDED, ended))
        value = text_pb("decisions", f"**{action}**: {reason}").value
        self._file.add(*values, *value, step=self._tokens)
        if ended:
            self._file.add(hparams_end(reason), step=self._tokens)

    def on_report(self, report: Report, now: float) -> None:
        """Write a report. now: on the study's clock."""
        if report.tokens < self._tokens:
            self._file.rewind(report.tokens)
        self._tokens, row = report.tokens, to_row(report)
        values = {tag: float(value) for tag, column in SCALARS.items() if (value := row[column]) is not None}
        values[DEVICE_SECONDS] = self._device_seconds(now)
        if report.numbers is not None:
            values = {tag: value for tag, value in values.items() if tag not in (LOSS, MEMORY)}
            values |= {f"{REPORTED}{name}": value for name, value in report.numbers.items()}
        else:
            values[PARAMETERS] = report.parameters
            if (kept := report.whole or report.better_evaluation) is not None:
                values[PERPLEXITY] = kept.perplexity
                values[PER_MILLION] = kept.perplexity / (report.parameters / 1e6)
                if kept.bits_per_character is not None:
                    values[BITS] = kept.bits_per_character
        if report.final:
            values[ENDED] = REASONS[END]
        self._file.add(*(scalar(tag, value) for tag, value in values.items()), step=self._tokens)
        if report.final:
            self._file.add(hparams_end(END), step=self._tokens)

    def translated(self, score: Score) -> None:
        """Write how well the trial translates, after its end."""
        self._file.add(scalar(BLEU, score.bleu), scalar(CHRF, score.chrf), step=self._tokens)

    def _device_seconds(self, now: float) -> float:
        query = f"""
            SELECT TOTAL(IFNULL(charged, (? - leases.opened) * {SLOT_SHARE_SQL})) AS seconds
            FROM leases JOIN slots USING (slot) WHERE trial = ?"""
        return float(self._journal.rows(query, now, self._trial)[0]["seconds"])


PICTURE_SHARE = 0.005
"""Largest share of the device-seconds spent so far, and of the study's clock, that drawing may take in CPU time: it
keeps a core from its trial, and the driver from all of them."""
FIRST_PICTURE_SECONDS = 0.4
"""Seconds that a picture is assumed to take before one was drawn."""
BUDGET, BEST, RUNGS, SYSTEM = "1 budget", "2 best so far", "3 rungs", "8 system"
AXIS = "Steps are device-seconds; on the relative axis they read as device-hours."


class LedgerRun:
    """The run `ledger`: the account, each family's best so far and its front, and how many trials completed each rung.

    The best so far is the first of the ranking; its loss is that of the validation subset, which all trials have.
    """

    def __init__(
        self, folder: Path, journal: Journal, settings: Settings, dimensions: Dimensions, metric: Metric | None = None
    ) -> None:
        self._file, self._journal, self._metric = EventFile(folder / "ledger"), journal, metric
        self._best = best_so_far(journal)
        self._completed: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._drawing, self._picture_price = 0.0, FIRST_PICTURE_SECONDS
        query = "SELECT DISTINCT family, trial, rung FROM reports JOIN trials USING (trial) WHERE rung IS NOT NULL"
        for row in journal.rows(query):
            self._completed[row["family"]][row["rung"]].add(row["trial"])
        text = "\n".join(f"| {name} | `{value}` |" for name, value in settings.stored().items())
        about = text_pb("settings", f"{AXIS}\n\n| setting | value |\n|---|---|\n{text}").value
        layout = custom_scalars(charts(list(settings.families), metric)).value
        self._file.add(*about, *layout, hparams_columns(dimensions, settings.families, metric), step=0)

    def write(self, engine: Engine) -> None:
        """Write the account as it stands."""
        ledger = engine.accounting.ledger
        account = {"spent": ledger.spent, "reserved": ledger.reserved, "left": ledger.left}
        values = {f"{BUDGET}/{name}": seconds for name, seconds in account.items()}
        values[f"{BUDGET}/running"] = len(engine.running)
        values |= {
            f"{BEST}/{family}": self._metric.to_reported(row["loss"]) if self._metric else row["subset_loss"]
            for family, row in self._best.items()
        }
        for family, rungs in self._completed.items():
            values |= {f"{RUNGS}/{family} rung {rung}": len(trials) for rung, trials in sorted(rungs.items())}
        numbers = (scalar(tag, value) for tag, value in values.items())
        self._file.add(*numbers, step=int(ledger.spent), at=ledger.spent)

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        """Write the account after a report. If that has a new best so far, its family's front is drawn, if that is
        cheap."""
        family, spent = engine.trials[trial].family, engine.accounting.ledger.spent
        if report.rung is not None:
            self._completed[family][report.rung].add(trial)
        most = PICTURE_SHARE * min(spent, engine.accounting.clock())
        if self._is_best(family, trial, report) and self._drawing + self._picture_price <= most:
            self._show(family, int(spent))
        self.write(engine)

    def close(self, engine: Engine) -> None:
        """Write the account, the fronts and the final rankings."""
        self.write(engine)
        for family in self._best:
            self._show(family, int(engine.accounting.ledger.spent))

    def may_lose(self, trial: str | None) -> bool:
        """Whether the end of a trial may change the best so far; of a loop any may."""
        return self._metric is not None or trial in (row["trial"] for row in self._best.values())

    def update_best(self) -> None:
        """Ask the journal anew which trials are the best so far: one that failed is none any more, and a loop's best
        until its end counts."""
        self._best = best_so_far(self._journal)

    def _is_best(self, family: str, trial: str, report: Report) -> bool:
        """Return whether a report makes a new best so far; the ranking is asked only where it may."""
        kept = report.better_evaluation
        cut_short = self._metric is not None and report.ended in ("lease", "stopped")
        if kept is None or (report.rung is None and not report.final and not cut_short):
            return False
        best = self._best.get(family)
        if best is not None and self._metric is not None:
            if kept.loss >= best["loss"]:
                return False
        elif best is not None and report.rung is not None and trial != best["trial"]:
            behind = report.rung == best["rung"] and kept.perplexity >= best["subset_perplexity"]
            if best["final"] or report.rung < best["rung"] or behind:
                return False
        self._best = best_so_far(self._journal)
        return self._best.get(family, best) != best

    def _show(self, family: str, step: int) -> None:
        began = time.process_time()
        rows = [row for row in ranking(self._journal, by="perplexity-per-parameter") if row["family"] == family]
        has_front = self._metric is None and any(row["level"] is not None for row in rows)
        drawn = [draw_front(family, rows)] if has_front else []
        of = rows, self._journal.folder
        text = ranking_table(*of) if self._metric is None else loop_ranking_table(*of, self._metric)
        self._file.add(*drawn, *text_pb(f"ranking/{family}", text).value, step=step)
        self._picture_price = time.process_time() - began
        self._drawing += self._picture_price


def charts(families: list[str], metric: Metric | None = None) -> dict[str, dict[str, list[Any]]]:
    """Return the layout of the custom scalars: the account, the best losses, how far trials came."""
    budget = {
        "device-seconds": ["Multiline", [f"{BUDGET}/(spent|reserved|left)"]],
        "running trials": ["Multiline", [f"{BUDGET}/running"]],
    }
    best = {metric.name if metric else "validation loss (nats a token)": ["Multiline", [f"{BEST}/.*"]]}
    rungs = {f"{family}: trials that completed it": ["Multiline", [f"{RUNGS}/{family} .*"]] for family in families}
    return {"budget": budget, "best so far": best, "rungs": rungs}


class SystemRun(Listener):
    """The run `system`: how busy the machine is and how much memory is in use, over the device-seconds spent."""

    def __init__(self, folder: Path) -> None:
        self._file, self._system = EventFile(folder / "system"), System()

    def write_figures(self, spent: float) -> None:
        """Write the figures, if it is time for that."""
        if found := self._system.figures():
            values = (scalar(f"{SYSTEM}/{name}", value) for name, value in found.items())
            self._file.add(*values, step=int(spent), at=spent)

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        self.write_figures(engine.accounting.ledger.spent)

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        self.write_figures(engine.accounting.ledger.spent)


class TensorBoard(Listener):
    """Listener that writes a run for each trial, and one for the ledger, in `folder`; a resumed study goes on in the
    same runs.

    dimensions: of all its families; watch: the time that this took while the search ran.
    """

    def __init__(
        self, folder: Path, journal: Journal, settings: Settings, dimensions: Dimensions, metric: Metric | None = None
    ) -> None:
        self._folder, self._journal, self._dimensions, self.watch = folder, journal, dimensions, Stopwatch()
        self._ledger = LedgerRun(folder, journal, settings, dimensions, metric)
        self._trials: dict[str, TrialRun] = {}

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        """Write a decision. A trial that starts has its row of HParams at once, so that no end can lose it."""
        with self.watch:
            if trial is not None:
                self._run(engine, trial).on_decision(action, reason, engine.accounting.clock())
            if action == RETRY or (action == "stop" and self._ledger.may_lose(trial)):
                self._ledger.update_best()
            self._ledger.write(engine)

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        """Write a report, once it is in the journal."""
        with self.watch:
            self._trials[trial].on_report(report, engine.accounting.clock())
            self._ledger.on_report(engine, trial, report)

    def on_close(self, engine: Engine) -> None:
        """Write the last pictures and the final ranking."""
        self._ledger.close(engine)

    def translated(self, engine: Engine, trial: str, score: Score) -> None:
        """Write how well a winner translates."""
        self._run(engine, trial).translated(score)

    def _run(self, engine: Engine, trial: str) -> TrialRun:
        """Return the run of a trial; a new one begins with its row of HParams."""
        if trial not in self._trials:
            record = engine.trials[trial]
            begun = hparams_start(self._dimensions, record.family, record.config)
            name = f"{record.family}/{trial} {label(record.config).replace('/', '_')}"
            name = name.encode()[:LONGEST_RUN].decode(errors="ignore")
            self._trials[trial] = TrialRun(self._folder / name, self._journal, trial, begun)
        return self._trials[trial]
