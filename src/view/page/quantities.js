// What `kda extract` writes under known names, module by module: decay, beta, states, attention
// maps, loads of experts, weights of sources; all panels follow one slider over the tokens.
import {element, latest, selectBox, slider, tensorPart} from './api.js';
import {bars, curves, heatMap, panel, positions, range, tokenAxis, tokenText} from './charts.js';

const MAX_CURVES = 16;

function metadata(file, key, fallback) {
  try {
    return JSON.parse(file.metadata?.[key] ?? 'null') ?? fallback;
  } catch {
    return fallback;
  }
}

export function hasQuantities(file) {
  return file.kind === 'tensors' && file.metadata?.format === 'kda-extract';
}

// Modules in the order of the file: {source, tensors: {kind: {key, shape, axes}}}.
function modulesOf(file) {
  const described = metadata(file, 'tensors', {});
  const modules = new Map();
  for (const tensor of file.tensors) {
    const about = described[tensor.name];
    if (!about || !KINDS[about.kind] || about.axes?.length !== tensor.shape.length) continue;
    const kind = KINDS[about.kind];
    if (kind.axes.some((name) => !about.axes.includes(name))) continue;
    if (!modules.has(about.source)) modules.set(about.source, {source: about.source, tensors: {}});
    modules.get(about.source).tensors[about.kind] = {...tensor, axes: about.axes};
  }
  return [...modules.values()].sort(
      (a, b) => a.source.localeCompare(b.source, 'en', {numeric: true}));
}

// Part of a tensor by axis names: `axes` plotted, `fixed` {name: index}.
function named(tensor, axes, fixed = {}) {
  const at = tensor.axes.map((name) => axes.includes(name) ? 0 : (fixed[name] ?? 0));
  return tensorPart(tensor.key, axes.map((name) => tensor.axes.indexOf(name)), at);
}

function columns(part) {
  return range(part.cells[1]).map((i) => part.mean.map((row) => row[i]));
}

// One curve a head over the tokens; of many heads the first ones, said in the note.
function headCurves(part, name = 'head') {
  const all = columns(part);
  return all.slice(0, MAX_CURVES).map(
      (y, i) => ({name: `${name} ${i}`, x: positions(part, 0), y}));
}

function tokenMark(view, axis) {
  return () => [axis === 'x' ?
    {type: 'line', x0: view.token, x1: view.token, yref: 'paper', y0: 0, y1: 1,
     line: {color: '#ff6b00', width: 1.5}} :
    {type: 'line', y0: view.token, y1: view.token, xref: 'paper', x0: 0, x1: 1,
     line: {color: '#ff6b00', width: 1.5}}];
}

