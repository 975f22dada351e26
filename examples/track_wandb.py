"""A search logged to Weights & Biases: a run for each trial, in a group of the study's name. Take what you need."""

from tune.reports import Report
from tune.search.engine import Engine, Listener
from tune.settings import Settings
from tune.study import search


class Wandb(Listener):
    """Callback, called between decisions, in the process that makes them: be quick. An error in it ends it, not the
    search."""

    def __init__(self, project: str) -> None:
        import wandb  # pip install wandb; wandb login

        self.wandb, self.project, self.runs = wandb, project, {}

    def on_decision(self, engine: Engine, trial: str | None, action: str, reason: str) -> None:
        """Log a decision (start, promote, finish, pause, stop and others) with its reason."""
        if trial is None:  # a decision on a slot
            return
        if trial not in self.runs:
            record = engine.trials[trial]
            self.runs[trial] = self.wandb.init(
                project=self.project, group=engine.accounting.journal.folder.name, name=trial, reinit="create_new",
                id=f"{engine.accounting.journal.folder.name}-{trial}", resume="allow",  # for a resumed study
                config={"family": record.family, **record.config},
            )  # fmt: skip
        self.runs[trial].summary["decision"] = f"{action}: {reason}"

    def on_report(self, engine: Engine, trial: str, report: Report) -> None:
        """Log losses and speed at one moment, or what a training loop of your own reported."""
        metrics = {"train_loss": report.train_loss, "tokens_per_second": report.tokens_per_second}
        if report.numbers is not None:
            metrics |= report.numbers
        elif report.valid is not None:
            metrics |= {"valid_loss": report.valid.loss, "perplexity": report.valid.perplexity}
        self.runs[trial].log({name: value for name, value in metrics.items() if value is not None}, step=report.steps)

    def on_close(self, engine: Engine) -> None:
        """Close the runs, those of failed trials as failed: no trial runs any more."""
        journal = engine.accounting.journal
        failed = {row["trial"] for row in journal.rows("SELECT trial FROM trials WHERE state = 'failed'")}
        for trial, run in self.runs.items():
            run.finish(exit_code=int(trial in failed))


if __name__ == "__main__":
    search(Settings(budget="2h", families="nanogpt"), callbacks=[Wandb("ration")])
