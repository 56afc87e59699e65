/** The plots of a report as SVG: drawn here, so that the page needs neither scripts nor a network. */
import { init, use } from 'echarts/core';
import { LineChart } from 'echarts/charts';
import { GridComponent, LegendComponent, TooltipComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';
import type { Results, SweepResult } from './measure.ts';
import type { Figures } from './figures.ts';

use([LineChart, GridComponent, LegendComponent, TooltipComponent, SVGRenderer]);

const SIZE = { width: 1000, height: 420 };

interface Curve {
  readonly name: string;
  readonly points: readonly (readonly [x: number, y: number])[];
}

function draw(
  xName: string,
  yName: string,
  x: readonly number[],
  curves: readonly Curve[],
): string {
  const label = (value: number): string =>
    xName === 'block size' ? `${value / 1024} KiB` : String(value);
  const chart = init(null, null, { renderer: 'svg', ssr: true, ...SIZE });
  chart.setOption({
    animation: false,
    legend: { top: 0 },
    grid: { left: 80, right: 30, top: 50, bottom: 50 },
    xAxis: {
      ...{ type: 'category', name: xName, nameLocation: 'middle', nameGap: 30 },
      data: x.map(label),
    },
    yAxis: { type: 'value', name: yName, min: 0 },
    series: curves.map(({ name, points }) => {
      const byX = new Map(points);
      return { type: 'line', name, data: x.map((value) => byX.get(value) ?? null) };
    }),
  });
  const svg = chart.renderToSVGString();
  chart.dispose();
  return svg;
}

interface Plot {
  readonly title: string;
  readonly axis: SweepResult['axis'];
  readonly unit: string;
  /** Name of the curve (behind the sweep's title) and its value. */
  readonly curves: readonly (readonly [string, (figures: Figures) => number | undefined])[];
}

const PLOTS: readonly Plot[] = [
  {
    ...{ title: 'IOPS over depth, 4 KiB random', axis: 'depth', unit: 'k IOPS' },
    curves: [['', ({ iops }) => iops / 1000]],
  },
  {
    ...{ title: 'Latency over depth, 4 KiB random', axis: 'depth', unit: 'µs' },
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
    ...{ title: 'CPU per I/O over depth, 4 KiB random', axis: 'depth', unit: 'µs' },
    curves: [
      ['host', ({ hostCpu }) => hostCpu],
      ['target', ({ targetCpu }) => targetCpu],
    ],
  },
];

export function charts({ sweeps }: Results): { readonly title: string; readonly svg: string }[] {
  return PLOTS.flatMap(({ title, axis, unit, curves }) => {
    const chosen = sweeps.filter((sweep) => sweep.axis === axis);
    const x = [...new Set(chosen.flatMap(({ points }) => points.map((point) => point.x)))];
    const drawn = chosen.flatMap((sweep): Curve[] =>
      curves.flatMap(([name, value]) => {
        const points = sweep.points.flatMap((point) => {
          const y = value(point);
          return y === undefined || Number.isNaN(y) ? [] : [[point.x, y] as const];
        });
        return points.length === 0 ? [] : [{ name: `${sweep.title} ${name}`.trim(), points }];
      }),
    );
    if (drawn.length === 0) return [];
    return [
      {
        title,
        svg: draw(
          axis,
          unit,
          x.toSorted((a, b) => a - b),
          drawn,
        ),
      },
    ];
  });
}
