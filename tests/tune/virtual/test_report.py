"""The report: ratios are of means over the same cells, and half a budget is set against the whole of it."""

from tune.curves.replay_command import report


def row(scheduler: str, budget: str, cap: float, regret: float, table: str = "t") -> dict:
    found = dict.fromkeys(("unspent", "after_divergence", "unfit", "trials", "hypervolume", "standard_error"), 0.0)
    asked = {"table": table, "workers": 1, "seeds": 3, "scheduler": scheduler, "budget": budget, "cap_seconds": cap}
    return asked | found | {"mean_regret": regret, "p90_regret": regret}


def cells(text: str, title: str) -> dict[str, list[str]]:
    """The columns of each line of the part of a report that begins with a title."""
    part = next(part for part in text.split("\n\n") if part.startswith(title))
    return {line[: line.index("  ")]: line.split()[-3:] for line in part.splitlines()}


def test_ratios_to_each_peer_and_to_the_best_of_each_column():
    rows = [row("ration", "1h", 10, 0.02), row("a", "1h", 10, 0.04), row("b", "1h", 10, 0.08)]
    rows += [row("ration", "2h", 20, 0.01), row("a", "2h", 20, 0.08), row("b", "2h", 20, 0.005)]
    found = cells(
        report([*rows, row("oracle", "1h", 10, 0.0), row("oracle", "2h", 20, 0.0)]), "ration's regret / by budget"
    )
    assert found["a"] == ["0.50", "0.12", "0.25"]
    assert found["best peer"] == ["0.50", "2.00", "0.35"]
    assert "oracle" not in found


def test_half_of_a_budget_is_set_against_the_whole():
    rows = [
        row("ration", "1h", 10, 0.02),
        row("a", "1h", 10, 0.5),
        row("ration", "2h", 20, 0.3),
        row("a", "2h", 20, 0.04),
    ]
    text = report([*rows, row("ration", "3h", 30, 0.3), row("a", "3h", 30, 0.3)])
    assert cells(text, "ration's regret with half")["a"][-2:] == ["0.50", "0.50"]
