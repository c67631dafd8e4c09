"""What is aimed at, and how a run is told: the targets, each with its measure, and the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from bench.measures import Effects, Growth, Run, Spread

NOT_RUN = "not in this run"


Measure: TypeAlias = Callable[[Run], float | None]


def _nothing(run: Run) -> None:
    """Of what has no such program."""
    del run


class Target(NamedTuple):
    """One line of the targets.

    Attributes:
        what: what is measured.
        sign: `<=` or `>=`: what the figure has to be to what is wanted.
        wanted: the target.
        best: the best conceivable figure, or None where none was named.
        unit: of the figures; "x" for a ratio.
        measure: finds the figure in a run; None if it is not there.
        key: under which `Run.absent` says why it is not there.
        least: the same of the least program of the same duties (`bench.standin`), in the same run.
    """

    what: str
    sign: str
    wanted: float
    best: float | None
    unit: str
    measure: Measure
    key: str
    least: Measure = _nothing

    def verdict(self, run: Run) -> str:
        """`met`, `MISSED`, or why there is no figure."""
        found = self.measure(run)
        if found is None:
            return run.absent.get(self.key, NOT_RUN)
        return "met" if (found <= self.wanted if self.sign == "<=" else found >= self.wanted) else "MISSED"


def _effects(key: str, figure: Callable[[Effects], float]) -> Measure:
    return lambda run: next((figure(one) for one in run.effects if one.key == key), None)


def _standin(key: str, figure: Callable[[Effects], float]) -> Measure:
    return lambda run: next((figure(one) for one in run.standin if one.key == key), None)


def _ratio(one: Effects) -> float:
    return one.x_three_syncs.mid


def _speed(one: Effects) -> float:
    return one.effects_per_s.mid


def _p99_ms(one: Effects) -> float:
    return one.effect_p99_us / 1e3


def _of_growth(figure: Callable[[Growth], float]) -> Callable[[Run], float | None]:
    """The largest figure of the logs, divided by the least."""

    def find(run: Run) -> float | None:
        found = [figure(one) for one in run.growth]
        return max(found) / min(found) if len(found) > 1 else None

    return find


def _pages(one: Growth) -> float:
    return one.pages_per_commit


def _time(one: Growth) -> float:
    return one.x_three_syncs.mid


def _restart_ms(run: Run) -> float | None:
    return run.restart.cold_total_ms.mid if run.restart else None


def _replay(run: Run) -> float | None:
    return run.replay.steps_per_s.mid if run.replay else None


def _import_ms(run: Run) -> float | None:
    return run.imported.used_ms.mid if run.imported else None


def _frameworks(run: Run) -> float | None:
    return float(len(run.imported.frameworks)) if run.imported else None


def _bytes(run: Run) -> float | None:
    return run.size.bytes_per_effect if run.size else None


def _mcp_ms(run: Run) -> float | None:
    return run.mcp.added_beyond_syncs_ms.mid if run.mcp else None


def _mcp_standin_ms(run: Run) -> float | None:
    return run.mcp.standin_added_beyond_syncs_ms.mid if run.mcp else None


PG = "postgresql"
TARGETS = (
    Target(
        "one effect, sync, median / three raw syncs",
        "<=",
        1.25,
        1.10,
        "x",
        _effects("sync", _ratio),
        "effects",
        _standin("sync", _ratio),
    ),
    Target("the same, asyncio", "<=", 1.40, 1.20, "x", _effects("asyncio-1", _ratio), "effects"),
    Target(
        "asyncio, 64 at once",
        ">=",
        25_000,
        40_000,
        "effects/s",
        _effects("asyncio-64", _speed),
        "effects",
        _standin("asyncio-64", _speed),
    ),
    Target(
        "asyncio, 512 at once",
        ">=",
        35_000,
        70_000,
        "effects/s",
        _effects("asyncio-512", _speed),
        "effects",
        _standin("asyncio-512", _speed),
    ),
    Target(
        "asyncio, 4,096 at once",
        ">=",
        35_000,
        60_000,
        "effects/s",
        _effects("asyncio-4096", _speed),
        "4096",
        _standin("asyncio-4096", _speed),
    ),
    Target(
        "p99 of an effect at 512",
        "<=",
        35,
        15,
        "ms",
        _effects("asyncio-512", _p99_ms),
        "effects",
        _standin("asyncio-512", _p99_ms),
    ),
    Target("64 threads", ">=", 10_000, 16_000, "effects/s", _effects("threads-64", _speed), "effects"),
    Target("PostgreSQL, one effect / three prepared commits", "<=", 1.3, 1.1, "x", _effects("pg-1", _ratio), PG),
    Target("PostgreSQL, 512 at once", ">=", 8_000, 25_000, "effects/s", _effects("pg-512", _speed), PG),
    Target("pages per commit, largest / least of the logs", "<=", 1.05, None, "x", _of_growth(_pages), "growth"),
    Target("an effect's time, the same", "<=", 1.15, None, "x", _of_growth(_time), "growth"),
    Target("open + restart scan, 100 open, longest log, cold", "<=", 50, 10, "ms", _restart_ms, "growth"),
    Target("replay of recorded steps", ">=", 150_000, 400_000, "steps/s", _replay, "small"),
    Target("import intentlog and its Log, interpreter start excluded", "<=", 60, 35, "ms", _import_ms, "small"),
    Target("frameworks that it imports", "<=", 0, 0, "", _frameworks, "small"),
    Target("log bytes per effect, small arguments", "<=", 1024, 600, "bytes", _bytes, "small"),
    Target("MCP guard, added to a call beyond three raw syncs", "<=", 0.3, None, "ms", _mcp_ms, "mcp", _mcp_standin_ms),
)


# --- as text ---------------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """A figure with as many digits as say something."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def around(value: Spread) -> str:
    """A figure with its least and largest round."""
    return f"{number(value.mid)} ({number(value.low)} to {number(value.high)})"


