//! A plot of one table in one place, both axes logarithmic.

use std::ops::Range;

use anyhow::Result;
use plotters::prelude::*;

use super::table::number;
use super::{Table, TableRow};
use crate::cores::Place;
use crate::side::Side;

const WIDTH: u32 = 560;
const HEIGHT: u32 = 300;
/// Room for the labels of each axis.
const LEFT: u32 = 56;
const BELOW: u32 = 28;
/// How wide a label below is.
const LABEL: f64 = 44.0;
const FONT: (&str, u32) = ("sans-serif", 14);

/// The plot, as SVG.
pub(super) fn plot(table: &Table, place: Place) -> Result<String> {
    let rows: Vec<_> = table.rows.iter().filter(|row| row.place == place).collect();
    let values = rows.iter().flat_map(|row| &row.figures);
    let x = range(rows.iter().map(|row| row.x));
    let y = range(values.map(|figure| figure.median.value));
    let marks = marks(&rows, &x);
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
    let title = format!("{}, {} by {}", place.name(), table.unit, table.axis);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, FONT)
        .margin_right(16)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .set_label_area_size(LabelAreaPosition::Bottom, BELOW)
        .build_cartesian_2d(x.log_scale().with_key_points(marks), y.log_scale())?;
    let label = |x: &f64| {
        let row = rows.iter().find(|row| row.x == *x);
        let unit = format!(" {}", table.axis);
        row.map_or_else(String::new, |row| row.label.trim_end_matches(&unit).into())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| number(*value))
        .draw()?;
    for side in [Side::Tcp, Side::Unix, Side::Pipe, Side::Ring, Side::Shunt] {
        let points: Vec<_> = rows
            .iter()
            .filter_map(|row| Some((row.x, row.of(side.name())?.median.value)))
            .collect();
        if points.is_empty() {
            continue;
        }
        let style = style(side);
        chart
            .draw_series(LineSeries::new(points, style).point_size(2))?
            .label(side.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    // Where no curve is: times grow with what lies to the right, rates fall.
    chart
        .configure_series_labels()
        .position(if table.lower {
            SeriesLabelPosition::UpperLeft
        } else {
            SeriesLabelPosition::LowerLeft
        })
        .background_style(WHITE.mix(0.8))
        .draw()?;
    drop(chart);
    area.present()?;
    drop(area);
    Ok(svg)
}

/// What an axis shows: all values above zero, and something around them.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let all = values.filter(|&value| value > 0.0);
    let (low, high) = all.fold((f64::INFINITY, 0.0), |(low, high), value| {
        (value.min(low), value.max(high))
    });
    low * 0.8..high * 1.25
}

/// Rows that have a label below the axis, none over another.
fn marks(rows: &[&TableRow], shown: &Range<f64>) -> Vec<f64> {
    let width = f64::from(WIDTH - LEFT);
    let at = |x: f64| (x / shown.start).ln() / (shown.end / shown.start).ln() * width;
    let mut marks: Vec<f64> = Vec::new();
    for row in rows {
        if marks
            .last()
            .is_none_or(|&last| at(row.x) >= at(last) + LABEL)
        {
            marks.push(row.x);
        }
    }
    marks
}

fn style(side: Side) -> ShapeStyle {
    let (colour, width) = match side {
        Side::Tcp => (RGBColor(0xc0, 0x39, 0x2b), 1),
        Side::Unix => (RGBColor(0x27, 0x80, 0x3a), 1),
        Side::Pipe => (RGBColor(0xa0, 0x6a, 0x00), 1),
        Side::Ring => (RGBColor(0x88, 0x88, 0x88), 1),
        Side::Shunt => (RGBColor(0x1f, 0x5f, 0xbf), 3),
    };
    colour.stroke_width(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Figure;
    use crate::scenario::Sample;

    fn row(size: f64, value: f64) -> TableRow {
        let sample = Sample {
            value,
            times: None,
            cpu: [0.0; 2],
            carried: None,
        };
        let figures = ["tcp", "shunt"].map(|side| Figure::of(side, vec![sample.clone()]).unwrap());
        TableRow {
            label: format!("{size} message bytes"),
            x: size,
            place: Place::Two,
            figures: figures.into(),
        }
    }

    #[test]
    fn a_plot_has_its_sides_its_values_and_labels_that_can_be_read() {
        let table = Table {
            name: "latency".into(),
            title: String::new(),
            unit: "µs".into(),
            lower: true,
            axis: "message bytes".into(),
            item: "messages".into(),
            rows: vec![row(8.0, 2.0), row(9.0, 3.0), row(1024.0, 50.0)],
        };
        let svg = plot(&table, Place::Two).unwrap();
        let texts: Vec<_> = svg.lines().filter(|line| !line.contains('<')).collect();
        for text in ["8", "1024", "10.0", "tcp", "shunt"] {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
        // It would lie over the one before.
        assert!(!texts.contains(&"9"), "{texts:?}");
        assert!(!texts.contains(&"unix"), "{texts:?}");
        // A curve, and what tells whose it is.
        let lines = |colour: &str| {
            let of_side = format!("stroke=\"#{colour}\"");
            let lines = svg.lines().filter(|line| line.starts_with("<polyline"));
            lines.filter(|line| line.contains(&of_side)).count()
        };
        assert_eq!(
            ["C0392B", "1F5FBF", "27803A"].map(lines),
            [2, 2, 0],
            "{svg}"
        );
    }
}
