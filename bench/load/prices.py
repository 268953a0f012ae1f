"""What machines cost, by name: a table of dollars per hour that its user replaces by his own."""

import csv
import re
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "data" / "prices.csv"
COUNTED = re.compile(r"(?:(\d+)x)?(.+)")


def price_of(machine: str, table: Path | None = None) -> float:
    """USD per hour of `h100` or `8xh100`. OSError; ValueError for a name that is not there."""
    path = table or SHIPPED
    prices = read_prices(path)
    found = COUNTED.fullmatch(machine)
    assert found is not None, "any name is one machine of that name"
    count, name = int(found[1] or 1), found[2]
    if machine in prices:
        count, name = 1, machine
    if name not in prices:
        raise ValueError(f"{machine}: not in {path}, which has {', '.join(sorted(prices))}")
    return count * prices[name]


def read_prices(path: Path) -> dict[str, float]:
    """name -> USD per hour. Lines that begin with # are comments."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    try:
        prices = {row["name"]: float(row["usd_per_hour"]) for row in rows}
    except (KeyError, TypeError, ValueError):
        prices = {}
    if not prices or not all(0 < price < 1e6 for price in prices.values()):
        raise ValueError(f"{path}: a price table has the columns name,usd_per_hour")
    return prices
