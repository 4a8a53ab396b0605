"""How the figures of the experiments look: one style, and for every model one colour and marker wherever it is drawn.

Built on matplotlib's objects, without pyplot: nothing here changes a caller's figures or settings. A number that is not
there is None or NaN, and is left out of the drawing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from frigate.data.files import write_file
from frigate.errors import MissingExtraError
from frigate.experiments.table import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # noqa: PLC0414 - for `plots.Axes`
    from matplotlib.figure import Figure as Figure  # noqa: PLC0414

Numbers = Sequence[Any] | NDArray[Any]  # as they stand in a table: numbers and None

FIRST = "frigate (default)"  # drawn over all others
YARDSTICK = "own median (a sensor there)"  # not a baseline: its bar is hollow

# Label -> colour and marker. Near Okabe and Ito's colours, and told apart with each kind of colour blindness (a test
# computes it); what learns nothing is grey. No two share a marker, so that a grey print can be read as well.
LOOKS = {
    FIRST: ("#0072b2", "o"),
    "frigate (paper)": ("#56b4e9", "s"),
    "dcrnn": ("#d55e00", "^"),
    "stgcn": ("#cc79a7", "v"),
    "graphwavenet": ("#089e58", "D"),
    "stgode": ("#f7a600", "P"),
    "localegn": ("#8f0f7a", "X"),
    "stnn": ("#aabb54", "*"),
    "lightgbm": ("#6b2a12", "p"),
    "kriging": ("#2e2585", "h"),
    "zero": ("#bdbdbd", "x"),
    "constant median": ("#a6a6a6", "+"),
    "clock profile": ("#8c8c8c", "<"),
    "nearest sensors": ("#737373", ">"),
    "label propagation": ("#595959", "d"),
    YARDSTICK: ("#111111", "1"),
}
OTHER_COLOURS = ("#0072b2", "#d55e00", "#089e58", "#cc79a7", "#f7a600", "#8f0f7a", "#6b2a12", "#56b4e9")
OTHER_MARKERS = ("o", "^", "D", "v", "P", "X", "p", "s")
WIDTHS = {FIRST: 3.0, "frigate (paper)": 2.4}  # of lines, in points
WIDTH = 1.6
MAX_MARKED = 24  # points of a line; more markers would hide it

INK, SOFT = "#1b2430", "#5b6675"
STYLE = Path(__file__).with_name("plots.mplstyle")


@contextmanager
def _style() -> Iterator[None]:
    """Our settings and matplotlib's own for the rest, whatever the caller's are."""
    try:
        from matplotlib import style
    except ImportError:
        raise MissingExtraError("matplotlib", "reproduce") from None
    with style.context(STYLE, after_reset=True):
        yield


def figure(
    width: float = 7.0, height: float = 4.2, *, rows: int = 1, columns: int = 1, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """An empty figure of so many inches, and its axes row by row."""
    with _style():
        from matplotlib.figure import Figure

        made = Figure(figsize=(width, height), layout="constrained")
        return made, made.subplots(rows, columns, sharey=share_y, squeeze=False).ravel().tolist()


def colour(label: str) -> str:
    """The colour of a label: a model's own; darker for a variant of it ("DCRNN + roads"); for others one of eight."""
    base, plus, _ = label.partition(" + ")
    look = LOOKS.get(base.casefold())
    if look is None:
        return OTHER_COLOURS[crc32(label.encode()) % len(OTHER_COLOURS)]
    return _darker(look[0]) if plus else look[0]


def _darker(hex_colour: str) -> str:
    return "#" + "".join(f"{round(0.6 * int(hex_colour[at : at + 2], 16)):02x}" for at in (1, 3, 5))


def marker(label: str) -> str:
    """The marker of a label; a variant of a model has the model's."""
    look = LOOKS.get(label.partition(" + ")[0].casefold())
    return look[1] if look else OTHER_MARKERS[crc32(label.encode()[::-1]) % len(OTHER_MARKERS)]


def line(
    ax: Axes,
    x: Numbers,
    y: Numbers,
    *,
    label: str,
    low: Numbers | None = None,
    high: Numbers | None = None,
    dashed: bool = False,
) -> None:
    """A line in the label's colour, with an envelope from `low` to `high` where both are given."""
    xs, ys = _numbers(x), _numbers(y)
    width = WIDTHS.get(label.casefold(), WIDTH)
    with _style():
        ax.plot(
            xs, ys,
            label=label, color=colour(label), linestyle="--" if dashed else "-",
            linewidth=width, zorder=2 + width,
            marker=marker(label) if len(xs) <= MAX_MARKED else "", markersize=5.5,
        )  # fmt: skip
        if low is not None and high is not None:
            ends = _numbers(low), _numbers(high)
            ax.fill_between(xs, *ends, color=colour(label), alpha=0.14, linewidth=0, zorder=1 + width / 10)
        # Steps, minutes, layers: there is no step 2.5, and the hour is not divided into eights.
        if ax.get_xscale() == "linear" and len(xs) and np.all(xs == np.round(xs)):
            from matplotlib.ticker import MaxNLocator

            ax.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 3, 5, 6, 10]))


