import pytest

from headtree.measures.jackknife import Estimate
from headtree.report.words.numbers import interval_words, number_words

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"), (-0.0, "0"), (0.05, "0.05"), (12, "12"), (1500, "1,500"), (999.6, "1,000"), (2e6, "2·10⁶"),
        (1e-4, "10⁻⁴"), (-3e-7, "-3·10⁻⁷"), (NAN, "–"), (float("inf"), "–"),
    ],
)  # fmt: skip
def test_number_words(value, words):
    assert number_words(value) == words


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(0.5, (0.25, 0.75), (6,)), "0.5 [0.25, 0.75]"),
        (Estimate(1234.5, (-2.0, 1e6), (6,)), "1,234 [-2, 10⁶]"),
        (Estimate(0.5, (NAN, NAN), (1,)), "0.5 (no interval)"),
        (Estimate(NAN, (NAN, NAN), (3,)), "–"),
    ],
)
def test_interval_words(estimate, words):
    assert interval_words(estimate) == words
