"""Time and memory of a call."""

import threading
import time

import psutil


def seconds(function, repeats=5):
    """Smallest wall time of several calls: on a shared machine, longer times include other processes."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_megabytes(function):
    """Largest resident memory during a call, minus that before it."""
    process = psutil.Process()
    before = process.memory_info().rss
    peak, done = before, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        done.set()
        watcher.join()
    return (peak - before) / 1e6
