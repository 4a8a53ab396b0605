"""The figures' style: fixed looks that everyone can tell apart, whiskers and envelopes where they were asked for."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from numpy.typing import NDArray

from frigate.errors import MissingExtraError
from frigate.experiments import plots
from frigate.experiments.plan import FITTED, LABELS, NAIVE, Recipe
from tests.support.errors import raises

# Machado, Oliveira and Fernandes (2009): linear RGB as it looks with no, red, green and blue cones missing.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
MODELS = [Recipe(model, 0.3, 0).label for model in (*LABELS, *NAIVE, *FITTED)]


def seen_as(colour: str, sight: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB, in which a distance of 2 can just be seen side by side."""
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    t = XYZ @ np.clip(sight @ linear, 0, 1) / XYZ.sum(axis=1)
    f = np.where(t > 0.008856, np.cbrt(t), 7.787 * t + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_every_model_has_a_look_of_its_own() -> None:
    assert {name.casefold() for name in MODELS} == set(plots.LOOKS)
    for part in (0, 1):  # colour, marker
        assert len({plots.look(name)[part] for name in set(MODELS)}) == len(set(MODELS))


@pytest.mark.parametrize("sight", SIGHTS)
def test_learnt_models_differ_in_colour_with_any_sight(sight: str) -> None:
    learnt = [name for name in plots.LOOKS if name not in NAIVE]
    for a, b in itertools.combinations(learnt, 2):
        one, other = (seen_as(plots.look(name)[0], SIGHTS[sight]) for name in (a, b))
        assert np.linalg.norm(one - other) > 12, (a, b)


def test_naive_ones_are_grey() -> None:
    for name in NAIVE:
        assert len({plots.look(name)[0][at : at + 2] for at in (1, 3, 5)}) == 1


def test_a_variant_is_darker_and_keeps_the_marker() -> None:
    variant = Recipe("dcrnn", 0.3, 0, roads=True).label
    assert plots.look(variant)[1] == plots.look("DCRNN")[1]
    light, dark = (seen_as(plots.look(name)[0], SIGHTS["all cones"])[0] for name in ("DCRNN", variant))
    assert dark < light - 12


@given(st.text("aé +()"))
def test_any_label_has_a_look_that_does_not_change(name: str) -> None:
    assert mpl.colors.is_color_like(plots.look(name)[0])
    assert plots.look(name) == plots.look(name)


def test_a_line_leaves_gaps_and_has_its_envelope() -> None:
    _, (ax,) = plots.figure()
    plots.line(ax, [1, 2, 3], [1.0, None, 3.0], label="DCRNN", low=[0.5, None, 2.5], high=[1.5, None, 3.5])
    plots.line(ax, range(1, 4), [2, 2, 2], label="Frigate (default)", dashed=True)
    thin, thick = ax.get_lines()
    assert np.isnan(np.asarray(thin.get_ydata(), float)).tolist() == [False, True, False]
    assert len(ax.collections) == 1
    assert thick.get_linewidth() > thin.get_linewidth()
    assert thick.get_zorder() > thin.get_zorder()
    assert (thin.get_linestyle(), thick.get_linestyle()) == ("-", "--")
    assert (thin.get_color(), thin.get_marker()) == plots.look("DCRNN")


def test_many_points_have_no_markers() -> None:
    _, (ax,) = plots.figure()
    plots.line(ax, range(100), range(100), label="DCRNN")
    assert ax.get_lines()[0].get_marker() in ("", "None")


@pytest.mark.parametrize("last", [3, 12, 16, 60])
def test_steps_are_whole(last: int) -> None:
    _, (ax,) = plots.figure()
    plots.line(ax, range(1, last + 1), range(last), label="DCRNN")
    assert all(tick == round(tick) for tick in ax.get_xticks())


def test_bars_write_their_values_beyond_the_whiskers() -> None:
    _, (ax,) = plots.figure()
    names = ["Frigate (default)", "STNN", "Zero", "DCRNN"]
    plots.bars(ax, names, [2.0, None, -1.5, 3.14159], low=[1.0, None, -2.5, None], high=[3.0, None, -0.5, None])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == names
    assert [text.get_text() for text in ax.texts] == ["2.00", "–", "−1.50", "3.14"]
    places = [text.xy[0] for text in ax.texts if isinstance(text, Annotation)]
    assert places == pytest.approx([3.0, 0.0, -2.5, 3.14159])
    assert ax.texts[0].get_fontweight() == "bold"
    assert ax.texts[1].get_fontweight() == "normal"
    (whiskers,) = ax.collections
    corners = [np.asarray(path.vertices) for path in whiskers.get_paths()]
    drawn = [each[:, 0].tolist() for each in corners if np.isfinite(each).all()]
    assert drawn == [[1.0, 3.0], [-2.5, -0.5]]


def test_the_first_bar_is_on_top_and_the_yardstick_is_hollow() -> None:
    _, (ax,) = plots.figure()
    plots.bars(ax, ["DCRNN", "own median (a sensor there)"], [2, 1])
    low, high = ax.get_ylim()
    assert low > high
    baseline, yardstick = ax.patches
    assert mpl.colors.to_hex(baseline.get_facecolor()) == plots.look("DCRNN")[0]
    assert mpl.colors.to_hex(yardstick.get_facecolor()) == "#ffffff"


def test_panels_of_bars_share_their_names() -> None:
    _, axes = plots.figure(columns=2, share_y=True)
    for ax in axes:
        plots.bars(ax, ["DCRNN", "Frigate (default)"], [2, 1])
    assert [tick.get_text() for tick in axes[0].get_yticklabels()] == ["DCRNN", "Frigate (default)"]
    assert [len(ax.texts) for ax in axes] == [2, 2]
    assert axes[0].get_ylim() == axes[1].get_ylim() == (1.6, -0.6)


@given(st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True, width=32), st.integers(-99, 99))))
def test_formatted_numbers_are_near_and_never_lose_one(values: list[float | None]) -> None:
    finite = [x for x in values if x is not None and np.isfinite(x)]
    middle = np.median([abs(x) for x in finite if x] or [1])
    for value, text in zip(values, plots.format_numbers(values), strict=True):
        if value is None or not np.isfinite(value):
            assert text == "–"
        else:
            read = float(text.replace("−", "-").replace(",", ""))
            assert abs(read - value) <= 0.05 * middle + 0.05 * abs(value) + 1e-9
            assert (read == 0) == (value == 0)


