//! One page with tables and plots that needs nothing else.

use std::fmt::Write;

use anyhow::Result;

use super::goal::Goal;
use super::plot::plot;
use super::table::{number, shares};
use super::{Figure, Results, Table, TableRow};
use crate::side::Side;

const STYLE: &str = "
body { font: 15px/1.4 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
td, th { padding: .15em .7em; text-align: right; border-bottom: 1px solid #ddd; }
td:nth-child(-n+3), th:nth-child(-n+3) { text-align: left; }
tr.shunt { font-weight: 600; background: #eef6ff; }
.plots { display: flex; flex-wrap: wrap; gap: 1em; }
svg text { font: 11px system-ui, sans-serif; }
.bad { color: #b00; }
";

/// The page.
pub(crate) fn page(results: &Results) -> Result<String> {
    let host = &results.host;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Shunt bench</title>\n\
         <style>{STYLE}</style>\n<h1>Shunt {} beside the kernel</h1>\n\
         <p>{}, {} cores, Linux {}, {}. Medians of {} rounds in which the \
         sides took turns. <b>× tcp</b>: times better than TCP (or whatever is first) in the \
         same place; <b>× best tcp</b>: than TCP in its best place. <b>cpu</b>: seconds of processor time per \
         million, of client and server: speed bought by spinning shows there. <b>ring</b> is \
         Shunt's ring without sockets and without sleeping: the floor.</p>\n",
        host.version,
        escape(&host.processor),
        host.cores,
        escape(&host.kernel),
        escape(&host.beside()),
        results.rounds
    );
    goals(&mut page, &results.goals);
    for table in &results.tables {
        section(&mut page, table)?;
    }
    if !results.failures.is_empty() {
        page.push_str("<h2>Not measured</h2>\n<ul class=\"bad\">\n");
        for failure in &results.failures {
            let (what, why) = (escape(&failure.what), escape(&failure.why));
            let _ = writeln!(page, "<li>{what}: {why}</li>");
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</html>\n");
    Ok(page)
}

fn goals(page: &mut String, goals: &[Goal]) {
    page.push_str(
        "<h2>Goals</h2>\n<table>\n<tr><th>figure<th>goal<th>of<th>measured<th>holds\
         <th>cpu<th>cpu there</tr>\n",
    );
    for goal in goals {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
            goal.figure,
            escape(&goal.wanted),
            escape(&goal.of),
            goal.value()
        );
        page.push_str(match goal.holds {
            Some(true) => "<td>yes</td>",
            Some(false) => "<td class=\"bad\">no</td>",
            None => "<td></td>",
        });
        for cpu in [goal.cpu, goal.cpu_there] {
            let _ = write!(page, "<td>{}</td>", cpu.map(number).unwrap_or_default());
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn section(page: &mut String, table: &Table) -> Result<()> {
    let _ = writeln!(
        page,
        "<h2>{}</h2>\n<p>{}</p>",
        table.name,
        escape(&table.title)
    );
    if !table.axis.is_empty() {
        page.push_str("<div class=\"plots\">\n");
        let mut places: Vec<_> = table.rows.iter().map(|row| row.place).collect();
        places.sort();
        places.dedup();
        for place in places {
            page.push_str(&plot(table, place)?);
        }
        page.push_str("</div>\n");
    }
    let head = [
        "",
        "where",
        "side",
        &table.unit,
        "p1",
        "p50",
        "p99",
        "p99.9",
        "cpu client",
        "cpu server",
        &format!("× {}", table.base()),
        &format!("× best {}", table.base()),
        "by ring",
        "no syscall",
    ];
    page.push_str("<table>\n<tr>");
    for word in head {
        let _ = write!(page, "<th>{word}</th>");
    }
    page.push_str("</tr>\n");
    for row in &table.rows {
        for figure in &row.figures {
            line(page, table, row, figure);
        }
    }
    let _ = writeln!(page, "</table>\n<p>cpu per million {}.</p>", table.item);
    Ok(())
}

fn line(page: &mut String, table: &Table, row: &TableRow, figure: &Figure) {
    let median = &figure.median;
    let class = if figure.side == Side::Shunt.name() {
        " class=\"shunt\""
    } else {
        ""
    };
    let _ = write!(
        page,
        "<tr{class}><td>{}</td><td>{}</td><td>{}</td>",
        escape(&row.label),
        row.place.name(),
        figure.side
    );
    let ratio = |base: Option<f64>| base.map(|base| table.better(median.value, base));
    let times = median
        .times
        .map(|t| [t.p1, t.p50, t.p99, t.p999].map(|ns| ns / 1e3));
    let cells = std::iter::once(Some(median.value))
        .chain(times.map_or([None; 4], |times| times.map(Some)))
        .chain(median.cpu.map(Some))
        .chain([
            ratio(row.figures.first().map(|base| base.median.value)),
            ratio(table.best_base(row)),
        ]);
    for cell in cells {
        let _ = write!(page, "<td>{}</td>", cell.map(number).unwrap_or_default());
    }
    let [ring, free] = shares(figure);
    let _ = writeln!(page, "<td>{ring}</td><td>{free}</td></tr>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
