"""`torchrun … -m trainer --config FILE [--field=value …]`: one rank of a training run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.config import ConfigError, TrainerConfig
from trainer.endings import DIVERGED, INTERRUPTED, MISTAKEN, InterruptedRunError, NonFiniteError, StopSignal
from trainer.schedule import gradient_accumulation_steps, mesh_axes


def main(arguments: Sequence[str]) -> int:
    """Run this rank.

    Returns:
        The exit status: 0 finished, 1 a loss that is no number, 2 a user's mistake, 143 interrupted by SIGTERM after
        saving.
    """
    stop = StopSignal()
    try:
        config = _load(arguments)
        from trainer.ranks import check_environment  # torch comes after the config is known to be good

        check_environment(config)
        _check_world(config)
        from trainer.loop import train

        return train(config, stop)
    except InterruptedRunError:
        return INTERRUPTED
    except NonFiniteError as error:
        # Every rank tells its own rows, since one of them is to blame.
        print(error, file=sys.stderr)
        return DIVERGED
    except ConfigError as error:
        # Once a node is enough: every rank finds the same.
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(error, file=sys.stderr)
        return MISTAKEN


def _load(arguments: Sequence[str]) -> TrainerConfig:
    match list(arguments):
        case ["--config", path, *flags]:
            return TrainerConfig.load(Path(path), flags)
        case [first, *flags] if first.startswith("--config="):
            return TrainerConfig.load(Path(first.removeprefix("--config=")), flags)
    raise ConfigError("usage: torchrun … -m trainer --config FILE [--field=value …]; name the run's YAML file first")


def _check_world(config: TrainerConfig) -> None:
    world_size = int(os.environ["WORLD_SIZE"])
    gradient_accumulation_steps(
        global_batch_size=config.global_batch_size, micro_batch_size=config.micro_batch_size, world_size=world_size
    )
    mesh_axes(config.strategy, world_size=world_size, shard_group_size=config.shard_group_size)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