// For each kind: the axes that it needs, and its panels. `draw(view, tensor, frame)` fills one;
// `on` says which sliders it follows.
const KINDS = {
  decay: {axes: ['token', 'head', 'channel'], panels: [{
    title: 'Decay', text: 'Factor by which each channel of the state fades at a token; 1 keeps all.',
    on: ['head', 'token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['channel', 'token'], {head: view.head});
      frame.note(part.reduced);
      await heatMap(frame.plot, {
        z: part.mean, x: positions(part, 1), y: positions(part, 0), zmin: 0, zmax: 1,
        xaxis: tokenAxis('token', view.tokens), yaxis: {title: {text: 'channel'}},
        shapes: tokenMark(view, 'x'), label: `Decay of head ${view.head}`});
    }}, {
    title: 'Decay at the token', text: 'The column under the mark: one value a channel.',
    on: ['head', 'token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['channel'], {head: view.head, token: view.token});
      frame.note(part.reduced);
      await curves(frame.plot, {
        series: [{name: 'decay', x: positions(part, 0), y: part.mean}],
        xaxis: {title: {text: 'channel'}}, yaxis: {title: {text: 'decay'}, range: [0, 1.03]},
        label: `Decay of head ${view.head} at token ${view.token}`});
    }}]},
  beta: {axes: ['token', 'head'], panels: [{
    title: 'Beta', text: 'Step size of the delta rule: how much of the old value a token overwrites.',
    on: ['token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['token', 'head']);
      await headPanel(view, part, frame, 'beta', {range: [0, 1.03]});
    }}]},
  state_norm: {axes: ['token', 'head'], panels: [{
    title: 'Norm of the state', text: 'Frobenius norm of each head’s state after the token.',
    on: ['token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['token', 'head']);
      await headPanel(view, part, frame, 'norm', {rangemode: 'tozero'});
    }}]},
  state_singular_values: {axes: ['token', 'head', 'index'], panels: [{
    title: 'Singular values over time', text: 'Spectrum of one head’s state after each token.',
    on: ['head', 'token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['index', 'token'], {head: view.head});
      frame.note(part.reduced);
      await heatMap(frame.plot, {
        z: part.mean, x: positions(part, 1), y: positions(part, 0), down: true,
        xaxis: tokenAxis('token', view.tokens), yaxis: {title: {text: 'index'}},
        shapes: tokenMark(view, 'x'), label: `Singular values of head ${view.head}`});
    }}, {
    title: 'Singular values at the token', text: 'Falling; few large ones mean a state of low rank.',
    on: ['head', 'token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['index'], {head: view.head, token: view.token});
      frame.note(part.reduced);
      await bars(frame.plot, {
        names: positions(part, 0).map(String), values: part.mean, upright: true,
        xaxis: {title: {text: 'index'}}, yaxis: {title: {text: 'singular value'}},
        label: `Singular values of head ${view.head} at token ${view.token}`});
    }}]},
  attention_map: {axes: ['head', 'token', 'key_token'], panels: attentionPanels(
      'Effective attention', 'How much of each earlier token’s value the output holds: M with o = M v.')},
  attention: {axes: ['head', 'token', 'key_token'], panels: attentionPanels(
      'Attention', 'Softmax probabilities of multi-head latent attention.', {zmin: 0, zmax: 1})},
  state: {axes: ['sequence', 'head', 'row', 'column'], panels: [{
    title: 'Last state', text: 'The state after the last token: key channels × value channels.',
    on: ['head'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['row', 'column'], {head: view.head});
      frame.note(part.reduced);
      await heatMap(frame.plot, {
        z: part.mean, x: positions(part, 1), y: positions(part, 0), down: true,
        xaxis: {title: {text: 'value channel'}}, yaxis: {title: {text: 'key channel'}},
        label: `Last state of head ${view.head}`});
    }}]},
  load: {axes: ['expert'], panels: [{
    title: 'Load of the experts', text: 'Tokens that chose each expert.', on: [],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['expert']);
      frame.note(part.reduced);
      await bars(frame.plot, {names: positions(part, 0).map(String), values: part.mean, upright: true,
                              xaxis: {title: {text: 'expert'}}, yaxis: {title: {text: 'tokens'}},
                              label: 'Load of the experts'});
    }}]},
  router_weights: {axes: ['token', 'expert'], panels: [{
    title: 'Router', text: 'Weight of each expert in the mixture; 0 where it was not chosen.',
    on: ['token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['expert', 'token']);
      frame.note(part.reduced);
      await heatMap(frame.plot, {
        z: part.mean, x: positions(part, 1), y: positions(part, 0), zmin: 0,
        xaxis: tokenAxis('token', view.tokens), yaxis: {title: {text: 'expert'}},
        shapes: tokenMark(view, 'x'), label: 'Router weights'});
    }}]},
  source_weights: {axes: ['token', 'source'], panels: [{
    title: 'Attention residual', text: 'Weight of each source of the residual; the running one is last.',
    on: ['token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['source', 'token']);
      frame.note(part.reduced);
      await heatMap(frame.plot, {
        z: part.mean, x: positions(part, 1), y: positions(part, 0), zmin: 0, zmax: 1,
        xaxis: tokenAxis('token', view.tokens), yaxis: {title: {text: 'source'}, dtick: 1},
        shapes: tokenMark(view, 'x'), label: 'Source weights'});
    }}]},
};

function attentionPanels(title, text, limits = {}) {
  return [{
    title, text, on: ['head', 'token'], square: true,
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['token', 'key_token'], {head: view.head});
      frame.note(part.reduced);
      await heatMap(frame.plot, {
        z: part.mean, x: positions(part, 1), y: positions(part, 0), down: true, ...limits,
        xaxis: tokenAxis('earlier token', view.tokens),
        yaxis: {...tokenAxis('token', view.tokens), tickangle: 0},
        shapes: tokenMark(view, 'y'), label: `${title} of head ${view.head}`});
    }}, {
    title: `${title} of the token`, text: 'The row under the mark: where this output comes from.',
    on: ['head', 'token'],
    async draw(view, tensor, frame) {
      const part = await named(tensor, ['key_token'], {head: view.head, token: view.token});
      frame.note(part.reduced);
      await curves(frame.plot, {
        series: [{name: title, x: positions(part, 0), y: part.mean}],
        xaxis: tokenAxis('earlier token', view.tokens), yaxis: {title: {text: 'weight'}},
        label: `${title} of head ${view.head} at token ${view.token}`});
    }}];
}

