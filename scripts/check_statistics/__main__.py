"""How often asr-compare is wrong: simulated runs whose true WERs are known, compared as real ones are.

Run:  python scripts/check_statistics [REPETITIONS]

Prints a table per question, in % of simulated comparisons; a cell is marked with ``!`` if chance alone would
hardly ever raise it so far above 5 %, see ``Cell.holds``. Exits with 1 if any is.
"""

from __future__ import annotations

import argparse
import sys

from cells import print_table
from means import mean_rows, winner_rows
from pairs import power_rows, table_rows
from reports import (
    dependence_rows,
    failure_rows,
    omnibus_rows,
    reliability_rows,
    table_of_counts_rows,
    unknown_rows,
)
from seeds import seed_rows
from targets import target_power_rows, target_rows
from tuning import tuning_rows
from worlds import NOISY, UNEQUAL, UNSTABLE, WORLDS

# the most that are equal, and two equal ones among others that are found different first
EXTREMES = ("none", "all but two, far")


def main(num: int) -> int:
    """Print all tables; return 1 if any cell does not hold."""
    few = max(1, num // 10)
    tables = {
        "Means of one system": mean_rows([*WORLDS, *UNEQUAL], 5 * num),
        "The best system's mean": winner_rows(WORLDS, num),
        "All pairs": table_rows(WORLDS, (2, 3, 4, 8), num),
        "All pairs, speakers few or of different sizes": table_rows(UNEQUAL, (2, 4, 8), num, differing=EXTREMES),
        "All pairs, systems that vary ten times as much": table_rows(NOISY, (3, 4, 8), num),
        "All pairs, systems with ten times the standard deviation": table_rows(
            UNSTABLE, (4, 8), few, differing=EXTREMES
        ),
        "Pairs with the baseline alone": table_rows(
            [*WORLDS, *NOISY[:15]], (3, 8), num, differing=EXTREMES, only_with=0
        ),
        "Times to a target, and WERs at equal time": seed_rows(num),
        "Any difference between systems, over seeds": omnibus_rows(num),
        "Runs that learn nothing": failure_rows(few),
        "Hypotheses that depend on the audio": dependence_rows(few),
        "How many runs learned": reliability_rows(num),
        "Speakers who are not named": unknown_rows(few),
        "Counts that come from a table": table_of_counts_rows(few),
        "Systems that are tuned alike": tuning_rows(num),
        "The benchmark: a target that half of the runs miss": target_rows(few),
        "The benchmark: one better system": target_power_rows(few),
        "A system that is better by three standard deviations of the seeds": power_rows(num),
    }
    print(f"{num} repetitions, {few} of whole comparisons; % of comparisons")
    failed = [row for title, rows in tables.items() for row in print_table(title, rows)]
    print("\nDoes not hold:\n" + "\n".join(failed) if failed else "\nEverything holds.")
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repetitions", nargs="?", type=int, default=2000, help="simulated comparisons of each cell")
    sys.exit(main(parser.parse_args().repetitions))
