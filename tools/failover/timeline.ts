/**
 * The plots of a run as SVG, drawn here so that the page needs neither scripts nor a network: requests a second, latency and
 * path states over time, with the faults marked. Loaded only by those who want plots: echarts is not installed with the
 * package.
 */
import { init, use } from 'echarts/core';
import { LineChart } from 'echarts/charts';
import { GridComponent, LegendComponent, MarkAreaComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';
import type { PathState } from './host.ts';
import type { RunOutcome } from './run.ts';
import { pathSpans, series } from './series.ts';
import type { PathSpan } from './series.ts';

use([LineChart, GridComponent, LegendComponent, MarkAreaComponent, SVGRenderer]);

const WIDTH = 1100;
const GRID = { left: 150, right: 30, top: 50, bottom: 45 };
const COLORS = { read: '#4063d8', write: '#e69f00', failed: '#cb3c33', slow: '#9558b2' };
const STATES: Readonly<Record<PathState, string>> = {
  live: '#389826',
  standby: '#8fbf8a',
  connecting: '#e6b800',
  lost: '#cb3c33',
};
const FAULT_COLOR = 'rgba(203, 60, 51, 0.13)';
/** A fault that is over at once is still to be seen: this share of the run. */
const FAULT_WIDTH_MIN = 0.004;

function draw(height: number, option: Parameters<ReturnType<typeof init>['setOption']>[0]): string {
  const chart = init(null, null, { renderer: 'svg', ssr: true, width: WIDTH, height });
  chart.setOption({ animation: false, ...option });
  const svg = chart.renderToSVGString();
  chart.dispose();
  return svg;
}

const timeAxis = (seconds: number): object => ({
  ...{ type: 'value', name: 'seconds', nameLocation: 'middle', nameGap: 28 },
  // Ends a little after its time: not worth another second.
  ...{ min: 0, max: Math.ceil(seconds - 0.1) },
});

/** Areas behind the curves, with the fault's number. */
function marks({ record }: RunOutcome): object {
  const least = record.durationMs * FAULT_WIDTH_MIN;
  return {
    silent: true,
    itemStyle: { color: FAULT_COLOR },
    label: { position: 'insideTop', color: '#a02020', fontSize: 11 },
    data: record.faults.map(({ fault, beginMs, endMs }, index) => [
      { name: `${index + 1} ${fault.kind}`, xAxis: beginMs / 1000 },
      { xAxis: Math.max(Math.min(endMs, record.durationMs), beginMs + least) / 1000 },
    ]),
  };
}

function lines(
  outcome: RunOutcome,
  yAxis: object,
  all: readonly (readonly [string, string, readonly (readonly [number, number | null])[]])[],
): string {
  return draw(300, {
    grid: GRID,
    legend: { top: 5 },
    xAxis: timeAxis(outcome.record.durationMs / 1000),
    yAxis,
    series: all.map(([name, color, data], index) => ({
      ...{ type: 'line', name, data: data.map((point) => [...point]), showSymbol: false },
      ...{ itemStyle: { color }, lineStyle: { width: 1.5 } },
      ...(index === 0 ? { markArea: marks(outcome) } : {}),
    })),
  });
}

/** A bar for each span: a thick line from its begin to its end. */
function paths(outcome: RunOutcome, spans: readonly PathSpan[]): string {
  const names = [...new Set(spans.map(({ path }) => path))];
  return draw(130 + names.length * 40, {
    grid: GRID,
    legend: { top: 5 },
    xAxis: timeAxis(outcome.record.durationMs / 1000),
    yAxis: { type: 'category', data: names, inverse: true },
    series: spans.map(({ path, fromMs, toMs, state }, index) => ({
      ...{ type: 'line', name: state, showSymbol: false, symbol: 'none' },
      data: [fromMs, toMs].map((at) => [at / 1000, path]),
      itemStyle: { color: STATES[state] },
      lineStyle: { width: 18, cap: 'butt' },
      ...(index === 0 ? { markArea: marks(outcome) } : {}),
    })),
  });
}

export interface Plot {
  readonly title: string;
  readonly svg: string;
}

export function timeline(outcome: RunOutcome): Plot[] {
  const { read, write, failed, worst, median } = series(outcome.record);
  return [
    {
      title: 'Requests a second',
      svg: lines(outcome, { type: 'value', name: 'per second', min: 0 }, [
        ['reads', COLORS.read, read],
        ['writes', COLORS.write, write],
        ['failed', COLORS.failed, failed],
      ]),
    },
    {
      title: 'Latency, from when a request was due',
      svg: lines(outcome, { type: 'log', name: 'ms' }, [
        ['median', COLORS.read, median],
        ['worst', COLORS.slow, worst],
      ]),
    },
    { title: 'Paths', svg: paths(outcome, pathSpans(outcome.record)) },
  ];
}
