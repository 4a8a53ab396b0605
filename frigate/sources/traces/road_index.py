"""The straight pieces of all roads on a plane, and a uniform grid to find those near a position.

The plane is used only for distances from roads, not for road lengths or distances between positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from frigate.city.network import RoadNetwork
from frigate.reading.notices import Notices
from frigate.roads.geometry import Projection, road_lines

CELL_M = 100.0
MAX_CANDIDATES = 16  # nearest roads considered for a position; a four-way crossing has 8
MAX_CELLS = 4_000_000  # a larger network gets larger cells
LINE_ENDS_M = 100.0  # a line that ends farther from its nodes must belong to another road

Function = TypeVar("Function", bound=Callable[..., object])
Scalar = TypeVar("Scalar", bound=np.generic)


def compiled(function: Function) -> Function:
    return cast(Function, numba.njit(cache=True, nogil=True)(function))


class RoadGrid(NamedTuple):
    """Roads, their straight pieces, and the pieces near each cell of a uniform grid."""

    senders: NDArray[np.int32]  # [E]
    receivers: NDArray[np.int32]  # [E]
    length_m: NDArray[np.float64]  # [E]
    out_starts: NDArray[np.int64]  # [N+1] into out_roads
    out_roads: NDArray[np.int32]  # [E] by sender
    piece_x_m: NDArray[np.float64]  # [G] start of the piece on the plane
    piece_y_m: NDArray[np.float64]  # [G]
    piece_dx_m: NDArray[np.float64]  # [G]
    piece_dy_m: NDArray[np.float64]  # [G]
    piece_road: NDArray[np.int32]  # [G]
    piece_before: NDArray[np.float64]  # [G] share of the road's length before the piece
    piece_share: NDArray[np.float64]  # [G] share of the road's length in the piece
    cell_starts: NDArray[np.int64]  # [cells+1] into cell_pieces
    cell_pieces: NDArray[np.int32]  # pieces within radius_m of the cell
    left_m: float
    bottom_m: float
    cell_m: float
    columns: int
    rows: int


class Candidates(NamedTuple):
    """The roads near each position, at most M, in no particular order."""

    number: NDArray[np.int64]  # [P] how many
    road: NDArray[np.int32]  # [P,M]
    offset_m: NDArray[np.float64]  # [P,M] distance along the road
    distance_m: NDArray[np.float64]  # [P,M] from the road
    inside: NDArray[np.bool_]  # [P] whether any road is within inside_m


def build_grid(
    network: RoadNetwork, projection: Projection, *, radius_m: float, margin_m: float, notices: Notices
) -> RoadGrid:
    """Build the grid of a network. Each cell lists the pieces within radius_m; the grid extends margin_m beyond it."""
    edges = network.edges
    x, y, road = _lines(network, projection, notices)
    same = road[1:] == road[:-1]
    piece_road = road[:-1][same]
    dx = np.diff(x)[same]
    dy = np.diff(y)[same]
    piece_m = np.hypot(dx, dy)
    whole_m = np.bincount(piece_road, piece_m, len(edges))
    first = np.concatenate([[True], piece_road[1:] != piece_road[:-1]])
    before_m = np.cumsum(piece_m) - piece_m
    before_m -= before_m[first][np.cumsum(first) - 1]
    whole_m = np.where(whole_m > 0, whole_m, 1.0)[piece_road]
    left_m = float(x.min()) - margin_m
    bottom_m = float(y.min()) - margin_m
    wide_m = float(x.max()) + margin_m - left_m
    high_m = float(y.max()) + margin_m - bottom_m
    cell_m = max(CELL_M, float(np.sqrt(wide_m * high_m / MAX_CELLS)))
    columns = int(wide_m // cell_m) + 1
    rows = int(high_m // cell_m) + 1
    order = np.argsort(edges.senders, kind="stable")
    grid = RoadGrid(
        senders=readonly(edges.senders, np.int32),
        receivers=readonly(edges.receivers, np.int32),
        length_m=readonly(edges.length_m, np.float64),
        out_starts=readonly(np.searchsorted(edges.senders[order], np.arange(network.num_nodes + 1)), np.int64),
        out_roads=readonly(order, np.int32),
        piece_x_m=readonly(x[:-1][same], np.float64),
        piece_y_m=readonly(y[:-1][same], np.float64),
        piece_dx_m=readonly(dx, np.float64),
        piece_dy_m=readonly(dy, np.float64),
        piece_road=readonly(piece_road, np.int32),
        piece_before=readonly(before_m / whole_m, np.float64),
        piece_share=readonly(piece_m / whole_m, np.float64),
        cell_starts=readonly(np.zeros(1), np.int64),
        cell_pieces=readonly(np.zeros(0), np.int32),
        left_m=left_m,
        bottom_m=bottom_m,
        cell_m=cell_m,
        columns=columns,
        rows=rows,
    )
    starts = np.zeros(columns * rows + 1, np.int64)
    fill_cells(grid, radius_m, starts, np.zeros(0, np.int32), False)
    starts = np.cumsum(starts)
    pieces = np.zeros(int(starts[-1]), np.int32)
    fill_cells(grid, radius_m, starts[:-1].copy(), pieces, True)
    return grid._replace(cell_starts=readonly(starts, np.int64), cell_pieces=readonly(pieces, np.int32))


def readonly(values: NDArray[Any], dtype: type[Scalar]) -> NDArray[Scalar]:
    """A read-only copy with this dtype."""
    held = np.ascontiguousarray(values, dtype)
    held = held.copy() if held is values else held
    held.setflags(write=False)
    return held


@compiled
def fill_cells(
    grid: RoadGrid, radius_m: float, cell_starts: NDArray[np.int64], cell_pieces: NDArray[np.int32], fill: bool
) -> None:
    """Count the pieces within radius_m of each cell (at the index after it), or fill them in."""
    reach_m = radius_m + grid.cell_m * np.sqrt(0.5)  # from the middle of a cell to a point radius_m beyond its corner
    for piece in range(len(grid.piece_x_m)):
        x = grid.piece_x_m[piece] - grid.left_m
        y = grid.piece_y_m[piece] - grid.bottom_m
        dx = grid.piece_dx_m[piece]
        dy = grid.piece_dy_m[piece]
        first_column = max(0, int((min(x, x + dx) - radius_m) // grid.cell_m))
        last_column = min(grid.columns - 1, int((max(x, x + dx) + radius_m) // grid.cell_m))
        first_row = max(0, int((min(y, y + dy) - radius_m) // grid.cell_m))
        last_row = min(grid.rows - 1, int((max(y, y + dy) + radius_m) // grid.cell_m))
        for row in range(first_row, last_row + 1):
            for column in range(first_column, last_column + 1):
                middle_x = grid.left_m + (column + 0.5) * grid.cell_m
                middle_y = grid.bottom_m + (row + 0.5) * grid.cell_m
                if _to_piece(grid, piece, middle_x, middle_y)[1] > reach_m:
                    continue
                cell = row * grid.columns + column
                if fill:
                    cell_pieces[cell_starts[cell]] = piece
                    cell_starts[cell] += 1
                else:
                    cell_starts[cell + 1] += 1


# Finding


@compiled
def find_candidates(
    grid: RoadGrid, x_m: NDArray[np.float64], y_m: NDArray[np.float64], radius_m: float, inside_m: float
) -> Candidates:
    """The nearest roads within radius_m of each place. radius_m is at most the radius of the grid."""
    P = len(x_m)
    shape = (P, MAX_CANDIDATES)
    number = np.zeros(P, np.int64)
    inside = np.ones(P, np.bool_)
    road = np.empty(shape, np.int32)
    offset_m = np.empty(shape)
    distance_m = np.empty(shape)
    for i in range(P):
        column = int((x_m[i] - grid.left_m) // grid.cell_m)
        row = int((y_m[i] - grid.bottom_m) // grid.cell_m)
        if 0 <= column < grid.columns and 0 <= row < grid.rows:
            cell = row * grid.columns + column
            number[i] = _near(grid, cell, x_m[i], y_m[i], radius_m, road[i], offset_m[i], distance_m[i])
        if number[i] == 0:
            inside[i] = _is_inside(grid, column, row, x_m[i], y_m[i], inside_m)
    return Candidates(number, road, offset_m, distance_m, inside)


@compiled
def _near(
    grid: RoadGrid,
    cell: int,
    x_m: float,
    y_m: float,
    radius_m: float,
    road: NDArray[np.int32],
    offset_m: NDArray[np.float64],
    distance_m: NDArray[np.float64],
) -> int:
    """Fill in the candidates of one place, each road once, at its nearest point."""
    count = 0
    for at in range(grid.cell_starts[cell], grid.cell_starts[cell + 1]):
        piece = grid.cell_pieces[at]
        share, away_m = _to_piece(grid, piece, x_m, y_m)
        if away_m > radius_m:
            continue
        slot = -1
        for i in range(count):
            if road[i] == grid.piece_road[piece]:
                slot = i
        if slot < 0 and count < MAX_CANDIDATES:
            slot = count
            count += 1
            distance_m[slot] = np.inf
        elif slot < 0:
            slot = int(np.argmax(distance_m))
        if away_m < distance_m[slot]:
            road[slot] = grid.piece_road[piece]
            distance_m[slot] = away_m
            offset_m[slot] = (grid.piece_before[piece] + share * grid.piece_share[piece]) * grid.length_m[road[slot]]
    return count


@compiled
def _is_inside(grid: RoadGrid, column: int, row: int, x_m: float, y_m: float, inside_m: float) -> bool:
    reach = int(np.ceil(inside_m / grid.cell_m))
    for r in range(max(0, row - reach), min(grid.rows, row + reach + 1)):
        for c in range(max(0, column - reach), min(grid.columns, column + reach + 1)):
            cell = r * grid.columns + c
            for at in range(grid.cell_starts[cell], grid.cell_starts[cell + 1]):
                if _to_piece(grid, grid.cell_pieces[at], x_m, y_m)[1] <= inside_m:
                    return True
    return False


@compiled
def _to_piece(grid: RoadGrid, piece: int, x_m: float, y_m: float) -> tuple[float, float]:
    """The nearest point of a piece, as a share of its length, and the distance to it."""
    to_x = x_m - grid.piece_x_m[piece]
    to_y = y_m - grid.piece_y_m[piece]
    dx = grid.piece_dx_m[piece]
    dy = grid.piece_dy_m[piece]
    square = dx * dx + dy * dy
    share = min(1.0, max(0.0, (to_x * dx + to_y * dy) / square)) if square > 0.0 else 0.0
    return share, np.sqrt((to_x - share * dx) ** 2 + (to_y - share * dy) ** 2)


# Lines


def _lines(
    network: RoadNetwork, projection: Projection, notices: Notices
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """The points of all road lines on the plane, road by road, and the road of each point."""
    edges = network.edges
    ends = np.stack([edges.senders, edges.receivers], axis=1)  # [E,2]
    straight = np.stack([network.lon[ends], network.lat[ends]], axis=2)  # [E,2,2]
    lines, unread = road_lines(network, edges)
    along_m, against_m = (_apart_m(projection, lines, straight, order) for order in ((0, -1), (-1, 0)))
    astray = np.minimum(along_m, against_m) > LINE_ENDS_M
    for road in np.flatnonzero(astray).tolist():
        lines[road] = straight[road]
    for road in np.flatnonzero((against_m < along_m) & ~astray).tolist():
        lines[road] = lines[road][::-1]

    def spot(road: int) -> str:
        source, target = network.node_ids[ends[road]]
        return f"road {source},{target}"

    notices.add_rows("Roads whose geometry is not a line, treated as straight", unread, spot)
    said = f"Roads whose geometry ends over {LINE_ENDS_M:g} m from their nodes, treated as straight"
    notices.add_rows(said, astray, spot)
    points = np.concatenate(lines)
    x, y = projection.metres(points[:, 0], points[:, 1])
    return x, y, np.repeat(np.arange(len(edges)), [len(line) for line in lines])


def _apart_m(
    projection: Projection, lines: list[NDArray[np.float64]], straight: NDArray[np.float64], order: tuple[int, int]
) -> NDArray[np.float64]:
    """[E] the larger of the distances of a line's two ends, taken in this order, from its nodes."""
    given = np.stack([[line[at] for line in lines] for at in order], axis=1)  # [E,2,2]
    x, y = projection.metres(given[..., 0], given[..., 1])
    node_x, node_y = projection.metres(straight[..., 0], straight[..., 1])
    apart: NDArray[np.float64] = np.hypot(x - node_x, y - node_y).max(axis=1)
    return apart
