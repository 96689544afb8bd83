"""Forked and killed processes: caches, pauses of the collector."""

import gc
import os
import threading

import pytest
from fresh_python import printed

from lamina.base.garbage import Pause

pytestmark = [
    pytest.mark.each_case,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks"),
]

WORKERS = """
import os, random, signal, time
from lamina.base import cache
cache.LARGEST_BYTES = 200_000

def work(seed, rounds):
    generator = random.Random(seed)
    for _ in range(rounds):
        number = generator.randrange(60)
        expected = bytes([number]) * (500 * number)
        assert cache.cached(f"key {number}", lambda: expected) == expected, number

def start(seed, rounds):
    child = os.fork()
    if child == 0:
        try:
            work(seed, rounds)
            os._exit(0)
        finally:
            os._exit(1)
    return child
"""


def test_processes_that_write_read_and_trim_find_whole_entries(tmp_path):
    script = """
children = [start(seed, 300) for seed in range(4)]
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
"""
    assert printed(WORKERS + script, LAMINA_CACHE=str(tmp_path)) == ""


def test_writers_that_are_killed_leave_nothing_that_is_read(tmp_path):
    script = """
generator = random.Random(0)
for seed in range(20):
    child = start(seed, 10**6)
    time.sleep(generator.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
work(99, 300)
"""
    assert printed(WORKERS + script, LAMINA_CACHE=str(tmp_path)) == ""
    assert len(list((tmp_path / "objects" / "new").iterdir())) <= 20


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_has_only_the_pauses_of_its_thread():
    assert gc.isenabled()
    paused, over = threading.Event(), threading.Event()

    def work():
        pause = Pause()
        paused.set()
        over.wait()
        pause.end()

    thread = threading.Thread(target=work)
    thread.start()
    paused.wait()
    assert not gc.isenabled()
    child = os.fork()
    if not child:
        os._exit(gc.isenabled())
    _, status = os.waitpid(child, 0)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 1
    assert gc.isenabled()