def columns(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lines of a table; the first column stands left, the others right."""
    cells = [head, *rows]
    widths = [max(len(row[place]) for row in cells) for place in range(len(head))]
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((row[0].ljust(widths[0]), *rest)).rstrip()


def _targets(run: Run) -> Iterator[str]:
    yield "Targets"
    rows: list[tuple[str, ...]] = []
    for one in TARGETS:
        found = number(one.measure(run))
        wanted = f"{one.sign} {number(one.wanted)}"
        rows.append((one.what, found, wanted, number(one.best), number(one.least(run)), one.unit, one.verdict(run)))
    yield from columns(("", "measured", "target", "best conceivable", "stand-in", "unit", ""), rows)
    yield "The stand-in: the least program of the same duties, in this run: what this CPU and disk leave any other."


def _effects_table(run: Run) -> Iterator[str]:
    yield "Effects (ratio: time per effect / three raw syncs taken in between; in brackets the least and largest round)"
    told = [*((one.key, one) for one in run.effects), *((f"stand-in, {one.key}", one) for one in run.standin)]
    rows = (
        (
            name,
            around(one.effects_per_s),
            around(one.x_three_syncs),
            number(one.effect_p50_us),
            number(one.effect_p99_us),
            number(one.sync_p50_us),
            f"{one.commits_per_effect:.3f}",
            f"{one.syncs_per_effect:.3f}",
        )
        for name, one in told
    )
    head = ("", "effects/s", "x three syncs", "p50 us", "p99 us", "raw sync us", "commits/effect", "syncs/effect")
    yield from columns(head, rows)


def _growth_table(run: Run) -> Iterator[str]:
    yield "A log's length"
    rows = (
        (
            f"{one.records:,} records",
            f"{one.file_mib:,.0f}",
            around(one.x_three_syncs),
            number(one.effect_p50_us),
            number(one.effect_p99_us),
            f"{one.pages_per_commit:.2f}",
        )
        for one in run.growth
    )
    yield from columns(("", "MiB", "x three syncs", "p50 us", "p99 us", "pages/commit"), rows)
    if run.restart:
        found = run.restart
        yield (
            f"restart at {found.records:,} records, {found.open_intents} open: open {around(found.warm_open_ms)} ms, "
            f"scan {around(found.warm_scan_ms)} ms; cold, both {around(found.cold_total_ms)} ms; "
            f"the first recover() {number(found.recover_ms)} ms"
        )


def _small(run: Run) -> Iterator[str]:
    yield "Small things"
    if run.replay:
        yield f"replay: {around(run.replay.steps_per_s)} steps/s"
    if run.imported:
        found = run.imported
        yield f"import: alone {around(found.import_ms)} ms, with Log and tool {around(found.used_ms)} ms"
        yield f"loaded from outside by then: {', '.join(found.outside)}"
        yield f"the slowest modules of it: {', '.join(found.slowest)}"
    if run.size:
        yield f"log bytes per effect: {run.size.bytes_per_effect:.0f}"


def _mcp(run: Run) -> Iterator[str]:
    yield "The MCP guard between pipes (medians, in turn on the same disk)"
    if run.mcp:
        one = run.mcp
        yield (
            f"a call: direct {number(one.direct_p50_us)} us, guarded {number(one.guarded_p50_us)} us "
            f"(p99 {number(one.guarded_p99_us)}), by the stand-in {number(one.standin_p50_us)} us; three raw syncs "
            f"{number(one.three_syncs_p50_us)} us; the same effect by the library alone {number(one.effect_p50_us)} us"
        )
        yield (
            f"added beyond three raw syncs: {around(one.added_beyond_syncs_ms)} ms, "
            f"by the stand-in {around(one.standin_added_beyond_syncs_ms)} ms"
        )


def _peers_table(run: Run) -> Iterator[str]:
    yield "Others (an effect that does nothing; syncs counted by strace in a run of their own)"
    rows: list[tuple[str, ...]] = []
    for peer in run.peers:
        name = f"{peer.name} on {peer.store}"
        for one in peer.figures:
            speed, ratio, syncs = around(one.effects_per_s), around(one.x_three_syncs), one.syncs_per_effect
            counted = "-" if syncs is None else f"{syncs:.2f}"
            latency = number(one.effect_p50_us), number(one.effect_p99_us), number(one.sync_p50_us)
            rows.append((f"{name}, {one.kind}", speed, ratio, *latency, counted))
    yield from columns(("", "effects/s", "x three syncs", "p50 us", "p99 us", "raw sync us", "syncs/effect"), rows)
    for peer in run.peers:
        wanting = "its syncs" if peer.figures else "all of it"
        absent = f"; NOT MEASURED ({wanting}): {peer.absent}" if peer.absent else ""
        yield f"{peer.name} {peer.version}, {peer.store}: {peer.what}{absent}"


def _parts_table(run: Run) -> Iterator[str]:
    whole = run.parts[0].p50_us
    yield "Where the time of a lone effect goes (medians; each part timed alone, in turn)"
    rows = ((one.what, number(one.p50_us), f"{100 * one.p50_us / whole:.0f} %") for one in run.parts)
    yield from columns(("", "us", "share"), rows)


def text(run: Run) -> str:
    """Everything that was measured, for a person."""
    found = run.machine
    where = f"{found.cpus} CPUs, load {found.load_1_min}, {found.kernel}, {found.file_system}, {found.python}"
    head = [f"{where}, SQLite {found.sqlite} (apsw {found.apsw}){'; a quick run' if run.quick else ''}"]
    floors = ((one.when, number(one.sync_p50_us), number(one.sync_p99_us), number(one.python_us)) for one in run.floors)
    head += ["", "Raw floor: 1 KiB written over a file, one sync; and the CPU: a small json.dumps"]
    head += columns(("", "p50 us", "p99 us", "json.dumps us"), floors)
    parts: list[tuple[object, Callable[[Run], Iterator[str]]]] = [
        (run.effects, _effects_table),
        (run.growth, _growth_table),
        (run.size, _small),
        (run.mcp, _mcp),
        (run.peers, _peers_table),
        (run.parts, _parts_table),
    ]
    for measured, told in parts:
        head += ["", *told(run)] if measured else []
    if run.effects or run.growth or run.size or run.mcp:
        head += ["", *_targets(run)]
        missed = [one.what for one in TARGETS if one.verdict(run) == "MISSED"]
        head += ["", f"Missed: {'; '.join(missed) or 'none'}"]
    return "\n".join(head) + "\n"
