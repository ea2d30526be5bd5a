"""Every benchmark still runs, on tiny inputs; ``make bench`` runs them on inputs of the size that is reported."""

import importlib
import pkgutil

import pytest

import benchmarks

NAMES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_benchmark_runs(name):
    importlib.import_module(f"benchmarks.{name}").main(check=True)
