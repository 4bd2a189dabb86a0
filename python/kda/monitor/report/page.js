// Draws the page's charts from its own data; the chart library is Plotly.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const axis = document.getElementById("axis");
  const logLoss = document.getElementById("log-loss");
  const titles = { step: "step", tokens: "tokens", hours: "hours" };

  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const shown = () => new Set([...document.querySelectorAll("input.run:not(:checked)")]
    .map((box) => Number(box.value)));

  const dashes = { thin: "solid", line: "solid", dashed: "dash", marks: "dot" };
  const several = data.runs.length > 1;

  function lineStyle(style, ink) {
    const isMarks = style === "marks";
    return {
      mode: isMarks ? "lines+markers" : "lines",
      opacity: style === "thin" ? 0.35 : 1,
      line: { color: ink, width: style === "thin" ? 1 : 2, dash: dashes[style] },
      marker: { color: ink, size: 7, symbol: "diamond" },
    };
  }

  function traceOf(t, hasLabels) {
    const trace = {
      type: "scatter", x: t[axis.value], y: t.y, connectgaps: false,
      name: !several ? t.label : hasLabels ? `${data.runs[t.run]}, ${t.label}` : data.runs[t.run],
      showlegend: !several && hasLabels,
      visible: !hidden.has(t.run),
      hovertemplate: "%{y:.6~g}",
      ...lineStyle(t.style, color(`--c${t.run % 8}`)),
    };
    if (t.y.length === 1) { trace.mode = "lines+markers"; }
    if (t.y.length > 40) { trace.mode = "lines"; }
    return trace;
  }

  // With several runs a colour is a run (named at the top) and a style is a quantity: the legend
  // explains the styles, in grey.
  function styleLegend(chart) {
    const styles = new Map(chart.traces.map((t) => [t.label, t.style]));
    return [...styles].map(([name, style]) => ({
      type: "scatter", x: [null], y: [null], name, showlegend: true, hoverinfo: "skip",
      ...lineStyle(style, color("--muted")),
    }));
  }

  function spansDecades(chart) {
    const positive = chart.traces.flatMap((t) => t.y).filter((y) => y > 0);
    if (positive.length === 0) { return false; }
    const low = positive.reduce((a, b) => Math.min(a, b));
    return positive.reduce((a, b) => Math.max(a, b)) > 20 * low;
  }

  function layoutOf(chart) {
    const ink = color("--ink"), line = color("--line");
    const isLog = chart.key === "loss" ? logLoss.checked : chart.log && spansDecades(chart);
    const y = {
      gridcolor: line, linecolor: line, zeroline: false, automargin: true,
      type: isLog ? "log" : "linear", exponentformat: "e", hoverformat: ".6~g",
    };
    if (chart.key === "speed") { y.tickformat = "~s"; }
    if (chart.zero && !isLog) { y.rangemode = "tozero"; }
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, size: 12, family: "system-ui, Noto Sans, Noto Sans CJK SC, sans-serif" },
      margin: { l: 52, r: 14, t: 10, b: 40 }, hovermode: "x unified",
      hoverlabel: { bgcolor: color("--soft"), bordercolor: line, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--muted"), activecolor: ink },
      xaxis: { title: { text: titles[axis.value], standoff: 6 }, gridcolor: line, linecolor: line,
        zeroline: false, exponentformat: "SI", showspikes: false },
      yaxis: y,
      legend: { orientation: "h", y: -0.16, yanchor: "top", x: 0 },
    };
  }

  let hidden = shown();
  function draw() {
    hidden = shown();
    for (const chart of data.charts) {
      const hasLabels = new Set(chart.traces.map((t) => t.label)).size > 1;
      const traces = chart.traces.map((t) => traceOf(t, hasLabels));
      if (several && hasLabels) { traces.push(...styleLegend(chart)); }
      Plotly.react(`plot-${chart.key}`, traces, layoutOf(chart), {
        responsive: true, displaylogo: false, displayModeBar: "hover",
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      });
    }
  }

  function setDark(isDark) {
    root.classList.toggle("dark", isDark);
    draw();
  }

  document.getElementById("theme").addEventListener("click",
    () => setDark(!root.classList.contains("dark")));
  prefersDark.addEventListener("change", (event) => setDark(event.matches));
  axis.addEventListener("change", draw);
  logLoss.addEventListener("change", draw);
  for (const box of document.querySelectorAll("input.run")) {
    box.addEventListener("change", draw);
  }
  const onlyDiff = document.getElementById("only-diff");
  if (onlyDiff) {
    const config = document.getElementById("config");
    const follow = () => config.classList.toggle("only-diff", onlyDiff.checked);
    onlyDiff.addEventListener("change", follow);
    follow();
  }
  setDark(prefersDark.matches);
})();
