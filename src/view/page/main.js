// The frame: what is open, which view is shown. The address (#file=...&view=...) says it all, so
// that a view can be linked to and the browser's back button works.
import {element, get} from './api.js';
import {redrawAll} from './charts.js';
import {showGraph} from './graph.js';
import {showMetrics} from './metrics.js';
import {hasQuantities, showQuantities} from './quantities.js';
import {showTensor, showTensorList} from './tensors.js';

const MAX_LISTED = 300;

const nav = document.getElementById('nav');
const view = document.getElementById('view');
const status = document.getElementById('status');
let files = [];
let turn = 0;

function addressOf(parameters) {
  return `#${new URLSearchParams(parameters)}`;
}

function link(text, parameters) {
  return element('li', {}, element('a', {href: addressOf(parameters)}, text));
}

// Names of a checkpoint, with a filter: there may be thousands.
function tensorNav(file) {
  const list = element('ul');
  const more = element('p', {class: 'note', hidden: true});
  const fill = (text) => {
    const found = file.tensors.filter((tensor) => tensor.name.includes(text));
    list.replaceChildren(...found.slice(0, MAX_LISTED).map(
        (tensor) => link(tensor.name, {file: file.label, view: 'tensor', key: tensor.key})));
    more.hidden = found.length <= MAX_LISTED;
    more.textContent = `${found.length - MAX_LISTED} more: type a part of the name`;
    markCurrent();
  };
  const filter = element('input', {
    type: 'search', placeholder: `filter ${file.tensors.length} tensors`,
    'aria-label': `Filter the tensors of ${file.label}`, input: () => fill(filter.value),
  });
  const box = element('details', {open: files.length === 1 || !hasQuantities(file)},
                      element('summary', {}, 'Tensors'), filter, list, more);
  fill('');
  return box;
}

function buildNav() {
  nav.replaceChildren();
  for (const file of files) {
    const list = element('ul');
    nav.append(element('h2', {}, file.label), list);
    if (file.kind === 'trace') list.append(link('Operation graph', {file: file.label, view: 'graph'}));
    if (file.kind === 'metrics') list.append(link('Curves', {file: file.label, view: 'metrics'}));
    if (file.kind === 'tensors') {
      if (hasQuantities(file)) {
        list.append(link('What the model computes', {file: file.label, view: 'quantities'}));
      }
      list.append(link('All tensors', {file: file.label, view: 'tensors'}));
      nav.append(tensorNav(file));
    }
  }
}

function markCurrent() {
  for (const a of nav.querySelectorAll('a')) {
    if (a.getAttribute('href') === location.hash) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
}

function firstAddress() {
  const file = files.find(hasQuantities) ?? files[0];
  const kinds = {trace: 'graph', metrics: 'metrics'};
  return addressOf({file: file.label,
                    view: kinds[file.kind] ?? (hasQuantities(file) ? 'quantities' : 'tensors')});
}

async function show() {
  if (!location.hash) {
    history.replaceState(null, '', firstAddress());
  }
  const parameters = new URLSearchParams(location.hash.slice(1));
  const file = files.find((one) => one.label === parameters.get('file'));
  const mine = ++turn;
  markCurrent();
  status.className = '';
  status.textContent = 'Loading…';
  // A view is built aside and shown when it is whole; a newer one wins.
  const root = element('div');
  try {
    if (!file) throw new Error(`no file ${parameters.get('file')} is open`);
    view.replaceChildren(root);
    switch (parameters.get('view')) {
      case 'graph': await showGraph(root, file, parameters); break;
      case 'metrics': await showMetrics(root, file); break;
      case 'quantities': await showQuantities(root, file, parameters); break;
      case 'tensor': await showTensor(root, file, parameters); break;
      case 'tensors': showTensorList(root, file, addressOf); break;
      default: throw new Error(`no view ${parameters.get('view')}`);
    }
    if (mine !== turn) return;
    status.textContent = '';
    document.title = `${root.querySelector('h2')?.textContent ?? file.label} – kda view`;
  } catch (error) {
    if (mine !== turn) return;
    status.className = 'error';
    status.textContent = error.message;
  }
  document.body.dataset.ready = String(mine);
}

function followTheme() {
  const select = document.getElementById('theme');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const wish = select.value;
    document.documentElement.dataset.theme =
        wish === 'auto' ? (dark.matches ? 'dark' : 'light') : wish;
    redrawAll();
  };
  try {
    select.value = localStorage.getItem('kda-view-theme') ?? 'auto';
  } catch { /* storage may be forbidden: the choice then lasts as long as the page */ }
  if (!select.value) select.value = 'auto';
  select.addEventListener('change', () => {
    try {
      localStorage.setItem('kda-view-theme', select.value);
    } catch { /* as above */ }
    apply();
  });
  dark.addEventListener('change', apply);
  apply();
}

async function start() {
  followTheme();
  try {
    files = (await get('/view/files')).files;
  } catch (error) {
    status.className = 'error';
    status.textContent = error.message;
    return;
  }
  document.getElementById('subject').textContent = files.map((file) => file.label).join(', ');
  buildNav();
  addEventListener('hashchange', show);
  await show();
}

start();
