"""A search of your own training loop in one call, its space in Python, with Optuna's distributions if you like. What
trains may be a script, as here, `FILE:function`, or a function itself."""

from pathlib import Path

from optuna.distributions import FloatDistribution

from tune.own_space import choice, floats, integers
from tune.settings import Settings
from tune.study import search

SPACE = {
    "cell": choice("lstm", "gru"),
    "width": integers(16, 256, log=True),
    "layers": choice(1, 2, 3),
    "dropout": floats(0.0, 0.3, when={"layers": (2, 3)}),
    "rate": FloatDistribution(3e-4, 3e-2, log=True),
}

if __name__ == "__main__":
    train = Path(__file__).with_name("own_loop.py")
    result = search(Settings(budget="10m", train=train, space=SPACE, metric="loss", life=2000))
    print(result)  # a pandas DataFrame: best_loss, the configurations, and what else was reported
