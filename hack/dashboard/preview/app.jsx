// Draws one of the dashboards with Grafana's own components, outside Grafana: `pictures.py` puts into `window.preview` the
// dashboard's JSON, the URL of a Prometheus, the time range in Unix seconds, the values of the variables, and the theme.
//
// What Grafana does between a dashboard and its components is not published as a package, and is done here as far as these
// dashboards need it: variables, queries, overrides by name, annotations, the grid, and the state timeline's drawing.
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import {
  createDataFrame, createTheme, dateTime, FieldType, getDisplayProcessor, standardTransformers, standardTransformersRegistry,
  ThemeContext, transformDataFrame,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries, VizLegend, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { useLayoutEffect } from 'react';
import { createRoot } from 'react-dom/client';
import { firstValueFrom } from 'rxjs';
import 'uplot/dist/uPlot.min.css';

const { dashboard, url, from, to, variables, theme: mode, scrape } = window.preview;
const WIDTH = 1600, PADDING = 16, CELL = 30, GAP = 8;
const theme = createTheme({ colors: { mode } });
const step = Math.max(1, Math.ceil((to - from) / 600));
const timeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: 'now-30m', to: 'now' } };
const GRAPH = {
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', pointSize: 5,
  axisPlacement: 'auto', spanNulls: false, stacking: { mode: 'none', group: 'A' }, scaleDistribution: { type: 'linear' },
  hideFrom: { legend: false, tooltip: false, viz: false }, thresholdsStyle: { mode: 'off' },
};
const DEFAULT_LIMITS = { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }, { value: 80, color: 'red' }] };

function filled(text) {
  const all = { ...variables, __rate_interval: `${Math.max(step + scrape, 4 * scrape)}s`, __range: `${Math.ceil(to - from)}s` };
  return text.replace(/\$\{?(\w+)\}?/g, (whole, name) => all[name] ?? whole);
}

async function asked(expression, instant) {
  const when = instant ? { time: to } : { start: Math.ceil(from / step) * step, end: to, step };
  const answer = await fetch(`${url}/api/v1/query${instant ? '' : '_range'}?` + new URLSearchParams({ query: filled(expression), ...when }));
  const said = await answer.json();
  if (said.status !== 'success') throw new Error(`${expression}: ${said.error}`);
  return said.data.result;
}

const named = (legend, labels) => legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');

// A range has gaps where there was no sample.
function inSteps(values) {
  const known = new Map(values.map(([time, value]) => [Number(time), Number.isFinite(Number(value)) ? Number(value) : null]));
  const times = [];
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) times.push(time);
  return [times.map((time) => time * 1000), times.map((time) => known.get(time) ?? null)];
}

function configured(panel, name, custom = {}) {
  const { custom: own, thresholds, ...defaults } = panel.fieldConfig?.defaults ?? {};
  const config = { ...defaults, thresholds: limits(thresholds ?? DEFAULT_LIMITS), custom: { ...custom, ...own } };
  for (const { matcher, properties } of panel.fieldConfig?.overrides ?? []) {
    if (matcher.options !== name) continue;
    for (const { id, value } of properties) {
      if (id.startsWith('custom.')) config.custom = { ...config.custom, [id.slice(7)]: value };
      else if (id === 'thresholds') config.thresholds = limits(value);
      else if (id !== 'links') config[id] = value;
    }
  }
  return config;
}

const limits = (given) => ({ ...given, steps: given.steps.map((each) => ({ ...each, value: each.value ?? -Infinity })) });

const shown = (field) => ({ ...field, display: getDisplayProcessor({ field, theme, timeZone: 'utc' }) });

async function seriesOf(panel, custom) {
  const results = await Promise.all(panel.targets.map((target) => asked(target.expr, target.instant)));
  const series = panel.targets.flatMap((target, index) => results[index].map((one) => ({ ...one, target })));
  return series.map(({ metric, values, value, target }, index) => {
    const [times, numbers] = values ? inSteps(values) : [[value[0] * 1000], [Number(value[1])]];
    const name = named(target.legendFormat ?? '', metric) || panel.title;
    const config = { color: { mode: values ? 'palette-classic' : 'thresholds' }, ...configured(panel, name, custom), displayName: name };
    const frame = createDataFrame({ refId: target.refId, fields: [
      { name: 'Time', type: FieldType.time, values: times, config: {} },
      { name, type: FieldType.number, values: numbers, config, labels: metric },
    ] });
    frame.fields.forEach((field, place) => { field.state = { ...field.state, seriesIndex: index, displayName: place ? name : 'Time' }; });
    frame.fields = frame.fields.map(shown);
    return frame;
  });
}

