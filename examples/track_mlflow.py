"""A search logged to MLflow: a run for each trial, in an experiment named after the study. Take what you need."""

from tune.reports import Report
from tune.search.engine import Engine, Listener
from tune.settings import Settings
from tune.study import search


class MLflow(Listener):
    """Callback, called between decisions, in the process that makes them: be quick. An error in it ends it, not the
    search."""

    def __init__(self) -> None:
        from mlflow import MlflowClient  # pip install mlflow

        self.client, self.runs = MlflowClient(), {}
        self.experiment = None

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        """Log a decision (start, promote, finish, pause, stop and others) with its reason."""
        if trial is None:  # a decision on a slot
            return
        if self.experiment is None:
            study = engine.accounting.journal.folder.name
            there = self.client.get_experiment_by_name(study)  # of a resumed study, with its runs
            self.experiment = there.experiment_id if there else self.client.create_experiment(study)
            self.runs = {each.info.run_name: each.info.run_id for each in self.client.search_runs([self.experiment])}
        if trial not in self.runs:
            self.runs[trial] = self.client.create_run(self.experiment, run_name=trial).info.run_id
            record = engine.trials[trial]
            for name, value in {"family": record.family, **record.config}.items():
                self.client.log_param(self.runs[trial], name, value)
        self.client.set_tag(self.runs[trial], "decision", f"{action}: {reason}")

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        """Log losses and speed at one moment, or what a training loop of your own reported."""
        metrics = {"train_loss": report.train_loss, "tokens_per_second": report.tokens_per_second}
        if report.numbers is not None:
            metrics |= report.numbers
        elif report.valid is not None:
            metrics |= {"valid_loss": report.valid.loss, "perplexity": report.valid.perplexity}
        for name, value in metrics.items():
            if value is not None:
                self.client.log_metric(self.runs[trial], name, value, step=report.steps)

    def on_close(self, engine: Engine) -> None:
        """Close the runs, those of failed trials as failed: no trial runs any more."""
        journal = engine.accounting.journal
        failed = {row["trial"] for row in journal.rows("SELECT trial FROM trials WHERE state = 'failed'")}
        for trial, run in self.runs.items():
            self.client.set_terminated(run, "FAILED" if trial in failed else "FINISHED")


if __name__ == "__main__":
    search(Settings(budget="2h", families="nanogpt"), callbacks=[MLflow()])
