/** The plots of a report as SVG: drawn here, so that the page needs neither scripts nor a network. */
import { init, use } from 'echarts/core';
import { LineChart } from 'echarts/charts';
import { GridComponent, LegendComponent, TooltipComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';
import type { Results, SweepResult } from './measure.ts';
import type { Figures } from './figures.ts';

use([LineChart, GridComponent, LegendComponent, TooltipComponent, SVGRenderer]);

const SIZE = { width: 1100, height: 420 };
/** Beside the plot: in rows above it, entries run into each other, as text has no width before it is shown. */
const LEGEND_WIDTH = 270;
const COLORS = ['#4063d8', '#389826', '#cb3c33', '#9558b2', '#e69f00', '#3a3a3a'];

interface Curve {
  readonly name: string;
  /** One of COLORS: curves of one sweep have the same. */
  readonly color: number;
  readonly dashed: boolean;
  readonly points: readonly (readonly [x: number, y: number])[];
}

interface Plot {
  readonly title: string;
  readonly axis: SweepResult['axis'];
  readonly unit: string;
  /** Of times, which span some powers of ten: logarithmic. */
  readonly scale?: 'log';
  /** Name of the curve (behind the sweep's title) and its value. */
  readonly curves: readonly (readonly [string, (figures: Figures) => number | undefined])[];
}

function draw(
  { axis: xName, unit: yName, scale }: Plot,
  x: readonly number[],
  curves: readonly Curve[],
): string {
  const label = (value: number): string =>
    xName === 'block size' ? `${value / 1024} KiB` : String(value);
  const chart = init(null, null, { renderer: 'svg', ssr: true, ...SIZE });
  chart.setOption({
    animation: false,
    color: COLORS,
    legend: { orient: 'vertical', left: SIZE.width - LEGEND_WIDTH + 20, top: 40 },
    grid: { left: 80, right: LEGEND_WIDTH, top: 40, bottom: 50 },
    xAxis: {
      ...{ type: 'category', name: xName, nameLocation: 'middle', nameGap: 30 },
      data: x.map(label),
    },
    yAxis: scale === 'log' ? { type: 'log', name: yName } : { type: 'value', name: yName, min: 0 },
    series: curves.map(({ name, points, color, dashed }) => {
      const byX = new Map(points);
      return {
        ...{ type: 'line', name, data: x.map((value) => byX.get(value) ?? null) },
        itemStyle: { color: COLORS[color % COLORS.length] },
        lineStyle: { type: dashed ? 'dashed' : 'solid' },
      };
    }),
  });
  const svg = chart.renderToSVGString();
  chart.dispose();
  return svg;
}

const PLOTS: readonly Plot[] = [
  {
    ...{ title: 'IOPS over depth, 4 KiB random', axis: 'depth', unit: 'k IOPS' },
    curves: [['', ({ iops }) => iops / 1000]],
  },
  {
    ...{ title: 'Latency over depth, 4 KiB random', axis: 'depth', unit: 'µs', scale: 'log' },
    curves: [
      ['median', ({ p50 }) => p50],
      ['99 %', ({ p99 }) => p99],
    ],
  },
  {
    ...{ title: 'Bandwidth over block size, depth 32', axis: 'block size', unit: 'GB/s' },
    curves: [['', ({ bandwidth }) => bandwidth / 1e9]],
  },
  {
    ...{ title: 'CPU per I/O over depth, 4 KiB random', axis: 'depth', unit: 'µs', scale: 'log' },
    curves: [
      ['host', ({ hostCpu }) => hostCpu],
      ['target', ({ targetCpu }) => targetCpu],
    ],
  },
];

export function charts({ sweeps }: Results): { readonly title: string; readonly svg: string }[] {
  return PLOTS.flatMap((plot) => {
    const { title, axis, curves } = plot;
    const chosen = sweeps.filter((sweep) => sweep.axis === axis);
    const x = [...new Set(chosen.flatMap(({ points }) => points.map((point) => point.x)))];
    const drawn = chosen.flatMap((sweep, color): Curve[] =>
      curves.flatMap(([name, value], index) => {
        const points = sweep.points.flatMap((point) => {
          const y = value(point);
          return y === undefined || Number.isNaN(y) ? [] : [[point.x, y] as const];
        });
        if (points.length === 0) return [];
        return [{ name: `${sweep.title} ${name}`.trim(), color, dashed: index > 0, points }];
      }),
    );
    if (drawn.length === 0) return [];
    const rising = x.toSorted((a, b) => a - b);
    return [{ title, svg: draw(plot, rising, drawn) }];
  });
}