def test_formatted_numbers_share_their_decimals() -> None:
    assert plots.format_numbers([2.1371, 12.4, 0.9]) == ["2.14", "12.40", "0.90"]
    assert plots.format_numbers([10.0, 30.0, None]) == ["10", "30", "–"]
    assert plots.format_numbers([1234567]) == ["1,234,567"]
    assert plots.format_numbers([100 * 0.55]) == ["55"]


def test_the_legend_follows_the_right_ends() -> None:
    _, (ax,) = plots.figure()
    for name, ends in (("DCRNN", [9, 1, None]), ("STNN", [0, 3]), ("STGCN", [5, 2])):
        plots.line(ax, range(len(ends)), ends, label=name)
    plots.legend_beside(ax)
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["STNN", "STGCN", "DCRNN"]


def sample() -> Figure:
    figure, (ax,) = plots.figure(3, 2)
    plots.line(ax, [1, 2], [3, 4], label="DCRNN", low=[2, 3], high=[4, 5])
    ax.set(xlabel="step", ylabel="MAE", title="One")
    return figure


def test_panels_share_their_height() -> None:
    _, (left, right) = plots.figure(columns=2, share_y=True)
    plots.line(left, [1, 2], [3, 400], label="DCRNN")
    assert left.get_ylim() == right.get_ylim()


def test_saving_twice_gives_the_same_bytes_and_no_date(tmp_path: Path) -> None:
    for name in ("a", "b"):
        plots.save(sample, tmp_path / "made" / f"v1.{name}")  # a dot in the name is no suffix
    made = tmp_path / "made"
    assert sorted(path.name for path in made.iterdir()) == ["v1.a.png", "v1.a.svg", "v1.b.png", "v1.b.svg"]
    for kind in ("png", "svg"):
        assert (made / f"v1.a.{kind}").read_bytes() == (made / f"v1.b.{kind}").read_bytes()
    assert "<dc:date>" not in (made / "v1.a.svg").read_text()


def test_a_title_stands_above_the_drawing_which_keeps_its_size(tmp_path: Path) -> None:
    figures: list[Figure] = []

    def draw() -> Figure:
        figures.append(sample())
        return figures[-1]

    plots.save(draw, tmp_path / "plain")
    plots.save(draw, tmp_path / "titled", title="Errors: town")
    plain, titled = figures
    assert titled.get_suptitle() == "Errors: town" and not plain.get_suptitle()
    assert titled.get_figheight() > plain.get_figheight()


def test_the_callers_settings_neither_change_nor_matter(tmp_path: Path) -> None:
    plots.save(sample, tmp_path / "plain")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9}):
        before = dict(mpl.rcParams)
        plots.save(sample, tmp_path / "odd")
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "odd.svg").read_bytes()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with raises(MissingExtraError, "frigate-forecast[reproduce]"), plots.style():
        pass
