//! A plot of one table in one place, both axes logarithmic.

use std::fmt::Write;

use super::Table;
use super::table::number;
use crate::cores::Place;
use crate::side::Side;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
/// Room for labels: left, right, top, bottom.
const EDGE: [f64; 4] = [62.0, 56.0, 26.0, 40.0];

/// How wide a label below is.
const LABEL: f64 = 44.0;

/// Values along an axis.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.filter(|&value| value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        Self {
            low: low * 0.8,
            high: high * 1.25,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// Powers of ten inside.
    fn tens(&self) -> impl Iterator<Item = f64> {
        let powers = self.low.log10().ceil() as i32..=self.high.log10().floor() as i32;
        powers.map(|power| 10f64.powi(power))
    }
}

/// The plot, as SVG.
pub(super) fn plot(table: &Table, place: Place) -> String {
    let rows = || table.rows.iter().filter(move |row| row.place == place);
    let values = rows().flat_map(|row| &row.figures).map(|f| f.median.value);
    let [left, right, top, bottom] = EDGE;
    let x = Axis::new(rows().map(|row| row.x), left, WIDTH - right);
    let y = Axis::new(values, HEIGHT - bottom, top);
    let mut svg = format!(
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <text x=\"{left}\" y=\"14\" font-weight=\"600\">{}, {} by {}</text>\n",
        place.name(),
        table.unit,
        table.axis
    );
    for value in y.tens() {
        let at = y.at(value);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - right,
            left - 6.0,
            at + 4.0,
            number(value)
        );
    }
    let mut free = 0.0;
    for row in rows() {
        // No label over another.
        if x.at(row.x) < free {
            continue;
        }
        free = x.at(row.x) + LABEL;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x.at(row.x),
            HEIGHT - bottom + 16.0,
            row.label.trim_end_matches(&format!(" {}", table.axis))
        );
    }
    let mut ends = Vec::new();
    for side in [Side::Tcp, Side::Unix, Side::Pipe, Side::Ring, Side::Shunt] {
        let points: Vec<(f64, f64)> = rows()
            .filter_map(|row| Some((x.at(row.x), y.at(row.of(side.name())?.median.value))))
            .collect();
        curve(&mut svg, side, &points);
        ends.extend(points.last().map(|&(_, y)| (y, side)));
    }
    names(&mut svg, ends);
    svg + "</svg>\n"
}

/// The sides' names where their curves end, none over another.
fn names(svg: &mut String, mut ends: Vec<(f64, Side)>) {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lowest = f64::NEG_INFINITY;
    for (y, side) in ends {
        lowest = f64::max(y, lowest + 12.0);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{}\">{}</text>",
            WIDTH - EDGE[1] + 6.0,
            lowest + 4.0,
            colour(side),
            side.name()
        );
    }
}

fn colour(side: Side) -> &'static str {
    match side {
        Side::Tcp => "#c0392b",
        Side::Unix => "#27803a",
        Side::Pipe => "#a06a00",
        Side::Ring => "#555",
        Side::Shunt => "#1f5fbf",
    }
}

fn curve(svg: &mut String, side: Side, points: &[(f64, f64)]) {
    let colour = colour(side);
    let style = match side {
        Side::Ring => "stroke-width=\"1.5\" stroke-dasharray=\"4 3\"",
        Side::Shunt => "stroke-width=\"2.5\"",
        _ => "stroke-width=\"1.5\"",
    };
    let line: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {style}/>",
        line.join(" ")
    );
    for (x, y) in points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>"
        );
    }
}
