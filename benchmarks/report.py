"""What was measured, as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.driver import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = 24


def heading(names: Sequence[str]) -> str:
    """The columns of `line`."""
    cells = [f"{'case':{NAME}}", *(f"{n[:11]:>11} " for n in names)]
    return " ".join([*cells, f"{'ratio':>6}", f"{'best peer':>13}", f"{'limit':>6}", f"{'cold':>8}", f"{'cached':>8}"])


def line(row: Row, names: Sequence[str]) -> str:
    """One row: microseconds, `!` where the result is wrong."""
    cells = [f"{row.case:{NAME}.{NAME}}"]
    for n in names:
        mark = "!" if n in row.wrong else " "
        cells.append(f"{row.seconds[n] * 1e6:11.1f}{mark}" if n in row.seconds else f"{'-':>11} ")
    cells.append(_or_dash(row.ratio, "6.2f", 6))
    cells.append(f"{row.best[0] if row.best else '-':>13}")
    cells.append(_or_dash(None if row.share is None else 100 * row.share, "5.0f", 5) + ("%" if row.share else " "))
    cells.append(_or_dash(row.compile.get("ours"), "7.2f", 7) + "s")
    cells.append(_or_dash(row.cached, "7.2f", 7) + "s")
    return " ".join(cells)


def notes(row: Row) -> list[str]:
    """What goes under a row: why ours is missing, and the memory that a model took."""
    lines = [f"    ours: {row.absent['ours']}"] if "ours" in row.absent else []
    if row.memory:
        used = ", ".join(f"{n} {b / 2**20:.0f} MiB" for n, b in row.memory.items())
        lines.append(f"    most memory of the process: {used}")
    return lines


def _or_dash(value: float | None, form: str, width: int) -> str:
    return f"{'-':>{width}}" if value is None else format(value, form)


def mean_ratio(rows: Sequence[Row]) -> tuple[int, float] | None:
    """How many rows have a ratio, and the geometric mean."""
    ratios = [r for row in rows if (r := row.ratio) is not None]
    return (len(ratios), exp(sum(map(log, ratios)) / len(ratios))) if ratios else None


def summary(rows: Sequence[Row]) -> str:
    """The geometric mean against the best peer and against each, and the rows that are behind."""
    found = mean_ratio(rows)
    if found is None:
        return "no ratio: ours or every peer is missing"
    lines = [f"ours over the best peer, geometric mean of {found[0]}: {found[1]:.3f}"]
    behind = sorted((r for r in rows if (r.ratio or 0) > 1.05), key=lambda r: -(r.ratio or 0))
    lines.append(
        f"more than 5 % behind the best: {len(behind)}"
        + (": " if behind else "")
        + ", ".join(f"{r.case} {r.ratio:.2f}" for r in behind)
    )
    for name in sorted({n for r in rows for n in r.peers}):
        both = [(r.seconds["ours"], r.peers[name]) for r in rows if name in r.peers and "ours" in r.seconds]
        if both:
            mean = exp(sum(log(a / b) for a, b in both) / len(both))
            lines.append(f"  over {name}: {mean:.3f} ({len(both)} cases)")
    return "\n".join(lines)


def write_json(path: Path, rows: Sequence[Row], facts: Mapping[str, object]) -> None:
    """All figures: seconds, bytes, operations a second."""
    extra = [{"ratio": r.ratio, "limit_share": r.share, "best": r.best[0] if r.best else None} for r in rows]
    entries = [asdict(r) | e for r, e in zip(rows, extra, strict=True)]
    path.write_text(json.dumps({"facts": facts, "rows": entries}, indent=1) + "\n")


def read_json(path: Path) -> list[Row]:
    """The rows that `write_json` wrote; none where there is no such file."""
    if not path.exists():
        return []
    names = {f.name for f in fields(Row)}
    entries: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    for entry in entries:
        entry["wrong"] = tuple(entry["wrong"])
    return [Row(**{n: v for n, v in e.items() if n in names}) for e in entries]


def draw(path: Path, rows: Sequence[Row], facts: Mapping[str, object]) -> None:
    """Two bars a case and number of threads: time relative to the best peer, and the share of the limit reached."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.fonttype"] = "none"
    threads = sorted({r.threads for r in rows})
    names = list(dict.fromkeys(r.case for r in rows))
    figure = Figure(figsize=(11, 1.6 + 0.2 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    height = 0.8 / len(threads)
    for k, count in enumerate(threads):
        mine = {r.case: r for r in rows if r.threads == count}
        places = {n: y + (k - (len(threads) - 1) / 2) * height for y, n in enumerate(names)}
        label = f"{count} thread{'s' * (count > 1)}"
        _ratios(left, mine, places, height, ("#1f5a93", "#7fb2de")[k % 2], label)
        shares = [(places[n], 100 * s) for n, r in mine.items() if (s := r.share) is not None]
        right.barh(
            [y for y, _ in shares], [s for _, s in shares], height, color=("#2c7a4b", "#8fcaa6")[k % 2], label=label
        )
    left.set_yticks(range(len(names)), names, fontsize=7)
    left.set_ylim(len(names) - 0.4, -0.6)
    ratios = [r.ratio for r in rows if r.ratio]
    left.set_xlim(min([0.2, *(x / 1.1 for x in ratios)]), max([20.0, *(x * 1.1 for x in ratios)]))
    left.set_xlabel("time / time of the best peer (1 = as fast; left of it is faster)")
    right.set_xlabel("percent of what the machine allows")
    most = max((100 * r.share for r in rows if r.share is not None), default=100)
    right.set_xlim(0, max(110, 1.04 * most))  # a kernel may be above the bandwidth that was measured
    for axes in (left, right):
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    right.axvline(100, color="black", linewidth=1)
    if len(threads) > 1:
        for axes in (left, right):
            axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(threads), frameon=False)
    figure.suptitle(_title(rows, facts), fontsize=10)
    figure.savefig(path, dpi=110)


def _ratios(
    axes: Axes, rows: Mapping[str, Row], places: Mapping[str, float], height: float, colour: str, label: str
) -> None:
    """Bars from 1 on a logarithmic scale, the other peers as ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    found = {n: r for n, r in rows.items() if r.ratio is not None}
    axes.set_xscale("log")
    axes.barh(
        [places[n] for n in found], [(r.ratio or 1) - 1 for r in found.values()], height, left=1, color=colour,
        label=label,
    )  # fmt: skip
    ticks = [(t / r.best[1], places[n]) for n, r in found.items() if r.best for t in r.peers.values()]
    axes.plot([x for x, _ in ticks], [y for _, y in ticks], "|", color="#888888", markersize=4, zorder=1)
    axes.axvline(1, color="black", linewidth=1)
    axes.xaxis.set_major_locator(FixedLocator([d * 10.0**k for k in range(-4, 5) for d in (1, 2, 5)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _title(rows: Sequence[Row], facts: Mapping[str, object]) -> str:
    parts: list[str] = []
    for count in sorted({r.threads for r in rows}):
        found = mean_ratio([r for r in rows if r.threads == count])
        if found:
            label = f"{count} thread{'s' * (count > 1)}"
            parts.append(f"{label}: {found[1]:.2f} of the best peer (geometric mean, {found[0]} cases)")
    commit = f"commit {facts['commit']}" if facts.get("commit") else ""
    run = ", ".join(str(part) for part in (facts.get("processor"), facts.get("date"), commit) if part)
    peers = ", ".join(sorted({n for r in rows for n in r.seconds if n != "ours"}))
    return f"{run}\n{'; '.join(parts)}\ngrey ticks: other peers, of {peers or 'which there are none'}"
