"""`make sweep`: capture the attention of every family of transformers, and write docs/families.md."""
import json, sys, time
from tools.sweep import families
from tools.sweep.measure import measured
from tools.sweep.workers import guarded

if __name__ == "__main__":
    names = sys.argv[1:] or families.names()
    t = time.time()
    with open("/tmp/rows.jsonl", "w") as f:
        for row in guarded(measured, names, 2, 60):
            print(row, flush=True)
            f.write(json.dumps(row) + "\n"); f.flush()
    print(time.time() - t)
