"""Each rule finds a planted contradiction and nothing in a sound table; a printed figure stands for what it rounds."""

import math
import random
from collections.abc import Iterator

import pytest

from tune.arithmetic import parse_expression
from tune.errors import UserError
from tune.published import PUBLISHED, claims_of, published_claims, read_csv
from tune.table_rules import Claims, figure, findings, speed_ups

Columns = dict[str, list[str]]
CHANCE = random.Random(0)
COPY, BANDWIDTH = "communication_seconds_as_reported", "bandwidth_gb_per_second"


def scaling() -> Columns:
    """Of a machine that scales, to four digits."""
    rows = [(count, batch, 20 / count**0.8 + batch / 1000) for batch in (32, 128) for count in (1, 2, 4)]
    single = {batch: seconds for count, batch, seconds in rows if count == 1}
    return {
        "devices": [str(count) for count, *_ in rows],
        "batch_size": [str(batch) for _, batch, _ in rows],
        "epoch_seconds": [f"{seconds:.4f}" for *_, seconds in rows],
        "speed_up": [f"{single[batch] / seconds:.2f}" for _, batch, seconds in rows],
    }


def learning() -> Columns:
    """Of classifiers among a thousand words."""
    rows = [(width, CHANCE.uniform(1.5, 4), CHANCE.uniform(0, 0.4)) for width in range(16, 160, 16)]
    return {
        "d_model": [str(width) for width, *_ in rows],
        "minutes": [f"{CHANCE.uniform(10, 90):.1f}" for _ in rows],
        "train_loss": [f"{loss - 0.1:.4f}" for _, loss, _ in rows],
        "valid_loss": [f"{loss:.4f}" for _, loss, _ in rows],
        "valid_perplexity": [f"{math.exp(loss):.3f}" for _, loss, _ in rows],
        "valid_accuracy_percent": [f"{100 * share:.1f}" for *_, share in rows],
    }


def work() -> Columns:
    """Of a formula on paper and what was counted, of each batch."""
    batches = 16, 32, 64, 128, 256
    return {
        "batch_size": [str(batch) for batch in batches],
        "estimated_macs": [f"{batch * 9.8e6:.5g}" for batch in batches],
        "estimated_flops": [f"{batch * 19.6e6:.5g}" for batch in batches],
        "measured_flops": [f"{batch * 20.1e6:.5g}" for batch in batches],
        "memory_bytes": [f"{5e8 + batch * 1e6:.6g}" for batch in batches],
    }


def stages() -> Columns:
    parts = [("data", 3.12), ("forward", 4.05), ("backward", 8.2)]
    return {
        "stage": [*(name for name, _ in parts), "total"],
        "seconds": [*(f"{seconds:.2f}" for _, seconds in parts), f"{sum(seconds for _, seconds in parts):.2f}"],
    }


def ranked() -> Columns:
    return {"method": ["a", "b", "c"], "loss": ["1.1", "1.3", "1.2"], "seconds": ["9.0", "7.5", "6.1"]}


