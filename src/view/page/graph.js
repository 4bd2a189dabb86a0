// The operation graph of a trace: modules open and close, an operation shows its facts.
import {element, formatCount, formatNumber, formatTime, get, selectBox} from './api.js';
import {bars, panel} from './charts.js';
import {buildTree, hideConstants, layOut} from './graph_layout.js';

const SVG = 'http://www.w3.org/2000/svg';
const MAX_BOXES = 1500;
const OPEN_AT_FIRST = 40;

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function cut(text, width) {
  const most = Math.floor((width - 16) / 6.9);
  return text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 1))}…`;
}

function facts(rows) {
  return element('dl', {class: 'facts'}, ...rows.filter(([, value]) =>
    value !== null && value !== undefined && value !== '').flatMap(([name, value]) =>
    [element('dt', {}, name), element('dd', {}, value)]));
}

function tensorText(one) {
  return `${one.dtype ?? ''} [${(one.shape ?? []).join(', ')}]`;
}

class GraphView {
  constructor(root, file, overview) {
    this.file = file;
    this.overview = overview;
    this.open = new Set();
    this.zoom = 1;
    this.selected = null;
    this.phases = overview.phases.map((phase, i) => {
      const tokens = phase.num_tokens ? `, tokens ${phase.first_token}–` +
          `${phase.first_token + phase.num_tokens - 1}` : '';
      return [i, `${i}: ${phase.kind}${tokens}`];
    });
    this.find = element('input', {type: 'search', list: 'labels', placeholder: 'label', size: 14,
                                  change: () => this.reveal(this.find.value)});
    this.labels = element('datalist', {id: 'labels'});
    this.zoomText = element('output', {}, '100 %');
    this.constants = element('input', {type: 'checkbox', change: () => {
      this.buildTree();
      this.draw();
    }});
    this.note = element('p', {class: 'note', hidden: true});
    this.box = element('div', {class: 'graph-box', tabindex: 0, role: 'group',
                               'aria-label': 'Operation graph'});
    this.details = element('section', {class: 'panel details', 'aria-live': 'polite'});
    this.time = panel('Time by function', 'Wall-clock time of all operations of the phase.');
    this.flops = panel('Arithmetic by function', 'Floating-point operations, by formula.');
    const button = (text, click, label) =>
      element('button', {type: 'button', click, 'aria-label': label ?? null}, text);
    root.append(
        element('h2', {}, `Operation graph: ${file.label}`),
        element('div', {class: 'controls'},
                selectBox('Phase', this.phases, 0, (phase) => this.load(Number(phase))),
                element('label', {}, 'Find', this.find), this.labels,
                element('label', {}, this.constants, 'constants'),
                button('Open all', () => this.openAll()), button('Close all', () => this.closeAll()),
                button('−', () => this.scale(1 / 1.25), 'Smaller'), this.zoomText,
                button('+', () => this.scale(1.25), 'Larger')),
        this.note,
        element('div', {class: 'graph-layout'},
                element('div', {}, this.box, element('ul', {class: 'legend'}, ...[
                  ['kda', 'KDA'], ['mla', 'MLA'], ['moe', 'MoE, MLP'], ['stage', 'stage of the operator'],
                  ['input', 'input, constant'], ['', 'other'],
                ].map(([kind, text]) => element('li', {'data-kind': null},
                    element('span', {'data-kind': kind}), text)))),
                this.details),
        element('div', {class: 'panels'}, this.time.panel, this.flops.panel));
    this.showRun();
  }

  async load(phase) {
    this.graph = await get('/view/graph', {file: this.file.label, phase});
    const graph = this.graph;
    this.buildTree();
    this.selected = null;
    this.open = new Set();
    const openable = this.groups();
    const start = graph.label.length <= OPEN_AT_FIRST ? openable :
      openable.filter((item) => item.module?.parent === '' && item.children.length > 1);
    start.filter((item) => item.node < 0).forEach((item) => this.open.add(item.id));
    this.note.hidden = !graph.reduced;
    this.note.textContent = graph.reduced ? `Reduced: ${graph.reduced}.` : '';
    this.labels.replaceChildren(...graph.label.slice(0, 5000).map(
        (label) => element('option', {value: label})));
    this.draw();
    this.centre();
    await this.drawSums();
  }

  centre() {
    this.box.scrollLeft = (this.box.scrollWidth - this.box.clientWidth) / 2;
  }

  buildTree() {
    const graph = this.graph;
    this.tree = buildTree(graph, this.overview.modules, (i) => {
      const shape = graph.shape[i] ? `[${graph.shape[i].join(', ')}] ${graph.dtype[i] ?? ''}` : '';
      return graph.duration_ns[i] ? `${shape} · ${formatTime(graph.duration_ns[i])}` : shape;
    });
    this.hidden = this.constants.checked ? new Set() : hideConstants(this.tree);
  }

  groups() {
    const found = [];
    const walk = (item) => {
      if (item.children.length && item.parent) found.push(item);
      item.children.forEach(walk);
    };
    walk(this.tree.root);
    return found;
  }

  openAll() {
    if (this.tree.root.count > MAX_BOXES) {
      this.note.hidden = false;
      this.note.textContent = `${formatCount(this.tree.root.count)} operations are too many to draw ` +
          'at once: open one module at a time.';
      return;
    }
    this.groups().forEach((item) => this.open.add(item.id));
    this.draw();
    this.centre();
  }

  closeAll() {
    this.open.clear();
    this.draw();
  }

  scale(factor) {
    this.zoom = Math.min(3, Math.max(0.2, this.zoom * factor));
    this.draw();
  }

  toggle(item) {
    if (this.open.has(item.id)) this.open.delete(item.id);
    else this.open.add(item.id);
    this.draw(item.id);
    if (item.module) this.showModule(item.module);
    else this.showNode(item.label);
  }

  reveal(label) {
    const item = this.tree.items[this.graph.label.indexOf(label)];
    if (!item) {
      this.details.replaceChildren(element('p', {class: 'error'},
          `No operation ${label} in this phase.`));
      return;
    }
    for (let at = item.parent; at?.parent; at = at.parent) this.open.add(at.id);
    if (this.hidden.has(item)) {
      this.constants.checked = true;
      this.buildTree();
    }
    this.selected = item.id;
    this.draw(item.id);
    this.showNode(label);
  }

  // Draws all; then `focus` has the focus and is in sight.
  draw(focus) {
    const layout = layOut(this.tree, this.graph, (item) => this.open.has(item.id),
                          this.hidden);
    const {zoom} = this;
    this.zoomText.textContent = `${Math.round(zoom * 100)} %`;
    const lines = svg('g', {});
    for (const line of layout.lines) {
      const lit = this.selected &&
          (line.source.id === this.selected || line.target.id === this.selected);
      lines.append(svg('path', {class: lit ? 'edge lit' : 'edge', d: line.path,
                                'marker-end': 'url(#arrow)'}));
    }
    const frames = svg('g', {});
    const boxes = svg('g', {});
    for (const item of layout.items) {
      const {left: x, top: y, width, height} = item;
      if (item.open) frames.append(svg('rect', {class: 'frame', x, y, width, height, rx: 6}));
      boxes.append(this.shape(item));
    }
    const arrow = svg('marker', {id: 'arrow', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 6,
                                 markerHeight: 6, orient: 'auto'}, svg('path', {d: 'M0 0L8 4L0 8z'}));
    const scroll = [this.box.scrollLeft, this.box.scrollTop];
    this.box.replaceChildren(svg('svg', {
      class: 'graph', width: layout.width * zoom, height: layout.height * zoom,
      viewBox: `0 0 ${layout.width} ${layout.height}`}, svg('defs', {}, arrow), frames, lines, boxes));
    [this.box.scrollLeft, this.box.scrollTop] = scroll;
    if (focus) {
      const node = this.box.querySelector(`[data-id="${CSS.escape(focus)}"]`);
      node?.focus({preventScroll: true});
      node?.scrollIntoView({block: 'nearest', inline: 'nearest'});
    }
  }

  shape(item) {
    const isGroup = item.children.length > 0;
    const act = () => {
      this.selected = item.id;
      if (isGroup) {
        this.toggle(item);
      } else {
        this.draw(item.id);
        this.showNode(item.label);
      }
    };
    const group = svg('g', {
      role: 'button', tabindex: 0, 'data-id': item.id, 'data-kind': item.kind,
      'aria-expanded': isGroup ? String(item.open) : null,
      'aria-pressed': isGroup ? null : String(item.id === this.selected),
      'aria-label': isGroup ? `${item.module?.path ?? item.label}, ${item.subtitle}` :
        `${item.label} ${item.subtitle ?? ''}`,
    });
    const {left, top, width, height} = item;
    if (item.open) {
      group.append(svg('rect', {class: 'head', x: left, y: top, width, height: 22, rx: 6}),
                   svg('text', {x: left + width / 2, y: top + 15, 'text-anchor': 'middle'},
                       `▾ ${cut(item.title, width - 14)}`));
    } else {
      group.append(svg('rect', {class: 'box', x: left, y: top, width, height, rx: 5}),
                   svg('text', {x: left + 8, y: top + 16}, cut((isGroup ? '▸ ' : '') + item.title, width)),
                   svg('text', {class: 'dim', x: left + 8, y: top + 31}, cut(item.subtitle ?? '', width * 1.07)));
    }
    group.append(svg('title', {}, item.module?.path ?? item.label));
    group.addEventListener('click', act);
    group.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      act();
    });
    return group;
  }

  showRun() {
    const {run = {}, totals = {}, validation, model} = this.overview;
    const words = validation ? `${validation.equal} equal, ${validation.different} different, ` +
        `${validation.skipped} skipped` : 'not validated';
    this.details.replaceChildren(element('h3', {}, 'The run'), facts([
      ['checkpoint', run?.checkpoint], ['device', run?.device], ['type', run?.dtype],
      ['backend', run?.backend], ['threads', run?.threads], ['program', run?.program],
      ['tokens', formatCount(this.overview.tokens.length)],
      ['parameters', formatCount(model?.parameters)],
      ['operations', formatCount(totals?.nodes)], ['time', formatTime(totals?.duration_ns)],
      ['FLOPs', formatCount(totals?.flops)], ['replay', words],
    ]), element('p', {}, 'Choose a box for its facts; modules and operators open and close.'));
  }

  showModule(module) {
    this.details.replaceChildren(element('h3', {}, module.path), facts([
      ['kind', module.kind], ['calls', formatCount(module.calls)],
      ['time', formatTime(module.duration_ns)], ['FLOPs', formatCount(module.flops)],
      ['parameters', formatCount(module.parameters)],
    ]));
  }

  links(labels) {
    if (!labels?.length) return null;
    return element('span', {}, ...labels.flatMap((label, i) => [i ? ', ' : '',
      element('button', {type: 'button', click: () => this.reveal(label)}, label)]));
  }

  async showNode(label) {
    let node;
    try {
      node = await get('/view/node', {file: this.file.label, label});
    } catch (error) {
      this.details.replaceChildren(element('p', {class: 'error'}, error.message));
      return;
    }
    const statistics = (node.statistics ?? []).map((one, i) =>
      [`output ${i}`, ['min', 'max', 'mean', 'rms'].map((name) => `${name} ${formatNumber(one?.[name])}`)
          .join(', ') + `, ${one?.nonfinite} not finite`]);
    this.details.replaceChildren(element('h3', {}, node.label), facts([
      ['function', node.function], ['kind', node.kind], ['module', node.module],
      ['outputs', (node.outputs ?? []).map(tensorText).join(', ')],
      ['inputs', (node.inputs ?? []).map(
          (one) => `${one.node ?? one.parameter ?? ''} ${tensorText(one)}`).join(', ')],
      ['weights', (node.parameters ?? []).join(', ')],
      ['arguments', node.attributes && Object.keys(node.attributes).length ?
        JSON.stringify(node.attributes) : null],
      ['time', node.duration_ns ? formatTime(node.duration_ns) : null],
      ['FLOPs', node.flops === null ? null : formatCount(node.flops)],
      ['changes its input', node.in_place?.length ? node.in_place.join(', ') : null],
      ['torch calls', (node.calls ?? []).join(', ')],
      ['gradient of', node.gradient_of], ...statistics,
      ['from', this.links(node.parents)], ['to', this.links(node.children)],
      ['stages', this.links(node.stages)],
    ]));
  }

  async drawSums() {
    const graph = this.graph;
    const sums = (values) => {
      const by = new Map();
      graph.function.forEach((name, i) => {
        // Stages are parts of their operator.
        if (graph.stage_of[i] < 0 && values[i]) by.set(name, (by.get(name) ?? 0) + values[i]);
      });
      return [...by].sort((a, b) => b[1] - a[1]).slice(0, 14);
    };
    const time = sums(graph.duration_ns);
    const flops = sums(graph.flops);
    await bars(this.time.plot, {names: time.map(([name]) => name),
                                values: time.map(([, value]) => value / 1e3),
                                xaxis: {title: {text: 'µs'}}, label: 'Time by function'});
    await bars(this.flops.plot, {names: flops.map(([name]) => name),
                                 values: flops.map(([, value]) => value),
                                 xaxis: {title: {text: 'FLOPs'}}, label: 'Arithmetic by function'});
  }
}

export async function showGraph(root, file, parameters) {
  const overview = await get('/view/trace', {file: file.label});
  const view = new GraphView(root, file, overview);
  if (!overview.phases.length) throw new Error(`${file.label} has no phases`);
  await view.load(0);
  if (parameters.get('label')) view.reveal(parameters.get('label'));
}
