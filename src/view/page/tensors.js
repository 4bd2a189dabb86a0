// Any tensor: one, two or three of its axes as a curve, heat map, surface or cloud of points, the
// other axes by sliders; and the list of a file's tensors.
import {element, formatBytes, formatCount, formatNumber, latest, selectBox, slider, tensorPart}
  from './api.js';
import {curves, heatMap, panel, positions, surface, volume} from './charts.js';

const VOLUME_CELLS = 8000;
const SURFACE_CELLS = 16384;

function axesMetadata(file, name) {
  try {
    return JSON.parse(file.metadata?.tensors ?? '{}')[name]?.axes ?? [];
  } catch {
    return [];
  }
}

export function showTensorList(root, file, addressOf) {
  const bytes = file.tensors.reduce((sum, tensor) => sum + tensor.bytes, 0);
  const count = file.tensors.reduce(
      (sum, tensor) => sum + tensor.shape.reduce((product, dim) => product * dim, 1), 0);
  const rows = element('tbody');
  const more = element('p', {class: 'note', hidden: true});
  const fill = (text) => {
    const found = file.tensors.filter((tensor) => tensor.name.includes(text));
    rows.replaceChildren(...found.slice(0, 1000).map((tensor) => element('tr', {},
        element('td', {}, element('a', {
          href: addressOf({file: file.label, view: 'tensor', key: tensor.key})}, tensor.name)),
        element('td', {}, tensor.dtype),
        element('td', {}, tensor.shape.join(' × ') || 'scalar'),
        element('td', {class: 'number'}, formatBytes(tensor.bytes)))));
    more.hidden = found.length <= 1000;
    more.textContent = `the first 1000 of ${found.length}: type a part of the name`;
  };
  const filter = element('input', {type: 'search', input: () => fill(filter.value)});
  fill('');
  root.append(
      element('h2', {}, file.label),
      element('p', {}, `${formatCount(file.tensors.length)} tensors, ${formatCount(count)} numbers, ` +
              formatBytes(bytes)),
      element('div', {class: 'controls'}, element('label', {}, 'Filter', filter)), more,
      element('div', {class: 'scroll'}, element('table', {},
          element('thead', {}, element('tr', {}, ...['Name', 'Type', 'Shape', 'Size'].map(
              (text, i) => element('th', {class: i === 3 ? 'number' : null, scope: 'col'}, text)))),
          rows)));
}

function statisticsTable(statistics, dtype, shape) {
  const facts = [
    ['shape', shape.join(' × ') || 'scalar'], ['type', dtype],
    ['elements', formatCount(statistics.elements)], ['smallest', formatNumber(statistics.min)],
    ['largest', formatNumber(statistics.max)], ['mean', formatNumber(statistics.mean)],
    ['standard deviation', formatNumber(statistics.std)],
  ];
  const odd = statistics.nans + statistics.positive_infinities + statistics.negative_infinities;
  facts.push(['not finite', odd === 0 ? 'none' : `${statistics.nans} NaN, ` +
      `${statistics.positive_infinities} +∞, ${statistics.negative_infinities} −∞`]);
  if (statistics.read < statistics.elements) {
    facts.push(['statistics of', `an even sample of ${formatCount(statistics.read)}`]);
  }
  return element('dl', {class: 'facts'},
                 ...facts.flatMap(([name, text]) => [element('dt', {}, name), element('dd', {}, text)]));
}

class TensorView {
  constructor(root, tensor, axisNames, parameters) {
    this.tensor = tensor;
    this.rank = tensor.shape.length;
    this.names = tensor.shape.map((_, i) => axisNames[i] ?? `axis ${i}`);
    this.at = tensor.shape.map(() => 0);
    this.window = null;
    const wished = (parameters.get('axes') ?? '').split(',').filter(Boolean).map(Number)
        .filter((axis) => Number.isInteger(axis) && axis >= 0 && axis < this.rank);
    const longest = [...tensor.shape.keys()].sort((a, b) => tensor.shape[b] - tensor.shape[a])[0];
    const last = this.rank - 1;
    this.axes = wished.length ? wished :
        this.rank < 2 ? [...tensor.shape.keys()] :
        tensor.shape[last] > 1 && tensor.shape[last - 1] > 1 ? [last - 1, last] : [longest];
    this.form = parameters.get('form') ?? this.forms()[0][0];
    this.controls = element('div', {class: 'controls'});
    this.frame = panel('Values', '', {tall: true, full: true});
    this.statistics = element('section', {class: 'panel full'});
    root.append(element('h2', {}, tensor.name), this.controls,
                element('div', {class: 'panels'}, this.frame.panel, this.statistics));
    this.load = latest(() => this.draw());
    this.buildControls();
  }

  forms() {
    const forms = [[], [['curve', 'curve']], [['heat', 'heat map'], ['surface', 'surface']],
                   [['volume', 'points']]];
    return forms[this.axes.length].length ? forms[this.axes.length] : [['value', 'number']];
  }

