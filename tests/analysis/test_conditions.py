"""--where takes conditions on columns, as pandas' query has them, and nothing that could do anything else."""

import pandas as pd
import pytest

from analysis.ranking import select

TABLE = pd.DataFrame(
    {
        "layers": [2, 4, 8],
        "perplexity": [9.0, float("nan"), 7.0],
        "precision": ["bf16", "fp32", "bf16"],
        "front": [True, False, True],
    },
    index=[4, 5, 8],
)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("layers<=4 and precision=='bf16'", [4]),
        ("not (layers==8 or layers==2)", [5]),
        ("2 < layers <= 8", [5, 8]),
        ("perplexity > 0", [4, 8]),
        ("precision in ('fp32', 'tf32')", [5]),
        ("layers not in [2, 4]", [8]),
        ("front and layers > -1", [4, 8]),
        ("layers > 100", []),
    ],
)
def test_conditions_select(condition: str, rows: list[int]) -> None:
    assert select(TABLE, condition).index.tolist() == rows


secret = 4
NO_CONDITIONS = ("", "layers", "layers <", "layers = 4", "1 == 1", "width < 4", "precision < 4", "layers == bf16")
REACHING = (
    *("__import__('os').system('true')", "layers.__class__ == 1", "layers.max() == 8", "layers == @secret"),
    *("`layers` == 4", "(lambda: layers)() == 1", "[x for x in layers] == 1", "f'{layers}' == '4'", "layers[0] == 2"),
)
HEAVY = ("layers ** 9 ** 9 > 1", "precision == 'a' * 1000000000", "(" * 300 + "layers" + ")" * 300, "1 " * 10_000)


@pytest.mark.parametrize("condition", [*NO_CONDITIONS, *REACHING, *HEAVY, "layers == 1\0"])
def test_what_is_no_condition_is_refused_in_one_line(condition: str) -> None:
    with pytest.raises(ValueError, match=r"^--where: ") as error:
        select(TABLE, condition)
    assert "\n" not in str(error.value)
