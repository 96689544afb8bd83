"""Balance a pole on a cart, with ten seeds at once (reinforcement learning by PPO).

    python examples/cartpole.py
    python examples/cartpole.py --seeds 3

The cart is pushed to the left or to the right. An episode ends when it leaves the track, when the
pole falls, or after 500 pushes; its return is the number of pushes (CartPole-v1: Barto, Sutton and
Anderson, *Neuronlike adaptive elements*, 1983). A network scores both pushes and estimates the
return. Ten networks that differ in their seeds are a population: each plays on carts of its own,
by its predictor, and one training step trains them all, each on what it has seen. Results of
reinforcement learning depend much on the seed, so one run shows little.

PPO: Schulman et al., *Proximal policy optimization algorithms* (2017). Advantages: Schulman et al.,
*High-dimensional continuous control using generalized advantage estimation* (2016).
"""

import argparse

import numpy as np

import lamina as lm

CARTS, PUSHES, LONGEST = 8, 128, 500
BATCH, ROUNDS = 256, 4
DISCOUNT, SMOOTHING = 0.99, 0.95
CLIP, ENTROPY = 0.2, 0.005


def make_network():
    """Scores of both pushes, and the value of a state: position, speed, angle, angular speed."""
    state = lm.Input(4)
    how = {"input": (4,), "activation": lm.Tanh()}
    scores, value = (lm.networks.mlp((64, 64), count, **how)(state) for count in (2, 1))
    return lm.Network(state, {"scores": scores, "value": value[:, 0]})


class Carts:
    """Carts side by side; those whose episodes have ended begin anew."""

    def __init__(self, shape, seed):
        self.random = np.random.default_rng(seed)
        self.states = self.random.uniform(-0.05, 0.05, (*shape, 4)).astype("float32")
        self.ages = np.zeros(shape, int)

    def push(self, right):
        """Pushes all carts for 0.02 s: their states, and which have fallen or reached the end."""
        _, speed, angle, turning = np.moveaxis(self.states.astype(float), -1, 0)
        sine, cosine = np.sin(angle), np.cos(angle)
        # A cart of 1 kg, a pole of 0.1 kg and 1 m, and a force of 10 N.
        force = (np.where(right, 10.0, -10.0) + 0.05 * turning**2 * sine) / 1.1
        bending = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pull = force - 0.05 * bending * cosine / 1.1
        changes = np.stack([speed, pull, turning, bending], -1)
        self.states = (self.states + 0.02 * changes).astype("float32")
        self.ages += 1
        fallen = (abs(self.states[..., 0]) > 2.4) | (abs(self.states[..., 2]) > np.radians(12))
        return fallen, ~fallen & (self.ages == LONGEST)

    def renew(self, ended):
        """Begins new episodes where others have ended."""
        fresh = self.random.uniform(-0.05, 0.05, self.states.shape).astype("float32")
        self.states = np.where(ended[..., None], fresh, self.states)
        self.ages = np.where(ended, 0, self.ages)


