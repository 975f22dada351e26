"""Rules for the rate: what each makes of a larger batch, and the way there, at equal samples."""

import pytest

from tune.experiments.large_batch_rules import GRADUAL_SHARE, RULES

BATCHES = (1, 4, 16)
STEPS, WARM_UP = 1440, 160


def factors(name: str, times: int) -> list[float]:
    asked = {"steps": STEPS // times, "times": times, "warm_up_steps": WARM_UP, "decay_share": 0.4}
    return [RULES[name].factor(step, **asked) for step in range(STEPS // times)]


def test_peak_rates():
    grown = {name: [rule.rate(1e-3, times) / 1e-3 for times in BATCHES] for name, rule in RULES.items()}
    assert grown["unchanged"] == pytest.approx([1, 1, 1]) and grown["linear"] == pytest.approx([1, 4, 16])
    assert grown["square root"] == grown["LARS"] == pytest.approx([1, 2, 4])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("times", BATCHES)
def test_every_rule_warms_up_peaks_and_falls_at_equal_samples(name, times):
    found, steps = factors(name, times), STEPS // times
    assert max(found) == 1 and 0 < found[-1] == pytest.approx(1 / (0.4 * steps))
    assert found.index(1) * times <= WARM_UP + GRADUAL_SHARE * STEPS + times
    rest = found[found.index(1) :]
    assert rest == sorted(rest, reverse=True) and found[int(0.59 * steps)] == 1


@pytest.mark.parametrize("times", BATCHES[1:])
def test_linear_scaling_comes_to_its_rate_from_the_small_batchs(times):
    rates = [times * factor for factor in factors("linear", times)]
    warm, grown = WARM_UP // times, GRADUAL_SHARE * STEPS / times
    assert all(rate <= 1 for rate in rates[:warm]) and rates[warm - 1] == pytest.approx(1)
    assert rates[warm] > 1 and rates[warm + int(grown) - 1] == pytest.approx(times)
    ramp = rates[warm : warm + int(grown)]
    assert ramp == sorted(ramp)


def test_with_the_small_batch_all_rules_are_one():
    assert factors("linear", 1) == factors("unchanged", 1) == factors("square root", 1)


def test_a_short_training_has_a_short_warm_up():
    asked = {"steps": 10, "times": 1, "warm_up_steps": WARM_UP, "decay_share": 0.4}
    assert RULES["unchanged"].factor(1, **asked) == 1
