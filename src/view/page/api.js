// The server's endpoints, and small helpers to build the page. Text from files reaches the page
// only as text nodes, never as markup.

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  const response = await fetch(query ? `${path}?${query}` : path);
  let body;
  try {
    body = await response.json();
  } catch {
    throw new Error(`${path}: the server's reply is not JSON (status ${response.status})`);
  }
  if (!response.ok) throw new Error(body.error ?? `status ${response.status}`);
  return body;
}

// Part of a tensor: `axes` in the order of the plot, `at` an index for every axis of the tensor.
export function tensorPart(key, axes, at = [], options = {}) {
  const parameters = {key, axes: axes.join(',')};
  if (at.length) parameters.at = at.join(',');
  if (options.window) parameters.window = options.window.map((w) => w.join(':')).join(',');
  if (options.cells) parameters.cells = options.cells;
  return get('/view/tensor', parameters);
}

// element('p', {class: 'note'}, 'text', child, ...); a property that is a function is a listener.
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === 'function') node.addEventListener(key, value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function selectBox(label, options, value, onChange) {
  const select = element('select', {change: () => onChange(select.value)});
  for (const option of options) {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    select.append(element('option', {value: key, selected: String(key) === String(value)}, text));
  }
  return element('label', {}, label, select);
}

// A slider with its value beside it; `describe` says in words what a position means.
export function slider(label, count, value, onInput, describe = (i) => String(i)) {
  const output = element('output', {}, describe(value));
  const input = element('input', {
    type: 'range', min: 0, max: Math.max(count - 1, 0), value, disabled: count < 2,
    'aria-label': label, 'aria-valuetext': describe(value),
    input: () => {
      const i = Number(input.value);
      output.textContent = describe(i);
      input.setAttribute('aria-valuetext', describe(i));
      onInput(i);
    },
  });
  return element('label', {class: 'wide'}, label, input, output);
}

export function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

export function formatBytes(bytes) {
  const units = ['B', 'KB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (bytes >= 1000 && unit + 1 < units.length) {
    bytes /= 1000;
    unit += 1;
  }
  return `${bytes < 10 && unit ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

export function formatCount(count) {
  return count === null || count === undefined ? '–' : Math.round(count).toLocaleString('en-US');
}

export function formatTime(nanoseconds) {
  if (nanoseconds === null || nanoseconds === undefined) return '–';
  if (nanoseconds < 1e3) return `${nanoseconds} ns`;
  if (nanoseconds < 1e6) return `${(nanoseconds / 1e3).toPrecision(3)} µs`;
  if (nanoseconds < 1e9) return `${(nanoseconds / 1e6).toPrecision(3)} ms`;
  return `${(nanoseconds / 1e9).toPrecision(3)} s`;
}

// Runs the newest call only: a slider asks faster than replies come.
export function latest(action) {
  let running = false;
  let waiting = null;
  return async function run(...args) {
    if (running) {
      waiting = args;
      return;
    }
    running = true;
    try {
      await action(...args);
    } finally {
      running = false;
      if (waiting) {
        const next = waiting;
        waiting = null;
        run(...next);
      }
    }
  };
}
