//! The dashboard for Grafana: what its schema asks for, as far as the file uses it, and no metric that there is not.
//! (Grafana's documentation, "JSON model"; its panels lie on a grid of 24 columns.)

use std::collections::HashSet;

use serde::Deserialize;

use super::tests::example;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Dashboard {
    title: String,
    uid: String,
    schema_version: u32,
    #[serde(rename = "version")]
    _version: u32,
    #[serde(rename = "editable")]
    _editable: bool,
    refresh: String,
    time: Time,
    #[serde(rename = "tags")]
    _tags: Vec<String>,
    templating: Templating,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Time {
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    r#type: VariableType,
    query: String,
    #[serde(rename = "label")]
    _label: String,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum VariableType {
    Datasource,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Panel {
    id: u32,
    title: String,
    #[serde(rename = "type")]
    _type: PanelType,
    datasource: Datasource,
    grid_pos: GridPos,
    #[serde(rename = "fieldConfig")]
    _field_config: FieldConfig,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PanelType {
    Stat,
    Timeseries,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Datasource {
    r#type: String,
    uid: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GridPos {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldConfig {
    #[serde(rename = "defaults")]
    _defaults: Defaults,
    #[serde(rename = "overrides")]
    _overrides: [(); 0],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Defaults {
    #[serde(rename = "unit")]
    _unit: Unit,
    #[serde(default, rename = "min")]
    _min: Option<f64>,
}

/// Units that Grafana knows, as far as they are used.
#[derive(Deserialize)]
enum Unit {
    #[serde(rename = "short")]
    Short,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "Bps")]
    BytesPerSecond,
    #[serde(rename = "ops")]
    OperationsPerSecond,
    #[serde(rename = "percentunit")]
    Part,
    #[serde(rename = "bool_yes_no")]
    YesOrNo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    ref_id: String,
    expr: String,
    #[serde(default, rename = "legendFormat")]
    _legend_format: String,
}

fn dashboard() -> Dashboard {
    let file = "../../packaging/grafana-dashboard.json";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_dashboard_is_what_its_schema_asks_for() {
    let dashboard = dashboard();
    assert!(!dashboard.title.is_empty() && !dashboard.uid.is_empty());
    assert!(dashboard.uid.len() <= 40, "Grafana's limit");
    assert!(dashboard.schema_version >= 30);
    assert!(dashboard.refresh.ends_with('s'));
    assert_eq!(
        (dashboard.time.from.starts_with("now-"), &*dashboard.time.to),
        (true, "now")
    );
    let [source] = &dashboard.templating.list[..] else {
        panic!("one variable names the source");
    };
    assert!(source.r#type == VariableType::Datasource && source.query == "prometheus");
    let (mut ids, mut cells) = (HashSet::new(), HashSet::new());
    for panel in &dashboard.panels {
        let name = &panel.title;
        assert!(ids.insert(panel.id), "two panels are number {}", panel.id);
        assert_eq!(panel.datasource.r#type, "prometheus", "{name}");
        assert_eq!(
            panel.datasource.uid,
            format!("${{{}}}", source.name),
            "{name}"
        );
        let GridPos { x, y, w, h } = panel.grid_pos;
        assert!(w > 0 && h > 0 && x + w <= 24, "{name}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{name} covers another panel");
        }
        let names: HashSet<_> = panel.targets.iter().map(|target| &target.ref_id).collect();
        assert!(
            !names.is_empty() && names.len() == panel.targets.len(),
            "{name}"
        );
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let (dashboard, example) = (dashboard(), example());
    let mut asked = Vec::new();
    for target in dashboard.panels.iter().flat_map(|panel| &panel.targets) {
        let letter = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = target.expr.split(|c| !letter(c));
        asked.extend(words.filter(|word| word.starts_with("shunt_")));
    }
    for name in &asked {
        let there = format!("# TYPE {name} gauge\n");
        assert!(example.contains(&there), "there is no metric {name}");
    }
    let types = example
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    for name in types.filter_map(|line| line.split_whitespace().next()) {
        assert!(asked.contains(&name), "no panel shows {name}");
    }
}
