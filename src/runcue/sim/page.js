// Reads the lines out where the pointer is, in all plots at once. The path of a line is its data.
(() => {
  "use strict";
  const figures = [...document.querySelectorAll("figure.chart")].map((figure) => ({
    figure,
    end: Number(figure.dataset.end),
    unit: figure.dataset.unit,
    plot: figure.querySelector(".plot"),
    cursor: figure.querySelector(".plot i"),
    at: figure.querySelector(".at"),
    values: [...figure.querySelectorAll(".readout b + span")],
    rest: [...figure.querySelectorAll(".readout span")].map((span) => span.textContent),
    lines: null,
  }));
  let now = null;

  const points = (path) => (path.getAttribute("d").match(/[-\d.]+ [-\d.]+/g) || []).map((pair) => pair.split(" ").map(Number));

  const value = (line, at) => {
    let low = 0, high = line.length - 1;
    if (high < 0) return null;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (line[middle][0] <= at) low = middle; else high = middle - 1;
    }
    const next = line[low + 1];
    return next && next[0] - at < at - line[low][0] ? next[1] : line[low][1];
  };

  const plain = (n) => (n < 100 ? Math.round(n * 10) / 10 : Math.round(n)).toLocaleString("en-US");
  const said = (n, unit) => {
    if (n === null) return "none";
    if (unit === "minute") return plain(n) + "/min";
    if (unit !== "seconds") return plain(n);
    return n < 1 ? Number((1000 * n).toPrecision(3)) + " ms" : Number(n.toPrecision(3)) + " s";
  };
  const clock = (at) => {
    const two = (n) => String(Math.floor(n)).padStart(2, "0");
    return Math.floor(at / 3600) + ":" + two((at % 3600) / 60) + ":" + two(at % 60);
  };

  const show = (at) => {
    now = at;
    for (const one of figures) {
      one.cursor.style.display = at === null ? "none" : "block";
      if (at === null) {
        [...one.figure.querySelectorAll(".readout span")].forEach((span, n) => { span.textContent = one.rest[n]; });
        continue;
      }
      one.lines = one.lines || [...one.figure.querySelectorAll("path.line")].map(points);
      one.cursor.style.left = (100 * at) / one.end + "%";
      one.at.textContent = clock(at);
      one.values.forEach((span, n) => { span.textContent = said(value(one.lines[n], at), one.unit); });
    }
  };

  for (const one of figures) {
    const follow = (event) => {
      const box = one.plot.getBoundingClientRect();
      show(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * one.end);
    };
    one.plot.addEventListener("pointermove", follow);
    one.plot.addEventListener("pointerdown", follow);
    one.plot.addEventListener("pointerleave", () => show(null));
    one.figure.addEventListener("blur", () => show(null));
    one.figure.addEventListener("keydown", (event) => {
      const step = one.end / (event.shiftKey ? 10 : 100);
      const moves = { ArrowLeft: (now ?? one.end) - step, ArrowRight: (now ?? 0) + step, Home: 0, End: one.end, Escape: null };
      if (!(event.key in moves)) return;
      event.preventDefault();
      const to = moves[event.key];
      show(to === null ? null : Math.min(one.end, Math.max(0, to)));
    });
  }
})();
