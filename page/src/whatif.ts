/** Close roads: first as a question, with what changes on the map and in words, then for real. */

import type { App } from "./app";
import { count, h } from "./dom";
import { Frames } from "./frames";
import { beforeAndAfter, type Closure, type Layer } from "./layers";
import { unitText } from "./network";
import { largestChanges } from "./panels";
import type { Service, WhatIfMeta } from "./service";
import type { Container } from "./wire";

export class WhatIf {
  on = false; // a click on a road adds it
  roads: number[] = [];
  layers: Layer[] = [];
  private both = true;
  private result: WhatIfMeta | null = null;
  private running: AbortController | null = null;
  private error = "";
  private until = "";

  constructor(
    private readonly app: App,
    private readonly service: Service,
    private readonly closures: () => Closure[],
    private readonly changed: (show?: string) => void, // the layers of the map
    private readonly acted: () => Promise<void>, // closures were made or ended
  ) {}

  /** A click on a road in what-if mode. */
  toggle(road: number): void {
    const { network } = this.app;
    const pair = [road, ...(this.both ? [network.opposite(road)] : [])].filter((each) => each !== undefined);
    this.toggleAll(pair);
  }

  /** Roads that open and close together. */
  toggleAll(roads: number[]): void {
    const there = this.roads.includes(roads[0]);
    this.roads = there ? this.roads.filter((each) => !roads.includes(each)) : [...new Set([...this.roads, ...roads])];
    void this.ask();
  }

  start(roads: number[]): void {
    this.on = true;
    this.app.clear();
    if (!this.roads.includes(roads[0])) {
      if (roads.length === 1) this.toggle(roads[0]);
      else this.toggleAll(roads);
    }
    this.app.show("whatif");
  }

  drop(): void {
    this.on = false;
    this.roads = [];
    void this.ask();
  }

  /** Forecast again without the roads. */
  async ask(): Promise<void> {
    this.running?.abort();
    [this.result, this.error, this.layers, this.running] = [null, "", [], null];
    if (!this.roads.length) {
      this.changed("forecast");
      this.app.refresh("whatif");
      return;
    }
    const asked = (this.running = new AbortController());
    this.changed();
    this.app.refresh("whatif");
    const { network } = this.app;
    const ids = network.meta.node_ids;
    try {
      const answer = await this.service.whatIf(this.roads.map((e) => [ids[network.source[e]], ids[network.target[e]]]), network.meta.level ?? null, asked.signal);
      if (asked.signal.aborted) return;
      this.result = answer.meta;
      this.layers = whatIfLayers(this.app, answer, this.roads);
    } catch (error) {
      if (asked.signal.aborted) return;
      this.error = (error as Error).message;
    }
    this.running = null;
    this.changed(this.layers.length ? "change" : undefined);
    this.app.refresh("whatif");
  }

  panel(): Node {
    const { app } = this;
    return h("div", {},
      h("h2", {}, "What if a road closes?"),
      h("p", {}, "Nothing is closed until you confirm it."),
      h("label", { class: "switch" }, checkbox(this.on, (on) => { this.on = on; app.refresh("whatif"); }), " What-if mode: a click on a road closes it here"),
      h("label", { class: "switch" }, checkbox(this.both, (both) => { this.both = both; }), " Both directions"),
      this.roads.length > 0 && h("ul", { class: "list" }, ...this.roads.map((road) => h("li", {}, app.roadLink(road), h("button", { type: "button", "aria-label": `Take ${app.network.roadName(road)} off the list`, onclick: () => { this.roads = this.roads.filter((each) => each !== road); void this.ask(); } }, "✕")))),
      this.running && h("p", { class: "loading", role: "status" }, "Finding where the traffic goes…"),
      this.error && h("p", { class: "error", role: "alert" }, this.error),
      this.result && h("div", {},
        ...this.result.notices.map((text) => h("p", { class: "note" }, text)),
        largestChanges(app, this.result.largest, `${unitText(app.network.unit)}, mean of the coming hour`),
        h("div", { class: "confirm" },
          h("label", {}, "Until (optional, your own time zone) ", untilField(this.until, (until) => { this.until = until; })),
          h("button", { type: "button", class: "danger", onclick: () => void this.confirm() }, `Close ${count(this.roads.length, app.network.onRoads ? "turn" : "road")} now`),
          h("button", { type: "button", onclick: () => this.drop() }, "Discard"),
        ),
      ),
      h("h3", {}, "Closed now"),
      this.closures().length ? h("ul", { class: "list" }, ...this.closures().map((closure) => this.closureRow(closure))) : h("p", { class: "note" }, "No road is closed."),
    );
  }

  private closureRow(closure: Closure): Node {
    const road = this.app.network.road(closure.source, closure.target);
    const name = road === undefined ? `${closure.source} → ${closure.target}` : undefined;
    return h("li", {},
      name ?? this.app.roadLink(road!),
      h("span", {}, [closure.state === "planned" && closure.begin ? `from ${this.app.time.day(Date.parse(closure.begin))}` : "", closure.end ? `until ${this.app.time.day(Date.parse(closure.end))}` : ""].join(" ").trim()),
      h("button", { type: "button", onclick: () => void this.act(() => this.service.reopen(closure.id)) }, "Open again"));
  }

  private async confirm(): Promise<void> {
    const { network } = this.app;
    const ids = network.meta.node_ids;
    const until = this.until ? new Date(this.until).toISOString() : null;
    await this.act(async () => {
      for (const e of this.roads) await this.service.close(ids[network.source[e]], ids[network.target[e]], until);
      this.drop();
    });
  }

  private async act(act: () => Promise<void>): Promise<void> {
    try {
      this.error = "";
      await act();
      await this.acted();
    } catch (error) {
      this.error = (error as Error).message;
    }
    this.app.refresh("whatif");
  }
}

function whatIfLayers(app: App, answer: Container<WhatIfMeta>, planned: number[]): Layer[] {
  const { network } = app;
  const { level } = answer.meta;
  const band = (of: string) => (level !== null && answer.has(`lower_${of}`) ? { lower: answer.rows(`lower_${of}`), upper: answer.rows(`upper_${of}`), level } : undefined);
  return beforeAndAfter(
    { before: answer.rows("before"), after: answer.rows("after"), roadBefore: answer.rows("road_before"), roadAfter: answer.rows("road_after"), bandBefore: band("before"), bandAfter: band("after") },
    { unit: network.unit, frames: new Frames(answer.meta.times.map((time) => Date.parse(time))), counts: network.counts, planned },
  );
}

function checkbox(checked: boolean, set: (on: boolean) => void): HTMLInputElement {
  return h("input", { type: "checkbox", checked, onchange: (event: Event) => set((event.target as HTMLInputElement).checked) });
}

function untilField(value: string, set: (value: string) => void): HTMLInputElement {
  return h("input", { type: "datetime-local", value, onchange: (event: Event) => set((event.target as HTMLInputElement).value) });
}
