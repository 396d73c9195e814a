// Draws the graph around a unit in layers from left to right, each unit to the right of those it depends on.

import { h } from "./dom.js";

const WIDTH = 176;
const HEIGHT = 44;
const ACROSS = 56;
const DOWN = 14;
const SWEEPS = 4;
const LONGEST = 20;
const SHORT = 12;

/** The layer of each unit: one after the last layer of those it depends on. */
function layersOf(nodes, edges) {
  const known = new Set(nodes.map((node) => node.id));
  const needs = new Map(nodes.map((node) => [node.id, []]));
  for (const [before, after] of edges)
    if (known.has(before) && known.has(after)) needs.get(after).push(before);
  const layer = new Map();
  const rank = (id, path) => {
    if (layer.has(id)) return layer.get(id);
    if (path.has(id)) return 0; // a circle cannot be submitted; a broken file must not hang the page
    const deeper = new Set(path).add(id);
    const found = Math.max(-1, ...needs.get(id).map((other) => rank(other, deeper))) + 1;
    layer.set(id, found);
    return found;
  };
  for (const node of nodes) rank(node.id, new Set());
  const rows = [];
  for (const node of nodes) (rows[layer.get(node.id)] ??= []).push(node);
  return rows.filter(Boolean);
}

/** Order each layer by the positions of its neighbours, a few times, so that few lines cross. */
function untangle(layers, edges) {
  const place = new Map();
  const note = () =>
    layers.forEach((row) => row.forEach((node, index) => place.set(node.id, index - row.length / 2)));
  note();
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    for (const row of layers) {
      const wish = new Map();
      for (const node of row) {
        const near = edges
          .filter((edge) => edge.includes(node.id))
          .map(([a, b]) => place.get(a === node.id ? b : a));
        const known = near.filter((value) => value !== undefined);
        wish.set(
          node.id,
          known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : place.get(node.id),
        );
      }
      row.sort((a, b) => wish.get(a.id) - wish.get(b.id));
    }
    note();
  }
}

/** The graph as a picture whose boxes are links. */
export function graph({ nodes, edges, more }, self) {
  if (nodes.length < 2) return null;
  const layers = layersOf(nodes, edges);
  untangle(layers, edges);
  const tallest = Math.max(...layers.map((row) => row.length));
  const height = tallest * (HEIGHT + DOWN) - DOWN + 4;
  const width = layers.length * (WIDTH + ACROSS) - ACROSS + 4;
  const spot = new Map();
  layers.forEach((row, column) => {
    const top = (height - (row.length * (HEIGHT + DOWN) - DOWN)) / 2;
    row.forEach((node, index) =>
      spot.set(node.id, [2 + column * (WIDTH + ACROSS), top + index * (HEIGHT + DOWN)]),
    );
  });
  const lines = edges
    .filter(([a, b]) => spot.has(a) && spot.has(b))
    .map(([a, b]) => h("path.wire", { key: `${a} ${b}`, d: wire(spot.get(a), spot.get(b)) }));
  return h(
    "div.graph",
    { tabindex: 0, role: "group", "aria-label": "Dependencies" },
    h(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}` },
      lines,
      nodes.map((node) => box(node, spot.get(node.id), node.id === self)),
    ),
    more ? h("p.muted", null, "There are more; these are the nearest.") : null,
  );
}

function wire([fromX, fromY], [toX, toY]) {
  const x1 = fromX + WIDTH;
  const y1 = fromY + HEIGHT / 2;
  const y2 = toY + HEIGHT / 2;
  const bend = Math.max(24, (toX - x1) / 2);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${toX - bend} ${y2} ${toX - 6} ${y2}M${toX - 10} ${y2 - 4}l5 4l-5 4`;
}

function box(node, [x, y], isSelf) {
  const state = node.state ?? "unknown";
  const task = node.task ?? "not kept";
  const id = node.id.length > SHORT ? `…${node.id.slice(3 - SHORT)}` : node.id;
  return h(
    "a",
    {
      key: node.id,
      href: `#/works/${encodeURIComponent(node.id)}`,
      class: `node is-${state}${isSelf ? " is-self" : ""}`,
      "aria-current": isSelf ? "true" : undefined,
    },
    h("title", null, `${task} ${node.id}: ${state}`),
    h("rect.body", { x, y, width: WIDTH, height: HEIGHT, rx: 8 }),
    h("rect.side", { x: x + 8, y: y + 10, width: 3, height: HEIGHT - 20, rx: 1.5 }),
    h("text.name", { x: x + 20, y: y + 18 }, task.length > LONGEST ? `${task.slice(0, LONGEST - 1)}…` : task),
    h("text.id", { x: x + 20, y: y + 34 }, `${state} · ${id}`),
  );
}
