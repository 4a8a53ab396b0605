/** The legend: the classes of what is shown, and what the other marks mean. */

import { h } from "./dom";
import type { Layer, Values } from "./layers";
import { isSmall } from "./mapview";
import { unitText } from "./network";
import type { Theme } from "./scale";

export interface Marks {
  onRoads: boolean;
  closed: boolean;
  planned: boolean;
  trips: boolean; // where trips begin and end
}

export function legend(layer: Layer, theme: Theme, marks: Marks): HTMLElement {
  const lines = layer.roads !== null || marks.onRoads;
  const first = layer.roads ?? layer.nodes;
  const own = layer.roads && layer.nodes && layer.nodes.scale !== layer.roads.scale ? layer.nodes : null;
  const mark = (kind: string, text: string) => h("li", {}, h("i", { class: kind }), text);
  return h("details", { open: !isSmall() },
    h("summary", {}, first ? unitText(first.unit) : layer.title),
    first && h("ul", {}, ...classes(first, theme, lines ? "lane" : "dot")),
    own && h("ul", { "aria-label": unitText(own.unit) }, h("li", { class: "title" }, unitText(own.unit)), ...classes(own, theme, "square")),
    h("ul", {},
      !own && mark("sensor", "sensor"),
      !marks.onRoads && mark("inferred", "no sensor"),
      layer.crossed.text !== "" && mark("shut", layer.crossed.text),
      marks.closed && mark("shut", "closed"),
      marks.planned && mark("shut planned", "closes in what-if"),
      marks.trips && mark("spot from", "trips begin"),
      marks.trips && mark("spot to", "trips end"),
    ),
  );
}

function classes({ scale }: Values, theme: Theme, kind: "lane" | "dot" | "square"): HTMLElement[] {
  return scale.classes(theme).map(({ colour, width, text }) => {
    const size = kind === "lane" ? `;height:${width + 1}px` : "";
    return h("li", {}, h("i", { class: kind, style: `background:${colour}${size}` }), text);
  });
}
