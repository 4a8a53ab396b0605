"""The style of the experiments' figures: each model has one colour and marker everywhere.

Uses matplotlib's objects, not pyplot, so that nothing here changes a caller's figures or settings. Missing numbers are
None or NaN, and are not drawn.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from frigate.errors import MissingExtraError
from frigate.experiments.table import Rows
from frigate.reading.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes  # noqa: PLC0414 - for `plots.Axes`
    from matplotlib.figure import Figure as Figure  # noqa: PLC0414

Numbers = Sequence[Any] | NDArray[Any]  # numbers and None, as in a table

FIRST = "frigate (default)"  # drawn over all others
YARDSTICK = "own median (a sensor there)"  # not a baseline: its bar is hollow

# Label -> colour and marker. Close to Okabe and Ito's colours, and distinguishable with every kind of colour blindness
# (a test checks it); models that learn nothing are grey. Markers are unique, so that greyscale prints are readable.
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
    "demand alone": ("#9a10f0", "H"),
    "lightgbm with demand": ("#684a4e", "8"),
    "lightgbm, map and clock alone": ("#e5b6a2", "2"),
    "zero": ("#bdbdbd", "x"),
    "constant median": ("#a6a6a6", "+"),
    "clock profile": ("#8c8c8c", "<"),
    "nearest sensors": ("#737373", ">"),
    "label propagation": ("#595959", "d"),
    YARDSTICK: ("#111111", "1"),
}
OTHER_LOOKS = list(LOOKS.values())[:8]  # for labels that are not models
WIDTHS = {FIRST: 3.0, "frigate (paper)": 2.4}  # of lines, in points
WIDTH = 1.6
MAX_MARKED = 24  # points of a line; more markers would hide it

TITLE_INCHES = 0.35
INK, SOFT = "#1b2430", "#5b6675"
STYLE = Path(__file__).with_name("plots.mplstyle")


@contextmanager
def style() -> Iterator[None]:
    """A context with our style on top of matplotlib's defaults, whatever the caller's settings."""
    try:
        from matplotlib import style
    except ImportError:
        raise MissingExtraError("matplotlib", "reproduce") from None
    with style.context(STYLE, after_reset=True):
        yield


def save(draw: Callable[[], Figure], path: Path, *, title: str = "") -> None:
    """Draw a figure and write it to `path`.png and `path`.svg, reproducibly to the byte.

    The title is part of the picture, so that it explains itself wherever it is pasted.
    """
    with style():
        figure = draw()
        if title:
            figure.set_figheight(figure.get_figheight() + TITLE_INCHES)  # the drawing keeps its own height
            figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            data = io.BytesIO()
            figure.savefig(data, format=kind, metadata=metadata)
            write_file(path.with_name(f"{path.name}.{kind}"), data.getvalue())
            figure.set_layout_engine("none")  # lay out once, for both files


def figure(
    width: float = 7.0, height: float = 4.2, *, rows: int = 1, columns: int = 1, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """An empty figure (sizes in inches), and its axes row by row."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots(rows, columns, sharey=share_y, squeeze=False).ravel().tolist()


def look(label: str) -> tuple[str, str]:
    """Colour and marker of a label: the model's, darker for a variant ("DCRNN + roads"); else one of eight."""
    base, plus, _ = label.partition(" + ")
    known = LOOKS.get(base.casefold())
    if known is None:
        return OTHER_LOOKS[crc32(label.encode()) % len(OTHER_LOOKS)]
    colour, marker = known
    if plus:
        colour = "#" + "".join(f"{round(0.6 * int(colour[at : at + 2], 16)):02x}" for at in (1, 3, 5))
    return colour, marker


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
    """A line in the label's colour, with a band from `low` to `high` if both are given."""
    xs = _numbers(x)
    width = WIDTHS.get(label.casefold(), WIDTH)
    (colour, marker) = look(label)
    ax.plot(
        xs,
        _numbers(y),
        label=label,
        color=colour,
        linestyle="--" if dashed else "-",
        linewidth=width,
        zorder=2 + width,
        marker=marker if len(xs) <= MAX_MARKED else "",
        markersize=5.5,
    )
    if low is not None and high is not None:
        ends = _numbers(low), _numbers(high)
        ax.fill_between(xs, *ends, color=colour, alpha=0.14, linewidth=0, zorder=1 + width / 10)
    # Integer ticks for steps, minutes and layers, at intervals that divide an hour.
    if ax.get_xscale() == "linear" and len(xs) and np.all(xs == np.round(xs)):
        ax.locator_params(axis="x", nbins="auto", integer=True, steps=[1, 2, 3, 5, 6, 10])


