//! What is measured.

mod exchange;
mod filter;
mod pair;
mod process;
mod request;
mod sharing;
mod traffic;
mod turns;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::carried::Carried;
use crate::cores::{Place, Places};
use crate::side::{Lab, Side};
use crate::worker::Times;

/// One table of the report.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Of the values in it.
    pub(crate) unit: &'static str,
    /// Whether less is better.
    pub(crate) lower: bool,
    /// What the rows differ in.
    pub(crate) axis: &'static str,
    /// A million of what the processor time is for.
    pub(crate) item: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// Sides that are measured in turn.
pub(crate) struct Row {
    pub(crate) label: String,
    /// Where it lies on the axis.
    pub(crate) x: f64,
    pub(crate) place: Place,
    pub(crate) entries: Vec<Entry>,
}

/// One measurement of a row: of one side, or of several that take turns within it.
pub(crate) struct Entry {
    pub(crate) sides: Vec<&'static str>,
    pub(crate) measure: Measure,
}

/// Takes one sample of each side.
pub(crate) type Measure = Box<dyn Fn(&Lab) -> Result<Vec<Sample>>>;

impl Entry {
    /// Of one side.
    fn of(side: Side, measure: impl Fn(&Lab) -> Result<Sample> + 'static) -> Self {
        Self {
            sides: vec![side.name()],
            measure: Box::new(move |lab| Ok(vec![measure(lab)?])),
        }
    }
}

/// What one measurement of one side gave.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Sample {
    /// In the table's unit.
    pub(crate) value: f64,
    /// Nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times: Option<Times>,
    /// Seconds of processor time per million items, of client and server; zeros where
    /// there are none.
    pub(crate) cpu: [f64; 2],
    /// By which way bytes went, under Shunt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) carried: Option<Carried>,
}

/// All that can be measured here.
pub(crate) fn all(quick: bool, places: &Places) -> Vec<Scenario> {
    let mut all = traffic::all(quick, places);
    all.extend(exchange::all(quick, places));
    all.push(filter::scenario(quick, places));
    all.push(process::scenario(quick, places));
    all.push(sharing::scenario(quick, places));
    all.extend(request::all(quick, places));
    all
}