  buildControls() {
    const change = (axes) => {
      this.axes = axes;
      this.window = null;
      if (!this.forms().some(([form]) => form === this.form)) this.form = this.forms()[0][0];
      this.buildControls();
      this.load();
    };
    const boxes = [];
    if (this.rank > 0) {
      const counts = [1, 2, 3].filter((count) => count <= this.rank);
      boxes.push(selectBox('Dimensions', counts, this.axes.length, (count) => {
        const all = [...this.tensor.shape.keys()];
        const kept = this.axes.slice(-Number(count));
        for (let axis = all.length - 1; axis >= 0 && kept.length < Number(count); --axis) {
          if (!kept.includes(axis)) kept.unshift(axis);
        }
        change(kept);
      }));
    }
    const words = {1: ['Along'], 2: ['Rows', 'Columns'], 3: ['Depth', 'Rows', 'Columns']};
    this.axes.forEach((axis, i) => {
      boxes.push(selectBox(words[this.axes.length][i],
                           this.names.map((name, n) => [n, `${name} (${this.tensor.shape[n]})`]), axis,
                           (chosen) => {
        const axes = [...this.axes];
        const other = axes.indexOf(Number(chosen));
        if (other >= 0) axes[other] = axis;
        axes[i] = Number(chosen);
        change(axes);
      }));
    });
    if (this.forms().length > 1) {
      boxes.push(selectBox('As', this.forms(), this.form, (form) => {
        this.form = form;
        this.load();
      }));
    }
    this.tensor.shape.forEach((size, axis) => {
      if (this.axes.includes(axis)) return;
      boxes.push(slider(this.names[axis], size, this.at[axis], (index) => {
        this.at[axis] = index;
        this.load();
      }, (index) => `${index} of ${size}`));
    });
    if (this.window) {
      boxes.push(element('button', {type: 'button', click: () => {
        this.window = null;
        this.buildControls();
        this.load();
      }}, 'Whole range'));
    }
    this.controls.replaceChildren(...boxes);
  }

  async draw() {
    if (this.tensor.shape.includes(0)) {
      this.frame.plot.replaceChildren(element('p', {}, 'No elements.'));
      return;
    }
    const cells = {volume: VOLUME_CELLS, surface: SURFACE_CELLS}[this.form];
    const part = await tensorPart(this.tensor.key, this.axes, this.at, {cells, window: this.window});
    this.statistics.replaceChildren(element('h3', {}, 'The whole tensor'),
                                    statisticsTable(part.statistics, part.dtype, part.shape));
    this.frame.note(part.reduced && this.axes.length < 3 && this.form !== 'surface' ?
        `${part.reduced}; zoom into the plot for finer ones` : part.reduced);
    const title = (i) => ({title: {text: this.names[this.axes[i]]}});
    const label = this.tensor.name;
    const plot = this.frame.plot;
    if (this.axes.length === 0) {
      plot.replaceChildren(element('p', {}, formatNumber(part.mean)));
    } else if (this.axes.length === 1) {
      const series = {name: label, x: positions(part, 0), y: part.mean, low: part.low, high: part.high};
      await curves(plot, {series: [series], xaxis: title(0), yaxis: {title: {text: 'value'}}, label});
    } else if (this.form === 'surface') {
      await surface(plot, {z: part.mean, x: positions(part, 1), y: positions(part, 0),
                           xTitle: this.names[this.axes[1]], yTitle: this.names[this.axes[0]], label});
    } else if (this.axes.length === 2) {
      await heatMap(plot, {z: part.mean, x: positions(part, 1), y: positions(part, 0), down: true,
                           xaxis: title(1), yaxis: title(0), label});
    } else {
      await volume(plot, {values: part.mean, axes: [0, 1, 2].map((i) => positions(part, i)),
                          titles: this.axes.map((axis) => this.names[axis]), label});
    }
    this.watchZoom(part);
  }

  // Only where cells were joined is there anything finer to ask for.
  watchZoom(part) {
    const plot = this.frame.plot;
    plot.removeAllListeners?.('plotly_relayout');
    if (!part.reduced || this.axes.length > 2 || this.form === 'surface') return;
    plot.on('plotly_relayout', (change) => {
      const window = this.axes.map((axis, i) => {
        const name = this.axes.length === 1 || i === 1 ? 'xaxis' : 'yaxis';
        const ends = [change[`${name}.range[0]`], change[`${name}.range[1]`]].map(Number);
        if (ends.some(Number.isNaN)) return part.window[i];
        const size = this.tensor.shape[axis];
        const from = Math.max(0, Math.floor(Math.min(...ends)));
        return [Math.min(from, size), Math.min(size, Math.ceil(Math.max(...ends)) + 1)];
      });
      const same = window.every(([from, to], i) =>
        to <= from || (from === part.window[i][0] && to === part.window[i][1]));
      if (same) return;
      this.window = window;
      this.buildControls();
      this.load();
    });
  }
}

export async function showTensor(root, file, parameters) {
  const tensor = file.tensors.find((one) => one.key === parameters.get('key'));
  if (!tensor) throw new Error(`no tensor ${parameters.get('key')} in ${file.label}`);
  await new TensorView(root, tensor, axesMetadata(file, tensor.name), parameters).draw();
}
