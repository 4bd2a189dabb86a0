// Where the boxes and lines of an operation graph go. Pure: no document, no server.
//
// A tree of items (modules, operations, stages of an operator); an item is open or closed. Of an
// open item the children are laid out in rows by longest path, recursively, so that its frame is
// one rectangle; lines over more than one row run down lanes at the frame's right side.

const CHAR = 6.9;
const MIN_WIDTH = 96;
const MAX_WIDTH = 250;
const BOX_HEIGHT = 38;
const HEAD_HEIGHT = 24;
const PAD = 12;
const GAP_X = 16;
const GAP_Y = 26;
const LANE = 9;

// graph: reply of /view/graph; modules: of /view/trace. Returns the root; every item has
// {id, kind, title, subtitle, children, parent, first, node}; `first` orders siblings by execution.
export function buildTree(graph, modules, subtitleOf) {
  const root = {id: '', kind: 'root', title: '', children: [], parent: null, first: 0, node: -1};
  const byPath = new Map([['', root]]);
  for (const module of modules) {
    const parent = byPath.get(module.parent);
    const item = {
      id: `module ${module.path}`, kind: module.kind, module, parent, children: [], node: -1,
      title: module.parent && module.path.startsWith(`${module.parent}.`) ?
        module.path.slice(module.parent.length + 1) : module.path,
      first: Infinity,
    };
    byPath.set(module.path, item);
    parent.children.push(item);
  }
  const items = graph.label.map((label, i) => ({
    id: `node ${label}`, kind: graph.kind[i], label, subtitle: subtitleOf(i),
    // Of a stage the operator's label is written above it.
    title: graph.stage_of[i] >= 0 ? label.slice(label.lastIndexOf('/') + 1) : label,
    children: [], parent: null, first: i, node: i,
  }));
  items.forEach((item, i) => {
    const owner = graph.stage_of[i];
    item.parent = owner >= 0 && owner !== i ? items[owner] : byPath.get(graph.module[i]) ?? root;
    item.parent.children.push(item);
  });
  // An operator that opens to stages is a box of its module's kind.
  for (const item of items) {
    if (item.children.length && item.kind === 'operation') item.kind = 'kda';
  }
  const settle = (item) => {
    for (const child of item.children) settle(child);
    // Modules that did nothing in this phase go.
    item.children = item.children.filter((child) => child.node >= 0 || child.children.length);
    item.children.sort((a, b) => a.first - b.first);
    if (item.node < 0 && item.children.length) item.first = item.children[0].first;
    item.count = item.node >= 0 && !item.children.length ? 1 :
      item.children.reduce((sum, child) => sum + child.count, 0);
    if (item.children.length) {
      const words = item.module ? [item.kind, 'operation'] : ['operator', 'stage'];
      item.subtitle = `${words[0]}, ${item.count} ${words[1]}${item.count === 1 ? '' : 's'}`;
    }
  };
  settle(root);
  return {root, items};
}

function visible(item, isOpen) {
  let shown = item;
  for (let at = item; at.parent; at = at.parent) {
    if (at.parent.kind !== 'root' && !isOpen(at.parent)) shown = at.parent;
  }
  return shown;
}

function chain(item) {
  const path = [];
  for (let at = item; at; at = at.parent) path.push(at);
  return path.reverse();
}

// Constants stand apart: sequence boundaries go to so many operations that their lines hide all else.
export function hideConstants(tree) {
  const prune = (item) => {
    item.children = item.children.filter((child) => child.kind !== 'constant');
    item.children.forEach(prune);
  };
  prune(tree.root);
  return new Set(tree.items.filter((item) => item.kind === 'constant'));
}

// The children of the deepest common ancestor through which a line between two items leads.
function fork(a, b) {
  const left = chain(a);
  const right = chain(b);
  let depth = 0;
  while (depth < left.length && depth < right.length && left[depth] === right[depth]) depth += 1;
  if (depth === left.length || depth === right.length) return null;  // one holds the other
  return {group: left[depth - 1], from: left[depth], to: right[depth]};
}

function boxSize(item) {
  const longest = Math.max(item.title.length, (item.subtitle ?? '').length * 0.92);
  item.width = Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, longest * CHAR + 20));
  item.height = BOX_HEIGHT;
}

// Rows by longest path; lines against the order of execution do not count.
function rowsOf(group, lines) {
  const order = new Map(group.children.map((child, i) => [child, i]));
  const row = new Map(group.children.map((child) => [child, 0]));
  const forward = lines.filter((line) => order.get(line.from) < order.get(line.to));
  const into = new Map();
  const outOf = new Map();
  for (const line of forward) {
    into.set(line.to, [...(into.get(line.to) ?? []), line.from]);
    outOf.set(line.from, [...(outOf.get(line.from) ?? []), line.to]);
  }
  for (const child of group.children) {
    for (const from of into.get(child) ?? []) row.set(child, Math.max(row.get(child), row.get(from) + 1));
  }
  // What waits for nothing here stands right above what needs it.
  for (const child of [...group.children].reverse()) {
    if (into.has(child) || !outOf.has(child)) continue;
    row.set(child, Math.max(0, Math.min(...outOf.get(child).map((to) => row.get(to))) - 1));
  }
  const rows = [];
  for (const child of group.children) {
    (rows[row.get(child)] ??= []).push(child);
    child.row = row.get(child);
  }
  return rows.map((one) => one ?? []);
}

