"""The style sheet of the report: one column on a phone, two on a desktop, light or dark as the reader's system."""

# Okabe and Ito's blue and vermilion, suitable for colour-blind readers; lighter ones on dark.
STYLE = """\
:root { --ink: #1b1f24; --quiet: #5b6470; --paper: #ffffff; --card: #f5f6f8; --rule: #dde1e6;
  --blue: #0072b2; --red: #d55e00; --good: #009e73; --usable: #8fbf4d; --poor: #e69f00; --useless: #c0392b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --quiet: #a3abb6; --paper: #16191d; --card: #20252b; --rule: #363d46;
    --blue: #56b4e9; --red: #f0894a; --good: #2fc59a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 32px 0 8px; padding-top: 8px; border-top: 1px solid var(--rule); }
h3 { font-size: 0.85rem; font-weight: 600; margin: 0; color: var(--quiet); }
p { margin: 4px 0 8px; overflow-wrap: anywhere; }
header { border-left: 6px solid var(--poor); padding: 4px 0 4px 14px; margin: 8px 0 16px; }
header.done { border-color: var(--good); }
.badge { display: inline-block; margin: 0 0 4px; padding: 2px 12px; border-radius: 12px; font-weight: 600;
  background: var(--poor); color: #1b1f24; }
.badge.good { background: var(--good); color: #06281e; }
header.open .badge.good { background: none; color: inherit; box-shadow: inset 0 0 0 2px var(--rule); }
.answer { margin: 6px 0; }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 150px), 1fr)); }
.card { background: var(--card); border-radius: 8px; padding: 10px 12px; }
.card p { margin: 0; font-size: 0.85rem; color: var(--quiet); }
.card p.figure { font-size: 1.2rem; font-weight: 600; color: var(--ink); font-variant-numeric: tabular-nums; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
.columns { columns: 420px; column-gap: 24px; }
.columns figure { break-inside: avoid; margin-bottom: 10px; }
figure { margin: 0; max-width: 500px; }
figcaption { font-size: 0.85rem; color: var(--quiet); overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--ink); font-family: inherit; }
svg text.quiet { fill: var(--quiet); font-size: 11px; }
svg text.on { fill: var(--quiet); font-size: 11px; paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
svg text.strong { font-weight: 700; }
svg text.name { font-size: 11.5px; }
line.grid { stroke: var(--rule); stroke-width: 1; }
line.axis { stroke: var(--quiet); stroke-width: 1; }
line.level { stroke: var(--red); stroke-width: 1.2; stroke-dasharray: 5 4; }
.curve { fill: none; stroke: var(--blue); stroke-width: 1.8; stroke-linejoin: round; }
.point { fill: var(--blue); }
line.meanfield { stroke: var(--blue); stroke-width: 3; stroke-linecap: round; }
line.response { stroke: var(--red); stroke-width: 3; stroke-linecap: round; }
.legend { font-size: 0.85rem; }
.legend span { display: inline-block; margin-right: 16px; }
.key { display: inline-block; width: 22px; height: 4px; border-radius: 2px; vertical-align: middle; margin: 0 6px 0 0; }
.key.meanfield { background: var(--blue); }
.key.response { background: var(--red); }
rect.good { fill: var(--good); } rect.usable { fill: var(--usable); }
rect.poor { fill: var(--poor); } rect.useless { fill: var(--useless); }
.marker { fill: var(--ink); }
rect.bar { fill: var(--blue); fill-opacity: 0.45; } rect.bar.marked { fill-opacity: 1; }
rect.positive { fill: var(--blue); } rect.negative { fill: var(--red); }
svg text.value { font-size: 10.5px; }
tr.chosen td { font-weight: 600; }
.scroll { overflow-x: auto; }
.tall { max-height: 420px; overflow-y: auto; }
table { border-collapse: collapse; font-size: 0.85rem; width: 100%; }
table.plain { width: auto; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { font-weight: 600; } thead th { color: var(--quiet); }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.negative td:first-child { color: var(--useless); font-weight: 700; }
tr.flat td:first-child { color: var(--red); font-weight: 700; }
@media (max-width: 560px) {
  table.directions thead { display: none; }
  table.directions tr { display: grid; grid-template-columns: 5.5em 1fr 1fr; padding: 6px 0;
    border-bottom: 1px solid var(--rule); }
  table.directions td { border: 0; padding: 0; }
  table.directions td:nth-child(2)::before { content: "curvature "; color: var(--quiet); }
  table.directions td:nth-child(3):not(:empty)::before { content: "width "; color: var(--quiet); }
  table.directions td:nth-child(4) { grid-column: 1 / -1; } }
@media print { .tall { max-height: none; } }
"""