def mae_lines(ax: Axes, models: Mapping[str, Rows], x: str, *, bands: str = "", dashed: str = "") -> None:
    """A line of MAE over column `x` for each model.

    Models whose name starts with `bands` get a band for the interval; the line of the model `dashed` is dashed.
    """
    for name, rows in models.items():
        at, mae, low, high = ([row[column] for row in rows] for column in (x, "mae", "mae_low", "mae_high"))
        band = (low, high) if name.startswith(bands) else (None, None)
        line(ax, at, mae, label=name, low=band[0], high=band[1], dashed=name == dashed)


def bars(
    ax: Axes,
    names: Sequence[str],
    values: Numbers,
    *,
    low: Numbers | None = None,
    high: Numbers | None = None,
    colours: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> None:
    """A horizontal bar for every name, the first on top, with its value or label beyond the whisker.

    `low` and `high` are the ends of the whiskers, not their lengths. A missing value is shown as a dash.
    """
    from matplotlib.patheffects import withStroke

    lengths = np.nan_to_num(_numbers(values))
    whiskers = None if low is None or high is None else [lengths - _numbers(low), _numbers(high) - lengths]
    paint = colours or [look(name)[0] for name in names]
    filling = ["white" if name.casefold() == YARDSTICK else tone for name, tone in zip(names, paint, strict=True)]
    rim = [withStroke(linewidth=3.2, foreground="white")]  # dark bars would hide the whiskers
    drawn = ax.barh(
        range(len(names)),
        lengths,
        color=filling,
        edgecolor=paint,
        height=0.72,
        xerr=whiskers,
        error_kw={"ecolor": INK, "elinewidth": 1.2, "capsize": 3.2, "capthick": 1.2, "path_effects": rim},
    )
    texts = ax.bar_label(drawn, labels=labels or format_numbers(values), padding=5, fontsize=9)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.margins(x=0.17)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    for name, *words in zip(names, texts, ax.get_yticklabels(), strict=False):  # inner panels have no tick labels
        if name.casefold() == FIRST:
            for text in words:
                text.set_fontweight("bold")


def mae_bars(ax: Axes, names: Sequence[str], rows: Rows, colours: Sequence[str] = ()) -> None:
    """A bar for each row's MAE, with its interval."""
    mae, low, high = ([row.get(column) for row in rows] for column in ("mae", "mae_low", "mae_high"))
    bars(ax, names, mae, low=low, high=high, colours=colours)


def format_numbers(values: Numbers) -> list[str]:
    """Numbers with the same decimals for all: as many as give the median three digits."""
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
        text = f"{x:.2g}"  # small, but not 0
    return text.replace("-", "−")


def _numbers(values: Numbers) -> NDArray[np.float64]:
    return np.array(list(values), float)  # None becomes NaN


def legend_beside(ax: Axes) -> None:
    """A legend to the right of the axes, in the order of the lines' right ends."""

    def right_end(drawn: Any) -> float:
        heights = np.asarray(drawn.get_ydata(), float)
        return float(heights[np.isfinite(heights)][-1:].sum())

    lines = sorted(ax.get_lines(), key=right_end, reverse=True)
    ax.legend(handles=lines, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9.5)
