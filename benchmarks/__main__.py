"""Run the benchmarks, or with `--check` run each once on tiny inputs to see that it still works."""

import argparse
import importlib
import pkgutil
from pathlib import Path

names = sorted(
    module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name[0] != "_"
)
parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(names)} (default: all)")
parser.add_argument("--check", action="store_true", help="tiny inputs, no timing")
arguments = parser.parse_args()
for name in arguments.names or names:
    print(f"== {name}", flush=True)
    importlib.import_module(f"benchmarks.{name}").main(check=arguments.check)
