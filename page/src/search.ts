/** Search by intersection or street: a box with a list that keys can walk. */

import { h } from "./dom";
import type { Selection } from "./app";
import type { Network } from "./network";

const SHOWN = 8;

function plain(text: string): string {
  return text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
}

export function searchBox(network: Network, choose: (found: Selection) => void): HTMLElement {
  const streets = network.meta.street_names.map((name, street) => ({ street, name, words: plain(name) })).filter(({ name }) => name);
  let found: { text: string; what: Selection }[] = [];
  let active = -1;
  const list = h("ul", { id: "found", role: "listbox", "aria-label": "Found", hidden: true });
  const input = h("input", {
    id: "search", type: "search", role: "combobox", placeholder: network.onRoads ? "Road" : "Intersection or street", "aria-label": network.onRoads ? "Search a road" : "Search an intersection or a street",
    "aria-controls": "found", "aria-expanded": "false", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false",
    oninput: () => search(), onkeydown: (event: KeyboardEvent) => keyed(event), onblur: () => setTimeout(close, 150), onfocus: () => search(),
  });

  function search(): void {
    const wanted = plain(input.value.trim());
    found = [];
    if (wanted) {
      const exact = network.node(input.value.trim());
      if (exact !== undefined) found.push(nodeFound(exact));
      const byName = streets.filter(({ words }) => words.includes(wanted)).sort((a, b) => Number(!a.words.startsWith(wanted)) - Number(!b.words.startsWith(wanted)));
      for (const { street, name } of byName.slice(0, SHOWN)) found.push({ text: name, what: { street } });
      const { detectors } = network.meta;
      for (let i = 0; i < network.nodes && found.length < SHOWN; i++) if (i !== exact && (plain(network.ids[i]).startsWith(wanted) || (detectors?.[i] && plain(detectors[i]).startsWith(wanted)))) found.push(nodeFound(i));
    }
    active = found.length ? 0 : -1;
    draw(wanted !== "");
  }

  function nodeFound(node: number): { text: string; what: Selection } {
    return { text: `${network.nodeName(network.ids[node])}${network.sensor[node] ? ", sensor" : ""}`, what: { node } };
  }

  function draw(open: boolean): void {
    list.hidden = !open;
    input.setAttribute("aria-expanded", String(open));
    input.setAttribute("aria-activedescendant", active >= 0 ? `found-${active}` : "");
    list.replaceChildren(
      ...found.map(({ text }, i) => h("li", { id: `found-${i}`, role: "option", "aria-selected": String(i === active), onpointerdown: () => take(i) }, text)),
      ...(found.length ? [] : [h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "Nothing found")]),
    );
  }

  function take(i: number): void {
    const { text, what } = found[i];
    input.value = text;
    close();
    choose(what);
  }

  function close(): void {
    found = [];
    active = -1;
    draw(false);
  }

  function keyed(event: KeyboardEvent): void {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      active = found.length ? (active + (event.key === "ArrowDown" ? 1 : -1) + found.length) % found.length : -1;
      draw(found.length > 0);
      event.preventDefault();
    } else if (event.key === "Enter" && active >= 0) take(active);
    else if (event.key === "Escape") close();
  }

  return h("div", { class: "search", role: "search" }, input, list);
}
