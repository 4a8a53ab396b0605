/** The page without a service: one file with all of its data (`frigate/pages/map_page.py`). */

import workerCode from "maplibre-gl/dist/maplibre-gl-worker.mjs?raw";
import { App } from "./app";
import { h } from "./dom";
import type { Frames } from "./frames";
import { type LayerMeta, mean, readBand, readFrames, readLayers, readValues } from "./layers";
import type { Found } from "./mapview";
import { Network, type NetworkMeta, type Unit } from "./network";
import { type Block, panelOf } from "./panels";
import { placePanel, type PlaceSource } from "./place";
import type { Trips } from "./service";
import { Container } from "./wire";

interface PageMeta {
  title: string;
  layers: LayerMeta[];
  panels: { key: string; title: string; blocks: Block[] }[];
  place: {
    intro: Block[];
    history: { title: string; unit: Unit; times: string[]; kinds: string[]; lines: { name: string; style: string; of: string; at: string | null }[]; compare: boolean; band: { lower: string; upper: string; level: number } | null } | null;
    main_sensors: { nodes: string; near: string; is_share: boolean } | null;
    remarks: Record<string, string[]>;
    trips: Trips | null; // through the selected place
  };
  closed_sets: number[][];
  place_first: boolean;
  open: { layer: string; frame: number };
  select: Found | null;
}

async function read<Meta>(id: string): Promise<Container<Meta> | null> {
  const text = document.getElementById(id)?.textContent?.trim();
  if (!text) return null;
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Container(await new Response(plain).arrayBuffer());
}

async function start(): Promise<void> {
  const [roads, page] = await Promise.all([read<NetworkMeta>("network"), read<PageMeta>("page")]);
  if (!roads || !page) {
    document.body.append(h("p", { class: "wait" }, "This file is the empty form of a page. Write one with: frigate report RUN -o report.html"));
    return;
  }
  const network = new Network(roads);
  const { title, panels, place_first: placeFirst, open, select } = page.meta;
  const layers = readLayers(page, network);
  const app = new App(network, {
    title,
    workerUrl: URL.createObjectURL(new Blob([workerCode], { type: "text/javascript" })),
    tabs: (app) => {
      const tabs = panels.map(({ key, title, blocks }) => ({ key, title, render: () => panelOf(app, blocks) }));
      const source = placeSource(app, page);
      tabs.splice(placeFirst ? 0 : 1, 0, { key: "place", title: "Place", render: () => placePanel(app, source) });
      return tabs;
    },
  });
  const traffic = (network.onRoads ? layers[0].nodes : layers[0].roads)?.rows;
  if (traffic) app.setTraffic(mean(traffic));
  app.setLayers(layers, { show: open.layer, frame: open.frame });
  if (select) app.select(select);
}

/** What a file knows of its places. */
function placeSource(app: App, page: Container<PageMeta>): PlaceSource {
  const { network } = app;
  const { select } = page.meta;
  const { intro, history, main_sensors: main, remarks, trips } = page.meta.place;
  const frames: Frames | null = history && readFrames(history);
  const lines = history?.lines.map((line) => ({ ...line, rows: readValues(page, line, network.nodes) })) ?? [];
  const band = readBand(page, history?.band ?? null);
  const bandOf = (row: number) => band && { level: band.level, lower: band.lower.map((values) => values[row]), upper: band.upper.map((values) => values[row]) };
  const nodes = main && page.array<Int32Array>(main.nodes);
  const near = main && page.array(main.near);
  const hasLines = (row: number) => lines.some(({ rows }) => rows.some((values) => Number.isFinite(values[row])));
  const each = nodes ? nodes.length / Math.max(1, network.nodes) : 0;
  return {
    intro: () => panelOf(app, intro),
    node: async (row) => ({
      chart: frames && history && hasLines(row) ? {
        title: history.title, unit: history.unit, compare: history.compare, frames, band: bandOf(row),
        lines: lines.map(({ name, style, rows }) => ({ name, css: style, values: rows.map((values) => values[row]) })).filter(({ values }) => values.some(Number.isFinite)),
      } : null,
      mainSensors: Array.from({ length: each }, (_, k) => row * each + k)
        .filter((i) => nodes![i] >= 0 && nodes![i] !== row)
        .map((i) => ({ node: network.ids[nodes![i]], ...(main!.is_share ? { distance_m: null, share: near![i] } : { distance_m: near![i] }) })),
      words: remarks[row],
    }),
    trips: (what) => (trips && select && same(what, select) ? Promise.resolve(trips) : null),
    actions: () => [],
  };
}

function same(one: Found, other: Found): boolean {
  return "node" in one ? "node" in other && one.node === other.node : "road" in other && one.road === other.road;
}

void start();
