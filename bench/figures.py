"""Draws a run: one PNG for each thing that a picture tells better than a table."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.measures import Run
from bench.table import TARGETS, number

_SIZE_INCHES = (8, 4.5)
_DPI = 120
# Loaded by name, since only the bench's own environment has it: the checkers of the project run without.
_PYPLOT = "matplotlib.pyplot"


def _pyplot() -> Any:
    import_module("matplotlib").use("Agg")
    return import_module(_PYPLOT)


def _axes(plot: Any, title: str) -> tuple[Any, Any]:
    figure, axes = plot.subplots(figsize=_SIZE_INCHES, layout="constrained")
    axes.set_title(title)
    return figure, axes


def _targets(plot: Any, run: Run) -> Any:
    """Each figure as a part of its target: left of the line is met."""
    found = [(one, one.measure(run)) for one in TARGETS if one.wanted]
    shown = [(one, value) for one, value in found if value]
    figure, axes = _axes(plot, "Measured against the targets: to the left of the line is met")
    parts = [value / one.wanted if one.sign == "<=" else one.wanted / value for one, value in shown]
    colours = ["tab:green" if part <= 1 else "tab:red" for part in parts]
    axes.barh([one.what for one, _ in shown], parts, color=colours)
    axes.axvline(1.0, color="black")
    axes.set_xscale("log")
    for place, (one, value) in enumerate(shown):
        axes.text(parts[place], place, f" {number(value)} {one.unit}", va="center", fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    return figure


def _at_once(plot: Any, run: Run) -> Any:
    figure, axes = _axes(plot, "Guarded effects per second")
    for kind in ("threads", "asyncio"):
        points = [one for one in run.effects if one.key.startswith(f"{kind}-")]
        mids = [one.effects_per_s.mid for one in points]
        spans = [
            [one.effects_per_s.mid - one.effects_per_s.low for one in points],
            [one.effects_per_s.high - one.effects_per_s.mid for one in points],
        ]
        axes.errorbar([one.at_once for one in points], mids, yerr=spans, marker="o", capsize=3, label=kind)
    wanted = [(64, 25_000), (512, 35_000), (4096, 35_000)]
    axes.plot([at for at, _ in wanted], [speed for _, speed in wanted], "kx", label="target, asyncio")
    axes.plot([64], [10_000], "k+", label="target, threads")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("at once")
    axes.legend()
    return figure


def _growth(plot: Any, run: Run) -> Any:
    figure, axes = _axes(plot, "An effect's cost as the log grows")
    records = [one.records for one in run.growth]
    axes.plot(records, [one.x_three_syncs.mid for one in run.growth], marker="o", label="time / three raw syncs")
    axes.fill_between(
        records,
        [one.x_three_syncs.low for one in run.growth],
        [one.x_three_syncs.high for one in run.growth],
        alpha=0.2,
    )
    axes.plot(records, [one.pages_per_commit for one in run.growth], marker="s", label="pages per commit")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("records in the log")
    axes.legend()
    return figure


def _peers(plot: Any, run: Run) -> Any:
    figure, axes = _axes(plot, "Others: time per effect / three raw syncs (shorter is faster)")
    shown = [peer for peer in run.peers if peer.figures]
    for offset, place in ((-0.2, 0), (0.2, 1)):
        of_kind = [peer.figures[place] for peer in shown if len(peer.figures) > place]
        rows = [row + offset for row, peer in enumerate(shown) if len(peer.figures) > place]
        bars = axes.barh(rows, [one.x_three_syncs.mid for one in of_kind], height=0.38)
        if of_kind:
            bars.set_label(of_kind[0].kind)
        for row, one in zip(rows, of_kind, strict=True):
            syncs = "?" if one.syncs_per_effect is None else f"{one.syncs_per_effect:.1f}"
            told = f" {syncs} syncs, {number(one.effects_per_s.mid)} effects/s"
            axes.text(one.x_three_syncs.mid, row, told, va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), [f"{peer.name}\n{peer.store}" for peer in shown], fontsize=8)
    axes.set_xscale("log")
    axes.margins(x=0.3)
    axes.invert_yaxis()
    axes.legend()
    return figure


def draw(run: Run, folder: Path) -> list[Path]:
    """Write the pictures of what was measured into the folder, and say which."""
    plot = _pyplot()
    pictures: list[tuple[str, object, Callable[[Any, Run], Any]]] = [
        ("targets", run.effects, _targets),
        ("at-once", run.effects, _at_once),
        ("growth", run.growth, _growth),
        ("peers", run.peers, _peers),
    ]
    written: list[Path] = []
    for name, measured, drawn in pictures:
        if measured:
            figure = drawn(plot, run)
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=_DPI)
            plot.close(figure)
    return written
