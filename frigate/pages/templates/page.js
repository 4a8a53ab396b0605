for (const box of document.querySelectorAll(".map")) {
  const d = JSON.parse(box.querySelector("script").textContent);
  const [svg, tip] = ["svg", ".tip"].map(name => box.querySelector(name));
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
    tip.textContent = d.id[best] + (d.sensor[best] ? " (sensor)" : "") + ": " + d.tips[best];
    tip.style.left = d.x[best] / scale + "px";
    tip.style.top = d.y[best] / scale + "px";
  });
}