// Lines that skip rows share a lane when they start at one item, or do not overlap.
function lanesOf(lines) {
  const long = new Map();
  for (const line of lines) {
    if (line.to.row - line.from.row <= 1) continue;
    const known = long.get(line.source);
    if (known) {
      known.end = Math.max(known.end, line.to.row);
      known.lines.push(line);
    } else {
      long.set(line.source, {begin: line.from.row, end: line.to.row, lines: [line]});
    }
  }
  const ends = [];
  for (const one of [...long.values()].sort((a, b) => a.begin - b.begin)) {
    let lane = ends.findIndex((end) => end <= one.begin);
    if (lane < 0) lane = ends.length;
    ends[lane] = one.end;
    for (const line of one.lines) line.lane = lane;
  }
  return ends.length;
}

function measure(item, isOpen, linesOf) {
  item.shown = true;
  item.open = item.kind === 'root' || (item.children.length > 0 && isOpen(item));
  if (!item.open) {
    boxSize(item);
    return;
  }
  for (const child of item.children) measure(child, isOpen, linesOf);
  const lines = linesOf.get(item) ?? [];
  const rows = rowsOf(item, lines);
  const lanes = lanesOf(lines);
  const head = item.kind === 'root' ? 0 : HEAD_HEIGHT;
  const widthOf = (row) => row.reduce((sum, child) => sum + child.width + GAP_X, -GAP_X);
  const inner = Math.max(MIN_WIDTH, item.title.length * CHAR + 30, ...rows.map(widthOf));
  item.inner = inner;
  item.lanes = lanes;
  item.width = inner + 2 * PAD + (lanes ? lanes * LANE + 4 : 0);
  let y = head + PAD;
  item.rowTop = [];
  item.rowBottom = [];
  for (const row of rows) {
    const height = Math.max(0, ...row.map((child) => child.height));
    let x = PAD + (inner - widthOf(row)) / 2;
    for (const child of row) {
      child.x = x;
      child.y = y + (height - child.height) / 2;
      x += child.width + GAP_X;
    }
    item.rowTop.push(y);
    item.rowBottom.push(y + height);
    y += height + GAP_Y;
  }
  item.height = y - GAP_Y + PAD;
}

function place(item, x, y, out) {
  item.left = x + (item.x ?? 0);
  item.top = y + (item.y ?? 0);
  out.push(item);
  if (item.open) for (const child of item.children) place(child, item.left, item.top, out);
}

function pathOf(line) {
  const {source, target, group, from, to} = line;
  const x0 = source.left + source.width / 2;
  const y0 = source.top + source.height;
  const x1 = target.left + target.width / 2;
  const y1 = target.top;
  if (line.lane === undefined) {
    const bend = Math.max(12, Math.min(40, Math.abs(y1 - y0) / 2));
    return `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`;
  }
  const lane = group.left + PAD + group.inner + 8 + line.lane * LANE;
  const below = group.top + group.rowBottom[from.row] + GAP_Y / 2;
  const above = group.top + group.rowTop[to.row] - GAP_Y / 2;
  const r = 5;
  return `M${x0} ${y0}L${x0} ${below - r}Q${x0} ${below} ${x0 + r} ${below}L${lane - r} ${below}` +
      `Q${lane} ${below} ${lane} ${below + r}L${lane} ${above - r}Q${lane} ${above} ${lane - r} ` +
      `${above}L${x1 + r} ${above}Q${x1} ${above} ${x1} ${above + r}L${x1} ${y1}`;
}

// {items, lines, width, height}: items with left, top, width, height, open; lines with path, source,
// target. `isOpen(item)` is asked of items with children.
export function layOut(tree, graph, isOpen, hidden = new Set()) {
  const lines = new Map();
  const linesOf = new Map();
  graph.parents.forEach((parents, child) => {
    for (const parent of parents) {
      if (hidden.has(tree.items[parent]) || hidden.has(tree.items[child])) continue;
      const source = visible(tree.items[parent], isOpen);
      const target = visible(tree.items[child], isOpen);
      const key = `${source.id}\n${target.id}`;
      if (source === target || lines.has(key)) continue;
      const way = fork(source, target);
      if (!way) continue;
      const line = {source, target, ...way};
      lines.set(key, line);
      if (!linesOf.has(way.group)) linesOf.set(way.group, []);
      linesOf.get(way.group).push(line);
    }
  });
  measure(tree.root, isOpen, linesOf);
  const items = [];
  place(tree.root, 0, 0, items);
  for (const line of lines.values()) line.path = pathOf(line);
  return {items: items.slice(1), lines: [...lines.values()], width: tree.root.width,
          height: tree.root.height};
}
