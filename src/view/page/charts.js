// Plots by plotly.js in the page's colours. Every plot has a text that says what it shows.
/* global Plotly */
import {element, formatNumber} from './api.js';

const redraws = new Map();  // plot element -> how to draw it again

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Plotly reads a little markup in texts; names from files must stay plain.
export function plainText(text) {
  return String(text).replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}

const LINES = ['#0b74d1', '#d1600b', '#2f9e44', '#c2255c', '#7048e8', '#0c8599', '#a0720a', '#868e96'];

function baseLayout(extra) {
  const text = colour('--text');
  const axis = {gridcolor: colour('--grid'), zerolinecolor: colour('--line'),
                linecolor: colour('--line'), automargin: true};
  const layout = {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', colorway: LINES,
    font: {color: text, size: 12, family: 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif'},
    margin: {l: 55, r: 12, t: 12, b: 42}, hoverlabel: {font: {size: 12}},
    legend: {orientation: 'h', y: 1.02, yanchor: 'bottom', x: 0},
    ...extra,
  };
  for (const name of ['xaxis', 'yaxis']) layout[name] = {...axis, ...(extra[name] ?? {})};
  return layout;
}

const CONFIG = {responsive: true, displaylogo: false, displayModeBar: 'hover',
                modeBarButtonsToRemove: ['lasso2d', 'select2d', 'autoScale2d'],
                // Never offers to send anything anywhere.
                plotlyServerURL: '', showSendToCloud: false};

function draw(plot, summary, build) {
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', summary);
  const paint = () => {
    const {data, layout} = build();
    return Plotly.react(plot, data, baseLayout(layout), CONFIG);
  };
  redraws.set(plot, paint);
  return paint();
}

export function redrawAll() {
  for (const [plot, paint] of redraws) {
    if (plot.isConnected) paint();
    else redraws.delete(plot);
  }
}

// A plot in its frame: {panel, plot, note(text)}.
export function panel(title, description, options = {}) {
  const size = options.tall ? ' tall' : options.square ? ' square' : '';
  const plot = element('div', {class: `plot${size}`});
  const note = element('p', {class: 'note', hidden: true});
  const frame = element('section', {class: options.full ? 'panel full' : 'panel'},
                        element('h3', {}, title), element('p', {}, description), plot, note);
  return {
    panel: frame, plot,
    note(text) {  // '' or null hides it
      note.hidden = !text;
      note.textContent = text ? `Reduced: ${text}.` : '';
    },
  };
}

function extremes(rows) {
  let low = Infinity;
  let high = -Infinity;
  for (const row of rows) {
    for (const value of Array.isArray(row) ? row : [row]) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? [0, 0] : [low, high];
}

export function range(count, from = 0, step = 1) {
  return Array.from({length: count}, (_, i) => from + i * step);
}

// Where the cells of an axis lie: the middle of the elements that each joins.
export function positions(part, axis) {
  const from = part.window[axis][0];
  const block = part.block[axis];
  return range(part.cells[axis], from + (block - 1) / 2, block);
}

// A token as a person reads it: SentencePiece writes a space as ▁.
export function tokenText(token) {
  return token.text.replace(/▁/g, ' ');
}

// Axis of tokens: texts while all fit, indices otherwise.
export function tokenAxis(title, tokens, most = 24) {
  const axis = {title: {text: title}};
  if (tokens && tokens.length && tokens.length <= most) {
    axis.tickvals = range(tokens.length);
    axis.ticktext = tokens.map((token) => plainText(tokenText(token).trim() || '␣'));
    axis.tickangle = -60;
    axis.tickfont = {size: 11};
  }
  return axis;
}

// spec: {z, x, y, xaxis, yaxis, label, zmin, zmax, down}: `down` puts row 0 at the top.
export function heatMap(plot, spec) {
  const [low, high] = extremes(spec.z);
  const signed = low < 0 && high > 0 && spec.zmin === undefined;
  const size = Math.max(-low, high);
  const summary = `${spec.label}: heat map, values from ${formatNumber(low)} to ${formatNumber(high)}`;
  return draw(plot, summary, () => ({
    data: [{
      type: 'heatmap', z: spec.z, x: spec.x, y: spec.y,
      colorscale: signed ? 'RdBu' : 'Viridis', reversescale: false,
      zmin: spec.zmin ?? (signed ? -size : low), zmax: spec.zmax ?? (signed ? size : high),
      colorbar: {thickness: 12, outlinewidth: 0, len: 1},
      hovertemplate: `${plainText(spec.xaxis?.title?.text ?? 'x')} %{x}<br>` +
          `${plainText(spec.yaxis?.title?.text ?? 'y')} %{y}<br>%{z:.5g}<extra></extra>`,
      hoverongaps: false,
    }],
    layout: {
      xaxis: spec.xaxis ?? {},
      yaxis: {...(spec.yaxis ?? {}), ...(spec.down ? {autorange: 'reversed'} : {})},
      shapes: spec.shapes?.() ?? [], margin: {l: 55, r: 8, t: 8, b: 42},
    },
  }));
}

// spec: {series: [{name, x, y, low, high, dash}], xaxis, yaxis, label, at}: `at` marks one x.
export function curves(plot, spec) {
  const [low, high] = extremes(spec.series.map((one) => one.y));
  const summary = `${spec.label}: ${spec.series.length} curve${spec.series.length === 1 ? '' : 's'}, ` +
      `values from ${formatNumber(low)} to ${formatNumber(high)}`;
  return draw(plot, summary, () => {
    const data = [];
    spec.series.forEach((one, i) => {
      const line = LINES[i % LINES.length];
      if (one.low && one.high) {
        data.push({x: one.x, y: one.high, mode: 'lines', line: {width: 0}, hoverinfo: 'skip',
                   showlegend: false, legendgroup: one.name},
                  {x: one.x, y: one.low, mode: 'lines', line: {width: 0}, fill: 'tonexty',
                   fillcolor: `${line}33`, hoverinfo: 'skip', showlegend: false,
                   legendgroup: one.name});
      }
      data.push({x: one.x, y: one.y, name: plainText(one.name), legendgroup: one.name,
                 mode: one.x.length < 40 ? 'lines+markers' : 'lines',
                 line: {width: 1.6, color: line, dash: one.dash ?? 'solid'}, marker: {size: 5}});
    });
    const shapes = spec.at === undefined || spec.at === null ? [] :
        [{type: 'line', x0: spec.at, x1: spec.at, yref: 'paper', y0: 0, y1: 1,
          line: {color: colour('--accent'), width: 1.5, dash: 'dot'}}];
    return {data, layout: {xaxis: spec.xaxis ?? {}, yaxis: spec.yaxis ?? {}, shapes,
                           showlegend: spec.series.length > 1, hovermode: 'x unified'}};
  });
}

// spec: {names, values, xaxis, label, upright}
export function bars(plot, spec) {
  const [low, high] = extremes([spec.values]);
  const summary = `${spec.label}: ${spec.values.length} bars, values from ${formatNumber(low)} to ` +
      formatNumber(high);
  const names = spec.names.map(plainText);
  return draw(plot, summary, () => ({
    data: [spec.upright ? {type: 'bar', x: names, y: spec.values} :
        {type: 'bar', orientation: 'h', y: names, x: spec.values}],
    layout: {xaxis: spec.xaxis ?? {},
             yaxis: spec.upright ? (spec.yaxis ?? {}) : {autorange: 'reversed'}, bargap: 0.15},
  }));
}

export function surface(plot, spec) {
  const [low, high] = extremes(spec.z);
  const axis = (title) => ({title: {text: title}, gridcolor: colour('--grid'), color: colour('--text')});
  return draw(plot, `${spec.label}: surface, values from ${formatNumber(low)} to ${formatNumber(high)}`,
              () => ({
    data: [{type: 'surface', z: spec.z, x: spec.x, y: spec.y, colorscale: 'Viridis',
            colorbar: {thickness: 12}}],
    layout: {scene: {xaxis: axis(spec.xTitle), yaxis: axis(spec.yTitle), zaxis: axis('value')},
             margin: {l: 0, r: 0, t: 0, b: 0}},
  }));
}

// Every cell of a volume as a point whose colour is its value.
export function volume(plot, spec) {
  const x = [];
  const y = [];
  const z = [];
  const value = [];
  spec.values.forEach((rows, i) => rows.forEach((row, j) => row.forEach((cell, k) => {
    if (cell === null) return;
    x.push(spec.axes[2][k]);
    y.push(spec.axes[1][j]);
    z.push(spec.axes[0][i]);
    value.push(cell);
  })));
  const [low, high] = extremes([value]);
  const signed = low < 0 && high > 0;
  const size = Math.max(-low, high);
  const axis = (title) => ({title: {text: title}, gridcolor: colour('--grid'), color: colour('--text')});
  return draw(plot, `${spec.label}: ${value.length} points, values from ${formatNumber(low)} to ` +
              formatNumber(high), () => ({
    data: [{type: 'scatter3d', mode: 'markers', x, y, z,
            marker: {size: 3, color: value, colorscale: signed ? 'RdBu' : 'Viridis',
                     cmin: signed ? -size : low, cmax: signed ? size : high, opacity: 0.85,
                     colorbar: {thickness: 12}},
            hovertemplate: '%{z}, %{y}, %{x}: %{marker.color:.5g}<extra></extra>'}],
    layout: {scene: {xaxis: axis(spec.titles[2]), yaxis: axis(spec.titles[1]),
                     zaxis: axis(spec.titles[0])},
             margin: {l: 0, r: 0, t: 0, b: 0}},
  }));
}
