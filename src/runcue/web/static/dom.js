// Builds and updates the page. Views describe the elements; only nodes that differ from the description are changed.
//
// Rules:
// - Texts become text nodes, never markup: nothing in a queue is treated as HTML.
// - Nodes are kept as long as their tag and key stay, so that focus, selection and scroll position stay, too.
// - Styles are set through the CSSOM, because the page's policy refuses style attributes.

const SVG = "http://www.w3.org/2000/svg";

/** A description of an element: `h("a.row", {href: "#/"}, "text", child)`; classes go with the tag. */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const given = props ?? {};
  const all = given.class ? [...classes, given.class] : classes;
  return {
    tag: name,
    key: given.key,
    props: all.length ? { ...given, class: all.join(" ") } : given,
    children: flat(children, []),
  };
}

function flat(children, into) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, into);
    else if (child === null || child === undefined || child === false || child === true) continue;
    else into.push(typeof child === "object" ? child : String(child));
  }
  return into;
}

/** A table with these headings above its rows. */
export function table(names, rows) {
  const heads = names.map((name) => h("th", { key: name, scope: "col" }, name));
  return h("table", null, h("thead", null, h("tr", null, heads)), h("tbody", null, rows));
}

/** Make the children of `parent` as described. */
export function render(parent, ...children) {
  place(parent, flat(children, []), parent.namespaceURI === SVG);
}

function place(parent, wanted, isSvg) {
  const kept = new Map();
  for (const node of parent.childNodes) {
    const key = node.vnode?.key;
    if (key !== undefined) kept.set(key, node);
  }
  let next = parent.firstChild;
  for (const vnode of wanted) {
    const key = typeof vnode === "string" ? undefined : vnode.key;
    let node = key === undefined ? next : (kept.get(key) ?? null);
    if (key === undefined && node?.vnode?.key !== undefined) node = null;
    if (node && fits(node, vnode)) {
      if (node === next) next = next.nextSibling;
      else parent.insertBefore(node, next);
      update(node, vnode, isSvg);
    } else {
      parent.insertBefore(create(vnode, isSvg), next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    parent.removeChild(gone);
  }
}

function fits(node, vnode) {
  if (typeof vnode === "string") return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === vnode.tag && node.vnode?.key === vnode.key;
}

function create(vnode, isSvg) {
  if (typeof vnode === "string") return document.createTextNode(vnode);
  const inSvg = isSvg || vnode.tag === "svg";
  const node = inSvg ? document.createElementNS(SVG, vnode.tag) : document.createElement(vnode.tag);
  update(node, vnode, isSvg);
  vnode.props.onmount?.(node);
  return node;
}

function update(node, vnode, isSvg) {
  if (typeof vnode === "string") {
    if (node.data !== vnode) node.data = vnode;
    return;
  }
  const before = node.vnode?.props ?? {};
  for (const name in before) if (!(name in vnode.props)) set(node, name, undefined, before[name]);
  for (const name in vnode.props) set(node, name, vnode.props[name], before[name]);
  node.vnode = vnode;
  if (!vnode.props.isLeaf) place(node, vnode.children, isSvg || vnode.tag === "svg");
  if ("value" in vnode.props && vnode.tag === "select") node.value = vnode.props.value;
}

function set(node, name, value, before) {
  if (name === "key" || name === "onmount" || name === "isLeaf") return;
  if (name.startsWith("on")) node[name] = value ?? null;
  else if (name === "style") restyle(node.style, value ?? {}, before ?? {});
  else if (name === "value" || name === "checked") {
    // Text that a person types stays until the description changes.
    if (value !== before && node[name] !== value) node[name] = value ?? "";
  } else if (value === undefined || value === null || value === false) node.removeAttribute(name);
  else if (value !== before) node.setAttribute(name, value === true ? "" : value);
}

function restyle(style, wanted, before) {
  for (const name in before) if (!(name in wanted)) style.removeProperty(name);
  for (const name in wanted) if (wanted[name] !== before[name]) style.setProperty(name, wanted[name]);
}
