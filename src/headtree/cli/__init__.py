"""The command line."""

import os

# OpenMP's threads, which torch uses, spin while they wait; on a busy machine everything then takes many times as
# long. OpenMP reads this when torch is loaded, which nothing has done yet; whoever has set it is not overruled.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
