/** The bar below the map: play, a slider over the frames of a layer, the kind of day, and what time it is. */

import { h, type LocalTime } from "./dom";
import type { Frames } from "./frames";

const PLAY_MS = 700;

export class TimeBar {
  readonly element: HTMLElement;
  private frames!: Frames;
  private frame = 0;
  private playing = 0;
  private readonly slider = h("input", { type: "range", min: "0", step: "1", "aria-label": "Time", oninput: () => this.move(Number(this.slider.value)) });
  private readonly play = h("button", { type: "button", class: "play", "aria-label": "Play", onclick: () => this.toggle() }, "▶");
  private readonly clock = h("output", { class: "clock" });
  private readonly nowMark = h("span", { class: "nowmark" });
  private readonly kinds = h("span", { class: "kinds", role: "radiogroup", "aria-label": "Kind of day" });

  constructor(private readonly time: LocalTime, private readonly moved: (frame: number) => void) {
    this.element = h("div", { class: "timebar", role: "group", "aria-label": "Time" }, this.play, h("div", { class: "track" }, this.slider, this.nowMark), this.kinds, this.clock);
  }

  /** The frames to choose from, and the one that is shown. */
  set(frames: Frames, frame: number): void {
    const same = this.frames === frames;
    this.frames = frames;
    const still = frames.count < 2;
    if (still) this.stop();
    this.element.classList.toggle("still", still);
    this.slider.max = String(frames.positions - 1);
    this.nowMark.hidden = !(frames.ahead > 0 && !still);
    this.nowMark.style.setProperty("--at", String(frames.ahead / Math.max(1, frames.positions - 1)));
    if (!same) {
      this.kinds.replaceChildren(...frames.kinds.map((kind, k) =>
        h("label", {}, h("input", { type: "radio", name: "kind", value: k, checked: k === frames.kindOf(frame), onchange: () => this.show(frames.at(k, frames.position(this.frame))) }), kind)));
    }
    this.kinds.hidden = !frames.kinds.length;
    this.tell(frame);
  }

  toggle(): void {
    if (this.playing) return this.stop();
    if (this.frames.count < 2) return;
    this.playing = window.setInterval(() => this.move((this.frames.position(this.frame) + 1) % this.frames.positions), PLAY_MS);
    this.mark("⏸", "Pause");
  }

  private stop(): void {
    clearInterval(this.playing);
    this.playing = 0;
    this.mark("▶", "Play");
  }

  private mark(text: string, label: string): void {
    this.play.textContent = text;
    this.play.setAttribute("aria-label", label);
  }

  private move(position: number): void {
    this.show(this.frames.at(this.frames.kindOf(this.frame), position));
  }

  private show(frame: number): void {
    this.tell(frame);
    this.moved(frame);
  }

  private tell(frame: number): void {
    this.frame = frame;
    this.slider.value = String(this.frames.position(frame));
    const text = this.frames.text(frame, this.time);
    this.clock.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }
}