async function headPanel(view, part, frame, name, yaxis) {
  const notes = part.reduced ? [part.reduced] : [];
  if (part.cells[1] > MAX_CURVES) notes.push(`the first ${MAX_CURVES} of ${part.cells[1]} heads`);
  frame.note(notes.join('; '));
  await curves(frame.plot, {series: headCurves(part), xaxis: tokenAxis('token', view.tokens),
                            yaxis: {title: {text: name}, ...yaxis}, at: view.token, label: name});
}

// The text with the chosen token marked; of a long one the neighbourhood.
function markedText(tokens, at) {
  const first = Math.max(0, at - 12);
  const last = Math.min(tokens.length, at + 13);
  const box = element('span', {class: 'tokens'});
  if (first > 0) box.append('… ');
  for (let i = first; i < last; ++i) {
    const text = tokenText(tokens[i]);
    box.append(i === at ? element('mark', {}, text) : text);
  }
  if (last < tokens.length) box.append(' …');
  return box;
}

class QuantityView {
  constructor(root, file, modules, parameters) {
    this.modules = modules;
    this.tokens = metadata(file, 'tokens', []);
    this.module = modules.find((one) => one.source === parameters.get('module')) ??
        modules.find((one) => one.tensors.decay) ?? modules[0];
    this.token = Infinity;  // the last one, which has seen all others
    this.head = 0;
    this.controls = element('div', {class: 'controls sticky'});
    this.text = element('p');
    this.grid = element('div', {class: 'panels'});
    root.append(element('h2', {}, `What the model computes: ${file.label}`), this.controls,
                this.grid);
  }

  size(axis) {
    let size = 0;
    for (const tensor of Object.values(this.module.tensors)) {
      const at = tensor.axes.indexOf(axis);
      if (at >= 0) size = Math.max(size, tensor.shape[at]);
    }
    return size;
  }

  async choose(source) {
    this.module = this.modules.find((one) => one.source === source);
    await this.build();
  }

  async build() {
    const heads = this.size('head');
    const tokens = this.size('token');
    this.head = Math.min(this.head, Math.max(heads - 1, 0));
    this.token = Math.min(this.token, Math.max(tokens - 1, 0));
    const boxes = [selectBox('Module', this.modules.map((one) => one.source), this.module.source,
                             (source) => this.choose(source))];
    if (heads > 0) {
      boxes.push(slider('Head', heads, this.head, (head) => {
        this.head = head;
        this.follow('head');
      }, (head) => `${head} of ${heads}`));
    }
    if (tokens > 0) {
      boxes.push(slider('Token', tokens, this.token, (token) => {
        this.token = token;
        this.showTokens();
        this.follow('token');
      }, (token) => `${token} of ${tokens}`));
    }
    this.controls.replaceChildren(...boxes, this.text);
    this.showTokens();
    this.frames = [];
    for (const kind of Object.keys(KINDS)) {
      const tensor = this.module.tensors[kind];
      for (const one of tensor ? KINDS[kind].panels : []) {
        const frame = panel(one.title, one.text, {square: one.square});
        this.frames.push({on: one.on, draw: latest(() => one.draw(this, tensor, frame)), frame});
      }
    }
    this.grid.replaceChildren(...this.frames.map((one) => one.frame.panel));
    await Promise.all(this.frames.map((one) => one.draw()));
  }

  showTokens() {
    this.text.replaceChildren(...(this.tokens.length > this.token ?
                                  [markedText(this.tokens, this.token)] : []));
  }

  follow(axis) {
    for (const one of this.frames) if (one.on.includes(axis)) one.draw();
  }
}

export async function showQuantities(root, file, parameters) {
  const modules = modulesOf(file);
  if (!modules.length) throw new Error(`${file.label} holds activations only: see its tensors`);
  await new QuantityView(root, file, modules, parameters).build();
}