def bars(
    ax: Axes,
    names: Sequence[str],
    values: Numbers,
    *,
    low: Numbers | None = None,
    high: Numbers | None = None,
    colours: Sequence[str] | None = None,
) -> None:
    """A bar for every name, the first on top, its value at its end, beyond the whisker.

    `low` and `high` are the whiskers' ends, not lengths. A bar without a value is a dash.
    """
    lengths = _numbers(values)
    ends = np.stack([lengths if side is None else _numbers(side) for side in (low, high)])  # [2, bars]
    paint = [colour(name) for name in names] if colours is None else list(colours)
    filling = ["white" if name.casefold() == YARDSTICK else tone for name, tone in zip(names, paint, strict=True)]
    weights = ["bold" if name.casefold() == FIRST else "normal" for name in names]
    at = np.arange(len(names))
    with _style():
        ax.barh(at, np.nan_to_num(lengths), color=filling, edgecolor=paint, height=0.72)
        ax.set_yticks(at, names)
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.margins(x=0.17)
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
        if low is not None or high is not None:
            middle, half = ends.mean(axis=0), np.ptp(ends, axis=0) / 2
            for tone, width in (("white", 3.2), (INK, 1.2)):  # a white rim, or dark bars would hide them
                ax.errorbar(
                    middle, at, xerr=half, fmt="none", ecolor=tone, elinewidth=width, capthick=width, capsize=2 + width
                )
        for tick, weight in zip(ax.get_yticklabels(), weights, strict=False):  # inner panels that share names have none
            tick.set_fontweight(weight)
        beyond = np.nan_to_num(np.where(lengths < 0, *np.where(np.isnan(ends), lengths, ends)))
        for place, (end, text) in enumerate(zip(beyond, format_numbers(values), strict=True)):
            ax.annotate(
                text, (end, place), xytext=(-5 if end < 0 else 5, 0), textcoords="offset points",
                ha="right" if end < 0 else "left", va="center", fontsize=9, fontweight=weights[place],
            )  # fmt: skip


def format_numbers(values: Numbers) -> list[str]:
    """Numbers to compare: as many decimals for all as give the median three digits."""
    numbers = _numbers(values)
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    if not sizes.size or np.allclose(sizes, np.round(sizes), rtol=1e-9, atol=0):
        decimals = 0
    else:
        decimals = min(max(2 - math.floor(math.log10(float(np.median(sizes)))), 0), 9)
    return [_number(x, decimals) for x in numbers.tolist()]


def _number(x: float, decimals: int) -> str:
    if not math.isfinite(x):
        return "–"
    text = f"{x:,.{decimals}f}"
    if x and not float(text.replace(",", "")):
        text = f"{x:.2g}"  # not nothing, though small beside the others
    return text.replace("-", "−")


def _numbers(values: Numbers) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], float)


def label(ax: Axes, *, x: str, y: str, title: str = "") -> None:
    """The words of an axis, with their units, and a title above it."""
    with _style():
        ax.set_xlabel(x)
        ax.set_ylabel(y)
        if title:
            ax.set_title(title)


def mae_line(ax: Axes, rows: Rows, x: str, *, label: str, envelope: bool = True, dashed: bool = False) -> None:
    """A line of the rows' MAE over their column `x`, with its interval as the envelope."""
    low, high = ([row[side] for row in rows] if envelope else None for side in ("mae_low", "mae_high"))
    line(ax, [row[x] for row in rows], [row["mae"] for row in rows], label=label, low=low, high=high, dashed=dashed)


def mae_bars(ax: Axes, names: Sequence[str], rows: Rows, colours: Sequence[str] | None = None) -> None:
    """A bar of each row's MAE with its interval."""
    mae, low, high = ([row.get(column) for row in rows] for column in ("mae", "mae_low", "mae_high"))
    bars(ax, names, mae, low=low, high=high, colours=colours)


def legend_beside(ax: Axes) -> None:
    """What the lines are, at the right of the axes, in the order of the lines' right ends."""
    pairs = zip(*ax.get_legend_handles_labels(), strict=True)
    ordered = sorted(pairs, key=lambda pair: _right_end(pair[0]), reverse=True)
    with _style():
        ax.legend(
            [handle for handle, _ in ordered], [words for _, words in ordered],
            loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9.5,
        )  # fmt: skip


def _right_end(handle: Any) -> float:
    heights = np.asarray(handle.get_ydata(), float) if hasattr(handle, "get_ydata") else np.empty(0)
    there = heights[np.isfinite(heights)]
    return float(there[-1]) if there.size else -math.inf


def save(figure: Figure, path: Path) -> None:
    """Write `path` with .png and .svg added: the same bytes for the same figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _style():
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            data = io.BytesIO()
            figure.savefig(data, format=kind, metadata=metadata)
            write_file(path.with_name(f"{path.name}.{kind}"), data.getvalue())