const last = (frame) => frame.fields[1].values.findLast((value) => value !== null);

function Marks({ config, events }) {
  useLayoutEffect(() => {
    config.addHook('draw', (u) => {
      const { top, height, left, width } = u.bbox;
      u.ctx.save();
      for (const { time, colour } of events) {
        const x = u.valToPos(time * 1000, 'x', true);
        if (x < left || x > left + width) continue;
        u.ctx.strokeStyle = u.ctx.fillStyle = theme.visualization.getColorByName(colour);
        u.ctx.setLineDash([5, 5]);
        u.ctx.beginPath();
        u.ctx.moveTo(x, top);
        u.ctx.lineTo(x, top + height);
        u.ctx.stroke();
        u.ctx.beginPath();
        u.ctx.moveTo(x - 5, top + height + 6);
        u.ctx.lineTo(x + 5, top + height + 6);
        u.ctx.lineTo(x, top + height);
        u.ctx.fill();
      }
      u.ctx.restore();
    });
  }, [config]);
  return null;
}

// Grafana's own is not published.
function Timeline({ frames, width, height }) {
  const names = 130, axis = 44, room = height - axis, high = Math.min(room / frames.length, 60);
  const at = (time) => names + ((time / 1000 - from) / (to - from)) * (width - names - 10);
  const seen = new Map(), cells = [];
  frames.forEach((frame, row) => {
    const [times, values] = [frame.fields[0].values, frame.fields[1].values];
    let began = 0;
    values.forEach((value, index) => {
      if (index + 1 < values.length && values[index + 1] === value) return;
      if (value !== null) {
        const display = frame.fields[1].display(value);
        seen.set(display.text, display.color);
        const x = at(times[began]), until = at(Math.min(times[index] + step * 1000, to * 1000));
        cells.push(<rect key={`${row} ${index}`} x={x} y={row * high + 2} width={Math.max(until - x, 1)} height={high - 4} fill={display.color} fillOpacity={0.8} />);
      }
      began = index + 1;
    });
  });
  const ticks = [];
  const every = [10, 20, 30, 60, 120, 300, 600].find((each) => (to - from) / each <= width / 90);
  for (let time = Math.ceil(from / every) * every; time < to; time += every) ticks.push(time);
  const text = { fill: theme.colors.text.primary, fontSize: 12 };
  return (
    <>
      <svg width={width} height={height - 24} style={{ display: 'block' }}>
        {cells}
        {frames.map((frame, row) => <text key={row} {...text} x={names - 8} y={row * high + high / 2 + 4} textAnchor="end">{frame.fields[1].name}</text>)}
        {ticks.map((time) => <text key={time} {...text} x={at(time * 1000)} y={high * frames.length + 14} textAnchor="middle">{new Date(time * 1000).toISOString().slice(11, every % 60 ? 19 : 16)}</text>)}
      </svg>
      <VizLegend placement="bottom" displayMode="list" items={[...seen].map(([label, color]) => ({ label, color, yAxis: 1 }))} />
    </>
  );
}

async function tableOf(panel) {
  const results = await Promise.all(panel.targets.map((target) => asked(target.expr, true)));
  const many = panel.targets.length > 1;
  const frames = panel.targets.map((target, index) => {
    const labels = [...new Set(results[index].flatMap(({ metric }) => Object.keys(metric)))].sort();
    return createDataFrame({ refId: target.refId, fields: [
      { name: 'Time', type: FieldType.time, values: results[index].map(() => to * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: results[index].map(({ metric }) => metric[label] ?? '') })),
      { name: many ? `Value #${target.refId}` : 'Value', type: FieldType.number, values: results[index].map(({ value }) => Number(value[1])) },
    ] });
  });
  const [table] = await firstValueFrom(transformDataFrame(panel.transformations, frames));
  if (!table?.length) return null;
  for (const field of table.fields) {
    const displayName = field.config.displayName ?? field.name;
    field.config = { ...configured(panel, displayName), displayName };
  }
  return { ...table, fields: table.fields.map(shown) };
}

const noData = (panel) => <div style={{ height: '100%', display: 'grid', placeItems: 'center' }}>{panel.fieldConfig?.defaults?.noValue ?? 'No data'}</div>;

