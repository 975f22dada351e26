import pandas as pd
import pytest

from analysis.conditions import LONGEST, select

TABLE = pd.DataFrame(
    {
        "layers": [2, 4, 8],
        "perplexity": [9.0, float("nan"), 7.0],
        "precision": ["bf16", "fp32", "bf16"],
        "front": [True, False, True],
    }
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("layers<=4 and precision=='bf16'", [0]),
        ("layers==8 or layers==2", [0, 2]),
        ("not layers==8", [0, 1]),
        ("2 < layers <= 8", [1, 2]),
        ("perplexity > 0", [0, 2]),
        ("precision in ('fp32', 'tf32')", [1]),
        ("layers not in [2, 4]", [2]),
        ("front and layers > 2", [2]),
        ("front == False", [1]),
        ("layers > -1", [0, 1, 2]),
        ("layers < perplexity", [0]),
        ("layers > 100", []),
    ],
)
def test_conditions_select(condition: str, rows: list[int]) -> None:
    assert select(TABLE, condition).index.tolist() == rows


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "layers",
        "layers <",
        "layers = 4",
        "width < 4",
        "precision < 4",
        "layers == bf16",
        "layers is 4",
        "layers + 1 < 4",
        "layers == [1]",
        "layers in 4",
        "layers in ([1], 2)",
        "__import__('os').system('true')",
        "layers.__class__ == 1",
        "(lambda: layers)() == 1",
        "[x for x in layers] == 1",
        "f'{layers}' == '4'",
        "layers ** 9 ** 9 > 1",
        "(" * 300 + "layers" + ")" * 300,
        "1 " * LONGEST,
        "layers == 1\0",
    ],
)
def test_what_is_no_condition_is_refused_in_one_line(condition: str) -> None:
    with pytest.raises(ValueError, match="--where: ") as error:
        select(TABLE, condition)
    assert "\n" not in str(error.value)
