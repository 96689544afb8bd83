"""The losses of trainings equal PyTorch's at each training step, in float64.

The same comparison is made twice: with trajectories recorded from PyTorch (by `record.py`), which
needs no PyTorch, and with PyTorch itself where it is installed.
"""

import numpy as np
import pytest
from cases import (
    CASES,
    OPTIMIZERS,
    RECIPES,
    RECORDED,
    Trajectory,
    lamina_trajectory,
    torch_trajectory,
)

# Fifty training steps enlarge rounding errors of 1e-16 to some 1e-12. A wrong formula is off by
# far more.
RELATIVE = 1e-9
ABSOLUTE = 1e-12

ALL_CASES = pytest.mark.parametrize("case", CASES, ids=str)


def check(found: Trajectory, expected: Trajectory) -> None:
    np.testing.assert_allclose(found.losses, expected.losses, RELATIVE, ABSOLUTE)
    np.testing.assert_allclose(found.parameters, expected.parameters, RELATIVE, ABSOLUTE)


@ALL_CASES
def test_training_follows_the_recorded_trajectory(case, engine_name):
    with np.load(RECORDED) as recorded:
        expected = Trajectory(recorded[f"{case}/losses"], recorded[f"{case}/parameters"])
    check(lamina_trajectory(case, engine_name), expected)


@pytest.mark.usefixtures("torch")
@ALL_CASES
def test_training_follows_pytorch(case, engine_name):
    check(lamina_trajectory(case, engine_name), torch_trajectory(case))


def test_every_network_and_optimizer_is_in_a_case_whose_losses_fall():
    assert {case.network for case in CASES} == RECIPES.keys()
    assert {case.optimizer for case in CASES} == OPTIMIZERS.keys()
    with np.load(RECORDED) as recorded:
        for case in CASES:
            losses = recorded[f"{case}/losses"]
            assert losses[-5:].mean() < losses[:5].mean(), case


@pytest.mark.parametrize("family", sorted({name for _, name, _ in OPTIMIZERS.values()}))
def test_every_optimizer_is_compared_on_at_least_six_networks(family):
    networks = {case.network for case in CASES if OPTIMIZERS[case.optimizer][1] == family}
    assert len(networks) >= 6