def ppo(outputs, targets):
    """The clipped objective, the error of the values, and a reward for undecided policies."""
    (scores, value), (action, advantage, before, wanted) = outputs, targets
    logs = lm.ops.log_softmax(scores)
    log = lm.ops.take_along_axis(logs, lm.ops.expand_dims(action, 1), 1)[:, 0]
    ratio = lm.ops.exp(log - before)
    gain = lm.ops.minimum(ratio * advantage, lm.ops.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    entropy = -lm.ops.sum(lm.ops.exp(logs) * logs, axes=1)
    return lm.ops.mean(0.5 * (value - wanted) ** 2 - gain - ENTROPY * entropy)


def play(carts, predict, random):
    """What all carts see in PUSHES pushes: arrays (members, carts, pushes), and episode lengths."""
    seen, returns = [], []
    for _ in range(PUSHES):
        states = carts.states
        scores, values = predict(states)
        logs = scores - np.logaddexp(scores[..., :1], scores[..., 1:])
        right = random.random(states.shape[:-1]) < np.exp(logs[..., 1])
        fallen, finished = carts.push(right)
        # An episode that was cut off would have gone on.
        rest = finished * predict(carts.states)[1] if finished.any() else np.zeros(right.shape)
        log = np.where(right, logs[..., 1], logs[..., 0])
        ended = fallen | finished
        seen.append((states, right, log, values, 1.0 + DISCOUNT * rest, ended))
        returns.append(np.where(ended, carts.ages, 0))
        carts.renew(ended)
    return [np.stack(each, 2) for each in zip(*seen, strict=True)], np.stack(returns, 2)


def advantages(values, rewards, ended, last):
    """How much better than expected each push was."""
    found, following = np.zeros_like(values), last
    total = np.zeros_like(last)
    for push in reversed(range(values.shape[2])):
        goes_on = ~ended[..., push]
        surprise = rewards[..., push] + DISCOUNT * goes_on * following - values[..., push]
        total = surprise + DISCOUNT * SMOOTHING * goes_on * total
        found[..., push], following = total, values[..., push]
    return found


def tested(predict, seeds, episodes):
    """The mean return of each member, which takes the better push each time."""
    carts = Carts((seeds, episodes), 1234)
    returns, running = np.zeros((seeds, episodes)), np.ones((seeds, episodes), bool)
    while running.any():
        fallen, finished = carts.push(predict(carts.states)[0].argmax(-1) == 1)
        returns += running
        running &= ~(fallen | finished)
    return returns.mean(axis=1)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Balance a pole, with several seeds at once.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rollouts", type=int, default=120)
    parser.add_argument("--engine", default="cpu")
    options = parser.parse_args(argv)

    seeds, steps = options.seeds, options.rollouts * ROUNDS * CARTS * PUSHES // BATCH
    population = lm.Population(make_network(), seeds, options.engine)
    rate = lm.schedules.Linear(2.5e-3, steps)
    example = lm.data.Dataset(
        np.zeros((1, 4), "float32"), (np.zeros(1, int), *np.zeros((3, 1), "float32"))
    )
    training = population.training(
        ppo, lm.Adam(rate), BATCH, clip=lm.ClipGlobalNorm(0.5), data=example
    )
    predictors = {}

    def predict(states):
        """The outputs of each member for its own states, (members, carts, ...).

        As `population.predict`, by predictors, which do little besides the arithmetic.
        """
        count = states.shape[1]
        if count not in predictors:
            predictors[count] = [member.predictor(batch_size=count) for member in population]
        each = zip(predictors[count], states, strict=True)
        return [np.stack(outputs) for outputs in zip(*(p(x) for p, x in each), strict=True)]

    random, carts, latest = np.random.default_rng(0), Carts((seeds, CARTS), 0), []
    for rollout in range(options.rollouts):
        (states, right, log, values, rewards, ended), returns = play(carts, predict, random)
        gains = advantages(values, rewards, ended, predict(carts.states)[1])
        arrays = [states, right.astype(int), gains, log, gains + values]
        states, right, gains, log, wanted = (
            array.reshape(seeds, CARTS * PUSHES, *array.shape[3:]) for array in arrays
        )
        gains = (gains - gains.mean(1, keepdims=True)) / (gains.std(1, keepdims=True) + 1e-8)
        numeric = [array.astype("float32") for array in (gains, log, wanted)]
        for _ in range(ROUNDS):
            for rows in random.permutation(CARTS * PUSHES).reshape(-1, BATCH):
                targets = (right[:, rows], *(array[:, rows] for array in numeric))
                training.step(states[:, rows], targets)
        in_order = np.moveaxis(returns, 2, 0)
        latest = np.concatenate([latest, in_order[in_order > 0]])[-100:]
        if rollout % 20 == 19:
            print(f"after {rollout + 1} rollouts: mean of the last returns {latest.mean():.0f}")

    final = tested(predict, seeds, 10)
    print("returns of the seeds:", " ".join(f"{value:.0f}" for value in final))
    print(f"mean return {final.mean():.0f}, the least {final.min():.0f}")


if __name__ == "__main__":
    main()