function values(panel, frames, width, height) {
  const { options } = panel;
  return (
    <VizRepeater getValues={() => frames} source={frames} width={width} height={height} orientation={options.orientation === 'horizontal' ? 'horizontal' : 'vertical'}
      renderValue={({ value: frame, width, height }) => {
        const field = frame.fields[1], value = { ...field.display(last(frame)), title: frames.length > 1 || options.textMode === 'value_and_name' ? field.name : '' };
        return panel.type === 'stat'
          ? <BigValue {...{ width, height, theme, value }} colorMode={options.colorMode} graphMode="none" textMode={options.textMode} justifyMode={options.justifyMode} count={frames.length} hasLinks={false} />
          : <BarGauge {...{ width, height, theme, value }} field={field.config} display={field.display} orientation="horizontal" displayMode={options.displayMode ?? 'gradient'} itemSpacing={8} lcdCellWidth={12} />;
      }} />
  );
}

async function contents(panel, events) {
  if (panel.type === 'table') {
    const table = await tableOf(panel);
    return (width, height) => (table ? <TableNG data={table} width={width} height={height} cellHeight="sm" structureRev={1} getActions={() => []} /> : noData(panel));
  }
  const frames = await seriesOf(panel, panel.type === 'timeseries' ? GRAPH : {});
  if (!frames.length) return () => noData(panel);
  if (panel.type === 'timeseries') {
    return (width, height) => (
      <TimeSeries frames={frames} structureRev={1} timeRange={timeRange} timeZone="utc" width={width} height={height} legend={panel.options.legend} options={panel.options}>
        {(config) => <Marks config={config} events={events} />}
      </TimeSeries>
    );
  }
  if (panel.type === 'state-timeline') return (width, height) => <Timeline {...{ frames, width, height }} />;
  return (width, height) => values(panel, frames, width, height);
}

const annotations = (dashboard.annotations?.list ?? []).filter(({ expr }) => expr);

async function eventsOf() {
  const found = await Promise.all(annotations.map(({ expr }) => asked(expr, false)));
  // Of the samples of one event only the first is marked.
  return annotations.flatMap(({ iconColor }, index) => found[index].flatMap(({ values }) => values
    .filter(([, value], place) => Number(value) > 0 && !(place && Number(values[place - 1][1]) > 0 && values[place][0] - values[place - 1][0] <= step))
    .map(([time]) => ({ time: Number(time), colour: iconColor }))));
}

function Page({ drawn }) {
  const column = (WIDTH - 2 * PADDING + GAP) / 24;
  const rows = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div style={{ width: WIDTH, height: rows * (CELL + GAP) + 2 * PADDING + 40, position: 'relative', background: theme.colors.background.canvas }}>
      <div style={{ position: 'absolute', left: PADDING, top: 14, fontSize: 20, fontWeight: 500 }}>{dashboard.title}{variables.job ? `: ${variables.namespace}/${variables.job}` : ''}</div>
      <div style={{ position: 'absolute', right: PADDING, top: 18 }}>
        {annotations.map(({ name, iconColor }) => <span key={name} style={{ marginLeft: 20 }}><span style={{ color: theme.visualization.getColorByName(iconColor) }}>▲</span> {name}</span>)}
      </div>
      {drawn.map(({ panel, draw }, index) => {
        const { x, y, w, h } = panel.gridPos;
        const place = { left: PADDING + x * column, top: 40 + PADDING + y * (CELL + GAP), width: w * column - GAP, height: h * (CELL + GAP) - GAP };
        return (
          <div key={index} style={{ position: 'absolute', ...place }}>
            {panel.type === 'row'
              ? <div style={{ fontWeight: 500, paddingTop: 6 }}>{panel.title}</div>
              : <PanelChrome title={panel.title} width={place.width} height={place.height}>{draw}</PanelChrome>}
          </div>
        );
      })}
    </div>
  );
}

async function main() {
  await initPluginTranslations('preview');
  standardTransformersRegistry.setInit(() => [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer]
    .map((transformation) => ({ id: transformation.id, name: transformation.name, transformation: () => Promise.resolve(transformation), editor: () => null })));
  const events = await eventsOf();
  const drawn = await Promise.all(dashboard.panels.map(async (panel) => ({ panel, draw: panel.type === 'row' ? null : await contents(panel, events) })));
  createRoot(document.getElementById('root')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Page drawn={drawn} />
    </ThemeContext.Provider>,
  );
  await document.fonts.ready;
  await new Promise((resolve) => setTimeout(resolve, 1500));
  return true;
}

window.drawn = main();