CLAIMS = claims_of({"vocabulary": 1000, "hours": 9 * 90 / 60})
SOUND = {
    "scaling": (scaling(), CLAIMS),
    "learning": (learning(), CLAIMS),
    "work": (work(), claims_of({"formulas": {"estimated_macs": "batch_size * 98e5"}})),
    "stages": (stages(), CLAIMS),
    "ranked": (ranked(), claims_of({"order": "loss - 3 / seconds + max(seconds) / seconds"})),
    "no batch": ({"batch_size": ["0", "0", "1"], "flops": ["5", "6", "7"]}, CLAIMS),
    "odd zeros": ({"loss": ["0e4", "0e400", "1e3"], "perplexity": ["1", "1", "9e99"]}, claims_of({})),
    "unknown": ({"colour": ["red", "red"], "weight": ["693", "693"], "loss of hair": ["99", "99"]}, CLAIMS),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_a_sound_table(name: str) -> None:
    assert findings(*SOUND[name]) == []


PLANTED = {
    "a speed-up by another formula": ("scaling", "speed_up", 1, "1.43", "T_1 / T_n"),
    "a loss above a uniform guess": ("learning", "valid_loss", 3, "6.95", "ln 1,000"),
    "a loss far above training": ("learning", "valid_loss", 3, "6.85", "above its training loss"),
    "a perplexity of another loss": ("learning", "valid_perplexity", 4, "99.999", "exp of its valid_loss"),
    "a loss too low for its accuracy": ("learning", "valid_loss", 5, "0.05", "ln 2"),
    "a sum that is none": ("stages", "seconds", 3, "15.99", "sum of the other rows"),
    "multiplications that are not half": ("work", "estimated_flops", 2, "1.9e9", "2 FLOPs"),
    "a decimal point that is lost": ("work", "memory_bytes", 3, "62800000000", "no faster"),
    "memory that falls": ("work", "memory_bytes", 4, "1000000", "no faster"),
    "a formula that does not hold": ("work", "estimated_macs", 0, "1.70e8", "98e5"),
    "a rank that is another's": ("ranked", "loss", 2, "1.0", "by loss"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_contradiction_is_found_where_it_is(what: str) -> None:
    name, column, row, text, rule = PLANTED[what]
    table, claims = SOUND[name]
    wrong = {**table, column: [*table[column][:row], text, *table[column][row + 1 :]]}
    found = [each for each in findings(wrong, claims) if rule in each.rule]
    assert found and (column == "loss" or [each.column for each in found] == [column])
    assert any(each.row.split(":")[0] == str(row + 1) for each in found)
    assert all(each.recomputed != each.printed for each in found)


def test_a_figure_that_stands_twice_is_found_where_it_is_no_chance() -> None:
    table = learning()
    table["valid_loss"][7] = table["valid_loss"][2]
    told = [each for each in findings(table, Claims()) if "the same in row 8" in each.rule]
    assert [(each.row.split(":")[0], each.column) for each in told] == [("3", "valid_loss")]
    whole = {"minutes": [f"{minutes}.0" for minutes in (71, 93, 70, 71, 98, 67, 67, 94, 94)]}
    assert findings(whole, Claims()) == [], "whole minutes of as many rows coincide"


def test_equal_numbers_of_other_units_are_not_the_same_figure() -> None:
    table = {"time": ["693", "1.05", "693"], "unit": ["ns", "us", "us"]}
    assert findings(table, Claims()) == []
    assert len(findings({**table, "unit": ["ns", "us", "ns"]}, Claims())) == 1


def test_hours_that_add_up_to_more_are_found_and_fewer_are_not() -> None:
    table = {"minutes": ["240.5", "300.1"]}
    assert findings(table, Claims(hours=9.0)) == findings(table, Claims(hours=24.0)) == []
    summed = {"name": ["a", "b", "Total"], "minutes": ["60", "120", "180"]}
    assert findings(summed, Claims(hours=3.0)) == [], "a row of the sum is not one more"
    (found,) = findings(table, Claims(hours=3.0))
    assert (found.printed, found.recomputed) == ("3 h", "9.0 h")


def test_a_formula_of_the_forward_pass_held_against_a_step_is_found() -> None:
    table = work()
    table["measured_flops"] = [f"{batch * 56e6:.5g}" for batch in (16, 32, 64, 128, 256)]
    (found,) = findings(table, Claims())
    assert found.row == "all" and found.column == "measured_flops"


def cross_entropies() -> Iterator[tuple[float, float]]:
    """Mean cross-entropy and accuracy of distributions over three classes, of some the best that there are."""
    for best in [True, False] * 150:
        loss, right, count = 0.0, 0, 20
        for _ in range(count):
            weights = [CHANCE.random() ** 8 for _ in range(3)]
            truth = CHANCE.randrange(3)
            if best:
                weights[truth] = 1.0
                weights[truth - 1], weights[truth - 2] = CHANCE.choice([1e-9, 1.0001]), 1e-9
            loss -= math.log(weights[truth] / sum(weights))
            right += weights[truth] == max(weights)
        yield loss / count, right / count


def test_no_predictions_of_any_kind_contradict_the_bound_by_accuracy() -> None:
    pairs = list(cross_entropies())
    table = {"loss": [f"{loss:.6f}" for loss, _ in pairs], "accuracy": [f"{share:.6f}" for _, share in pairs]}
    assert [each for each in findings(table, Claims()) if "ln 2" in each.rule] == []
    just_below = {"loss": ["0.3465"], "accuracy": ["0.500000"]}
    assert len(findings(just_below, Claims())) == 1, "half of the answers wrong, each at 1/2: ln 2 / 2"


def test_what_is_printed_stands_for_all_that_it_rounds() -> None:
    for text, value, half in (
        ("5.2e04", 52_000, 500),
        ("1.70", 1.7, 0.005),
        ("28,616", 28_616, 0.5),
        ("-1,234,567.5", -1_234_567.5, 0.05),
        ("1,5", 1.5, 0.05),
        ("0,125 %", 0.125, 0.0005),
        ("12,3456e2", 1_234.56, 0.005),
        ("61.9%", 61.9, 0.05),
    ):
        found = figure(text)
        assert found is not None and (found.value, found.half) == pytest.approx((value, half))
    assert [figure(text) for text in ("", "nan", "inf", "out of memory", "-", "1.234,5")] == [None] * 6


def test_the_published_tables_contradict_themselves_where_it_is_known() -> None:
    found = {name: findings(read_csv(PUBLISHED / f"{name}.csv"), claims) for name, claims in published_claims().items()}
    assert len([each for each in found["ablation"] if "uniform guess" in each.rule]) == 6
    assert [each.recomputed for each in found["ablation"] if each.row == "all"] == ["65.2 h"]
    assert [each.recomputed for each in found["scaling"] if each.column == "speed_up"] == [
        "1.23", "1.71", "1.84", "1.69", "2.22", "2.36"
    ]  # fmt: skip
    off = [each for each in found["scaling"] if each.column == BANDWIDTH]
    apart = [float(each.recomputed) / float(each.printed) for each in off]
    assert len(off) == 5 and max(apart) > 500, "as if of models of so different sizes"
    assert [each.row.split(":")[0] for each in found["large_batch"]] == ["1"]
    assert [each.printed for each in found["kernels"]] == ["693"]
    assert {each.column for each in found["estimates"]} == {"measured_flops", "measured_dram_kilobytes"}
    assert not [each for each in found["methods"] if each.column == "rank"], "its order is that of its formula"


@pytest.mark.parametrize("parameters", [1e5, 1.1e7])
def test_a_bandwidth_of_one_model_contradicts_nothing_whatever_its_size(parameters: float) -> None:
    """As the report tells it: devices x parameters x 4 x iterations / copy time."""
    rows = [(devices, batch, 0.3 * devices + 9 / batch) for devices in (2, 4) for batch in (32, 128, 512)]
    bandwidths = [count * parameters * 4 * (51_200 / count / batch) / time / 1e9 for count, batch, time in rows]
    columns = dict(zip(("devices", "batch_size_per_device", COPY), zip(*rows, strict=True), strict=True))
    table = {name: [f"{each:.6g}" for each in cells] for name, cells in (columns | {BANDWIDTH: bandwidths}).items()}
    claims = Claims(formulas={BANDWIDTH: published_claims()["scaling"].formulas[BANDWIDTH]})
    assert findings(table, claims) == []
    table[BANDWIDTH][0] = f"{2 * bandwidths[0]:.6g}"
    assert findings(table, claims)


def test_speed_ups_are_of_rows_with_the_same_setting() -> None:
    table = {"devices": ["1", "1", "2"], "batch_size": ["8", "16", "16"], "seconds": ["4.0", "9.0", "3.0"]}
    assert speed_ups(table) == [1, 1, 3]


@pytest.mark.parametrize("text", [
    "", "a +", "__import__('os')", "a.b", "a[0]", "max(a, b)", "lambda: 1", "'a'", "a if b else c", "(" * 300,
    "9" * 500,
])  # fmt: skip
def test_a_formula_is_arithmetic(text: str) -> None:
    with pytest.raises(UserError, match="is no formula"):
        parse_expression(text)


def test_a_formula_without_a_value_is_none() -> None:
    columns: dict[str, list[float | None]] = {"a": [1.0, 0.0, None], "b": [2.0, 3.0, 4.0]}
    assert parse_expression("b / a").evaluate(columns) == [2, None, None]
    assert parse_expression("9 ** 9 ** 9 ** 9").evaluate(columns) == [None] * 3
    assert parse_expression("-sum(a) + max(b) - log(exp(b))").evaluate(columns) == pytest.approx([1, 0, -1])
    assert parse_expression("a + " + "9" * 390).evaluate(columns) == [None] * 3
    assert parse_expression("sum(c)").evaluate({"c": [1e308, 1e308, None]}) == [None] * 3


def test_where_a_formula_has_no_value_is_told_and_not_where_a_figure_is_missing() -> None:
    """It divides by zero, or takes the logarithm of none."""
    table = {"a": ["1", "", "3"], "b": ["0", "5", "2"]}
    for formula, rows in (("1/0", ["1", "2", "3"]), ("log(a-2)", ["1"]), ("a/(b-2)", ["3"])):
        claims = Claims(formulas={"b": parse_expression(formula)}, order=parse_expression(formula))
        found = [each for each in findings(table, claims) if each.recomputed == "no value"]
        assert [each.row for each in found if each.column == "b"] == rows, formula
        assert [each.row for each in found if each.column == "rank"] == rows, formula


@pytest.mark.parametrize("claims", [{"order": "2 * c"}, {"formulas": "2 * c"}])
def test_a_name_that_is_no_column_is_told_under_its_flag(claims: dict[str, str]) -> None:
    asked = {name: {"a": parse_expression(text)} if name == "formulas" else parse_expression(text)
             for name, text in claims.items()}  # fmt: skip
    (name,) = claims
    with pytest.raises(UserError, match=f"^--{name}: .*'c' is no column: there are a, b"):
        findings({"a": ["1"], "b": ["2"]}, Claims(**asked))


@pytest.mark.parametrize(("text", "name"), [("a + c", "c"), ("log", "log"), ("max", "max"), ("max(max)", "max")])
def test_a_name_that_is_no_column_is_told_also_where_a_function_has_it(text: str, name: str) -> None:
    with pytest.raises(UserError, match=f"{name!r} is no column: there are a, b"):
        parse_expression(text).evaluate({"a": [1.0], "b": [2.0]})
    assert parse_expression(text).evaluate({"a": [1.0], name: [2.0]}) == ([3] if text == "a + c" else [2])
