"""`python -m tests.sim.plants NAME` prints the seeds, from 1 on, that find this planted bug."""

from __future__ import annotations

import argparse

from dispatcher.sim.campaign import run_scenario
from tests.sim.plants import PLANTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PLANTS, metavar="NAME", help="of the planted bug")
    parser.add_argument("--seeds", type=int, default=1_000, metavar="N", help="how many are tried")
    chosen = parser.parse_args()
    planted = PLANTS[chosen.name]
    for seed in range(1, chosen.seeds + 1):
        if run_scenario(planted.scenario(seed), plants=[planted.plant]).checker in planted.checkers:
            print(seed, flush=True)


if __name__ == "__main__":
    main()
