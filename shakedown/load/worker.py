"""One load process: `python -m shakedown.load.worker PLAN BOARD`, started by `Processes` and by nothing else."""

import os
import pickle
import sys
from pathlib import Path

import uvloop

from shakedown.load.board import Board
from shakedown.load.crew import work


def main(plan_file: Path, board_file: Path) -> None:
    """Send one share of a load."""
    parent = os.getppid()
    plan, records, wall_offset = pickle.loads(plan_file.read_bytes())  # written by our own parent, private to it
    board = Board(board_file, plan.shares)
    uvloop.run(work(plan, Path(records), wall_offset, board, lambda: os.getppid() == parent))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
