"""How often asr-compare is wrong, and what it finds: runs are simulated, so that true error rates are known.

Run:  python scripts/check_statistics [REPETITIONS]      (1000: about 15 minutes of CPU time)

Prints a table per question, in % of simulated comparisons at 97.5 % unless a column says 95 %; a cell is marked with
``!`` if it is more than two standard errors off what is allowed, also with four times the repetitions. Exits with 1
if any is.
"""

from __future__ import annotations

import argparse
import sys
import time

from cells import print_table
from others import dependence_rows, reliability_rows, single_rows, tuning_rows, unknown_rows
from power import look_rows, rival_rows, scale_rows, seed_rows, target_rows
from seeds import time_rows
from tables import claim_rows, excluded_rows
from targets import race_power_rows, race_rows


def main(num: int) -> int:
    """Print all tables; return 1 if any cell does not hold."""
    few = max(1, num // 10)
    tables = {
        "To reach: one better system of ten, on 40 speakers, log WERs that vary by 0.2 over seeds": target_rows(num),
        "How many seeds": seed_rows(num),
        "Seeds in two looks": look_rows(num),
        "Ratios or points": scale_rows(few),
        "What is claimed": claim_rows(num),
        "What the claims exclude": excluded_rows(num),
        "Times to a target, and WERs at equal time": time_rows(num),
        "Single runs of a table": single_rows(num),
        "How many runs learned": reliability_rows(num),
        "Hypotheses that depend on the audio": dependence_rows(few),
        "Speakers who are not named": unknown_rows(few),
        "Systems that are tuned alike": tuning_rows(num),
        "The benchmark: an entry that equals the baseline": race_rows(num),
        "The benchmark: a better entry": race_power_rows(few),
        "Power beside other methods": rival_rows(num, few),
    }
    print(f"{num} repetitions, {few} where a column has no limit or a method is slow; % of comparisons")
    failed = [row for title, rows in tables.items() for row in print_table(title, rows)]
    print("\nDoes not hold:\n" + "\n".join(failed) if failed else "\nEverything holds.")
    print(f"\n{time.process_time() / 60:.0f} minutes of CPU time")
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repetitions", nargs="?", type=int, default=1000, help="simulated comparisons of each cell")
    sys.exit(main(parser.parse_args().repetitions))
