for (const box of document.querySelectorAll(".map")) {
  const d = JSON.parse(box.querySelector("script").textContent);
  const [svg, tip, slider, out] = ["svg", ".tip", "input", "output"].map(name => box.querySelector(name));
  let shown = d.frames.length - 1;
  const bin = value => d.edges.filter(edge => value >= edge).length;
  const draw = () => {
    const paths = {};
    d.frames[shown].forEach((value, i) => {
      if (value === null) return;
      const key = (d.sensor[i] ? "q" : "c") + bin(value);
      (paths[key] = paths[key] || []).push("M" + d.x[i] + " " + d.y[i] + "h0");
    });
    for (const path of svg.querySelectorAll("[data-k]")) {
      if (path.dataset.k) path.setAttribute("d", (paths[path.dataset.k] || []).join(""));
    }
    out.textContent = d.labels[shown];
  };
  if (slider) {
    slider.value = shown;
    slider.addEventListener("input", () => { shown = +slider.value; draw(); });
  }
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  svg.addEventListener("pointermove", event => {
    const seat = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / seat.width;
    const x = (event.clientX - seat.left) * scale, y = (event.clientY - seat.top) * scale;
    let best = -1, nearest = d.reach ** 2;
    for (let i = 0; i < d.x.length; i++) {
      const gap = (d.x[i] - x) ** 2 + (d.y[i] - y) ** 2;
      if (gap < nearest) { nearest = gap; best = i; }
    }
    tip.hidden = best < 0;
    if (best < 0) return;
    const value = d.frames[shown][best];
    const text = d.tips.length ? d.tips[best] : value === null ? "no value" : d.prefix + value + " " + d.unit;
    tip.textContent = d.id[best] + (d.sensor[best] ? " (sensor)" : "") + ": " + text;
    tip.style.left = d.x[best] / scale + "px";
    tip.style.top = d.y[best] / scale + "px";
  });
}
