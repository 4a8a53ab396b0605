/** Axes of charts: round times that fit, and drawings that are made anew when their width changes. */

import { h, type LocalTime } from "./dom";

const WIDTH = 330; // before the width is known
const TICK_PX = 64; // room for the text of a tick
const [MINUTE, HOUR, DAY] = [60_000, 3_600_000, 86_400_000];
const STEPS = [5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY];
const MONTHS = [1, 2, 3, 6, 12, 24, 60, 120];

/** A drawing as wide as the box that it is in. */
export function sized(draw: (width: number) => Element): HTMLElement {
  const box = h("div", { class: "sized" }, draw(WIDTH));
  let drawn = WIDTH;
  new ResizeObserver(([{ contentRect }]) => {
    const width = Math.round(contentRect.width);
    if (width < 80 || Math.abs(width - drawn) < 4) return;
    drawn = width;
    box.replaceChildren(draw(width));
  }).observe(box);
  return box;
}

export interface Tick {
  at: number;
  text: string;
}

/** Round local times in a period, as many as fit: times of day, days, or the first days of months. */
export function timeTicks(time: LocalTime, from: number, to: number, pixels: number): Tick[] {
  const most = Math.max(2, Math.floor(pixels / TICK_PX));
  const step = STEPS.find((each) => (to - from) / each <= most);
  const local = (at: number) => at + time.offset(at);
  const utc = (wall: number) => wall - time.offset(wall - time.offset(wall));
  const ticks: number[] = [];
  if (step) {
    for (let wall = Math.ceil(local(from) / step) * step; utc(wall) <= to; wall += step) ticks.push(utc(wall));
    return ticks.filter((at) => at >= from).map((at) => ({ at, text: step < DAY ? time.hour(at) : time.date(at) }));
  }
  const [first, last] = [new Date(local(from)), new Date(local(to))];
  const months = 12 * (last.getUTCFullYear() - first.getUTCFullYear()) + last.getUTCMonth() - first.getUTCMonth();
  const every = MONTHS.find((n) => months / n <= most) ?? MONTHS.at(-1)!;
  for (let month = 0; month <= months + 1; month++) {
    const wall = Date.UTC(first.getUTCFullYear(), first.getUTCMonth() + month);
    const start = new Date(wall);
    if ((12 * start.getUTCFullYear() + start.getUTCMonth()) % every === 0) ticks.push(utc(wall));
  }
  return ticks.filter((at) => at >= from && at <= to).map((at) => ({ at, text: every < 12 ? time.month(at) : time.year(at) }));
}
