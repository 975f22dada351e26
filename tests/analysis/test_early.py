from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from analysis.settings import RankSettings
from analysis.stability import moment, stability, tau
from analysis.study import open_study
from tests.analysis.conftest import Printed, Written, do
from tune.errors import UserError


def test_tau_by_hand() -> None:
    """Of six pairs four agree and two do not; where one order has a tie, five of its six pairs count."""
    order = np.array([1.0, 2.0, 3.0, 4.0])
    assert tau(order, order) == 1 and tau(order, -order) == -1
    assert tau(order, np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx((4 - 2) / 6)
    assert tau(order, np.array([1.0, 1.0, 2.0, 3.0])) == pytest.approx(5 / (6 * 5) ** 0.5)
    assert np.isnan(tau(order, np.ones(4))) and np.isnan(tau(order[:2], order[:2]))


@pytest.fixture
def turned(write: Callable[..., Written]) -> Written:
    """Three trials whose order by perplexity turns round after half of the spending; another begins only then."""
    study = write("turned")
    for number, trial in enumerate(("t1", "t2", "t3", "t4")):
        study.trial(trial, parameters=10 ** (4 + number))
    for number, trial in enumerate(("t1", "t2", "t3")):
        study.report(trial, 5.0 + number, rung=0, at=10.0 * number, steps=1)
        study.charge("steps", 10.0, trial=trial, at=10.0 * number)
        study.report(trial, 4.0 - number, rung=1, at=60.0 + number, steps=2)
        study.charge("steps", 10.0, trial=trial, at=60.0 + number)
    study.report("t4", 9.0, rung=0, at=70.0, steps=1)
    return study


def rows(study: Written, share: float = 0.5) -> pd.DataFrame:
    return stability(open_study(study.folder), share).set_index("measure")


def test_an_order_that_turns_round_and_one_that_sizes_hold(turned: Written) -> None:
    found = rows(turned)
    assert set(found["trials"]) == {3, 0}
    assert found.loc["perplexity", ["then", "end"]].tolist() == ["rung 0", "rung 1"]
    assert found.loc["perplexity", "tau"] == -1
    assert found.loc["perplexity_per_million", "tau"] == found.loc["perplexity_per_million", "tau_of_size"] == 1
    assert found.loc["perplexity", ["leader", "leader_at_end"]].tolist() == ["t1", 3]
    assert found.loc["efficiency", "trials"] == 0 and np.isnan(found.loc["efficiency", "tau"])


def test_half_is_of_the_device_seconds_and_not_of_the_clock(turned: Written) -> None:
    study = open_study(turned.folder)
    assert [moment(study, share) for share in (0.1, 0.5, 0.6)] == [0.0, 20.0, 60.0]


def test_who_was_not_trained_on_foretells_nothing(turned: Written) -> None:
    found = rows(turned, 0.99)
    assert set(found["trials"]) == {0} and found["tau"].isna().all()


def test_only_what_completed_the_same_rung_is_in_one_order(turned: Written) -> None:
    """One of four was at another rung then, and is not compared with those that the others had there."""
    turned.trial("t5", parameters=10)
    turned.report("t5", 1.0, rung=1, at=15.0)
    turned.report("t5", 9.0, rung=2, at=65.0)
    found = rows(turned)
    assert found.loc["perplexity", "trials"] == 3 and found.loc["perplexity", "tau"] == -1


def test_what_failed_has_no_order(turned: Written) -> None:
    turned.journal.update("trials", "t2", {"state": "failed", "reason": "diverged"})
    assert rows(turned).loc["perplexity", "trials"] == 0


def test_the_command_says_it_in_a_table_and_as_json(turned: Written, printed: Printed) -> None:
    for form, said in ((), "-1.00"), (["--json"], '"tau": -1.0'):
        assert said in printed(RankSettings, turned.folder, "--stability", "0.5", *form)


def test_one_family_of_several_and_few_trials_are_a_line(turned: Written, printed: Printed) -> None:
    turned.trial("t9", family="translation")
    for family, said in (("nanogpt", "Kendall's tau"), ("translation", "too few trials: it takes 3")):
        text = printed(RankSettings, turned.folder, "--stability", "0.5", "--family", family)
        other = {"nanogpt": "translation", "translation": "Kendall"}[family]
        assert said in text and other not in text.replace(said, "")
    with pytest.raises(UserError, match=r"^--family: 'none'"):
        do(RankSettings, [str(turned.folder), "--stability", "0.5", "--family", "none"])


def test_a_study_that_was_charged_nothing_is_one_line(write: Callable[..., Written]) -> None:
    study = write()
    study.trial("t1")
    with pytest.raises(ValueError, match="charged nothing"):
        do(RankSettings, [str(study.folder), "--stability", "0.5"])
