"""Tables as text."""

import io

import numpy as np
import pandas as pd
import pytest

from headtree.pipeline.tables import csv_text


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1"])
def test_spreadsheets_run_no_formulas(text):
    found = pd.read_csv(io.StringIO(csv_text({"name": [text, "L0H1"], text: [1, 2]})), keep_default_na=False)
    assert found["name"].tolist() == [f"'{text}", "L0H1"]
    assert list(found.columns) == ["name", f"'{text}"]


def test_a_name_stays_in_its_row():
    text = csv_text({"name": ["a\r=1", "b\nc"]})
    assert pd.read_csv(io.StringIO(text))["name"].tolist() == ["a\\r=1", "b\nc"]


def test_numbers_stay_numbers():
    columns = {"a": [-1.5, np.nan], "b": [-3, 4], "c": ["-1.5", "+2"], "d": [True, False], "e": [None, "x"]}
    assert csv_text(columns) == "a,b,c,d,e\n-1.5,-3,-1.5,True,\n,4,+2,False,x\n"
