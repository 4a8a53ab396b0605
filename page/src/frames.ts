/** When the values of a layer hold: at times, at each hour of each kind of day, or as a whole. */

import { away, type LocalTime } from "./dom";

const HOURS = 24;

export class Frames {
  constructor(
    readonly times: number[], // milliseconds
    readonly kinds: string[] = [], // of days, each with a frame for every hour
    readonly note = "", // what is said of a layer with one frame
    readonly ahead = 0, // the first time that is forecast; 0: nothing is said of it
  ) {}

  get count(): number {
    return this.kinds.length ? HOURS * this.kinds.length : Math.max(1, this.times.length);
  }

  /** Positions of the slider: the frames of one kind of day. */
  get positions(): number {
    return this.kinds.length ? HOURS : this.count;
  }

  get perHour(): boolean {
    return this.kinds.length > 0;
  }

  kindOf(frame: number): number {
    return Math.floor(frame / this.positions);
  }

  position(frame: number): number {
    return frame % this.positions;
  }

  at(kind: number, position: number): number {
    return kind * this.positions + position;
  }

  /** Where a frame lies on the axis of a chart: milliseconds, or the middle of an hour. */
  x(frame: number): number {
    return this.perHour ? this.position(frame) + 0.5 : this.times[frame];
  }

  text(frame: number, time: LocalTime): string {
    if (this.perHour) return `${this.kinds[this.kindOf(frame)]}, ${hour(this.position(frame))} to ${hour(this.position(frame) + 1)}`;
    const at = this.times[frame];
    if (at === undefined) return this.note;
    if (!this.ahead) return time.day(at);
    return `${time.day(at)}, ${frame === this.ahead ? "next step" : away(at - this.times[this.ahead])}`;
  }

  /** The frame that is nearest to one of other frames. */
  nearest(frame: number, of: Frames): number {
    if (this.perHour && of.perHour) return Math.min(frame, this.count - 1);
    const time = of.times[frame];
    if (time === undefined || !this.times.length) return Math.min(this.ahead, this.count - 1);
    return this.times.reduce((best, each, i) => (Math.abs(each - time) < Math.abs(this.times[best] - time) ? i : best), 0);
  }
}

/** 7 -> "07:00" */
export function hour(n: number): string {
  return `${String(n).padStart(2, "0")}:00`;
}
