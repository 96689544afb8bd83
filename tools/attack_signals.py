"""Sends signals at random moments to processes that use Lamina, and checks their models and files.

    python tools/attack_signals.py [SIGNALS] [SEED]

Child processes compile, train, predict, save, copy and release, with a handler that raises. This
process sends them SIGINT, SIGALRM and SIGUSR1, also while they exit. After each activity a child
checks that its model has the parameters of some moment between two training steps, and that its
files and predictions are complete. A child that crashes, hangs or finds a fault is printed, and the
exit status is 1.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm

SIGNALS_OF_A_CHILD = 250
PATIENCE_SECONDS = 120.0
STEPS = 150
EXAMPLES = 48
# The exit statuses of processes without a fault. Ctrl-C may end them after their work is done.
PEACEFUL = (0, 1, 130, -signal.SIGINT)


class Alarm(Exception):
    """The handler of SIGALRM raises it."""


def main(count: int, seed: int) -> int:
    """Attacks children until so many signals were sent; returns the exit status."""
    chance = random.Random(seed)
    sent = children = 0
    seen: Counter[str] = Counter()
    failures: list[str] = []
    while sent < count:
        signal_count = min(SIGNALS_OF_A_CHILD, count - sent)
        with tempfile.TemporaryDirectory() as folder:
            done, report = _attack(chance, signal_count, children, folder)
        sent, children = sent + done, children + 1
        seen.update(report.get("seen", {}))
        failures += report["failures"]
    for name, times in sorted(seen.items()):
        print(f"{name:32}{times:7,}")
    print(f"{sent:,} signals to {children} processes: {len(failures)} failures")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


def _attack(
    chance: random.Random, count: int, number: int, folder: str
) -> tuple[int, dict[str, Any]]:
    """Starts a child and sends it signals; the number of signals, and the child's report."""
    environment = os.environ | {
        "LAMINA_THREADS": str(1 + number % 2),
        "LAMINA_CACHE": "off" if number % 4 == 3 else str(Path(folder) / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONFAULTHANDLER": "1",
    }
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", str(chance.randrange(2**32)), folder],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    sent = 0
    # How long each activity takes, as far as is known.
    usual: dict[str, float] = {}

    def send(*kinds: signal.Signals) -> None:
        nonlocal sent
        if child.poll() is None:
            child.send_signal(chance.choice(kinds))
            sent += 1

    name = child.stdout.readline().strip()
    while sent < count and name and not name.startswith("{"):
        for _ in range(chance.choice((1, 1, 1, 2))):
            time.sleep(chance.uniform(0, 1.1) * usual.get(name, 0.02))
            send(signal.SIGINT, signal.SIGINT, signal.SIGALRM, signal.SIGUSR1)
        seconds_text = child.stdout.readline()
        # Interrupted activities take less time than usual.
        usual[name] = max(0.9 * usual.get(name, 0.0), float(seconds_text or 0.0))
        name = child.stdout.readline().strip() if seconds_text else ""
    child.stdin.close()
    child.stdin = None
    while name and not name.startswith("{"):
        name = child.stdout.readline().strip()
    lines = [name]
    # The child also gets signals while it exits.
    for _ in range(chance.randrange(4)):
        send(signal.SIGINT)
        time.sleep(chance.uniform(0, 0.02))
    try:
        _, errors = child.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        _, errors = child.communicate()
        errors += "\nit hung"
    report: dict[str, Any] = json.loads(lines[0]) if lines[0] else {}
    failures = [f"child {number}: {text}" for text in report.get("failures", [])]
    if not report or child.returncode not in PEACEFUL:
        failures.append(f"child {number} ended with {child.returncode}\n{errors}")
    return sent, {"seen": report.get("seen", {}), "failures": failures}


# The child ----------------------------------------------------------------------------------------


class Child:
    """Compiles, trains, predicts, saves, copies and releases in random order, under signals."""

    def __init__(self, seed: int, folder: str) -> None:
        self.chance = random.Random(seed)
        self.path = Path(folder) / "model"
        values = np.random.default_rng(0)
        self.x = values.normal(size=(EXAMPLES, 12)).astype("float32")
        self.y = values.normal(size=(EXAMPLES, 3)).astype("float32")
        self.data = lm.data.Dataset(self.x, self.y)
        self.network = lm.Sequential(
            lm.Input(12),
            lm.Linear(40),
            lm.Tanh(),
            lm.BatchNorm(),
            lm.Linear(20),
            lm.ReLU(),
            lm.Linear(3),
        )
        self.model, self.training = self.made()
        self.first = self.model.parameters() | self.model.states()
        # By checksum of the model: the number of training steps. No signal has been sent yet.
        self.known: dict[str, int] = {self.digest(self.model): 0}
        for steps_done in range(1, STEPS + 1):
            self.training.run(self.data, 1)
            self.known[self.digest(self.model)] = steps_done
        self.seen: Counter[str] = Counter()
        self.failures: list[str] = []
        self.armed = False
        self.training.release()
        self.other = lm.Model(self.network, seed=7)
        self.model.save(self.path)
        self.model, self.training = self.made()

    def made(self) -> tuple[lm.Model, Any]:
        model = lm.Model(self.network, seed=3)
        return model, self.attached(model)

    def attached(self, model: lm.Model) -> Any:
        return model.training(loss=lm.MSE(), optimizer=lm.Adam(0.01), batch_size=8)

    @staticmethod
    def digest(model: lm.Model) -> str:
        return digest_of(model.parameters() | model.states())

    # Activities.

    def compile(self) -> None:
        width = self.chance.randrange(3, 200)
        other = lm.Sequential(lm.Input(5), lm.Linear(width), lm.Tanh(), lm.Linear(2))
        lm.Model(other).predict(np.ones((3, 5), "float32"))

    def collect(self) -> None:
        gc.collect()

    def run(self) -> None:
        for _ in range(8):
            self.training.run(self.data, self.chance.randrange(1, 6))

    def step(self) -> None:
        per_epoch = EXAMPLES // 8
        for _ in range(40):
            done = self.training.steps_done
            first = done % per_epoch * 8
            rows = self.data.order(0, done // per_epoch)[first : first + 8]
            self.training.step(self.x[rows], self.y[rows])

    def fit(self) -> None:
        model = lm.Model(self.network, seed=3)
        try:
            model.fit(
                self.data,
                loss=lm.MSE(),
                optimizer=lm.Adam(0.01),
                batch_size=8,
                seed=0,
                epochs=self.chance.randrange(1, 4),
                checkpoint=self.path.with_name("checkpoint"),
            )
        finally:
            self.fitted = model

    def predict(self) -> None:
        count = self.chance.randrange(1, EXAMPLES)
        found = self.model.predict(self.x[:count])
        if found.shape != (count, 3) or not np.isfinite(found).all():
            self.failures.append(f"predictions {found.shape}")

    def save(self) -> None:
        self.model.save(self.path)

    def copied(self) -> None:
        self.copy = copy.deepcopy(self.model)

    def set_parameters(self) -> None:
        for _ in range(20):
            self.model.set_parameters(self.first)

    def release(self) -> None:
        self.training.release()

    # Checks after each activity.

    def check(self, name: str) -> None:
        self.whole(name, self.model)
        for kind in ("fitted", "copy"):
            other = self.__dict__.pop(kind, None)
            if other is not None:
                self.whole(f"{name}, {kind}", other)
        for path in (self.path, self.path.with_name("checkpoint")):
            if path.exists():
                self.whole(f"{name}, the file {path.name}", lm.load(path))
        fresh = self.other
        fresh.set_parameters(self.model.parameters() | self.model.states())
        if (fresh.predict(self.x[:5]) != self.model.predict(self.x[:5])).any():
            self.failures.append(f"after {name}: the predictions do not follow from the parameters")

    def whole(self, name: str, model: lm.Model) -> None:
        if self.digest(model) not in self.known:
            self.failures.append(f"after {name}: the model is not between two training steps")

    def renew(self) -> None:
        """Makes a new training if this one is released, or has passed the last known model."""
        try:
            steps_done = int(self.training.state()["step"])
        except lm.errors.ReleasedError:
            steps_done = STEPS
        model_steps = self.known[self.digest(self.model)]
        if steps_done > STEPS - 60 or steps_done != model_steps:
            self.model, self.training = self.made()

    # Activities under signals.

    def attempt(self, name: str, work: Callable[[], None]) -> None:
        try:
            try:
                self.armed = True
                work()
            finally:
                self.armed = False
        except (KeyboardInterrupt, Alarm) as error:
            self.armed = False
            self.seen[f"{type(error).__name__} in {name}"] += 1
        self.seen[name] += 1

    def handle(self, number: int, _: object) -> None:
        if self.armed and number != signal.SIGUSR1:
            raise KeyboardInterrupt if number == signal.SIGINT else Alarm

    def live(self) -> None:
        for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1):
            signal.signal(number, self.handle)
        activities: Mapping[str, Callable[[], None]] = {
            name: getattr(self, name)
            for name in (
                *("compile", "collect", "run", "step", "fit", "predict", "save", "copied"),
                *("set_parameters", "release"),
            )
        }
        while not select.select([sys.stdin], [], [], 0)[0] and not self.failures:
            name = self.chance.choice(list(activities))
            print(name, flush=True)
            began = time.perf_counter()
            self.attempt(name, activities[name])
            print(time.perf_counter() - began, flush=True)
            if not self.failures:
                self.check(name)
                self.renew()
        self.model.save(self.path)
        left = [path.name for path in self.path.parent.glob(".lamina-*")]
        if left:
            self.failures.append(f"left in the folder: {left}")
        print(json.dumps({"seen": self.seen, "failures": self.failures}), flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def digest_of(values: Mapping[str, np.ndarray]) -> str:
    """A checksum of arrays by name."""
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        digest.update(name.encode() + value.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        Child(int(sys.argv[2]), sys.argv[3]).live()
    else:
        numbers = [int(argument) for argument in sys.argv[1:]]
        sys.exit(main(*(*numbers, *(3000, 0)[len(numbers) :])))
