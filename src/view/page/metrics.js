// The curves of a run. The file is read anew at every refresh: the run may be going on.
import {element, formatCount, get} from './api.js';
import {curves, panel} from './charts.js';

const REFRESH_MS = 10000;

// Curves that belong on one plot, in the order of interest; what is in none gets a plot of its own.
const GROUPS = [
  ['Loss', 'Per token, in nats; held-out text beside the training data.',
   ['step.loss', 'step.loss_ema', 'eval.heldout_loss']],
  ['Learning rate', 'After warm-up and schedule.', ['step.lr']],
  ['Norm of the gradient', 'Before clipping.', ['step.grad_norm']],
  ['Speed', 'Tokens a second.', ['step.tok_per_s']],
  ['Memory', 'Bytes of the process.', ['step.rss_bytes', 'step.peak_bytes']],
  ['Translation', 'On the sentences held out.', ['eval.success_rate']],
  ['chrF', 'Mean over the sentences held out.', ['eval.mean_chrf']],
];
const DULL = new Set(['step.tokens', 'step.epoch', 'eval.targets', 'eval.bytes', 'eval.seconds',
                      'eval.mt_sentences', 'save.bytes', 'save.seconds', 'step.step_ms',
                      'step.loss_z', 'step.grad_z']);

function groupsOf(series) {
  const byName = new Map(series.map((one) => [one.name, one]));
  const groups = [];
  const used = new Set();
  for (const [title, text, names] of GROUPS) {
    const found = names.map((name) => byName.get(name)).filter(Boolean);
    found.forEach((one) => used.add(one.name));
    if (found.length) groups.push({title, text, series: found});
  }
  const rest = series.filter((one) => !used.has(one.name));
  const worthOne = rest.filter((one) => !DULL.has(one.name));
  for (const one of [...worthOne, ...rest.filter((other) => DULL.has(other.name))]) {
    groups.push({title: one.name, text: 'As recorded.', series: [one], dull: DULL.has(one.name)});
  }
  return groups;
}

function sampleTable(samples) {
  return element('section', {class: 'panel full'}, element('h3', {}, 'Samples'),
      element('div', {class: 'scroll'}, element('table', {},
          element('thead', {}, element('tr', {}, ...['Step', 'Prompt', 'Text'].map(
              (text) => element('th', {scope: 'col'}, text)))),
          element('tbody', {}, ...samples.slice().reverse().map((sample) => element('tr', {},
              element('td', {class: 'number'}, formatCount(sample.step)),
              element('td', {}, sample.prompt), element('td', {}, sample.text)))))));
}

class MetricsView {
  constructor(root, file) {
    this.file = file;
    this.frames = new Map();
    this.count = element('span');
    const follow = element('input', {type: 'checkbox', change: () => this.follow(follow.checked)});
    this.grid = element('div', {class: 'panels'});
    this.samples = element('div', {class: 'panels'});
    this.more = element('details', {}, element('summary', {}, 'Other records'));
    this.moreGrid = element('div', {class: 'panels'});
    this.more.append(this.moreGrid);
    // Plots drawn while hidden have no width; draw them when they come to light.
    this.more.addEventListener('toggle', () => dispatchEvent(new Event('resize')));
    root.append(element('h2', {}, file.label),
        element('div', {class: 'controls'}, this.count,
            element('button', {type: 'button', click: () => this.refresh()}, 'Refresh'),
            element('label', {}, follow, `follow (every ${REFRESH_MS / 1000} s)`)),
        this.grid, this.samples, this.more);
    this.root = root;
  }

  follow(on) {
    clearInterval(this.timer);
    if (!on) return;
    this.timer = setInterval(() => {
      if (this.root.isConnected) this.refresh();
      else clearInterval(this.timer);
    }, REFRESH_MS);
  }

  async refresh() {
    let metrics;
    try {
      metrics = await get('/view/metrics', {file: this.file.label});
    } catch (error) {
      this.count.className = 'error';
      this.count.textContent = error.message;
      if (!this.frames.size) throw error;
      return;
    }
    this.count.className = '';
    this.count.textContent = metrics.note ?? `${formatCount(metrics.records)} records`;
    for (const group of groupsOf(metrics.series)) {
      let frame = this.frames.get(group.title);
      if (!frame) {
        frame = panel(group.title, group.text, {full: group.title === 'Loss'});
        this.frames.set(group.title, frame);
        (group.dull ? this.moreGrid : this.grid).append(frame.panel);
      }
      const joined = group.series.filter((one) => one.block > 1);
      frame.note(joined.length ?
        `each point is the mean of ${joined[0].block} records, with their range` : '');
      await curves(frame.plot, {series: group.series.map((one) => ({
        name: one.name.replace(/^(step|eval)\./, ''), x: one.x, y: one.y, low: one.low,
        high: one.high})), xaxis: {title: {text: 'step'}}, label: group.title});
    }
    this.more.hidden = !this.moreGrid.children.length;
    this.samples.replaceChildren(...(metrics.samples.length ? [sampleTable(metrics.samples)] : []));
  }
}

export async function showMetrics(root, file) {
  await new MetricsView(root, file).refresh();
}
